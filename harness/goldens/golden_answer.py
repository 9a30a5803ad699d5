"""An answer's ids, looked at: what a golden's case may ask of it."""

from __future__ import annotations

from dataclasses import dataclass

from harness.views.resplit import canonical
from pipeline.formats.format import Format
from pipeline.records import Ids, RefusedError, Span, SpanKind


@dataclass(frozen=True, slots=True)
class Answer:
    """Emitted ids, shape [n], of a prompt that thinks or not."""

    ids: Ids
    fmt: Format
    thinking: bool

    @property
    def spans(self) -> tuple[Span, ...]:
        """What each stretch is; none where the ids lie outside the layout."""
        try:
            return self.fmt.layout(self.ids, thinking=self.thinking)
        except RefusedError:
            return ()

    @property
    def whole(self) -> bool:
        """Laid out as the format says, to its end token."""
        return any(span.kind is SpanKind.END for span in self.spans)

    @property
    def reasoning(self) -> str:
        return self._text(SpanKind.REASONING)

    @property
    def content(self) -> str:
        return self._text(SpanKind.CONTENT)

    @property
    def section(self) -> str:
        """The tool section, markers included."""
        return self._text(SpanKind.TOOL_SECTION)

    @property
    def calls(self) -> int:
        """How many tool calls are begun."""
        return self.ids.count(self.fmt.tool_markers()["<|tool_call_begin|>"])

    @property
    def canonical(self) -> bool:
        """Whether the ids are what the tokenizer makes of their own text."""
        return canonical(self.fmt.tokenizer, self.ids) == self.ids

    @property
    def surplus(self) -> int | None:
        """How many tokens more than the canonical split; None where there is none."""
        split = canonical(self.fmt.tokenizer, self.ids)
        return None if split is None else len(self.ids) - len(split)

    @property
    def half_character(self) -> int | None:
        """The first length at which the answer ends in the middle of a character."""
        decode = self.fmt.tokenizer.decode_bytes
        return next((at for at in range(1, len(self.ids)) if not _is_text(decode(self.ids[:at]))), None)

    def middle(self, kind: SpanKind) -> int | None:
        """A length that ends in the middle of the first such stretch; None where there is none of two tokens."""
        span = self._first(kind)
        return (span.start + span.stop) // 2 if span and span.stop - span.start > 1 else None

    def stop(self, kind: SpanKind) -> int | None:
        """The length up to the end of the first such stretch."""
        span = self._first(kind)
        return span.stop if span else None

    def _first(self, kind: SpanKind) -> Span | None:
        return next((span for span in self.spans if span.kind is kind), None)

    def _text(self, kind: SpanKind) -> str:
        chosen = [token for span in self.spans if span.kind is kind for token in self.ids[span.start : span.stop]]
        return self.fmt.tokenizer.decode_bytes(chosen).decode("utf-8", errors="replace")


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
