"""Print what round trips of every family gave back.

`python -m harness families`

Guarantees: every family in the registry has its line, a family without its vocabulary too. Answers are drawn from a
seed, the same ones each time, and judged by the ids of which they were made: over a lossless view they must come back
exactly, over a lossy one be refused, and whatever else a model may emit must never come back as other ids. Exit 1 where
any of that failed. A wrong `counted` row that is the stated risk is counted apart and is no failure.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing import get_context
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from harness.strategies import properties
from harness.strategies.completions import quick_texts
from harness.strategies.suite import LOSSY, answers, lossless
from harness.views.roundtrip import RoundTrip, trips
from pipeline.base.screen import say, show_text
from pipeline.formats.format import Format, Parts
from pipeline.formats.registry import FORMATS, FormatError, find_tokenizer, open_format
from pipeline.formats.tokenizer import TokenizerError
from pipeline.records import Ids, TokenRow

DRAWS = 10_000
SEED = 1
SHOWN = 5
"""Faults of a family that are printed whole; all are counted."""
COLUMNS = (
    *("lossless", "lossless_equal", "lossless_repeats", "lossy", "lossy_refused"),
    *("hostile", "hostile_right", "hostile_refused", "hostile_risk", "wrong"),
)
"""What is counted: draws of three kinds, what became of each, and rows accepted that should not have been."""

_Drawn = TypeVar("_Drawn")


@dataclass(slots=True)
class FamilyTally:
    """What became of one family's draws, and why.

    Counted by the names in `COLUMNS`; `lossy` and `hostile` are reasons of refusal. `lossless_repeats` are streams
    whose equal deltas may have been sent twice: refused though nothing was lost. `broken` counts every promise that was
    not kept, a wrong row or a needless refusal; `faults` holds the first ones.
    """

    family: str
    asked: int
    counts: Counter[str] = field(default_factory=Counter)
    lossy: Counter[str] = field(default_factory=Counter)
    hostile: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether a promise was broken, or too few answers drawn."""
        return bool(self.counts["broken"]) or any(self.counts[name] < self.asked for name in ("lossless", "hostile"))

    def keep(self, promise: Callable[[], None]) -> None:
        """Count a promise that is not kept."""
        try:
            promise()
        except properties.PropertyError as error:
            self.counts["wrong"] += error.accepted
            self.note(str(error))

    def note(self, fault: str) -> None:
        """Count one broken promise."""
        self.counts["broken"] += 1
        if len(self.faults) < SHOWN:
            self.faults.append(fault)


def measure(name: str, draws: int, seed: int = SEED) -> FamilyTally:
    """Draw answers of one family and tally them.

    `draws` answers in the layout, and as many that need not be. Each answer in the layout goes by a lossless view and
    by a lossy one, each other one by any way to ask. A crash ends the family's draws and counts as a broken promise,
    since minutes of other families' draws may stand beside it. Raises TokenizerError without the vocabulary.
    """
    began = time.monotonic()
    fmt, tally = open_format(name), FamilyTally(name, draws)
    try:
        text, plain = quick_texts(), quick_texts(plain=True)
        views, ways = cycle(LOSSY), cycle(trips())
        _each(lossless(fmt, text, plain), draws, seed, lambda pair: _whole(tally, fmt, pair, next(views)))
        _each(answers(fmt, text), draws, seed, lambda answer: _hostile(tally, fmt, answer, next(ways)))
    except Exception as error:  # noqa: BLE001 — whatever it is, a round trip must not raise it
        tally.note(f"crashed: {error!r}")
    tally.seconds = time.monotonic() - began
    return tally


def _each(drawn: st.SearchStrategy[_Drawn], draws: int, seed: int, check: Callable[[_Drawn], None]) -> None:
    """Call `check` on `draws` drawn values."""

    @seeded(seed)
    @settings(
        max_examples=draws,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn)
    def run(value: _Drawn) -> None:
        check(value)

    run()


def _whole(tally: FamilyTally, fmt: Format, pair: tuple[RoundTrip, Parts], lossy: RoundTrip) -> None:
    trip, parts = pair

    def comes_back() -> None:
        row = properties.require_exact(fmt, parts, trip)
        tally.counts[f"lossless_{'equal' if isinstance(row, TokenRow) else 'repeats'}"] += 1

    def is_refused() -> None:
        tally.lossy[str(properties.require_refused(fmt, parts, lossy))] += 1
        tally.counts["lossy_refused"] += 1

    tally.counts.update(("lossless", "lossy"))
    tally.keep(lambda: properties.require_inverse(fmt, parts))
    tally.keep(comes_back)
    tally.keep(is_refused)


def _hostile(tally: FamilyTally, fmt: Format, answer: tuple[Ids, bool], trip: RoundTrip) -> None:
    ids, thinking = answer

    def is_never_wrong() -> None:
        row = properties.require_never_wrong(fmt, ids, trip, thinking=thinking)
        if isinstance(row, TokenRow):
            tally.counts[f"hostile_{'right' if row.output_ids == ids else 'risk'}"] += 1
        else:
            tally.hostile[str(row.reason)] += 1
            tally.counts["hostile_refused"] += 1

    def inverts() -> None:
        properties.require_inverse_or_refusal(fmt, ids, thinking=thinking)

    tally.counts["hostile"] += 1
    tally.keep(inverts)
    tally.keep(is_never_wrong)


def measured(names: Sequence[str], draws: int, seed: int, workers: int) -> Iterator[FamilyTally]:
    """Yield the families' tallies in order.

    Several workers are processes with a family at a time.
    """
    if workers == 1 or len(names) == 1:
        yield from (measure(name, draws, seed) for name in names)
        return
    with ProcessPoolExecutor(min(workers, len(names)), mp_context=get_context("spawn")) as pool:
        yield from pool.map(measure, names, [draws] * len(names), [seed] * len(names))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 1 for a broken promise, 2 without its vocabulary.

    2 only for a family that was named.
    """
    parser = argparse.ArgumentParser(prog="python -m harness families", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--draws", type=_number, default=DRAWS, metavar="N", help=f"of each kind (default {DRAWS})")
    parser.add_argument("--family", action="append", metavar="NAME", help="only this one; may be given again")
    parser.add_argument("--seed", type=int, default=SEED, help="another seed draws other answers")
    parser.add_argument("--workers", type=_number, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        found, absent = _chosen(options.family)
        tallies = []
        for tally in measured(found, options.draws, options.seed, options.workers):  # all of them take minutes
            say(f"{tally.family}: {tally.seconds:.0f} s, {tally.counts['broken']} promises broken")
            tallies.append(tally)
    except (FormatError, TokenizerError) as error:
        say(f"error: {error}")
        return 2
    show_text(json.dumps(as_json(tallies, absent)) if options.json else table(tallies, absent))
    return int(any(tally.failed for tally in tallies))


def _number(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def _chosen(named: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return the families to measure, and the absent ones.

    A family that was named must be there.
    """
    if named:
        for name in named:
            open_format(name)
        return list(named), []
    found = [name for name in sorted(FORMATS) if find_tokenizer(name) is not None]
    return found, sorted(FORMATS.keys() - set(found))


def as_json(tallies: Sequence[FamilyTally], absent: Sequence[str]) -> dict[str, object]:
    """Return the table and everything behind it."""
    families = {
        tally.family: {
            **{name: tally.counts[name] for name in (*COLUMNS, "broken")},
            "lossy_refused_as": dict(sorted(tally.lossy.items())),
            "hostile_refused_as": dict(sorted(tally.hostile.items())),
            "faults": tally.faults,
            "seconds": round(tally.seconds, 1),
        }
        for tally in tallies
    }
    return {"families": families, "absent": list(absent)}


def table(tallies: Sequence[FamilyTally], absent: Sequence[str]) -> str:
    """Return draws and outcomes of each kind, by family."""
    width = max(map(len, ["family", *absent, *(tally.family for tally in tallies)]))
    lines = [f"{'family':{width}} " + " ".join(f"{name.rpartition('_')[2]:>9}" for name in COLUMNS)]
    lines += [
        f"{tally.family:{width}} " + " ".join(f"{tally.counts[name]:9,}" for name in COLUMNS) for tally in tallies
    ]
    lines += [f"{name:{width}} {'absent':>9}: no vocabulary in $DRAFTER_GATE_TOKENIZERS" for name in absent]
    lossy, hostile = (sum((part(tally) for tally in tallies), Counter[str]()) for part in _REASONS)
    lines += [f"lossy views were refused as {_listed(lossy)}", f"hostile answers were refused as {_listed(hostile)}"]
    for tally in tallies:
        lines += [f"{tally.family}: {tally.counts['broken']} promises broken"] if tally.counts["broken"] else []
        lines += [f"  {fault}" for fault in tally.faults]
    return "\n".join(lines) + "\n"


_REASONS: tuple[Callable[[FamilyTally], Counter[str]], ...] = (lambda tally: tally.lossy, lambda tally: tally.hostile)


def _listed(reasons: Counter[str]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common()) or "nothing"
