"""The four proofs of a completion's ids, strongest first.

Guarantees: each returns ids that its evidence determines, or refuses. `by_deltas` alone may answer None: the stream's
deltas do not close, and the weaker `by_counts` is tried, which then still has to agree with every delta's boundary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from pipeline.calls import require_same_calls
from pipeline.deltas import crossed_boundary, may_hide_bytes, spell
from pipeline.formats.kimi_tokens import SECTION_BEGIN
from pipeline.formats.parts import Format, Parts
from pipeline.readings import Case, Reading, counted, end_trait, readings, require_text_evidence, shows_close, texts
from pipeline.records import Delta, Evidence, Ids, Reason, RefusedError, Span, SpanKind, TokenLogprob
from pipeline.routes import TraitName


@dataclass(frozen=True, slots=True)
class Proof:
    """Emitted ids, shape [n], what each stretch is, and why they are believed."""

    ids: Ids
    spans: tuple[Span, ...]
    evidence: Evidence
    detail: str = ""


def by_engine_ids(case: Case) -> Proof:
    """The ids that the engine returned, if they are a completion and say what the answer's text says."""
    ids = case.completion.token_ids or ()
    spans = _checked_layout(case, ids, Reason.IDS_CONTRADICT)
    _require_count(case, ids, Reason.IDS_CONTRADICT)
    return Proof(ids, spans, Evidence.ENGINE_IDS)


def _require_count(case: Case, ids: Ids, contradiction: Reason) -> None:
    """As many ids as were counted, by what is known of the route's counts: not its end token, or of its own text."""
    usage, known = case.completion.usage, case.fingerprint
    if usage is None or usage.completion_tokens is None:
        return
    native = known is None or known.proven(TraitName.COUNT_NATIVE) is True
    if native and usage.completion_tokens not in _possible_counts(case, ids):
        message = f"{len(ids)} ids were returned and {usage.completion_tokens} counted"
        raise RefusedError(contradiction, message, field="usage.completion_tokens")


def _possible_counts(case: Case, ids: Ids) -> set[int]:
    """Without a fingerprint the end token may be counted or not; with one its traits say what is counted."""
    known = case.fingerprint
    if known is None:
        return {len(ids), len(ids) - case.ended}
    in_section = any(token in case.fmt.tool_markers().values() for token in ids)
    end = known.proven(TraitName.END_COUNTED_TOOLS if in_section else TraitName.END_COUNTED)
    close = known.proven(TraitName.THINK_CLOSE_COUNTED)
    ends = {bool(end)} if end is not None else {True, False}
    closes = {bool(close)} if close is not None else {True, False}
    closed = case.prompt.thinking and case.fmt.think_close_id in ids
    return {len(ids) - (case.ended and not e) - (closed and not c) for e in ends for c in closes}


def by_logprobs(case: Case) -> Proof:
    """The ids whose bytes `logprobs` lists, control tokens and end token among them."""
    entries = case.completion.logprobs or ()
    ids = tuple(_id_of_entry(case.fmt, entry, position) for position, entry in enumerate(entries))
    if case.ended and ids[-1:] != (case.fmt.end_id,):
        raise RefusedError(Reason.LOGPROBS_HOLE, "logprobs do not list the end token", field="logprobs")
    spans = _checked_layout(case, ids, Reason.LOGPROBS_CONTRADICT)
    _require_count(case, ids, Reason.LOGPROBS_CONTRADICT)
    return Proof(ids, spans, Evidence.LOGPROBS)


def _id_of_entry(fmt: Format, entry: TokenLogprob, position: int) -> int:
    if entry.data is None:
        raise RefusedError(Reason.LOGPROBS_HOLE, f"entry {position} has no bytes", token_position=position)
    token = fmt.tokenizer.id_of_bytes(entry.data)
    if token is None:
        token = fmt.tokenizer.control_of_bytes(entry.data)
    if token is None:
        message = f"entry {position}: {entry.data[:40]!r} is no single token"
        raise RefusedError(Reason.LOGPROBS_HOLE, message, field="logprobs", token_position=position)
    return token


def _checked_layout(case: Case, ids: Ids, contradiction: Reason) -> tuple[Span, ...]:
    """The spans of ids that lie in the layout, end as the answer says it ended, and say what its text says."""
    spans = case.fmt.layout(ids, thinking=case.prompt.thinking)
    if (ids[-1:] == (case.fmt.end_id,)) != case.ended:
        message = (
            f"finish_reason {case.completion.finish_reason}, but the end token is {'absent' if case.ended else 'there'}"
        )
        raise RefusedError(contradiction, message, field="finish_reason")
    said = _said(case, ids, spans)
    for name, true, shown in zip(("reasoning", "content"), said, texts(case.completion), strict=True):
        if not _agrees(case, true, shown) and not (name == "content" and _is_cut_at_marker(case, true, shown)):
            raise RefusedError(contradiction, f"{name} is {shown[:60]!r}, the ids say {true[:60]!r}", field=name)
    if case.completion.tool_calls:
        require_same_calls(case, ids, spans, contradiction)
    return spans


def _said(case: Case, ids: Ids, spans: Sequence[Span]) -> tuple[str, str]:
    """Reasoning and content as text; bytes that are no UTF-8 (a cut character) as U+FFFD.

    The content is what stands before the section where the calls came parsed, and all of it with markers where not.
    """
    section = next((span.start for span in spans if span.kind is SpanKind.TOOL_SECTION), len(ids))
    shown = {SpanKind.CONTENT} if case.completion.tool_calls else {SpanKind.CONTENT, SpanKind.TOOL_SECTION}
    before = [span for span in spans if span.start < section or not case.completion.tool_calls]

    def text(kinds: set[SpanKind], among: Sequence[Span]) -> str:
        chosen = [token for span in among if span.kind in kinds for token in ids[span.start : span.stop]]
        return case.fmt.tokenizer.decode_bytes(chosen).decode("utf-8", errors="replace")

    return text({SpanKind.REASONING}, spans), text(shown, before)


def _is_cut_at_marker(case: Case, true: str, shown: str) -> bool:
    """A parser that reads text takes a marker that was written as text for the section's own."""
    return bool(case.completion.tool_calls) and _agrees(case, true.split(SECTION_BEGIN, 1)[0], shown)


def _agrees(case: Case, true: str, shown: str) -> bool:
    """Whether the text shown can be a view of the true text; the ids are never taken from the text shown.

    Exact where the route keeps white space, else up to white space.
    """
    if not case.ended:
        true = true.rstrip("\ufffd")
        shown = shown.rstrip("\ufffd")
    kept = case.fingerprint is None or case.fingerprint.proven(TraitName.SEAM) in ("kept", None)
    return true == shown if kept else "".join(true.split()) == "".join(shown.split())


def by_deltas(case: Case) -> Proof | None:
    """The ids that the stream's deltas spell one by one; None where they are not tokens or do not close the count."""
    if case.completion.deltas is None or case.completion.tool_calls:
        return None
    known = case.fingerprint
    if known is None or known.proven(TraitName.DELTAS) != "tokens" or known.proven(TraitName.COUNT_NATIVE) is not True:
        return None
    require_text_evidence(case)
    if any(may_hide_bytes(case.fmt.tokenizer, text) for text in _last_deltas(case, case.completion.deltas)):
        return None
    total = _completion_tokens(case)
    for parts, ids in _delta_layouts(case, case.completion.deltas):
        if counted(case, parts, len(ids)) == total:
            _require_limit(case, parts, total)
            return Proof(ids, case.fmt.layout(ids, thinking=case.prompt.thinking), Evidence.STREAM_DELTAS)
    return None


def _last_deltas(case: Case, deltas: Sequence[Delta]) -> Iterator[str]:
    """Each delta that a control token follows, or nothing: what it holds back is never sent."""
    markers = case.fmt.tool_markers()
    for delta, after in zip_longest(deltas, deltas[1:]):
        if delta is not None and (after is None or after.field != delta.field or after.text in markers):
            yield delta.text


def _delta_layouts(case: Case, deltas: Sequence[Delta]) -> Iterator[tuple[Parts, Ids]]:
    raw = case.fingerprint is not None and case.fingerprint.proven(TraitName.MARKERS) == "raw"
    markers = case.fmt.tool_markers() if raw else {}
    reasoning = spell(case.fmt.tokenizer, [delta.text for delta in deltas if delta.field == "reasoning"], {})
    body = spell(case.fmt.tokenizer, [delta.text for delta in deltas if delta.field == "content"], markers)
    if reasoning is None or body is None:
        return
    marked = tuple(token for token in body if case.fmt.tokenizer.is_control(token))
    end = (case.fmt.end_id,) if case.ended else ()
    if not case.prompt.thinking:
        yield Parts(None, think_closed=False, body=marked, ended=case.ended), (*body, *end)
        return
    close = case.fmt.think_close_id
    if shows_close(case, bool(reasoning), bool(body)):
        yield Parts("", think_closed=True, body=marked, ended=case.ended), (*reasoning, close, *body, *end)
    elif not body and not case.ended:
        yield Parts("", think_closed=False, body=(), ended=False), reasoning


def by_counts(case: Case) -> Proof:
    """The canonical ids of the one reading whose length the provider's own count equals.

    A re-split of the same length passes this; the route's `same_count_mismatch` says how often.
    """
    require_text_evidence(case)
    if case.trait(TraitName.COUNT_NATIVE) is not True:
        raise RefusedError(Reason.COUNT_NOT_NATIVE, "completion_tokens may be counted from the text", field="usage")
    total = _completion_tokens(case)
    _require_whole_end(case)
    found = readings(case)
    closing = [reading for reading in found if reading.count == total]
    if len(closing) != 1:
        raise _not_one(case, found, closing, total)
    reading = closing[0]
    if reading.leaked:
        raise RefusedError(
            Reason.LEAKED_CONTROL, "the count closes only with tool markers as control tokens", field="content"
        )
    if reading.unseen(case):
        raise RefusedError(Reason.AMBIGUOUS_LAYOUT, "nothing shows where </think> was emitted", field="content")
    _require_limit(case, reading.parts, total)
    _require_no_mixed_marker(case, reading, total)
    _require_boundaries(case, reading.assembled.ids, reading.assembled.spans)
    return Proof(reading.assembled.ids, reading.assembled.spans, Evidence.COUNTED)


def _completion_tokens(case: Case) -> int:
    usage = case.completion.usage
    if usage is None or usage.completion_tokens is None:
        raise RefusedError(Reason.USAGE_MISSING, "usage.completion_tokens is absent", field="usage")
    return usage.completion_tokens


def _require_limit(case: Case, parts: Parts, total: int) -> None:
    """A cut is at max_tokens, nothing is past it, and a stop at just max_tokens leaves an uncounted end token open."""
    if case.max_tokens is None:
        return
    if total > case.max_tokens or (not case.ended and total != case.max_tokens):
        message = f"{total} tokens, the limit is {case.max_tokens}, finish_reason {case.completion.finish_reason}"
        raise RefusedError(Reason.FINISH_CONTRADICTS, message, field="finish_reason")
    if case.ended and total == case.max_tokens and case.trait(end_trait(parts)) is False:
        raise RefusedError(
            Reason.AMBIGUOUS_LAYOUT, f"stopped at just the limit of {total} tokens", field="finish_reason"
        )


def _require_whole_end(case: Case) -> None:
    """A stream that was cut inside a character sends no sign of it; a body shows U+FFFD, which is refused before."""
    if case.ended or not case.completion.deltas:
        return
    last = case.completion.deltas[-1].field
    shown = texts(case.completion)[0 if last == "reasoning" else 1]
    if may_hide_bytes(case.fmt.tokenizer, shown):
        raise RefusedError(Reason.AMBIGUOUS_LAYOUT, "the cut may have hidden half a character", field=last)


def _not_one(case: Case, found: Sequence[Reading], closing: Sequence[Reading], total: int) -> RefusedError:
    if len(closing) > 1:
        marked = any(isinstance(piece, int) for reading in closing for piece in reading.parts.body)
        reason = Reason.AMBIGUOUS_MARKER if marked else Reason.AMBIGUOUS_LAYOUT
        return RefusedError(reason, f"{len(closing)} readings have {total} tokens")
    if not any(texts(case.completion)) and not case.completion.tool_calls:
        return RefusedError(Reason.EMPTY_ANSWER, f"{total} tokens were counted and nothing was delivered")
    counts = ", ".join(str(reading.count) for reading in found if reading.count >= 0)
    message = f"rebuilt {counts or 'nothing'} tokens, the provider counted {total}"
    return RefusedError(Reason.COUNT_MISMATCH, message, field="usage.completion_tokens")


def _require_no_mixed_marker(case: Case, reading: Reading, total: int) -> None:
    """No reading with only some markers as control tokens may close the count too (each marker alone is tried)."""
    body = reading.parts.body
    for position, piece in enumerate(body):
        if isinstance(piece, int):
            flipped = _as_text(case.fmt, body, position)
            length = len(reading.assembled.ids) - _length(case.fmt, body) + _length(case.fmt, flipped)
            if counted(case, reading.parts, length) == total:
                raise RefusedError(Reason.AMBIGUOUS_MARKER, f"marker {position} closes the count as text too")


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


def _require_boundaries(case: Case, ids: Ids, spans: Sequence[Span]) -> None:
    """Every delta ends where a token ends, on a route whose deltas are whole tokens or batches of them."""
    deltas = case.completion.deltas
    if deltas is None or case.fingerprint is None:
        return
    if case.fingerprint.proven(TraitName.DELTAS) not in ("tokens", "batches"):
        return
    for name, kinds in (("reasoning", {SpanKind.REASONING}), ("content", {SpanKind.CONTENT, SpanKind.TOOL_SECTION})):
        tokens = [token for span in spans if span.kind in kinds for token in ids[span.start : span.stop]]
        crossed = crossed_boundary(case.fmt.tokenizer, tokens, [delta.text for delta in deltas if delta.field == name])
        if crossed is not None:
            message = f"a delta of {name} ends at byte {crossed}, inside a rebuilt token"
            raise RefusedError(Reason.DELTAS_CONTRADICT, message, field=name)
