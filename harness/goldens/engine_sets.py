"""Greedy answers of one engine as a golden set.

    python -m harness engines goldens ENGINE --python PYTHON [--check]

Records or checks the tiny target's 256 prompts, greedily. `local` is transformers in this process.

Guarantees: under the same key (weights, engine and version, device, dtype, attention backend, batch, sampling) only
equal ids are the same. Under another, an answer may differ where both sides' margin is `NEAR`, which is called drift. A
wide margin is a change under any key. A set that holds other prompts is an error, never compared. `--check` writes
nothing; without it a set whose key and ids are the same is left as it is. Either way a line says how the answers
compare with each other set. Exit 1 where they changed, 2 where the engine failed.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, Final

from harness.engines.__main__ import add_engine, start_of
from harness.engines.agreement import (
    MOST,
    PROMPTS,
    Difference,
    asks,
    by_engine,
    by_transformers,
    first_difference,
    key_of,
)
from harness.engines.launch import running
from harness.engines.settings import Start
from pipeline.base.files import write_whole
from pipeline.base.paths import ROOT
from pipeline.base.screen import say, show
from pipeline.generation.engines.output import EngineError, EngineOutput
from pipeline.generation.engines.server import ServerRequest
from pipeline.records import Ids, Json

FOLDER: Final = ROOT / "goldens" / "engines"
WEIGHTS: Final = ROOT / "harness" / "tiny_target" / "weights"
LOCAL, ROWS, DIGITS = "local", 8, 4


class Verdict(StrEnum):
    """How a run compares with the recorded one.

    Only `changed` fails.
    """

    SAME = "same"
    DRIFT = "drift"
    CHANGED = "changed"


class GoldenSetError(Exception):
    """No golden set, or one of other prompts."""


@dataclass(frozen=True, slots=True)
class GoldenSet:
    """Answers under one key.

    `key` is what decides the ids; `answers` are parallel to `prompts_sha256`'s prompts.
    """

    key: Mapping[str, Json]
    prompts_sha256: str
    answers: tuple[EngineOutput, ...]

    @property
    def is_of(self) -> str:
        """Return the engine and its version."""
        return f"{self.key.get('engine')} {self.key.get('version')}"


@dataclass(frozen=True, slots=True)
class Compared:
    """The verdict, differences of the keys, and first differences."""

    verdict: Verdict
    moved: tuple[str, ...]
    differences: tuple[Difference, ...]

    @property
    def is_stale(self) -> bool:
        """Return whether the engine's version or the weights changed."""
        return bool({"version", "weights_sha256"} & set(self.moved))


def compare(recorded: GoldenSet, now: GoldenSet) -> Compared:
    """Compare two sets.

    Raises GoldenSetError where the two were asked other prompts.
    """
    if (recorded.prompts_sha256, len(recorded.answers)) != (now.prompts_sha256, len(now.answers)):
        raise GoldenSetError("the recorded set holds the answers to other prompts")
    moved = tuple(sorted(name for name in {*recorded.key, *now.key} if recorded.key.get(name) != now.key.get(name)))
    pairs = enumerate(zip(recorded.answers, now.answers, strict=True))
    found = tuple(each for n, (was, is_) in pairs if (each := first_difference(n, was, is_)) is not None)
    if not found:
        return Compared(Verdict.SAME, moved, ())
    near = bool(moved) and all(each.is_near for each in found)
    return Compared(Verdict.DRIFT if near else Verdict.CHANGED, moved, found)


def write(path: Path, golden: GoldenSet) -> None:
    """Write the key, then an answer a line.

    Raises OSError.
    """
    head = {"key": dict(golden.key), "prompts_sha256": golden.prompts_sha256}
    lines = [json.dumps(head), *(json.dumps(answer_line(each)) for each in golden.answers)]
    path.parent.mkdir(parents=True, exist_ok=True)

    def write_lines(file: BinaryIO) -> None:
        file.writelines(f"{line}\n".encode() for line in lines)

    write_whole(path, write_lines)


def read(path: Path) -> GoldenSet:
    """Read a set.

    Raises GoldenSetError, OSError.
    """
    try:
        head, *lines = map(json.loads, path.read_text("utf-8").splitlines())
        return GoldenSet(dict(head["key"]), str(head["prompts_sha256"]), tuple(map(answer_of, lines)))
    except (ValueError, KeyError, TypeError) as error:
        raise GoldenSetError(f"{path}: no golden set ({type(error).__name__}: {error})") from None


def answer_line(answer: EngineOutput) -> dict[str, Json]:
    """Return one answer as the file holds it."""
    return {
        "ids": [*answer.ids],
        "logprobs": [round(each, DIGITS) for each in answer.logprobs],
        "others": [token for token, _ in answer.runner_up],
        "other_logprobs": [round(each, DIGITS) for _, each in answer.runner_up],
        "finished": answer.finished,
    }


def answer_of(line: Mapping[str, Any]) -> EngineOutput:
    """Return the answer that a line holds."""
    ids: Ids = tuple(int(each) for each in line["ids"])
    others = tuple(
        (int(token), float(each)) for token, each in zip(line["others"], line["other_logprobs"], strict=True)
    )
    return EngineOutput(ids, tuple(line["logprobs"]), others, finished=line["finished"] is True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Record or check; the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m harness engines goldens", description=str(__doc__).split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the sets lie")
    options, rest = parser.parse_known_args(given)
    start = None if rest[:1] == [LOCAL] else engine_start(rest)
    try:
        golden = local_set(asks(PROMPTS, MOST)) if start is None else engine_set(start, asks(PROMPTS, MOST))
        stem = "transformers-cpu" if start is None else f"{start.name}-{start.device}"
        return settled(golden, options.folder, stem, check=options.check)
    except (EngineError, GoldenSetError, OSError) as error:
        say(f"error: {error}")
        return 2


def engine_start(given: Sequence[str]) -> Start:
    """Parse which engine to start, on the tiny target."""
    parser = argparse.ArgumentParser(prog="python -m harness engines goldens")
    add_engine(parser)
    options, more = parser.parse_known_args(["--model", str(WEIGHTS), *given])
    return start_of(options, more)


def engine_set(start: Start, wanted: Sequence[ServerRequest]) -> GoldenSet:
    """Return what the engine answers today.

    Raises EngineError.
    """
    with running(start) as engine:
        found = asyncio.run(by_engine(start.name, engine.url, wanted, start.rows))
        key = key_of(engine.facts.document(), start.model, start.rows, MOST)
    return GoldenSet(key, prompts_sha256(wanted), tuple(found))


def local_set(wanted: Sequence[ServerRequest]) -> GoldenSet:
    """Return what transformers answers in this process."""
    facts, found = by_transformers(WEIGHTS, wanted, ROWS)
    return GoldenSet(key_of(facts, WEIGHTS, ROWS, MOST), prompts_sha256(wanted), tuple(found))


def prompts_sha256(wanted: Sequence[ServerRequest]) -> str:
    """Return one digest over the prompts' ids."""
    return hashlib.sha256(json.dumps([each.prompt for each in wanted]).encode()).hexdigest()


def settled(golden: GoldenSet, folder: Path, stem: str, *, check: bool) -> int:
    """Compare, print, and write where wanted; the exit status.

    Raises GoldenSetError, OSError.
    """
    path = folder / f"{stem}.jsonl"
    if check and not path.exists():
        raise GoldenSetError(f"{path.name} is not recorded. Run: nox -s goldens -- --engine {stem.partition('-')[0]}")
    was = _beside(path, golden) if path.exists() else None
    others = {other.stem: _beside(other, golden) for other in sorted(folder.glob("*.jsonl")) if other != path}
    for beside, found in [*([(f"{stem} as recorded", was)] if path.exists() else []), *others.items()]:
        show(*comparison_lines(beside, found))
    same = was is not None and not was.differences and not was.moved
    if not check and not same:
        write(path, golden)
        show(f"written: {path.name}, {len(golden.answers)} answers")
    return 1 if check and (was is None or was.verdict is Verdict.CHANGED) else 0


def _beside(path: Path, golden: GoldenSet) -> Compared | None:
    """Compare with the set in a file.

    None for a file that is not comparable: it stops no other from being recorded.
    """
    try:
        return compare(read(path), golden)
    except GoldenSetError as error:
        say(f"{path.name}: {error}")
        return None


def comparison_lines(beside: str, found: Compared | None) -> Iterator[str]:
    """Yield the verdict, and every first difference with its margins."""
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
