"""Measure the emulated routes' fingerprints, committed as goldens.

`python -m harness fingerprints [--check]`

Guarantees: written by this command alone, from a survey made for it. A fingerprint holds for each trait the number of
answers and their source. `--check` measures anew, writes nothing, and is exit 1 where a proven value changed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from harness.emulator.survey import SurveyError, questions, survey
from harness.emulator.traits import measured
from harness.live.fingerprint_diff import lines_of
from harness.views.roundtrip import trips
from pipeline.base.paths import ROOT
from pipeline.base.screen import say, show, show_text
from pipeline.formats.registry import open_format
from pipeline.proof.fingerprint import Fingerprint, committed_fingerprints, file_name

FOLDER = ROOT / "goldens" / "fingerprints"
EACH = 250
RESEGMENT = 0.3
SEED = 40_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 1 where a proven value changed, 2 without answers."""
    parser = argparse.ArgumentParser(prog="python -m harness fingerprints", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--each", type=int, default=EACH, metavar="N", help=f"answers a way to ask (default {EACH})")
    parser.add_argument("--check", action="store_true", help="compare with the committed ones and write nothing")
    options = parser.parse_args(arguments)
    try:
        found = measure(options.each)
    except SurveyError as error:
        say(f"error: {error}")
        return 2
    return check(found) if options.check else write(found)


def measure(each: int) -> list[Fingerprint]:
    """Survey every plain way to ask and measure its traits.

    `count_native` needs answers that are not canonical.
    """
    fmt = open_format("tiny-kimi")
    plain = [trip for trip in trips() if not trip.ids and not trip.logprobs]
    asked = list(questions(plain, each, seed=SEED, cut_every=4))
    return measured(survey(asked, fmt, resegment=RESEGMENT), fmt)


def write(found: Sequence[Fingerprint]) -> int:
    """Write one file a fingerprint."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    recorded_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for fingerprint in found:
        text = "".join(lines_of(fingerprint, recorded_at))
        (FOLDER / file_name(fingerprint)).write_text(text, encoding="utf-8", newline="\n")
        show_text(table(fingerprint))
    return 0


def check(found: Sequence[Fingerprint], folder: Path = ROOT) -> int:
    """Print each proven value that is not the committed one."""
    committed = {(one.provider, one.model, one.stream): one for one in committed_fingerprints(folder)}
    moved = 0
    for fingerprint in found:
        before = committed.get((fingerprint.provider, fingerprint.model, fingerprint.stream))
        for name, trait in fingerprint.traits.items():
            old = before.traits.get(name) if before else None
            if trait.proven and name != "same_count_mismatch" and (old is None or old.value != trait.value):
                moved += 1
                was = old.value if old else "absent"
                show(f"{fingerprint.provider} stream={fingerprint.stream} {name}: {was} -> {trait.value}")
    show(f"{len(found)} fingerprints, {moved} traits moved")
    return 1 if moved else 0


def table(fingerprint: Fingerprint) -> str:
    """Return the traits as lines."""
    head = f"{fingerprint.provider} {fingerprint.model} {'stream' if fingerprint.stream else 'json'}\n"
    rows = (
        f"  {name:26} {json.dumps(trait.value):50} n={trait.n:<5} {'proven' if trait.proven else 'not proven'}\n"
        for name, trait in sorted(fingerprint.traits.items())
    )
    return head + "".join(rows)
