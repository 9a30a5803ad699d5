"""How an answer's fields can be read as a completion: one or a few candidates, each with the count it would have.

Guarantees: text is taken as it came. A reading is offered only where the route's proven traits allow it; choosing
between readings is the proof's work, and two that close are a Refusal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from pipeline.formats.format import Assembled, Format, Opener, Parts, end_ids, hidden, is_headed, opening, tag_names
from pipeline.formats.tokenizer import Tokenizer, TokenizerError
from pipeline.proof.counted import require_own_words
from pipeline.proof.fingerprint import Fingerprint, TraitName
from pipeline.proof.locations import in_answer
from pipeline.records import Completion, Delta, Ids, Prompt, Reason, RefusedError

_STOPPED = {None, "stop", "completed", "end_turn", "eos"}
_CUT = {None, "length", "max_tokens", "max_output_tokens"}


@dataclass(frozen=True, slots=True)
class Answer:
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


def shows_close(case: Answer, reasoning: bool, body: bool) -> bool:  # noqa: FBT001 — whether there is any of each
    """Whether the fields show where the thinking was closed.

    Text after it is needed; and without text before it, that the route is proven to show thinking that was never
    closed as reasoning: some show it as content, or both sides of the tag as one. Behind headers a second thinking is
    as long as the content, so that there it must be proven always.
    """
    if not body or (reasoning and not is_headed(case.fmt)):
        return body
    known = case.fingerprint
    return known is not None and known.proven(TraitName.UNCLOSED) == "reasoning"


def require_told_thinking(case: Answer, *, reasoning: bool, first: str | int | None) -> None:
    """Where think tokens are not counted, only text on both sides tells that the thinking was closed.

    `first` is what the body begins with: a tool section ends a thinking that was never closed.
    """
    if case.opener is Opener.NOBODY or is_counted(case, TraitName.THINK_CLOSE_COUNTED):
        return
    told = isinstance(first, str) and not first.startswith(tuple(case.fmt.tool_markers()))
    if not reasoning or not told:
        message = "no count tells of <think> or </think> on this route, and the text does not either"
        raise RefusedError(Reason.AMBIGUOUS_LAYOUT, message, field="content")


def ended(completion: Completion) -> bool:
    """Whether the answer says that its end token was emitted; refused where its two finish reasons disagree.

    A stop text ends an answer without that token.
    """
    if isinstance(completion.stopped_by, str):
        message = f"the stop text {completion.stopped_by[:40]!r} ended the answer, not its end token"
        raise RefusedError(Reason.FINISH_CONTRADICTS, message, field="stop_reason")
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


def says_stop(completion: Completion) -> bool:
    """Whether the provider's own finish reason came, and says that the answer ended."""
    native = completion.native_finish_reason
    return native is not None and native.lower() in _STOPPED


def _refuse_lost_calls(completion: Completion, *, expected: bool) -> None:
    if bool(completion.tool_calls) != expected:
        message = f"finish_reason {completion.finish_reason} with {len(completion.tool_calls)} tool calls"
        raise RefusedError(Reason.CALLS_LOST, message, field="tool_calls")


def prompt_prefix(case: Answer) -> Ids:
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


def require_text_evidence(case: Answer) -> None:
    """What every proof from text needs: white space kept at the seams, whole characters, fields in order."""
    if (seam := case.trait(TraitName.SEAM)) != "kept":
        message = f"white space beside control tokens is {seam} on this route"
        raise RefusedError(Reason.SEAM_LOSSY, message, field=str(TraitName.SEAM))
    for name, text in (("reasoning", case.completion.reasoning), ("content", case.completion.content)):
        if text and (at := text.find("\ufffd")) >= 0:
            raise RefusedError(Reason.REPLACEMENT_CHAR, f"U+FFFD in {name}", field=name, char_offset=at)
    _require_line_ends(case)
    _require_known_end(case)
    _require_known_opening(case)
    _require_no_header(case)
    _require_no_bare_tag(case)
    if case.completion.reasoning and case.opener is Opener.NOBODY:
        raise RefusedError(Reason.LAYOUT_INVALID, "reasoning came though thinking was off", field="reasoning")
    if case.completion.deltas:
        _require_order(case.completion.deltas)


def _require_known_end(case: Answer) -> None:
    """Where a family has several end tokens, no text and no count says which was emitted."""
    if case.ended and len(end_ids(case.fmt)) > 1 and (ends := case.trait(TraitName.TURN_END)) != "by_role":
        message = f"{case.fmt.name} ends answers with one of several tokens, and which is {ends} on this route"
        raise RefusedError(Reason.AMBIGUOUS_LAYOUT, message, field="finish_reason")


def _require_known_opening(case: Answer) -> None:
    """Text that the model writes before its `<think>` is in no field, and other text there has the same length."""
    if case.opener is not Opener.MODEL or len(opening(case.fmt)) == 1:
        return
    if (lead := case.trait(TraitName.THINK_LEAD)) != "written":
        message = f"{case.fmt.name} writes text before its <think>, which is {lead} on this route"
        raise RefusedError(Reason.AMBIGUOUS_LAYOUT, message, field="reasoning")


def _require_no_header(case: Answer) -> None:
    """Where headers make an answer, one that its text spells was left in by a parser that lost its way."""
    if not is_headed(case.fmt):
        return
    for name, text in zip(("reasoning", "content"), texts(case.completion), strict=True):
        if (found := case.fmt.tokenizer.find_control(text)) is not None:
            message = f"{found[1]} stands in the text, which only ids tell from the control token"
            raise RefusedError(Reason.LEAKED_CONTROL, message, field=name, char_offset=found[0])


def _require_no_bare_tag(case: Answer) -> None:
    """Where a special token stands in every tag, a route may leave it out: what is left of a call is text that has one.

    Its length can be that of the text with its markers, so that the count does not tell.
    """
    names = tag_names(case.fmt)
    if not names or (case.fingerprint is not None and case.fingerprint.proven(TraitName.MARKERS) == "raw"):
        return
    cut = "" if case.ended else r"|[a-z_]*\Z"
    for name, text in _shown_texts(case.completion):
        if (found := re.search(f"</?(?:{'|'.join(sorted(names))}{cut})", text)) is not None:
            message = f"{found[0]!r} may have been a call's, whose markers this route is not proven to show"
            raise RefusedError(Reason.AMBIGUOUS_MARKER, message, field=name, char_offset=found.start())


def _require_line_ends(case: Answer) -> None:
    """A line feed may have been CR LF, of as many tokens where the vocabulary joins the two.

    The route must be proven to keep them then; where it was seen once to change them, no vocabulary helps.
    """
    known = case.fingerprint.traits.get(TraitName.LINE_ENDS) if case.fingerprint else None
    for name, text in _shown_texts(case.completion):
        if (at := text.find("\n")) < 0:
            continue
        if known is not None and known.value not in ("kept", None):
            raise RefusedError(
                Reason.SEAM_LOSSY, f"line ends are {known.value} on this route", field=name, char_offset=at
            )
        if _joins_line_ends(case.fmt.tokenizer) and (known is None or not known.proven):
            message = "the line feed may have been CR LF, and the route is not proven to keep line ends (line_ends). "
            message += "Probe it: python -m pipeline probe"
            raise RefusedError(Reason.ROUTE_UNPROVEN, message, field=str(TraitName.LINE_ENDS), char_offset=at)


def _shown_texts(completion: Completion) -> Iterator[tuple[str, str]]:
    """Each text of the answer with its field."""
    yield "reasoning", completion.reasoning or ""
    yield "content", completion.content or ""
    for call in completion.tool_calls:
        yield "tool_calls", call.arguments


@cache
def _joins_line_ends(tokenizer: Tokenizer) -> bool:
    """Whether some token holds a carriage return and more; else each one adds to the count of a text."""
    return any(len(piece) > 1 and b"\r" in piece for piece in map(tokenizer.token_bytes, tokenizer.base_ids))


def _require_order(deltas: Sequence[Delta]) -> None:
    rank = {"reasoning": 0, "content": 1, "tool_calls": 2}
    ranks = [rank[delta.field] for delta in deltas]
    if ranks == sorted(ranks):
        return
    for position, (before, after) in enumerate(pairwise(deltas)):
        if rank[before.field] > rank[after.field]:
            message = f"{after.field} follows {before.field} at delta {position + 1}"
            raise RefusedError(Reason.LAYOUT_INVALID, message, field=after.field, token_position=position + 1)


def readings(case: Answer) -> list[Reading]:
    """Every reading of the fields as text, with the count that the route would give for it."""
    return [_reading(case, parts, leaked=leaked) for parts, leaked in _candidates(case)]


def _candidates(case: Answer) -> Iterator[tuple[Parts, bool]]:
    (reasoning, content), opener = texts(case.completion), case.opener
    for body, leaked in bodies(case, content):
        if opener is Opener.NOBODY or (opener is Opener.MODEL and not reasoning):
            yield Parts(None, think_closed=False, body=body, ended=case.ended), leaked
        if opener is Opener.NOBODY:
            continue
        yield Parts(reasoning, think_closed=True, body=body, ended=case.ended), leaked
        if not body and not case.ended:
            yield Parts(reasoning, think_closed=False, body=(), ended=False), leaked


def bodies(case: Answer, content: str) -> Iterator[tuple[tuple[str | int, ...], bool]]:
    """The content as text, and with its tool markers as control tokens.

    The flag says that markers leaked: the route is not proven to send them raw.
    """
    if case.completion.tool_calls:
        yield _structured_body(case, content), False
        return
    yield (content,) if content else (), False
    marked = split_markers(case.fmt, content)
    if len(marked) > 1 or isinstance(marked[0], int):
        raw = case.fingerprint is not None and case.fingerprint.proven(TraitName.MARKERS) == "raw"
        yield marked, not raw


def split_markers(fmt: Format, text: str) -> tuple[str | int, ...]:
    """The text with every tool marker that it spells read as its control token."""
    ids = fmt.tool_markers()
    spelled = _spelled(tuple(ids))
    if not any(opener in text for opener in spelled.openers):
        return (text,)
    return tuple(ids.get(piece, piece) for piece in spelled.pattern.split(text) if piece)


@dataclass(frozen=True, slots=True)
class _Spelled:
    """How markers are found in a text: by the characters that they begin with, then by their names."""

    openers: frozenset[str]
    pattern: re.Pattern[str]


@cache
def _spelled(names: tuple[str, ...]) -> _Spelled:
    alternatives = "|".join(re.escape(name) for name in names)
    return _Spelled(frozenset(name[0] for name in names), re.compile(f"({alternatives})"))


def _structured_body(case: Answer, content: str) -> tuple[str | int, ...]:
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
    require_own_words(case.completion.tool_calls)
    begin, end, call, argument, stop = (markers[name] for name in _MARKER_ORDER)
    body: list[str | int] = [content] if content else []
    body.append(begin)
    for one in case.completion.tool_calls:
        body += [piece for piece in (call, one.id, argument, one.arguments, stop) if piece != ""]
    return (*body, end)


_MARKER_ORDER: Sequence[str] = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)


def _reading(case: Answer, parts: Parts, *, leaked: bool) -> Reading:
    assembled = _assemble(case, parts, strict=not any(isinstance(piece, int) for piece in parts.body))
    return Reading(parts, assembled, counted(case, parts, len(assembled.ids)), leaked, _is_unseen(case, parts))


def _is_unseen(case: Answer, parts: Parts) -> bool:
    """Only the count tells of a think token: it may stand elsewhere, or be another token that shows no text."""
    if case.opener is Opener.MODEL and not parts.reasoning and (parts.reasoning == "" or is_headed(case.fmt)):
        return True
    return parts.think_closed and not shows_close(case, bool(parts.reasoning), bool(parts.body))


def _assemble(case: Answer, parts: Parts, *, strict: bool) -> Assembled:
    try:
        return case.fmt.assemble(parts)
    except RefusedError as error:
        if strict or error.refusal.reason is not Reason.LAYOUT_INVALID:
            raise in_answer(error, case.fmt, case.completion) from None
        return Assembled((), ())


def counted(case: Answer, parts: Parts, emitted: int) -> int:
    """What the route's `completion_tokens` would be for `emitted` ids laid out as `parts`; -1 where nothing was."""
    if not emitted and (parts.ended or parts.think_closed or parts.body):
        return -1
    unseen = hidden(case.fmt, case.opener, parts)
    if unseen and is_counted(case, TraitName.THINK_CLOSE_COUNTED):
        unseen = 0
    if parts.ended:
        unseen += not is_counted(case, end_trait(parts))
    return emitted - unseen


def is_counted(case: Answer, name: TraitName) -> bool:
    """What the trait says; a route was seen to count in a third way where it is neither true nor false."""
    value = case.trait(name)
    if not isinstance(value, bool):
        raise RefusedError(Reason.ROUTE_UNPROVEN, f"{name} is {value!r} on this route", field=str(name))
    return value


def end_trait(parts: Parts) -> TraitName:
    """The trait that says whether this answer's end token is counted."""
    in_section = any(isinstance(piece, int) for piece in parts.body)
    return TraitName.END_COUNTED_TOOLS if in_section else TraitName.END_COUNTED
