"""Evidence `engine_ids` and `logprobs`: returned ids, held to the text.

Guarantees: the ids lie in the format's layout, end as the answer says it ended, say what its text and its calls say,
and are as many as were counted where the route is proven to count them. A contradiction is refused; the text shown is
never a source of ids.

The text may show less than the ids say, where engines are known to: parsers of tool calls hold back the beginning of a
marker, stop at a marker that was written as text, or leave a section out. What is shown must still be a view of the
ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from pipeline.formats.format import Format, HeadedFormat
from pipeline.proof.answer import Answer, Proof, end_trait
from pipeline.proof.fingerprint import TraitName
from pipeline.records import Evidence, Ids, Reason, RefusedError, Span, SpanKind, TokenLogprob


def by_engine_ids(answer: Answer) -> Proof:
    """Return the ids that the engine returned."""
    ids = answer.completion.token_ids or ()
    spans = spans_held_to_answer(answer, ids, Reason.IDS_CONTRADICT)
    calls_unshown = bool(answer.completion.tool_calls) or _is_section_left_out(answer, ids, spans)
    if not is_whole_by_count(answer, len(ids), spans, Reason.IDS_CONTRADICT) and calls_unshown:
        raise RefusedError(Reason.COUNT_NOT_NATIVE, "no count says whether all ids were returned", field="usage")
    return Proof(ids, spans, Evidence.ENGINE_IDS, ", ".join(answer.completion.ids_from))


def by_logprobs(answer: Answer) -> Proof:
    """Return the ids whose bytes `logprobs` lists.

    Control tokens and the end token must be among them.
    """
    entries = answer.completion.logprobs or ()
    ids = tuple(_id_of_entry(answer.fmt, entry, position) for position, entry in enumerate(entries))
    if answer.ended and not answer.fmt.end_ids.intersection(ids[-1:]):
        raise RefusedError(Reason.LOGPROBS_HOLE, "logprobs do not list the end token", field="logprobs")
    spans = spans_held_to_answer(answer, ids, Reason.LOGPROBS_CONTRADICT)
    is_whole_by_count(answer, len(ids), spans, Reason.LOGPROBS_CONTRADICT)
    return Proof(ids, spans, Evidence.LOGPROBS)


def _id_of_entry(fmt: Format, entry: TokenLogprob, position: int) -> int:
    """Return the token that is exactly an entry's bytes."""
    if entry.data is None:
        message = f"entry {position} has no bytes"
        raise RefusedError(Reason.LOGPROBS_HOLE, message, field="logprobs", token_position=position)
    token = fmt.tokenizer.id_of_bytes(entry.data)
    if token is None:
        token = fmt.tokenizer.control_of_bytes(entry.data)
    if token is None:
        message = f"entry {position}: {entry.data[:40]!r} is no single token"
        raise RefusedError(Reason.LOGPROBS_HOLE, message, field="logprobs", token_position=position)
    return token


def spans_held_to_answer(answer: Answer, ids: Ids, contradiction: Reason) -> tuple[Span, ...]:
    """Return the spans of ids that fit the answer.

    RefusedError(contradiction) where they do not end or say what the answer says.
    """
    try:
        spans = answer.fmt.layout(ids, thinking=answer.prompt.thinking)
    except RefusedError as error:
        raise error.inside("token_ids" if contradiction is Reason.IDS_CONTRADICT else "logprobs") from None
    if bool(answer.fmt.end_ids.intersection(ids[-1:])) != answer.ended:
        end = "absent" if answer.ended else "there"
        message = f"finish_reason {answer.completion.finish_reason}, but the end token is {end}"
        raise RefusedError(contradiction, message, field="finish_reason")
    require_same_texts(answer, ids, spans, contradiction)
    if answer.completion.tool_calls:
        require_same_calls(answer, ids, contradiction)
    return spans


def is_whole_by_count(answer: Answer, emitted: int, spans: Sequence[Span], contradiction: Reason) -> bool:
    """Return whether a count proves that all ids came.

    RefusedError(contradiction) where it says another number. Servers that parse tool calls in a stream were seen to
    return only some of the ids, and no text shows a call's.
    """
    if answer.completion.tool_calls and all(span.kind is not SpanKind.TOOL_SECTION for span in spans):
        raise RefusedError(contradiction, "calls were returned, and no section among the tokens", field="tool_calls")
    total = answer.completion_tokens
    if answer.fingerprint is not None and answer.proven(TraitName.COUNT_NATIVE) is not True:
        return False
    if emitted - _uncounted(answer, spans) != total:
        message = f"{emitted} tokens were returned and {total} counted"
        raise RefusedError(contradiction, message, field="usage.completion_tokens")
    return True


def _uncounted(answer: Answer, spans: Sequence[Span]) -> int:
    """Count the control tokens that the route leaves uncounted.

    0 without a fingerprint. Text that leads to a control token is counted as text, unless it is a header.
    """
    kinds = {span.kind: 1 for span in spans}
    if answer.fmt.is_headed:
        kinds = {kind: sum(span.stop - span.start for span in spans if span.kind is kind) for kind in kinds}
    traits = {
        SpanKind.THINK_OPEN: TraitName.THINK_CLOSE_COUNTED,
        SpanKind.THINK_CLOSE: TraitName.THINK_CLOSE_COUNTED,
        SpanKind.END: end_trait(has_calls=SpanKind.TOOL_SECTION in kinds),
    }
    return sum(kinds.get(kind, 0) for kind, name in traits.items() if answer.proven(name) is False)


# The ids beside the text


def require_same_texts(answer: Answer, ids: Ids, spans: Sequence[Span], contradiction: Reason) -> None:
    """Refuse a text that is no view of the ids."""
    true_texts = _texts_of_ids(answer, ids, spans)
    for (name, shown), true in zip(answer.texts, true_texts, strict=True):
        if _agrees(answer, true, shown) or (name == "content" and _is_cut_by_parser(answer, true, ids, spans)):
            continue
        pairs = enumerate(zip(true, shown, strict=False))
        at = next((i for i, (ours, theirs) in pairs if ours != theirs), min(len(true), len(shown)))
        message = f"{name} is {shown[at : at + 60]!r} from character {at} on, the ids say {true[at : at + 60]!r}"
        raise RefusedError(contradiction, message, field=name, char_offset=at)


def _texts_of_ids(answer: Answer, ids: Ids, spans: Sequence[Span]) -> tuple[str, str]:
    """Return reasoning and content as the ids say them.

    Bytes that are not UTF-8 (a cut character) become U+FFFD. Where calls came parsed, the content ends before the
    section; otherwise it is all of it, with its markers. Behind headers a call is never in a text.
    """
    if isinstance(answer.fmt, HeadedFormat):
        reasoning, content = answer.fmt.texts_in(ids)
        return _joined_as_shown(reasoning, answer.reasoning), _joined_as_shown(content, answer.content)
    parsed = bool(answer.completion.tool_calls)
    section = _section_start(spans, len(ids))
    reasoning_text = _text_of(answer, ids, [span for span in spans if span.kind is SpanKind.REASONING])
    if parsed:
        said = [span for span in spans if span.kind is SpanKind.CONTENT and span.start < section]
    else:
        said = [span for span in spans if span.kind in (SpanKind.CONTENT, SpanKind.TOOL_SECTION)]
    content_text = _text_of(answer, ids, said)
    if parsed and answer.fmt.tag_names and section < len(ids):
        content_text = content_text.removesuffix("<")  # a tag's text begins before its marker
    return reasoning_text, content_text


def _section_start(spans: Sequence[Span], default: int) -> int:
    return next((span.start for span in spans if span.kind is SpanKind.TOOL_SECTION), default)


def _text_of(answer: Answer, ids: Ids, spans: Sequence[Span]) -> str:
    """Return the text of these spans.

    The one marker of a family that writes its tags as text is left out where the answer's text came without it.
    """
    tokens = [token for span in spans for token in ids[span.start : span.stop]]
    if answer.fmt.tag_names:
        unshown = {token for name, token in answer.markers.items() if name not in answer.content}
        tokens = [token for token in tokens if token not in unshown]
    return answer.fmt.tokenizer.decode_bytes(tokens).decode("utf-8", errors="replace")


def _joined_as_shown(messages: Sequence[str], shown: str) -> str:
    """Return the messages joined as the server joins them.

    By nothing, or a line each, with empty ones or without.
    """
    lines = ["\n".join(messages), "\n".join(filter(None, messages))]
    return shown if shown in lines else "".join(messages)


def _agrees(answer: Answer, true: str, shown: str) -> bool:
    """Return whether the shown text can be the true one.

    Exactly where the route keeps white space, otherwise up to white space. A cut may lose half a character.
    """
    if not answer.ended and true.endswith("\ufffd"):
        true, shown = true.rstrip("\ufffd"), shown.rstrip("\ufffd")
    kept = answer.proven(TraitName.SEAM) in ("kept", None)
    return true == shown if kept else "".join(true.split()) == "".join(shown.split())


def _is_cut_by_parser(answer: Answer, true: str, ids: Ids, spans: Sequence[Span]) -> bool:
    """Return whether a tool parser may have cut the content.

    It holds back, and may never send, what a marker could begin with. A parser that reads text takes a marker that was
    written as text for the section's own. Or it leaves out the section in the middle.
    """
    shown = answer.content
    held = true.removeprefix(shown) if true.startswith(shown) else ""
    if len(held) > 1 and any(marker.startswith(held) for marker in answer.markers):
        return True
    if answer.completion.tool_calls:
        first = min((true.find(marker) for marker in answer.markers if marker in true), default=len(true))
        if _agrees(answer, true[:first], shown):
            return True
    return _is_section_left_out(answer, ids, spans)


def _is_section_left_out(answer: Answer, ids: Ids, spans: Sequence[Span]) -> bool:
    """Return whether the content lacks just a tool section.

    It is either what stands before the section, or that with what follows. SGLang leaves out a section that was cut and
    streams the text after one; vLLM leaves out one for which nobody sent `tools`.
    """
    section = _section_start(spans, -1)
    if section < 0 or not answer.fmt.calls_as_text:
        return False
    around = [span for span in spans if span.kind is SpanKind.CONTENT]
    before = [span for span in around if span.start < section]
    return any(_agrees(answer, _text_of(answer, ids, chosen), answer.content) for chosen in (before, around))


# The ids beside parsed calls


def require_same_calls(answer: Answer, ids: Ids, contradiction: Reason) -> None:
    """Refuse calls that are not those of the ids.

    As many, of the same names in the same order, with arguments that are the same JSON; of an answer that was cut, the
    last call as far as it came. How a provider names or writes a call anew does not matter where ids are given. Not
    judged where parsers differ in what they make of the ids: the count and the section are checked there.
    """
    emitted = answer.fmt.calls_in(ids)
    if emitted is None:
        return
    shown = answer.completion.tool_calls
    if emitted and not emitted[-1].whole:
        *whole, cut = emitted
        came = shown[-1].arguments
        is_shown = not answer.ended and len(shown) == len(emitted) and cut.arguments.startswith(came)
        emitted = [*whole, replace(cut, arguments=came)] if is_shown else whole
    if len(shown) != len(emitted):
        message = f"{len(shown)} calls came, the ids hold {len(emitted)}"
        raise RefusedError(contradiction, message, field="tool_calls")
    for call, true in zip(shown, emitted, strict=True):
        # `functions.NAME:INDEX`, as Kimi writes it, with white space that parsers strip.
        name = re.sub(r":\d+$", "", true.identity.strip()).removeprefix("functions.")
        if name != call.name or not true.says(call.arguments):
            said = true.arguments if true.parameters is None else json.dumps(dict(true.parameters))
            message = f"call {call.name}({call.arguments[:40]}) came, the ids say {true.identity}({said[:40]})"
            raise RefusedError(contradiction, message, field="tool_calls")
