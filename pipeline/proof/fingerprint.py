"""A route's fingerprint: its traits, and whether each is proven.

Guarantees: only a proven trait is ever used; an unproven or absent one is a Refusal (`route_unproven`). A fingerprint
holds for one provider, one model and one of streamed or not, and is never borrowed from a neighbour.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pipeline.records import Completion, Json, Reason, RefusedError


class TraitName(StrEnum):
    """What is measured of a route; `MEANINGS` has the values."""

    END_COUNTED = "end_token_counted"
    END_COUNTED_TOOLS = "end_token_counted_tools"
    THINK_CLOSE_COUNTED = "think_close_counted"
    UNCLOSED = "unclosed_thinking"
    COUNT_NATIVE = "count_native"
    PROMPT_PREFIX = "prompt_prefix"
    PROMPT_PREFIX_TOOLS = "prompt_prefix_tools"
    SEAM = "seam_space"
    LINE_ENDS = "line_ends"
    DELTAS = "deltas"
    MARKERS = "markers"
    LEAKS = "markers_leaked"
    TOOL_IDS = "tool_ids"
    TOOL_ARGUMENTS = "tool_arguments"
    TURN_END = "turn_end"
    THINK_LEAD = "think_lead"
    PROMPT_SETTINGS = "prompt_settings"
    REASONING_TOKENS = "reasoning_tokens"
    FINISH = "finish_reason"
    IDS = "ids_returned"
    LOGPROBS = "logprobs_returned"
    SAME_COUNT_MISMATCH = "same_count_mismatch"


MEANINGS: Mapping[TraitName, str] = {
    TraitName.END_COUNTED: "true|false: completion_tokens includes the end token of a text answer",
    TraitName.END_COUNTED_TOOLS: "true|false: the same where the answer holds a tool section",
    TraitName.THINK_CLOSE_COUNTED: "true|false: completion_tokens includes </think>, and <think> if the model emits it",
    TraitName.UNCLOSED: "reasoning|content: where thinking is shown that was never closed",
    TraitName.COUNT_NATIVE: "true|false: counts are of the sampled ids, not of the text encoded again",
    TraitName.PROMPT_PREFIX: "names of control tokens that stand before the rendered prompt, as a list",
    TraitName.PROMPT_PREFIX_TOOLS: "the same where `tools` are sent; a number where no control token explains it",
    TraitName.SEAM: "kept|stripped|added: what happens to white space beside control tokens",
    TraitName.LINE_ENDS: "kept|changed: what happens to CR LF inside a text; one change seen is enough to refuse",
    TraitName.DELTAS: "tokens|batches|rechunked|none: what one delta of the stream is",
    TraitName.MARKERS: "raw|stripped|parsed|dropped: tool markers, or their section, where `tools` is not sent",
    TraitName.LEAKS: "true|false: a control token's name stands in a text though `tools` were sent",
    TraitName.TOOL_IDS: "verbatim|prefix_cut|renumbered|invented: ids of parsed tool calls",
    TraitName.TOOL_ARGUMENTS: "verbatim|reserialised: arguments of parsed tool calls",
    TraitName.TURN_END: "by_role: where a family has several end tokens, answers and calls end with their own each",
    TraitName.THINK_LEAD: "written: thinking begins with the text that the template puts before <think>, if it does",
    TraitName.PROMPT_SETTINGS: "{date, effort}: what every prompt of the route says on every day, where prompts say it",
    TraitName.REASONING_TOKENS: "native|estimate|other: what usage's reasoning_tokens are; no proof reads them",
    TraitName.FINISH: "same|renamed|hides_cut: finish_reason beside the native one, as bad as it was seen",
    TraitName.IDS: "true|false: token ids came, or were asked for and did not",
    TraitName.LOGPROBS: "bytes|text|junk|none: what stands under logprobs",
    TraitName.SAME_COUNT_MISMATCH: "{wrong, n, upper95}: rows that `counted` would take with other ids",
}


class FingerprintError(Exception):
    """A fingerprint file that cannot be read."""


@dataclass(frozen=True, slots=True)
class Trait:
    """One measured trait: its value, on `n` answers."""

    value: Json
    n: int
    proven: bool


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The traits of one (provider, model, streamed or not)."""

    provider: str
    model: str
    stream: bool
    traits: Mapping[str, Trait]

    def proven(self, name: TraitName) -> Json:
        """Return a proven trait's value, otherwise None."""
        trait = self.traits.get(name)
        return trait.value if trait is not None and trait.proven else None

    def require(self, name: TraitName) -> Json:
        """Return a proven trait's value.

        RefusedError(ROUTE_UNPROVEN) names the trait otherwise.
        """
        value = self.proven(name)
        if value is None:
            trait = self.traits.get(name)
            seen = f"{trait.value!r} on n={trait.n}, which proves nothing" if trait else "not measured"
            route = f"{self.provider} {self.model} {'stream' if self.stream else 'json'}"
            raise RefusedError(Reason.ROUTE_UNPROVEN, f"{route}: {name} is {seen}", field=str(name))
        return value

    def is_of(self, completion: Completion) -> bool:
        """Return whether the answer came this way.

        A model may carry its known release date (`kimi-k2.5-0127`) after the slug.
        """
        return (
            completion.provider == self.provider
            and (completion.deltas is not None) == self.stream
            and completion.model is not None
            and is_model(self.model, completion.model)
        )


RELEASES: Mapping[str, str] = {
    "kimi-k2-0711": "kimi-k2",
    "kimi-k2.5-0127": "kimi-k2.5",
    "deepseek-v3.2-20251201": "deepseek-v3.2",
    "glm-5-turbo-20260315": "glm-5-turbo",
}
"""Dated names, without owner, and the slug whose release each is, as hosted answers were seen to name them."""


def is_model(requested: str, answered: str) -> bool:
    """Return whether `answered` is the model `requested`.

    Its release is part of a model: only a date that is known (`RELEASES`) may follow the slug. Any other suffix names
    another model, such as `-0905`, `-2507` or `-0528`.
    """
    owner, _, name = answered.rpartition("/")
    return answered == requested or (name in RELEASES and requested == f"{owner}/{RELEASES[name]}".lstrip("/"))


_KINDS: Mapping[str, tuple[Json, ...]] = {
    TraitName.SEAM: ("kept", "stripped", "added"),
    TraitName.DELTAS: ("tokens", "batches", "rechunked", "none"),
    TraitName.MARKERS: ("raw", "stripped", "parsed", "dropped"),
    TraitName.TOOL_IDS: ("verbatim", "prefix_cut", "renumbered", "invented"),
    TraitName.TOOL_ARGUMENTS: ("verbatim", "reserialised"),
    TraitName.UNCLOSED: ("reasoning", "content"),
    TraitName.REASONING_TOKENS: ("native", "estimate", "other"),
    TraitName.FINISH: ("same", "renamed", "hides_cut"),
    TraitName.LOGPROBS: ("bytes", "text", "junk", "none"),
}


REMEDY = "Name a fingerprint, as under goldens/fingerprints/, or learn one: python -m pipeline fingerprint"


_FLAGS = {
    TraitName.END_COUNTED,
    TraitName.END_COUNTED_TOOLS,
    TraitName.THINK_CLOSE_COUNTED,
    TraitName.COUNT_NATIVE,
    TraitName.LEAKS,
    TraitName.IDS,
}


def _is_value(name: str, value: Json) -> bool:
    """Return whether a proven trait can have this value.

    Traits that nothing here reads may have any.
    """
    if name in _FLAGS:
        return isinstance(value, bool)
    if name in (TraitName.PROMPT_PREFIX, TraitName.PROMPT_PREFIX_TOOLS):
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return name not in _KINDS or value in _KINDS[name]


def read_fingerprints(path: Path) -> list[Fingerprint]:
    """Read the fingerprints of a JSONL file.

    One trait a line: `provider, model, stream, trait, value, n, proven`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FingerprintError(f"{path}: no readable fingerprint ({error})") from None
    lines = [_line(path, number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise FingerprintError(f"{path}: no trait in this file")
    return list(_grouped(lines))


def _line(path: Path, number: int, line: str) -> tuple[tuple[str, str, bool], str, Trait]:
    try:
        entry = json.loads(line)
        key = (str(entry["provider"]), str(entry["model"]), entry["stream"] is True)
        name, trait = str(entry["trait"]), Trait(entry["value"], int(entry["n"]), entry["proven"] is True)
    except KeyError as error:
        message = f"{path}, line {number}: no {error.args[0]!r}, so it is no fingerprint's line. {REMEDY}"
        raise FingerprintError(message) from None
    except (ValueError, TypeError) as error:
        raise FingerprintError(f"{path}, line {number}: not a trait ({error}). {REMEDY}") from None
    if trait.proven and not _is_value(name, trait.value):
        allowed = MEANINGS.get(TraitName(name), "")
        raise FingerprintError(f"{path}, line {number}: {name} cannot be {trait.value!r} ({allowed})")
    return key, name, trait


def _grouped(lines: Iterable[tuple[tuple[str, str, bool], str, Trait]]) -> Iterator[Fingerprint]:
    routes: dict[tuple[str, str, bool], dict[str, Trait]] = {}
    for key, name, trait in lines:
        if routes.setdefault(key, {}).setdefault(name, trait) is not trait:
            raise FingerprintError(f"{' '.join(map(str, key))}: {name} stands twice; one line a trait")
    for (provider, model, stream), traits in routes.items():
        yield Fingerprint(provider, model, stream, traits)


def committed_fingerprints(root: Path) -> list[Fingerprint]:
    """Return every fingerprint under `goldens/fingerprints/`."""
    return [
        found
        for path in sorted((root / "goldens" / "fingerprints").glob("*.jsonl"))
        for found in read_fingerprints(path)
    ]


def fingerprint_of(completion: Completion, known: Iterable[Fingerprint]) -> Fingerprint:
    """Return the fingerprint of the answer's route.

    RefusedError(ROUTE_UNPROVEN) where none is known.
    """
    for fingerprint in known:
        if fingerprint.is_of(completion):
            return fingerprint
    way = "stream" if completion.deltas is not None else "json"
    message = f"no fingerprint of {completion.provider} {completion.model} {way}"
    raise RefusedError(Reason.ROUTE_UNPROVEN, message, field="provider")


def file_name(fingerprint: Fingerprint) -> str:
    """Return the name of a committed fingerprint's file."""
    model = fingerprint.model.replace("/", "--")
    return f"{fingerprint.provider.lower()}--{model}--{'stream' if fingerprint.stream else 'json'}.jsonl"
