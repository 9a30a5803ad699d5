"""What a stream's deltas say about ids that were rebuilt from its text.

Guarantees: nothing is accepted here. A rebuild is refused where leaving out what the stream may have sent twice closes
the count too, where a delta ends inside a rebuilt token, and where a cut may have hidden half a character.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipeline.proof.answer import Answer, readings, texts, texts_of
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.stream_deltas import MANY, crossed_boundary, may_hide_bytes, repeated_runs, without_repeats
from pipeline.records import Completion, Ids, Reason, RefusedError, Span, SpanKind


def require_whole_end(case: Answer) -> None:
    """A stream that was cut inside a character sends no sign of it; a body shows U+FFFD, which is refused before."""
    if case.ended or not case.completion.deltas:
        return
    last = case.completion.deltas[-1].field
    shown = texts(case.completion)[0 if last == "reasoning" else 1]
    if may_hide_bytes(case.fmt.tokenizer, shown):
        raise RefusedError(Reason.AMBIGUOUS_LAYOUT, "the cut may have hidden half a character", field=last)


def require_sent_once(case: Answer, total: int) -> None:
    """No text that leaves out what a stream may have sent twice closes the count too."""
    if case.completion.deltas is None:
        return
    with case.fmt.tokenizer.remembering():
        for name in ("reasoning", "content"):
            _require_sent_once(case, name, total)


def _require_sent_once(case: Answer, name: str, total: int) -> None:
    shown = texts_of(case.completion, name)
    if (runs := repeated_runs(shown)) > MANY:
        raise _repeats(name, f"{runs} runs of equal deltas are too many to tell from duplicates")
    for other in without_repeats(shown):
        shorter = replace(case, completion=_with_text(case.completion, name, other))
        if any(found.count == total for found in readings(shorter)):
            raise _repeats(name, f"the count closes without a delta of {name} that comes twice")


def _with_text(completion: Completion, name: str, text: str) -> Completion:
    return replace(completion, reasoning=text) if name == "reasoning" else replace(completion, content=text)


def _repeats(name: str, detail: str) -> RefusedError:
    return RefusedError(Reason.STREAM_INCONSISTENT, detail, field=name)


def require_boundaries(case: Answer, ids: Ids, spans: Sequence[Span]) -> None:
    """Every delta ends where a token ends, on a route whose deltas are whole tokens or batches of them."""
    if case.completion.deltas is None or case.fingerprint is None:
        return
    if case.fingerprint.proven(TraitName.DELTAS) not in ("tokens", "batches"):
        return
    for name, kinds in (("reasoning", {SpanKind.REASONING}), ("content", {SpanKind.CONTENT, SpanKind.TOOL_SECTION})):
        tokens = [token for span in spans if span.kind in kinds for token in ids[span.start : span.stop]]
        crossed = crossed_boundary(case.fmt.tokenizer, tokens, texts_of(case.completion, name))
        if crossed is not None:
            message = f"a delta of {name} ends at byte {crossed}, inside a rebuilt token"
            raise RefusedError(Reason.DELTAS_CONTRADICT, message, field=name)
