"""Greedy answers of one engine as a golden set, and what another run of them amounts to.

Guarantees: under the same key (weights, engine and version, device, dtype, attention backend, batch, sampling) only
equal ids are the same; under another, an answer may part where both sides' margin is `NEAR`, which is told as drift.
A wide margin is a change under any key. A set that holds other prompts is an error, never compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, Final

from harness.engines.answers import Difference, first_difference
from pipeline.base.files import write_whole
from pipeline.generation.engines.output import Generation
from pipeline.records import Ids, Json

DIGITS: Final = 4


class Verdict(StrEnum):
    """What a run is beside the recorded one; only `changed` fails."""

    SAME = "same"
    DRIFT = "drift"
    CHANGED = "changed"


class GoldenSetError(Exception):
    """A file that is no golden set, or one of other prompts."""


@dataclass(frozen=True, slots=True)
class GoldenSet:
    """`key` is what decides the ids; `answers` are parallel to `prompts_sha256`'s prompts."""

    key: Mapping[str, Json]
    prompts_sha256: str
    answers: tuple[Generation, ...]

    @property
    def is_of(self) -> str:
        """The engine and its version."""
        return f"{self.key.get('engine')} {self.key.get('version')}"


@dataclass(frozen=True, slots=True)
class Compared:
    """The verdict, whether the keys were equal, what in them was not, and every first difference."""

    verdict: Verdict
    moved: tuple[str, ...]
    differences: tuple[Difference, ...]

    @property
    def is_stale(self) -> bool:
        """Whether what computes has moved on since: the engine's version or the weights."""
        return bool({"version", "weights_sha256"} & set(self.moved))


def compare(recorded: GoldenSet, now: GoldenSet) -> Compared:
    """Raises GoldenSetError where the two were asked other prompts."""
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
    """One line for the key, then one an answer. Raises OSError."""
    head = {"key": dict(golden.key), "prompts_sha256": golden.prompts_sha256}
    lines = [json.dumps(head), *(json.dumps(_line(each)) for each in golden.answers)]
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(f"{line}\n" for line in lines).encode()
    write_whole(path, lambda file: _write(file, data))


def read(path: Path) -> GoldenSet:
    """Raises GoldenSetError, OSError."""
    try:
        head, *lines = map(json.loads, path.read_text("utf-8").splitlines())
        return GoldenSet(dict(head["key"]), str(head["prompts_sha256"]), tuple(map(_answer, lines)))
    except (ValueError, KeyError, TypeError) as error:
        raise GoldenSetError(f"{path}: no golden set ({type(error).__name__}: {error})") from None


def _write(file: BinaryIO, data: bytes) -> None:
    file.write(data)


def _line(answer: Generation) -> dict[str, Json]:
    return {
        "ids": [*answer.ids],
        "logprobs": [round(each, DIGITS) for each in answer.logprobs],
        "others": [token for token, _ in answer.runner_up],
        "other_logprobs": [round(each, DIGITS) for _, each in answer.runner_up],
        "finished": answer.finished,
    }


def _answer(line: Mapping[str, Any]) -> Generation:
    ids: Ids = tuple(int(each) for each in line["ids"])
    others = tuple(
        (int(token), float(each)) for token, each in zip(line["others"], line["other_logprobs"], strict=True)
    )
    return Generation(ids, tuple(line["logprobs"]), others, finished=line["finished"] is True)
