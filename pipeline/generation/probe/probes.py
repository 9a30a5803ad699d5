"""The committed probes: prompts with known answers.

A probe's permit sends no others. Guarantees: what is read is one file of the tree, named by its sha256; a line that is
no probe refuses the whole file. A probe says what is known of its answer: the whole text, texts within it, the tools it
calls, or that it is cut.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.base.json_lines import strict_object
from pipeline.base.prompts import prompt_of
from pipeline.gate.gate import PROBES
from pipeline.generation.plan import Plan
from pipeline.records import Completion, Json, JsonObject, Prompt, RefusedError, ToolMode

DATASET = "probe"
_OWN = frozenset({"tool_mode", "max_tokens", "temperature", "known", "few"})
_SHOWN = 60


class ProbesError(Exception):
    """The probes cannot be read, or a line is none."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of an answer.

    What is left out is not compared.
    """

    content: str | None = None
    contains: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    cut: bool = False

    def differs(self, completion: Completion) -> str:
        """Return how an answer differs, in words; empty if not."""
        content = completion.content or ""
        said = content + "".join(call.name for call in completion.tool_calls)
        if self.cut != (completion.finish_reason == "length"):
            return f"finish_reason is {completion.finish_reason}"
        if self.content is not None and content != self.content:
            known, pairs = self.content, zip(self.content, content, strict=False)
            at = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(known), len(content)))
            return f"character {at} is {content[at : at + 8]!r} where {known[at : at + 8]!r} was asked for"
        lacking = [text for text in (*self.contains, *self.calls) if text not in said]
        return f"{lacking[0]!r} is not in it" if lacking else ""


@dataclass(frozen=True, slots=True)
class Probe:
    """One prompt, its settings, and its known answer.

    `few`: one of the handful that show drift.
    """

    prompt: Prompt
    known: Known
    tool_mode: ToolMode = ToolMode.NONE
    max_tokens: int = 256
    temperature: float = 0.0
    few: bool = False

    @property
    def id(self) -> str:
        return self.prompt.id


@dataclass(frozen=True, slots=True)
class Probes:
    """The file: its sha256, and every probe in order."""

    sha256: str
    probes: tuple[Probe, ...]

    def chosen(self, *, few: bool, only: tuple[str, ...] = ()) -> tuple[Probe, ...]:
        """Return the probes that the user chooses.

        Those of the handful, and those whose id holds one of the words. Raises ProbesError where none is left.
        """
        found = [probe for probe in self.probes if probe.few or not few]
        found = [probe for probe in found if not only or any(word in probe.id for word in only)]
        if not found:
            names = ", ".join(probe.id for probe in self.probes)
            raise ProbesError(f"no probe's id holds {' or '.join(map(repr, only))}; they are {names}")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """What is probed, and how often.

    `plan` has the route, the format, the folder and the budget; `sha256` is that of the file of probes.
    """

    plan: Plan
    sha256: str
    chosen: tuple[Probe, ...]
    repeats: int

    def settings(self, provider: str) -> dict[str, Json]:
        """Return what a folder is begun with.

        `provider` is the display name that answers carry.
        """
        return {
            "kind": DATASET,
            "route": self.plan.route.name,
            "model": self.plan.route.model,
            "provider": provider,
            "format": self.plan.fmt.name,
            "tokenizer_sha256": self.plan.fmt.tokenizer.sha256,
            "probes_sha256": self.sha256,
            "probes": [probe.id for probe in self.chosen],
            "repeats": self.repeats,
        }


def read_probes(path: Path) -> Probes:
    """Read every probe of the file. Raises ProbesError."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        message = f"{path}: no probes can be read there ({error.strerror}). Run: git checkout {PROBES}"
        raise ProbesError(message) from error
    probes = []
    for number, line in enumerate(raw.split(b"\n"), 1):
        if not line:
            continue
        try:
            probes.append(_probe(strict_object(line)))
        except RefusedError as error:
            raise ProbesError(f"{path}, line {number}: {error.refusal.detail}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ProbesError(f"{path}, line {number}: no probe ({error!r})") from error
    if len({probe.id for probe in probes}) != len(probes) or not probes:
        raise ProbesError(f"{path}: no probe, or an id that stands twice")
    return Probes(hashlib.sha256(raw).hexdigest(), tuple(probes))


def _probe(line: JsonObject) -> Probe:
    prompt = prompt_of({key: value for key, value in line.items() if key not in _OWN})
    return Probe(
        prompt=replace(prompt, dataset=DATASET),
        known=_known(line["known"]),
        tool_mode=ToolMode(str(line["tool_mode"])),
        max_tokens=int(str(line["max_tokens"])),
        temperature=float(str(line["temperature"])),
        few=line.get("few", False) is True,
    )


def _known(value: Json) -> Known:
    if not isinstance(value, dict) or not value or value.keys() - {"content", "contains", "calls", "cut"}:
        raise ValueError(f"known is {json.dumps(value)[:_SHOWN]}")
    content = value.get("content")
    return Known(
        content=None if content is None else str(content),
        contains=_texts(value.get("contains")),
        calls=_texts(value.get("calls")),
        cut=value.get("cut") is True,
    )


def _texts(value: Json) -> tuple[str, ...]:
    return tuple(str(text) for text in value) if isinstance(value, list) else ()
