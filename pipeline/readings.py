"""How an answer's fields can be read as a completion: one or a few candidates, each with the count it would have.

Guarantees: text is taken as it came. A reading is offered only where the route's proven traits allow it; choosing
between readings is the proof's work, and two that close are a Refusal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipeline.formats.parts import Assembled, Format, Opener, Parts, end_ids
from pipeline.places import in_answer
from pipeline.records import Completion, Ids, Prompt, Reason, RefusedError
from pipeline.routes import Fingerprint, TraitName
from pipeline.tokenizers import TokenizerError

_STOPPED = {None, "stop", "completed", "end_turn", "eos", "stop_sequence"}
_CUT = {None, "length", "max_tokens", "max_output_tokens"}


@dataclass(frozen=True, slots=True)
class Case:
    """One answer to be proven. `ended` says that the end token was emitted."""

    prompt: Prompt
    completion: Completion
    fmt: Format
    fingerprint: Fingerprint | None
    ended: bool
    max_tokens: int | None = None

    @property
    def opener(self) -> Opener:
        """Who opened the reasoning of this answer, if anyone."""
        return self.fmt.opener(thinking=self.prompt.thinking)

    def trait(self, name: TraitName) -> object:
        """A proven trait of the route, or RefusedError(ROUTE_UNPROVEN)."""
        if self.fingerprint is None:
            raise RefusedError(Reason.ROUTE_UNPROVEN, "this route has no fingerprint", field=str(name))
        return self.fingerprint.require(name)


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read an answer, and the `completion_tokens` that the route would give for it.

    `leaked`: it takes markers for control tokens on a route not proven to send them. `unseen`: it holds a think token
    that only the count tells of, and a token that shows no text (half a character, a reserved id) has the same count.
    """

    parts: Parts
    assembled: Assembled
    count: int
    leaked: bool = False
    unseen: bool = False


def shows_close(case: Case, reasoning: bool, body: bool) -> bool:  # noqa: FBT001 — whether there is any of each
    """Whether the fields show where the thinking was closed.

    Text after it is needed; and without text before it, that the route is proven to show thinking that was never
    closed as reasoning: some show it as content, or both sides of the tag as one.
    """
    if reasoning or not body:
        return body
    known = case.fingerprint
    return known is not None and known.proven(TraitName.UNCLOSED) == "reasoning"


def ended(completion: Completion) -> bool:
    """Whether the answer says that its end token was emitted; refused where its two finish reasons disagree."""
    finish, native = completion.finish_reason, completion.native_finish_reason
    lowered = native.lower() if native else None
    if finish == "stop" and lowered in _STOPPED:
        _refuse_lost_calls(completion, expected=False)
        return True
    if finish == "tool_calls" and lowered in _STOPPED | {"tool_calls", "tool_use"}:
        _refuse_lost_calls(completion, expected=True)
        return True
    if finish == "length" and lowered in _CUT:
        return False
    if finish in ("stop", "tool_calls", "length"):
        raise RefusedError(Reason.FINISH_CONTRADICTS, f"finish_reason {finish}, native {native}", field="finish_reason")
    raise RefusedError(Reason.FINISH_UNKNOWN, f"finish_reason {finish}, native {native}", field="finish_reason")


def _refuse_lost_calls(completion: Completion, *, expected: bool) -> None:
    if bool(completion.tool_calls) != expected:
        message = f"finish_reason {completion.finish_reason} with {len(completion.tool_calls)} tool calls"
        raise RefusedError(Reason.CALLS_LOST, message, field="tool_calls")


def prompt_prefix(case: Case) -> Ids:
    """Ids that the route puts before the rendered prompt; without a fingerprint there are none."""
    names = case.fingerprint.proven(TraitName.PROMPT_PREFIX) if case.fingerprint else []
    if not isinstance(names, list):
        where = str(TraitName.PROMPT_PREFIX)
        raise RefusedError(Reason.ROUTE_UNPROVEN, f"{where} is not proven", field=where)
    try:
        return tuple(case.fmt.tokenizer.id_of(str(name)) for name in names)
    except TokenizerError as error:
        where = str(TraitName.PROMPT_PREFIX)
        raise RefusedError(Reason.ROUTE_UNPROVEN, f"{where}: {error}", field=where) from None


def texts(completion: Completion) -> tuple[str, str]:
    """Reasoning and content; an absent field is an empty one, as providers use null and "" at will."""
    return completion.reasoning or "", completion.content or ""


def texts_of(completion: Completion, field: str) -> list[str]:
    """The texts of one field's deltas, in order; none where the answer was not streamed."""
    return [delta.text for delta in completion.deltas or () if delta.field == field]


def require_text_evidence(case: Case) -> None:
    """What every proof from text needs: white space kept at the seams, whole characters, fields in order."""
    if (seam := case.trait(TraitName.SEAM)) != "kept":
        message = f"white space beside control tokens is {seam} on this route"
        raise RefusedError(Reason.SEAM_LOSSY, message, field=str(TraitName.SEAM))
    for name, text in zip(("reasoning", "content"), texts(case.completion), strict=True):
        if (at := text.find("\ufffd")) >= 0:
            raise RefusedError(Reason.REPLACEMENT_CHAR, f"U+FFFD in {name}", field=name, char_offset=at)
    _require_line_ends(case)
    _require_known_end(case)
    if case.completion.reasoning and case.opener is Opener.NOBODY:
        raise RefusedError(Reason.LAYOUT_INVALID, "reasoning came though thinking was off", field="reasoning")
    _require_order(case.completion)


def _require_known_end(case: Case) -> None:
    """Where a family has several end tokens, no text and no count says which was emitted."""
    if case.ended and len(end_ids(case.fmt)) > 1 and (ends := case.trait(TraitName.TURN_END)) != "by_role":
        message = f"{case.fmt.name} ends answers with one of several tokens, and which is {ends} on this route"
        raise RefusedError(Reason.AMBIGUOUS_LAYOUT, message, field="finish_reason")


def _require_line_ends(case: Case) -> None:
    """A route that was seen once to change CR LF shows the same number of tokens for another text."""
    trait = case.fingerprint.traits.get(TraitName.LINE_ENDS) if case.fingerprint else None
    if trait is None:
        return
    for name, text in zip(("reasoning", "content"), texts(case.completion), strict=True):
        if trait.value not in ("kept", None) and "\n" in text:
            message = f"line ends are {trait.value} on this route"
            raise RefusedError(Reason.SEAM_LOSSY, message, field=name, char_offset=text.index("\n"))


def _require_order(completion: Completion) -> None:
    rank = {"reasoning": 0, "content": 1, "tool_calls": 2}
    deltas = completion.deltas or ()
    for position, (before, after) in enumerate(pairwise(deltas)):
        if rank[before.field] > rank[after.field]:
            message = f"{after.field} follows {before.field} at delta {position + 1}"
            raise RefusedError(Reason.LAYOUT_INVALID, message, field=after.field, token_position=position + 1)


def readings(case: Case) -> list[Reading]:
    """Every reading of the fields as text, with the count that the route would give for it."""
    return [_reading(case, parts, leaked=leaked) for parts, leaked in _candidates(case)]


def _candidates(case: Case) -> Iterator[tuple[Parts, bool]]:
    reasoning, content = texts(case.completion)
    for body, leaked in bodies(case, content):
        if case.opener is Opener.NOBODY or (case.opener is Opener.MODEL and not reasoning):
            yield Parts(None, think_closed=False, body=body, ended=case.ended), leaked
        if case.opener is Opener.NOBODY:
            continue
        yield Parts(reasoning, think_closed=True, body=body, ended=case.ended), leaked
        if not body and not case.ended:
            yield Parts(reasoning, think_closed=False, body=(), ended=False), leaked


def bodies(case: Case, content: str) -> Iterator[tuple[tuple[str | int, ...], bool]]:
    """The content as text, and with its tool markers as control tokens.

    The flag says that markers leaked: the route is not proven to send them raw.
    """
    if case.completion.tool_calls:
        yield _structured_body(case, content), False
        return
    yield (content,) if content else (), False
    if any(name in content for name in case.fmt.tool_markers()):
        marked = split_markers(case.fmt, content)
        if len(marked) > 1 or isinstance(marked[0], int):
            raw = case.fingerprint is not None and case.fingerprint.proven(TraitName.MARKERS) == "raw"
            yield marked, not raw


def split_markers(fmt: Format, text: str) -> tuple[str | int, ...]:
    """The text with every tool marker that it spells read as its control token."""
    ids = fmt.tool_markers()
    if not ids:
        return (text,)
    pieces = re.split("(" + "|".join(re.escape(name) for name in ids) + ")", text)
    return tuple(ids.get(piece, piece) for piece in pieces if piece)


def _structured_body(case: Case, content: str) -> tuple[str | int, ...]:
    """The section that parsed calls were cut from, where ids and arguments come verbatim and no call came before."""
    for name in (TraitName.TOOL_IDS, TraitName.TOOL_ARGUMENTS):
        if (value := case.trait(name)) != "verbatim":
            raise RefusedError(Reason.STRUCTURED_CALLS, f"{name} is {value} on this route", field="tool_calls")
    if not case.ended:
        raise RefusedError(
            Reason.STRUCTURED_CALLS, "a parser holds back what a cut section ended with", field="tool_calls"
        )
    if any(message.get("tool_calls") for message in case.prompt.messages):
        raise RefusedError(Reason.STRUCTURED_CALLS, "earlier calls may have renumbered the ids", field="tool_calls")
    markers = case.fmt.tool_markers()
    if not markers.keys() >= set(_MARKER_ORDER):
        message = f"parsed calls of {case.fmt.name} do not say how the model wrote them"
        raise RefusedError(Reason.STRUCTURED_CALLS, message, field="tool_calls")
    begin, end, call, argument, stop = (markers[name] for name in _MARKER_ORDER)
    body: list[str | int] = [content] if content else []
    body.append(begin)
    for one in case.completion.tool_calls:
        _require_matching_name(one.id, one.name)
        _require_whole_arguments(one.arguments)
        body += [piece for piece in (call, one.id, argument, one.arguments, stop) if piece != ""]
    return (*body, end)


_MARKER_ORDER: Sequence[str] = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)


def _require_matching_name(identity: str, name: str) -> None:
    if re.fullmatch(r"functions\." + re.escape(name) + r":\d+", identity) is None:
        message = f"id {identity!r} is not functions.{name}:INDEX"
        raise RefusedError(Reason.STRUCTURED_CALLS, message, field="tool_calls")


def _require_whole_arguments(text: str) -> None:
    """Arguments that are no JSON object were cut: the finish reason `tool_calls` hides a cut on some routes."""
    try:
        whole = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        whole = False
    if not whole:
        raise RefusedError(
            Reason.FINISH_CONTRADICTS, f"arguments {text[-40:]!r} are no whole object", field="tool_calls"
        )


def _reading(case: Case, parts: Parts, *, leaked: bool) -> Reading:
    assembled = _assemble(case, parts, strict=not any(isinstance(piece, int) for piece in parts.body))
    return Reading(parts, assembled, counted(case, parts, len(assembled.ids)), leaked, _is_unseen(case, parts))


def _is_unseen(case: Case, parts: Parts) -> bool:
    """Only the count tells of a think token: it may stand elsewhere, or be another token that shows no text."""
    if case.opener is Opener.MODEL and parts.reasoning == "":
        return True
    return parts.think_closed and not shows_close(case, bool(parts.reasoning), bool(parts.body))


def _assemble(case: Case, parts: Parts, *, strict: bool) -> Assembled:
    try:
        return case.fmt.assemble(parts)
    except RefusedError as error:
        if strict or error.refusal.reason is not Reason.LAYOUT_INVALID:
            raise in_answer(error, case.fmt, case.completion) from None
        return Assembled((), ())


def counted(case: Case, parts: Parts, emitted: int) -> int:
    """What the route's `completion_tokens` would be for `emitted` ids laid out as `parts`; -1 where nothing was."""
    if not emitted and (parts.ended or parts.think_closed or parts.body):
        return -1
    hidden = int(parts.think_closed) + int(case.opener is Opener.MODEL and parts.reasoning is not None)
    if hidden and _is_counted(case, TraitName.THINK_CLOSE_COUNTED):
        hidden = 0
    if parts.ended:
        hidden += not _is_counted(case, end_trait(parts))
    return emitted - hidden


def _is_counted(case: Case, name: TraitName) -> bool:
    """What the trait says; a route was seen to count in a third way where it is neither true nor false."""
    value = case.trait(name)
    if not isinstance(value, bool):
        raise RefusedError(Reason.ROUTE_UNPROVEN, f"{name} is {value!r} on this route", field=str(name))
    return value


def end_trait(parts: Parts) -> TraitName:
    """The trait that says whether this answer's end token is counted."""
    in_section = any(isinstance(piece, int) for piece in parts.body)
    return TraitName.END_COUNTED_TOOLS if in_section else TraitName.END_COUNTED
