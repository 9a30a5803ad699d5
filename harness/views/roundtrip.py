"""Round trips: true ids, shown by a profile, read back.

Guarantees: everything between the ids and the Completion is bytes in OpenRouter's dialect, as it is over HTTP; only the
socket is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from harness.views.openrouter import Meta, body_of, events_of
from harness.views.view import PROFILES, Profile, Seam, Shown, view
from pipeline.formats.format import Format, Opener
from pipeline.proof.fingerprint import Fingerprint, Trait, TraitName
from pipeline.proof.wire.completion import completion_of_json, completion_of_sse
from pipeline.records import Completion, Ids, Json, Prompt

MODEL = "drafter-gate/tiny-kimi"


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """One way to ask a provider.

    Streamed or not, `tools` sent or not, ids or logprobs asked for.
    """

    profile: Profile
    stream: bool
    tools_sent: bool
    ids: bool = False
    logprobs: bool = False

    @property
    def name(self) -> str:
        """Return the id of a test."""
        parts = (self.profile.slug, "stream" if self.stream else "json", "tools" if self.tools_sent else "raw")
        return "-".join((*parts, *(["ids"] if self.ids else []), *(["logprobs"] if self.logprobs else [])))

    @property
    def keeps_text(self) -> bool:
        """Return whether fields hold every byte of a text."""
        return self.profile.seam is Seam.KEPT


def trips() -> Iterator[RoundTrip]:
    """Yield every way to ask every profile."""
    for profile in PROFILES.values():
        for stream in (False, True):
            for tools_sent in (False, True):
                yield RoundTrip(profile, stream, tools_sent)
                if profile.returns_ids:
                    yield RoundTrip(profile, stream, tools_sent, ids=True)
                if profile.returns_logprobs:
                    yield RoundTrip(profile, stream, tools_sent, logprobs=True)


def send(ids: Ids, prompt: Prompt, prompt_ids: Ids, trip: RoundTrip, fmt: Format) -> Completion:
    """Return the Completion of an answer whose model emitted `ids`.

    `ids` and `prompt_ids` have shape [n].
    """
    return read(raw_of(ids, prompt, prompt_ids, trip, fmt), stream=trip.stream)


def raw_of(ids: Ids, prompt: Prompt, prompt_ids: Ids, trip: RoundTrip, fmt: Format) -> bytes:
    """Return the response's bytes."""
    shown = shown_of(ids, prompt, trip, fmt)
    meta = Meta(
        generation_id="gen-0",
        created=0,
        model=MODEL,
        provider=trip.profile.name,
        prompt_tokens=len(prompt_ids),
        cost=0.0,
        prompt_ids=prompt_ids if trip.ids else None,
        token_ids=ids if trip.ids else None,
        logprobs=shown.logprobs if trip.logprobs else None,
    )
    if trip.stream:
        return "".join(events_of(shown, meta)).encode()
    return json.dumps(body_of(shown, meta)).encode()


def shown_of(ids: Ids, prompt: Prompt, trip: RoundTrip, fmt: Format) -> Shown:
    """Return what the provider shows of emitted `ids`.

    A `<think>` with which the model began is counted, and stands in no text.
    """
    hidden = () if fmt.is_headed else fmt.opened_with(ids, thinking=prompt.thinking)
    thinking = fmt.opener(thinking=prompt.thinking) is Opener.PROMPT or bool(hidden)
    options = {"thinking": thinking, "tools_sent": trip.tools_sent, "stream": trip.stream}
    shown = view(ids[len(hidden) :], trip.profile, fmt, **options)
    entries = view(hidden, trip.profile, fmt, **options).logprobs
    return replace(shown, completion_tokens=shown.completion_tokens + len(hidden), logprobs=(*entries, *shown.logprobs))


def read(raw: bytes, *, stream: bool) -> Completion:
    """Return the Completion of a response's bytes."""
    return completion_of_sse(raw.decode()) if stream else completion_of_json(raw)


def true_fingerprint(profile: Profile, *, stream: bool, fmt: Format | None = None) -> Fingerprint:
    """Return the fingerprint that a perfect measurement would give.

    `fmt` is needed where texts lack the marker of its tags.
    """
    values: dict[TraitName, Json] = {
        TraitName.END_COUNTED: profile.end_counted,
        TraitName.END_COUNTED_TOOLS: profile.end_counted,
        TraitName.THINK_CLOSE_COUNTED: True,
        TraitName.UNCLOSED: "reasoning",
        TraitName.COUNT_NATIVE: not (stream and profile.recounts_stream),
        TraitName.PROMPT_PREFIX: [],
        TraitName.SEAM: profile.seam.value,
        TraitName.LINE_ENDS: "kept",
        TraitName.DELTAS: profile.deltas.value if stream else "none",
        TraitName.MARKERS: "stripped" if fmt is not None and fmt.tag_names else "raw",
        TraitName.TOOL_IDS: profile.tool_ids,
        TraitName.TOOL_ARGUMENTS: profile.tool_arguments,
        TraitName.TURN_END: "by_role",
        TraitName.THINK_LEAD: "written",
        TraitName.PROMPT_SETTINGS: {"date": "2025-08-05", "effort": getattr(fmt, "effort", "medium")},
    }
    traits = {str(name): Trait(value, 1000, proven=True) for name, value in values.items()}
    return Fingerprint(profile.name, MODEL, stream, traits)
