"""Token ids that an engine returned, wherever it put them.

Guarantees: every known place is looked at, and what is found in two of them must be the same; a list with a hole is a
Refusal. Whether the ids say what the answer's text says is the proof's work. Places, by who writes them:

vLLM, Fireworks   choices[].token_ids, prompt_token_ids at the top (vLLM) or in the choice; in a stream a piece a chunk
SGLang            choices[].response_token_ids, choices[].prompt_token_ids, choices[].meta_info, sglext at the top
Fireworks         choices[].raw_output
Together          choices[].logprobs.token_ids, in a stream choices[].delta.token_id
Dynamo, Baseten   choices[].logprobs.content[].token_id (Fireworks too)
vLLM              choices[].logprobs.content[].token as "token_id:N" (`return_tokens_as_token_ids`)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.proof.wire.fields import as_object, kind, malformed
from pipeline.records import Ids, Json, JsonObject, Reason, RefusedError

_AS_TEXT = re.compile(r"token_id:(\d{1,9})")


@dataclass(slots=True)
class ReturnedIds:
    """Ids by the place where they were found.

    `pieces` grow with each chunk of a stream, `wholes` come whole or not at all. `entries` counts those of `logprobs`.
    """

    prompts: dict[str, Ids] = field(default_factory=dict)
    pieces: dict[str, list[int]] = field(default_factory=dict)
    wholes: dict[str, Ids] = field(default_factory=dict)
    entries: int = 0

    def add_top(self, holder: JsonObject) -> None:
        """Add what stands beside the choices."""
        self._add_prompt("prompt_token_ids", holder.get("prompt_token_ids"))
        if (extension := holder.get("sglext")) is not None:
            found = as_object(extension, "sglext")
            self._add_prompt("sglext.input_ids", _only(found.get("input_ids"), "sglext.input_ids"))
            self._add_whole("sglext.output_ids", _only(found.get("output_ids"), "sglext.output_ids"))

    def add_choice(self, choice: JsonObject) -> None:
        """Add what a choice says, of body or chunk."""
        self._add_prompt("choices[].prompt_token_ids", choice.get("prompt_token_ids"))
        self._add_piece("choices[].token_ids", choice.get("token_ids"))
        self._add_whole("choices[].response_token_ids", choice.get("response_token_ids"))
        if isinstance(raw := choice.get("raw_output"), dict):
            self._add_prompt("raw_output.prompt_token_ids", raw.get("prompt_token_ids"))
            self._add_whole("raw_output.completion_token_ids", raw.get("completion_token_ids"))
        if isinstance(meta := choice.get("meta_info"), dict):
            self._add_whole("meta_info.output_ids", meta.get("output_ids"))
            self._add_whole("meta_info.output_token_logprobs", _second_of_each(meta.get("output_token_logprobs")))
        if isinstance(delta := choice.get("delta"), dict) and delta.get("token_id") is not None:
            self._add_piece("delta.token_id", [delta["token_id"]])
        if isinstance(logprobs := choice.get("logprobs"), dict):
            self._add_logprobs(logprobs)

    def _add_logprobs(self, logprobs: Mapping[str, Json]) -> None:
        ids, tokens = logprobs.get("token_ids"), logprobs.get("tokens")
        self._add_piece("logprobs.token_ids", ids)
        if isinstance(ids, list) and isinstance(tokens, list) and len(ids) != len(tokens):
            raise RefusedError(Reason.LOGPROBS_HOLE, f"{len(tokens)} tokens and {len(ids)} ids", field="logprobs")
        content = logprobs.get("content")
        entries = [entry for entry in content if isinstance(entry, dict)] if isinstance(content, list) else []
        self.entries += len(entries)
        numbered = [entry["token_id"] for entry in entries if entry.get("token_id") is not None]
        self._add_piece("logprobs.content[].token_id", numbered or None)
        spelled = [_AS_TEXT.fullmatch(str(entry.get("token"))) for entry in entries]
        self._add_piece("logprobs.content[].token", [int(found[1]) for found in spelled if found] or None)

    def _add_prompt(self, place: str, value: Json) -> None:
        if value is not None and (ids := ids_of(value, place)) and self.prompts.setdefault(place, ids) != ids:
            raise RefusedError(Reason.STREAM_INCONSISTENT, f"{place} comes twice and differs", field=place)

    def _add_whole(self, place: str, value: Json) -> None:
        if value is not None and (ids := ids_of(value, place)) and self.wholes.setdefault(place, ids) != ids:
            raise RefusedError(Reason.STREAM_INCONSISTENT, f"{place} comes twice and differs", field=place)

    def _add_piece(self, place: str, value: Json) -> None:
        if value is not None and (ids := ids_of(value, place)):
            self.pieces.setdefault(place, []).extend(ids)

    def prompt_ids(self) -> Ids | None:
        """Return the prompt ids, None where there are none.

        RefusedError(IDS_CONTRADICT) where two places differ.
        """
        return _agreed(self.prompts)

    def token_ids(self) -> Ids | None:
        """Return the emitted ids, None where there are none.

        RefusedError(IDS_CONTRADICT) where two places differ, RefusedError(LOGPROBS_HOLE) where not every entry of
        logprobs has one.
        """
        for place in ("logprobs.content[].token_id", "logprobs.content[].token") if self.entries else ():
            if 0 < (seen := len(self.pieces.get(place, ()))) < self.entries:
                message = f"{seen} of {self.entries} entries have an id"
                raise RefusedError(Reason.LOGPROBS_HOLE, message, field=place)
        return _agreed(self._outputs())

    @property
    def places(self) -> tuple[str, ...]:
        """The places where emitted ids were found."""
        return tuple(self._outputs())

    def _outputs(self) -> dict[str, Ids]:
        return (
            {**{place: tuple(ids) for place, ids in self.pieces.items()}, **self.wholes} if self.pieces else self.wholes
        )


def _agreed(found: Mapping[str, Ids]) -> Ids | None:
    if len(found) > 1 and len(set(found.values())) > 1:
        seen = ", ".join(f"{place} ({len(ids)})" for place, ids in found.items())
        raise RefusedError(Reason.IDS_CONTRADICT, f"ids were returned in places that differ: {seen}", field="token_ids")
    return next(iter(found.values()), None)


def ids_of(value: Json, what: str) -> Ids | None:
    """Return a list of ids, None where there is none.

    RefusedError(MALFORMED_INPUT) for anything else.
    """
    if value is None:
        return None
    if not isinstance(value, list):
        raise malformed(f"{what} is {kind(value)}, not a list", what)
    ids: list[int] = []
    for item in value:
        if not isinstance(item, int) or isinstance(item, bool):
            raise malformed(f"{what} holds {kind(item)}, not an id", what)
        ids.append(item)
    return tuple(ids)


def _only(value: Json, what: str) -> Json:
    """Return one choice's ids, where a list of choices came."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        if len(value) > 1:
            raise malformed(f"{what} holds the ids of {len(value)} choices; one is asked for", what)
        return value[0]
    return value


def _second_of_each(value: Json) -> Json:
    """Return the ids of SGLang's `[logprob, id, text]` entries."""
    if not isinstance(value, list):
        return None
    return [entry[1] if isinstance(entry, list) and len(entry) > 1 else None for entry in value]
