"""Judge named and drawn mutants by the contract suite.

`python -m harness teeth`

Prints a line a mutant and the shares by package. Exit 1 where fewer are judged or killed than the gate asks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from harness.measures.teeth import table
from harness.measures.teeth.drift import judge_fixes
from harness.measures.teeth.mutants import Mutant, MutantError, drawn_mutants, named_mutants
from harness.measures.teeth.runner import SUITE, Runner, copied, measured
from harness.measures.teeth.table import Outcome
from pipeline.base.paths import ROOT, state_dir
from pipeline.base.screen import say, show
from pipeline.gate.digests import dir_hash1
from pipeline.gate.kills import mutated_files, weaknesses


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge, print, and write where that is asked for."""
    options = _parsed(arguments)
    if options.reverted:
        show(*(f"{fate}: {count}" for fate, count in judge_fixes(options.reverted, options.workers).most_common()))
        return 0
    try:
        judged, kept, files = _judged(options)
    except MutantError as error:
        say(f"error: {error}")
        return 2
    for name, outcomes in (("named", judged), ("drawn", kept)):
        for package, (killed, of) in table.sums(outcomes).items():
            show(f"{name} {package}: {killed} of {of} killed")
    if options.write:
        table.write(judged, kept, files)
    weak = list(weaknesses({"named": table.share(judged), "drawn": table.share(kept)}))
    show(*(f"weak: {what}" for what in weak))
    return 1 if weak else 0


def _judged(options: argparse.Namespace) -> tuple[list[Outcome], list[Outcome], dict[str, str]]:
    """Judge the named and the drawn mutants. Raises MutantError.

    Of copies, with the digests of their files: the tree itself may change meanwhile.
    """
    with tempfile.TemporaryDirectory() as folder:
        copies = [copied(ROOT, Path(folder) / str(number)) for number in range(options.workers)]
        files, start = mutated_files(copies[0]), time.monotonic()
        named = [one for one in named_mutants(copies[0]) if options.only in f"{one.file} {one.promise}"]
        drawn = drawn_mutants(options.drawn, options.seed, copies[0]) if options.drawn else []
        runner = Runner(measured(copies[0]), copies)
        show(f"{len(runner.reach.seconds)} tests, their reach measured in {time.monotonic() - start:.0f} s")
        return list(_judge(runner, named)), list(_resumed(runner, drawn, files, options.seconds)), files


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness teeth", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--drawn", type=int, default=0, metavar="N", help="also judge N drawn mutants (default none)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no drawn one after so many seconds")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="copies of the tree (default 2)")
    parser.add_argument("--only", default="", metavar="TEXT", help="named ones whose file or promise holds this")
    parser.add_argument("--reverted", type=int, default=0, metavar="N", help="only take back each of the last N fixes")
    parser.add_argument("--write", action="store_true", help="write the kill table and the page of promises")
    options = parser.parse_args(arguments)
    if options.write and options.only:
        parser.error("--only judges a part, and --write needs the whole")
    return options


def _judge(runner: Runner, mutants: Iterable[Mutant]) -> Iterator[Outcome]:
    for verdict in runner.judge(mutants):
        mutant = verdict.mutant
        fate = f"killed by {verdict.killer}" if verdict.killer else f"SURVIVED {verdict.tests} tests"
        show(f"{verdict.seconds:5.1f} s {mutant.file}:{mutant.line} {mutant.promise or mutant.name}: {fate}")
        yield Outcome(mutant, verdict.killer)


def _resumed(
    runner: Runner, mutants: Sequence[Mutant], digests: Mapping[str, str], seconds: float
) -> Iterator[Outcome]:
    """Judge drawn mutants, but those in the state file.

    A survivor is judged again where the suite has changed, a killed one where its killer is gone. Once the time is up,
    earlier survivors stay what they were, and the others are left out.
    """
    path = state_dir() / "teeth.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = map(json.loads, path.read_text("utf-8").splitlines() if path.exists() else ())
    judged = {(line["name"], line["sha256"]): line for line in lines}
    suite, tests = dir_hash1(runner.copies[0] / SUITE), runner.reach.seconds.keys()
    until, left = time.monotonic() + seconds, list[tuple[Mutant, bool]]()
    for mutant in mutants:
        line = judged.get((mutant.name, digests[mutant.file]))
        if line is not None and (line["killer"] in tests or line["suite"] == suite):
            yield Outcome(mutant, line["killer"])
        else:
            left.append((mutant, line is not None))
    with path.open("a", encoding="utf-8") as file:
        while left and time.monotonic() < until:
            some, left = left[: 2 * len(runner.copies)], left[2 * len(runner.copies) :]
            for outcome in _judge(runner, [mutant for mutant, _ in some]):
                name, killer = outcome.mutant.name, outcome.killer
                line = {"name": name, "sha256": digests[outcome.mutant.file], "killer": killer, "suite": suite}
                file.write(json.dumps(line) + "\n")
                file.flush()
                yield outcome
    yield from (Outcome(mutant, None) for mutant, was_judged in left if was_judged)


if __name__ == "__main__":
    sys.exit(main())
