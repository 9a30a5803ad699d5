"""The four proofs of a completion's ids, strongest first.

Guarantees: each returns ids that its evidence determines, or refuses. `by_deltas` alone may answer None: the stream's
deltas do not close, and the weaker `by_counts` is tried, which then still has to agree with every delta's boundary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipeline.formats.format import (
    Format,
    Headed,
    Opener,
    Parts,
    closing,
    end_ids,
    ending,
    is_headed,
    opening,
    tag_names,
)
from pipeline.proof.answer import (
    Answer,
    Reading,
    counted,
    end_trait,
    is_counted,
    readings,
    require_text_evidence,
    require_told_thinking,
    says_stop,
    shows_close,
    texts,
    texts_of,
)
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.same_calls import around_section, require_same_calls
from pipeline.proof.stream_deltas import is_cumulative, may_hide_bytes, spell
from pipeline.proof.streamed import require_boundaries, require_sent_once, require_whole_end
from pipeline.records import Evidence, Ids, Reason, RefusedError, Span, SpanKind, TokenLogprob


@dataclass(frozen=True, slots=True)
class Proof:
    """Emitted ids, shape [n], what each stretch is, and why they are believed."""

    ids: Ids
    spans: tuple[Span, ...]
    evidence: Evidence
    detail: str = ""


def by_engine_ids(case: Answer) -> Proof:
    """The ids that the engine returned, if they are a completion and say what the answer's text says."""
    ids = case.completion.token_ids or ()
    spans = _checked_layout(case, ids, Reason.IDS_CONTRADICT)
    lost = bool(case.completion.tool_calls) or _is_section_dropped(case, ids, spans)
    if not _count_says_all(case, len(ids), spans, Reason.IDS_CONTRADICT) and lost:
        raise RefusedError(Reason.COUNT_NOT_NATIVE, "no count says whether all ids were returned", field="usage")
    return Proof(ids, spans, Evidence.ENGINE_IDS, ", ".join(case.completion.ids_from))


def _count_says_all(case: Answer, emitted: int, spans: Sequence[Span], contradiction: Reason) -> bool:
    """As many tokens as were counted, or a refusal; False on a route that is not proven to count them.

    Servers that parse tool calls in a stream were seen to return only some of the ids, and no text shows a call's.
    """
    if case.completion.tool_calls and all(span.kind is not SpanKind.TOOL_SECTION for span in spans):
        raise RefusedError(contradiction, "calls were returned, and no section among the tokens", field="tool_calls")
    total = _completion_tokens(case)
    if case.fingerprint is not None and case.fingerprint.proven(TraitName.COUNT_NATIVE) is not True:
        return False
    if emitted - _uncounted(case, spans) != total:
        message = f"{emitted} tokens were returned and {total} counted"
        raise RefusedError(contradiction, message, field="usage.completion_tokens")
    return True


def _uncounted(case: Answer, spans: Sequence[Span]) -> int:
    """How many control tokens of these spans the route is proven not to count; without a fingerprint, none.

    Text that leads to one is counted as text, but for headers.
    """
    known = case.fingerprint
    if known is None:
        return 0
    kinds = {span.kind: 1 for span in spans}
    if is_headed(case.fmt):
        kinds = {kind: sum(span.stop - span.start for span in spans if span.kind is kind) for kind in kinds}
    end = TraitName.END_COUNTED_TOOLS if SpanKind.TOOL_SECTION in kinds else TraitName.END_COUNTED
    close = TraitName.THINK_CLOSE_COUNTED
    traits = {SpanKind.THINK_OPEN: close, SpanKind.THINK_CLOSE: close, SpanKind.END: end}
    return sum(kinds.get(kind, 0) for kind, name in traits.items() if known.proven(name) is False)


def by_logprobs(case: Answer) -> Proof:
    """The ids whose bytes `logprobs` lists, control tokens and end token among them."""
    entries = case.completion.logprobs or ()
    ids = tuple(_id_of_entry(case.fmt, entry, position) for position, entry in enumerate(entries))
    if case.ended and not end_ids(case.fmt).intersection(ids[-1:]):
        raise RefusedError(Reason.LOGPROBS_HOLE, "logprobs do not list the end token", field="logprobs")
    spans = _checked_layout(case, ids, Reason.LOGPROBS_CONTRADICT)
    _count_says_all(case, len(ids), spans, Reason.LOGPROBS_CONTRADICT)
    return Proof(ids, spans, Evidence.LOGPROBS)


def _id_of_entry(fmt: Format, entry: TokenLogprob, position: int) -> int:
    if entry.data is None:
        raise RefusedError(
            Reason.LOGPROBS_HOLE, f"entry {position} has no bytes", field="logprobs", token_position=position
        )
    token = fmt.tokenizer.id_of_bytes(entry.data)
    if token is None:
        token = fmt.tokenizer.control_of_bytes(entry.data)
    if token is None:
        message = f"entry {position}: {entry.data[:40]!r} is no single token"
        raise RefusedError(Reason.LOGPROBS_HOLE, message, field="logprobs", token_position=position)
    return token


def _checked_layout(case: Answer, ids: Ids, contradiction: Reason) -> tuple[Span, ...]:
    """The spans of ids that lie in the layout, end as the answer says it ended, and say what its text says."""
    spans = _spans(case, ids, "token_ids" if contradiction is Reason.IDS_CONTRADICT else "logprobs")
    if bool(end_ids(case.fmt).intersection(ids[-1:])) != case.ended:
        message = (
            f"finish_reason {case.completion.finish_reason}, but the end token is {'absent' if case.ended else 'there'}"
        )
        raise RefusedError(contradiction, message, field="finish_reason")
    said = _said(case, ids, spans)
    for name, true, shown in zip(("reasoning", "content"), said, texts(case.completion), strict=True):
        if not _agrees(case, true, shown) and not (name == "content" and _is_cut(case, true, shown, ids, spans)):
            at = _parting(true, shown)
            message = f"{name} is {shown[at : at + 60]!r} from character {at} on, the ids say {true[at : at + 60]!r}"
            raise RefusedError(contradiction, message, field=name, char_offset=at)
    if case.completion.tool_calls:
        require_same_calls(case, ids, spans, contradiction)
    return spans


def _spans(case: Answer, ids: Ids, listed: str) -> tuple[Span, ...]:
    try:
        return case.fmt.layout(ids, thinking=case.prompt.thinking)
    except RefusedError as error:
        raise error.inside(listed) from None


def _parting(true: str, shown: str) -> int:
    """The first character in which the two differ."""
    pairs = enumerate(zip(true, shown, strict=False))
    return next((i for i, (ours, theirs) in pairs if ours != theirs), min(len(true), len(shown)))


def _said(case: Answer, ids: Ids, spans: Sequence[Span]) -> tuple[str, str]:
    """Reasoning and content as text; bytes that are no UTF-8 (a cut character) as U+FFFD.

    The content is what stands before the section where the calls came parsed, and all of it with markers where not.
    Where headers make an answer, a call is never in a text, and servers join messages as they are or with a line feed.
    """
    if isinstance(case.fmt, Headed):
        reasoning, content = map(_as_shown, case.fmt.texts_in(ids), texts(case.completion))
        return reasoning, content
    section = next((span.start for span in spans if span.kind is SpanKind.TOOL_SECTION), len(ids))
    shown = {SpanKind.CONTENT} if case.completion.tool_calls else {SpanKind.CONTENT, SpanKind.TOOL_SECTION}
    before = [span for span in spans if span.start < section or not case.completion.tool_calls]

    unshown = _unshown(case)

    def text(kinds: set[SpanKind], among: Sequence[Span]) -> str:
        chosen = [token for span in among if span.kind in kinds for token in ids[span.start : span.stop]]
        kept = [token for token in chosen if token not in unshown] if unshown else chosen
        return case.fmt.tokenizer.decode_bytes(kept).decode("utf-8", errors="replace")

    content = text(shown, before)
    tag_begun = bool(tag_names(case.fmt)) and section < len(ids) and bool(case.completion.tool_calls)
    return text({SpanKind.REASONING}, spans), content.removesuffix("<") if tag_begun else content


def _unshown(case: Answer) -> frozenset[int]:
    """The one marker of a family that writes its tags as text, where the answer's text came without it."""
    markers = case.fmt.tool_markers() if tag_names(case.fmt) else {}
    return frozenset(token for name, token in markers.items() if name not in texts(case.completion)[1])


def _as_shown(said: Sequence[str], shown: str) -> str:
    """The messages as one text, joined as the text shown is: by nothing, or a line each, empty ones or not."""
    lines = ["\n".join(said), "\n".join(filter(None, said))]
    return shown if shown in lines else "".join(said)


def _is_cut_at_marker(case: Answer, true: str, shown: str) -> bool:
    """A parser that reads text takes a marker that was written as text for the section's own."""
    if not case.completion.tool_calls:
        return False
    first = min((true.find(marker) for marker in case.fmt.tool_markers() if marker in true), default=len(true))
    return _agrees(case, true[:first], shown)


def _is_cut(case: Answer, true: str, shown: str, ids: Ids, spans: Sequence[Span]) -> bool:
    """Whether a parser of calls left out the rest of the content, or the section in the middle of it.

    It holds back, and may never send, what a marker could begin with.
    """
    held = true.removeprefix(shown) if true.startswith(shown) else ""
    if len(held) > 1 and any(marker.startswith(held) for marker in case.fmt.tool_markers()):
        return True
    return _is_cut_at_marker(case, true, shown) or _is_section_dropped(case, ids, spans)


def _is_section_dropped(case: Answer, ids: Ids, spans: Sequence[Span]) -> bool:
    shown = texts(case.completion)[1]
    return any(_agrees(case, text, shown) for text in around_section(case, ids, spans))


def _agrees(case: Answer, true: str, shown: str) -> bool:
    """Whether the text shown can be a view of the true text; the ids are never taken from the text shown.

    Exact where the route keeps white space, else up to white space.
    """
    if not case.ended:
        true = true.rstrip("\ufffd")
        shown = shown.rstrip("\ufffd")
    kept = case.fingerprint is None or case.fingerprint.proven(TraitName.SEAM) in ("kept", None)
    return true == shown if kept else "".join(true.split()) == "".join(shown.split())


def by_deltas(case: Answer) -> Proof | None:
    """The ids that the stream's deltas spell one by one; None where they are not tokens or do not close the count.

    A `<think>` that the model emitted is in no delta, and servers differ in whether reasoning shows that it was: only
    the count tells of it, so such an answer is `counted`.
    """
    if case.completion.deltas is None or case.completion.tool_calls:
        return None
    known = case.fingerprint
    if known is None or known.proven(TraitName.DELTAS) != "tokens" or known.proven(TraitName.COUNT_NATIVE) is not True:
        return None
    require_text_evidence(case)
    shown = [texts_of(case.completion, name) for name in ("reasoning", "content")]
    if any(map(is_cumulative, shown)):
        return None
    if any(may_hide_bytes(case.fmt.tokenizer, text) for field in shown for text in _last_deltas(case, field)):
        return None
    total = _completion_tokens(case)
    for parts, ids in _delta_layouts(case, *shown):
        if counted(case, parts, len(ids)) == total:
            _require_limit(case, parts, total)
            require_told_thinking(case, reasoning=bool(shown[0]), first="".join(shown[1]) or None)
            untold = case.opener is Opener.MODEL and parts.reasoning is not None
            evidence = Evidence.COUNTED if untold else Evidence.STREAM_DELTAS
            return Proof(ids, case.fmt.layout(ids, thinking=case.prompt.thinking), evidence)
    return None


def _last_deltas(case: Answer, shown: Sequence[str]) -> Iterator[str]:
    """Each delta of a field that a control token follows, or nothing: what it holds back is never sent."""
    markers = case.fmt.tool_markers()
    if not markers.keys().isdisjoint(shown):
        yield from (before for before, after in pairwise(shown) if after in markers)
    yield from shown[-1:]


def _delta_layouts(case: Answer, thought: Sequence[str], told: Sequence[str]) -> Iterator[tuple[Parts, Ids]]:
    raw = case.fingerprint is not None and case.fingerprint.proven(TraitName.MARKERS) == "raw"
    markers = case.fmt.tool_markers() if raw else {}
    reasoning = spell(case.fmt.tokenizer, thought, {})
    body = spell(case.fmt.tokenizer, told, markers)
    if reasoning is None or body is None:
        return
    controls = frozenset(markers.values())
    marked = () if controls.isdisjoint(body) else tuple(token for token in body if token in controls)
    end = (ending(case.fmt, marked),) if case.ended else ()
    if case.opener is Opener.NOBODY or (case.opener is Opener.MODEL and not reasoning):
        if is_headed(case.fmt):
            return
        yield Parts(None, think_closed=False, body=marked, ended=case.ended), (*body, *end)
        return
    begin = opening(case.fmt) if case.opener is Opener.MODEL else ()
    close = closing(case.fmt)
    if shows_close(case, bool(reasoning), bool(body)):
        yield Parts("", think_closed=True, body=marked, ended=case.ended), (*begin, *reasoning, *close, *body, *end)
    elif not body and not case.ended:
        yield Parts("", think_closed=False, body=(), ended=False), (*begin, *reasoning)


def by_counts(case: Answer) -> Proof:
    """The canonical ids of the one reading whose length the provider's own count equals.

    A re-split of the same length passes this; the route's `same_count_mismatch` says how often.
    """
    require_text_evidence(case)
    if case.trait(TraitName.COUNT_NATIVE) is not True:
        raise RefusedError(Reason.COUNT_NOT_NATIVE, "completion_tokens may be counted from the text", field="usage")
    total = _completion_tokens(case)
    require_whole_end(case)
    found = readings(case)
    closing = [reading for reading in found if reading.count == total]
    if len(closing) != 1:
        raise _not_one(case, found, closing, total)
    reading = closing[0]
    if reading.leaked:
        body = reading.parts.body
        at = _offset(case.fmt, body, next(i for i, piece in enumerate(body) if isinstance(piece, int)))
        message = "the count closes only with tool markers as control tokens"
        raise RefusedError(Reason.LEAKED_CONTROL, message, field="content", char_offset=at)
    if reading.unseen:
        raise RefusedError(Reason.AMBIGUOUS_LAYOUT, "only the count tells of a <think> or </think>", field="content")
    first = next(iter(reading.parts.body), None)
    require_told_thinking(case, reasoning=bool(reading.parts.reasoning), first=first)
    _require_limit(case, reading.parts, total)
    _require_no_mixed_marker(case, reading, total)
    require_sent_once(case, total)
    require_boundaries(case, reading.assembled.ids, reading.assembled.spans)
    return Proof(reading.assembled.ids, reading.assembled.spans, Evidence.COUNTED)


def _completion_tokens(case: Answer) -> int:
    usage = case.completion.usage
    if usage is None or usage.completion_tokens is None:
        raise RefusedError(Reason.USAGE_MISSING, "usage.completion_tokens is absent", field="usage.completion_tokens")
    return usage.completion_tokens


def _require_limit(case: Answer, parts: Parts, total: int) -> None:
    """A cut is at max_tokens, nothing is past it, and a stop at just max_tokens leaves an uncounted end token open."""
    if case.max_tokens is None:
        _require_told_end(case, parts)
        return
    if total > case.max_tokens or (not case.ended and total != case.max_tokens):
        message = f"{total} tokens, the limit is {case.max_tokens}, finish_reason {case.completion.finish_reason}"
        raise RefusedError(Reason.FINISH_CONTRADICTS, message, field="finish_reason")
    if case.ended and total == case.max_tokens and case.trait(end_trait(parts)) is False:
        raise RefusedError(
            Reason.AMBIGUOUS_LAYOUT, f"stopped at just the limit of {total} tokens", field="finish_reason"
        )


def _require_told_end(case: Answer, parts: Parts) -> None:
    """Where no count tells of the end token, a cut that calls itself a stop is seen by the limit or natively."""
    if case.ended and not says_stop(case.completion) and not is_counted(case, end_trait(parts)):
        message = "the end token is not counted; neither a native_finish_reason that says stop nor max_tokens is known"
        raise RefusedError(Reason.FINISH_UNKNOWN, message, field="native_finish_reason")


def _not_one(case: Answer, found: Sequence[Reading], closing: Sequence[Reading], total: int) -> RefusedError:
    if len(closing) > 1:
        marked = any(isinstance(piece, int) for reading in closing for piece in reading.parts.body)
        reason = Reason.AMBIGUOUS_MARKER if marked else Reason.AMBIGUOUS_LAYOUT
        return RefusedError(reason, f"{len(closing)} readings have {total} tokens", field="usage.completion_tokens")
    if not any(texts(case.completion)) and not case.completion.tool_calls:
        message = f"{total} tokens were counted and nothing was delivered"
        return RefusedError(Reason.EMPTY_ANSWER, message, field="content")
    counts = ", ".join(str(reading.count) for reading in found if reading.count >= 0)
    message = f"rebuilt {counts or 'nothing'} tokens, the provider counted {total}"
    return RefusedError(Reason.COUNT_MISMATCH, message, field="usage.completion_tokens")


def _require_no_mixed_marker(case: Answer, reading: Reading, total: int) -> None:
    """No reading with only some markers as control tokens may close the count too (each marker alone is tried)."""
    body = reading.parts.body
    for position, piece in enumerate(body):
        if isinstance(piece, int):
            flipped = _as_text(case.fmt, body, position)
            length = len(reading.assembled.ids) - _length(case.fmt, body) + _length(case.fmt, flipped)
            if counted(case, reading.parts, length) == total:
                message = f"the marker at piece {position} closes the count as text too"
                at = _offset(case.fmt, body, position)
                raise RefusedError(Reason.AMBIGUOUS_MARKER, message, field="content", char_offset=at)


def _offset(fmt: Format, body: Sequence[str | int], position: int) -> int:
    """The character at which a piece of the body begins in its text."""
    names = (piece if isinstance(piece, str) else fmt.tokenizer.name_of(piece) or "" for piece in body[:position])
    return sum(map(len, names))


def _as_text(fmt: Format, body: Sequence[str | int], position: int) -> tuple[str | int, ...]:
    """The body with one control token spelled as text and joined to the text beside it."""
    name = fmt.tokenizer.name_of(int(body[position])) or ""
    before = body[position - 1] if position and isinstance(body[position - 1], str) else ""
    after = body[position + 1] if position + 1 < len(body) and isinstance(body[position + 1], str) else ""
    head = body[: position - 1] if before else body[:position]
    tail = body[position + 2 :] if after else body[position + 1 :]
    return (*head, f"{before}{name}{after}", *tail)


def _length(fmt: Format, body: Sequence[str | int]) -> int:
    return sum(1 if isinstance(piece, int) else len(fmt.tokenizer.encode(piece)) for piece in body)
