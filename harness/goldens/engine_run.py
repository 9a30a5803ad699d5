"""`python -m harness engines goldens ENGINE --python PYTHON`: the golden set of an engine, recorded or checked.

Guarantees: the tiny target's 256 prompts, greedily. `--check` compares and writes nothing; without it a set whose key
and ids are the same is left as it is. Either way a line says how the answers stand beside each other set that is
there. Exit 1 where they changed, 2 where the engine failed. `local` is transformers in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from harness.engines.__main__ import add_engine, start_of
from harness.engines.agreement import MOST, PROMPTS, asks, by_engine, by_transformers, key_of
from harness.engines.launch import running
from harness.engines.settings import Start
from harness.goldens.engine_sets import Compared, GoldenSet, GoldenSetError, Verdict, compare, read, write
from pipeline.base.paths import ROOT
from pipeline.generation.engines.output import EngineError
from pipeline.generation.engines.server import Ask

FOLDER: Final = ROOT / "goldens" / "engines"
WEIGHTS: Final = ROOT / "harness" / "tiny_target" / "weights"
LOCAL, ROWS = "local", 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Record or check."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m harness engines goldens", description=str(__doc__).split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the sets lie")
    options, rest = parser.parse_known_args(given)
    start = None if rest[:1] == [LOCAL] else _start(rest)
    try:
        golden = local_set(asks(PROMPTS, MOST)) if start is None else engine_set(start, asks(PROMPTS, MOST))
        stem = "transformers-cpu" if start is None else f"{start.name}-{start.device}"
        return settled(golden, options.folder, stem, check=options.check)
    except (EngineError, GoldenSetError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _start(given: Sequence[str]) -> Start:
    parser = argparse.ArgumentParser(prog="python -m harness engines goldens")
    add_engine(parser)
    options, more = parser.parse_known_args(["--model", str(WEIGHTS), *given])
    return start_of(options, more)


def engine_set(start: Start, wanted: Sequence[Ask]) -> GoldenSet:
    """What the engine answers today. Raises EngineError."""
    with running(start) as engine:
        found = asyncio.run(by_engine(start.name, engine.url, wanted, start.rows))
        key = key_of(engine.facts.document(), start.model, start.rows, MOST)
    return GoldenSet(key, prompts_sha256(wanted), tuple(found))


def local_set(wanted: Sequence[Ask]) -> GoldenSet:
    """What transformers answers in this process."""
    facts, found = by_transformers(WEIGHTS, wanted, ROWS)
    return GoldenSet(key_of(facts, WEIGHTS, ROWS, MOST), prompts_sha256(wanted), tuple(found))


def prompts_sha256(wanted: Sequence[Ask]) -> str:
    """One digest over the prompts' ids."""
    return hashlib.sha256(json.dumps([each.prompt for each in wanted]).encode()).hexdigest()


def settled(golden: GoldenSet, folder: Path, stem: str, *, check: bool) -> int:
    """Compare, say, and write where asked; the exit status. Raises GoldenSetError, OSError."""
    path = folder / f"{stem}.jsonl"
    if check and not path.exists():
        raise GoldenSetError(f"{path.name} is not recorded. Run: nox -s goldens -- --engine {stem.partition('-')[0]}")
    was = _beside(path, golden) if path.exists() else None
    others = {other.stem: _beside(other, golden) for other in sorted(folder.glob("*.jsonl")) if other != path}
    for beside, found in [*([(f"{stem} as recorded", was)] if path.exists() else []), *others.items()]:
        sys.stdout.write("".join(f"{line}\n" for line in said(beside, found)))
    same = was is not None and not was.differences and not was.moved
    if not check and not same:
        write(path, golden)
        sys.stdout.write(f"written: {path.name}, {len(golden.answers)} answers\n")
    return 1 if check and (was is None or was.verdict is Verdict.CHANGED) else 0


def _beside(path: Path, golden: GoldenSet) -> Compared | None:
    """None for a file that cannot be compared with: it stops no other from being recorded."""
    try:
        return compare(read(path), golden)
    except GoldenSetError as error:
        sys.stderr.write(f"{path.name}: {error}\n")
        return None


def said(beside: str, found: Compared | None) -> Iterator[str]:
    """The verdict, and every first difference with its margins."""
    if found is None:
        yield f"beside {beside}: not to be compared"
        return
    stale = ", STALE: the version or the weights have moved on" if found.is_stale and "recorded" in beside else ""
    keys = f" (another {', '.join(found.moved)})" if found.moved else ""
    yield f"beside {beside}: {found.verdict.upper()}{keys}{stale}, {len(found.differences)} answers differ"
    for each in found.differences:
        margins = f"margins {each.our_margin:.4f} and {each.their_margin:.4f}"
        yield f"  prompt {each.prompt}, token {each.at}: {each.ours} was, {each.theirs} is; {margins}"


if __name__ == "__main__":
    sys.exit(main())
