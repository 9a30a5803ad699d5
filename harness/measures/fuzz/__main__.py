"""Mutate answers and dataset rows, and check the outcomes.

`python -m harness fuzz`

Guarantees: a case depends on the seed and its number alone; `--only SECTION --case N` shows it and runs it again.
`--state FILE` is written as it goes and continued. Exit 1 for an exception, an answer refused as `internal_error`, an
accepted row that its own text does not bear out, a row whose text was not kept, or memory that grows; 2 for the state
of another campaign.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.measures.fuzz.answers import seed_answers
from harness.measures.fuzz.campaign import Campaign, CampaignError, Source
from harness.measures.fuzz.rebuilds import Rebuilds
from harness.measures.fuzz.rows import MutatedRows, names
from pipeline.base.screen import say, show_text

CASES, ROWS, SEED = 1_000_000, 100_000, 1
ANSWERS = "answers"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 1 for a failure, 2 for another campaign's state."""
    parser = argparse.ArgumentParser(prog="python -m harness fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", type=int, default=CASES, metavar="N", help=f"mutated answers (default {CASES:,})")
    parser.add_argument("--rows", type=int, default=ROWS, metavar="N", help=f"of each adapter (default {ROWS:,})")
    parser.add_argument("--seed", type=int, default=SEED, help="another seed draws other cases")
    parser.add_argument("--only", action="append", metavar="SECTION", choices=[ANSWERS, *names()], help="just these")
    parser.add_argument("--state", type=Path, metavar="FILE", help="written as it goes, and continued")
    parser.add_argument("--case", type=int, metavar="N", help="show this case of --only, and run it again")
    options = parser.parse_args(arguments)
    chosen = options.only or [ANSWERS, *names()]
    if options.case is not None:
        return shown(chosen, options.seed, options.case)
    try:
        campaign = Campaign.begun(options.state, options.seed)
        for name in chosen:
            for section in campaign.run(
                name, source(name, options.seed), options.cases if name == ANSWERS else options.rows
            ):
                say(f"{name}: {section.done:,} done, {section.failed} failed")
    except (CampaignError, OSError) as error:
        say(f"error: {error}")
        return 2
    show_text(campaign.report())
    return int(campaign.failed)


def source(name: str, seed: int) -> Source:
    """Return a section's cases."""
    return Rebuilds(seed_answers(), seed) if name == ANSWERS else MutatedRows(name, seed)


def shown(chosen: Sequence[str], seed: int, number: int) -> int:
    """Show a case of each section; 1 where one fails."""
    failed = False
    for name in chosen:
        cases = source(name, seed)
        outcome, wrong = cases.case(number)
        show_text(f"{cases.told(number)}{outcome}: {wrong or 'right'}\n")
        failed = failed or bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
