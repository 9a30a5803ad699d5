"""What every proof from text needs, beyond the text itself.

Guarantees: nothing is accepted here. `TEXT_CHECKS` holds for both proofs from text and runs before them; what depends
on how the answer was read (`require_shown_thinking`, `require_limit`) runs after.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice, pairwise

from pipeline.formats.format import Opener, Parts
from pipeline.formats.tokenizer import Tokenizer
from pipeline.formats.unicode_tables import NEWEST, OLDEST, first_changed
from pipeline.proof.answer import Answer, end_trait, says_stop
from pipeline.proof.fingerprint import TraitName
from pipeline.records import Reason, RefusedError


def require_text_evidence(answer: Answer) -> None:
    """Refuse an answer whose text cannot prove its ids."""
    for check in TEXT_CHECKS:
        check(answer)


def require_kept_space(answer: Answer) -> None:
    """Refuse a route that changes white space beside control tokens."""
    if (seam := answer.require(TraitName.SEAM)) != "kept":
        message = f"white space beside control tokens is {seam} on this route"
        raise RefusedError(Reason.SEAM_LOSSY, message, field=str(TraitName.SEAM))


def require_whole_characters(answer: Answer) -> None:
    """Refuse a text with U+FFFD, which stands for lost bytes."""
    for name, text in answer.texts:
        if (at := text.find("\ufffd")) >= 0:
            raise RefusedError(Reason.REPLACEMENT_CHAR, f"U+FFFD in {name}", field=name, char_offset=at)


def require_settled_characters(answer: Answer) -> None:
    """Refuse characters that engines' Unicode tables class differently.

    They are split in several ways of one length.
    """
    for name, text in _shown_texts(answer):
        if (at := first_changed(text)) is not None:
            raise changed_character(text, at, name)


def changed_character(text: str, at: int, field: str) -> RefusedError:
    """Return the refusal of the character at `at`."""
    message = f"U+{ord(text[at]):04X} has another class in Unicode {OLDEST} than in {NEWEST}, and engines use both"
    return RefusedError(Reason.UNICODE_VERSION, message, field=field, char_offset=at)


def require_line_ends(answer: Answer) -> None:
    """Refuse a line feed that may have been CR LF.

    Where the vocabulary joins the two, both have as many tokens, so the route must be proven to keep line ends. Where
    it was seen once to change them, no vocabulary helps.
    """
    known = answer.fingerprint.traits.get(TraitName.LINE_ENDS) if answer.fingerprint else None
    for name, text in _shown_texts(answer):
        if (at := text.find("\n")) < 0:
            continue
        if known is not None and known.value not in ("kept", None):
            message = f"line ends are {known.value} on this route"
            raise RefusedError(Reason.SEAM_LOSSY, message, field=name, char_offset=at)
        if _joins_line_ends(answer.fmt.tokenizer) and (known is None or not known.proven):
            message = "the line feed may have been CR LF, and the route is not proven to keep line ends (line_ends). "
            message += "Probe it: python -m pipeline probe"
            raise RefusedError(Reason.ROUTE_UNPROVEN, message, field=str(TraitName.LINE_ENDS), char_offset=at)


@cache
def _joins_line_ends(tokenizer: Tokenizer) -> bool:
    """Return whether some token holds a carriage return and more.

    Otherwise each carriage return adds to the count of a text.
    """
    return any(len(piece) > 1 and b"\r" in piece for piece in map(tokenizer.token_bytes, tokenizer.base_ids))


def _shown_texts(answer: Answer) -> Iterator[tuple[str, str]]:
    """Yield every text of the answer with its field."""
    yield from answer.texts
    for call in answer.completion.tool_calls:
        yield "tool_calls", call.arguments


def require_known_end(answer: Answer) -> None:
    """Refuse an end that may be one of several tokens.

    Neither text nor count shows which of them was emitted.
    """
    if not answer.ended or len(answer.fmt.end_ids) == 1:
        return
    if (ends := answer.require(TraitName.TURN_END)) != "by_role":
        message = f"{answer.fmt.name} ends answers with one of several tokens, and which is {ends} on this route"
        raise RefusedError(Reason.AMBIGUOUS_LAYOUT, message, field="finish_reason")


def require_known_opening(answer: Answer) -> None:
    """Refuse hidden text before `<think>` that is not proven.

    It is in no field, and other text of the same length may stand there.
    """
    if answer.opener is not Opener.MODEL or len(answer.fmt.opening_ids) == 1:
        return
    if (lead := answer.require(TraitName.THINK_LEAD)) != "written":
        message = f"{answer.fmt.name} writes text before its <think>, which is {lead} on this route"
        raise RefusedError(Reason.AMBIGUOUS_LAYOUT, message, field="reasoning")


def require_no_header(answer: Answer) -> None:
    """Refuse a text that spells a header's control token.

    A parser that lost its place leaves headers in the text.
    """
    if not answer.fmt.is_headed:
        return
    for name, text in answer.texts:
        if (found := answer.fmt.tokenizer.find_control(text)) is not None:
            message = f"{found[1]} stands in the text, which only ids tell from the control token"
            raise RefusedError(Reason.LEAKED_CONTROL, message, field=name, char_offset=found[0])


def require_no_bare_tag(answer: Answer) -> None:
    """Refuse a tag that may have lost its special token.

    Where a special token stands in every tag of a call, a route may leave it out. What is left is text, whose length
    can be that of the tag with its token, so the count does not tell.
    """
    names = answer.fmt.tag_names
    if not names or answer.raw_markers:
        return
    cut = "" if answer.ended else r"|[a-z_]*\Z"
    for name, text in _shown_texts(answer):
        if (found := re.search(f"</?(?:{'|'.join(sorted(names))}{cut})", text)) is not None:
            message = f"{found[0]!r} may have been a call's, whose markers this route is not proven to show"
            raise RefusedError(Reason.AMBIGUOUS_MARKER, message, field=name, char_offset=found.start())


def require_allowed_reasoning(answer: Answer) -> None:
    """Refuse reasoning where thinking was off."""
    if answer.reasoning and answer.opener is Opener.NOBODY:
        raise RefusedError(Reason.LAYOUT_INVALID, "reasoning came though thinking was off", field="reasoning")


def require_field_order(answer: Answer) -> None:
    """Refuse a stream whose fields come out of order."""
    rank = {"reasoning": 0, "content": 1, "tool_calls": 2}
    deltas = answer.completion.deltas or ()
    ranks = [rank[delta.field] for delta in deltas]
    if ranks == sorted(ranks):
        return
    for position, (before, after) in enumerate(pairwise(deltas)):
        if rank[before.field] > rank[after.field]:
            message = f"{after.field} follows {before.field} at delta {position + 1}"
            raise RefusedError(Reason.LAYOUT_INVALID, message, field=after.field, token_position=position + 1)


def require_reasoning_first(answer: Answer) -> None:
    """Refuse fields that split one JSON value between them.

    A parser that takes `<think>` inside a text for its own shows what stood before it as content and the rest as
    reasoning. Joined in the order of emission, such a value is whole; the count is the same either way.
    """
    before, after = answer.content, answer.reasoning
    if before and after and _value_crosses(before, after):
        message = "content and reasoning are two halves of one JSON value, so they were split inside it"
        raise RefusedError(Reason.LAYOUT_INVALID, message, field="reasoning", char_offset=0)


def _value_crosses(before: str, after: str) -> bool:
    """Return whether a JSON value spans both texts."""
    if "}" not in after and "]" not in after:
        return False
    joined, decoder = before + after, json.JSONDecoder()
    for found in islice(_VALUE_BEGINS.finditer(before), MOST_VALUES):
        try:
            end = decoder.raw_decode(joined, found.start())[1]
        except (ValueError, RecursionError):
            continue
        if end > len(before):
            return True
    return False


_VALUE_BEGINS = re.compile(r"[{\[]")
MOST_VALUES = 64
"""Places in a content where a JSON value may begin; each costs one attempt to read it."""


TEXT_CHECKS: tuple[Callable[[Answer], None], ...] = (
    require_kept_space,
    require_whole_characters,
    require_settled_characters,
    require_line_ends,
    require_known_end,
    require_known_opening,
    require_no_header,
    require_no_bare_tag,
    require_allowed_reasoning,
    require_reasoning_first,
    require_field_order,
)
"""What text alone must satisfy; the first that fails decides the reason that a user sees."""


def require_shown_thinking(answer: Answer) -> None:
    """Refuse a thinking whose end neither count nor text shows.

    Where think tokens are not counted, only text on both sides shows that the thinking was closed. A tool marker is no
    such text: a section ends a thinking that was never closed.
    """
    if answer.opener is Opener.NOBODY or answer.counts(TraitName.THINK_CLOSE_COUNTED):
        return
    if not answer.reasoning or not answer.content or answer.content.startswith(tuple(answer.markers)):
        message = "no count tells of <think> or </think> on this route, and the text does not either"
        raise RefusedError(Reason.AMBIGUOUS_LAYOUT, message, field="content")


def require_limit(answer: Answer, parts: Parts) -> None:
    """Refuse a finish reason that the limit contradicts.

    A cut is exactly at `max_tokens`, and nothing goes past it. A stop exactly there leaves open whether an uncounted
    end token was emitted. Without a known limit, an uncounted end token needs a native finish reason that says stop.
    """
    total, end_counted = answer.completion_tokens, end_trait(has_calls=parts.has_markers)
    if answer.max_tokens is None:
        if answer.ended and not says_stop(answer.completion) and not answer.counts(end_counted):
            message = (
                "the end token is not counted; neither a native_finish_reason that says stop nor max_tokens is known"
            )
            raise RefusedError(Reason.FINISH_UNKNOWN, message, field="native_finish_reason")
        return
    if total > answer.max_tokens or (not answer.ended and total != answer.max_tokens):
        message = f"{total} tokens, the limit is {answer.max_tokens}, finish_reason {answer.completion.finish_reason}"
        raise RefusedError(Reason.FINISH_CONTRADICTS, message, field="finish_reason")
    if answer.ended and total == answer.max_tokens and answer.require(end_counted) is False:
        message = f"stopped at just the limit of {total} tokens"
        raise RefusedError(Reason.AMBIGUOUS_LAYOUT, message, field="finish_reason")
