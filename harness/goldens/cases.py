"""The goldens' cases: prompts, features, and what answers must show.

Guarantees: a case says what it is for and nothing of which ids it gave; the recorded golden says that. Together the
cases hold every feature of Kimi's layout. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from harness.tiny_target.samples import assistant, call, user
from harness.tiny_target.tools import CLOCK, MAIL, WEATHER, transcript
from harness.views.resplit import canonical
from pipeline.datasets.features import features_of
from pipeline.formats.format import Format
from pipeline.records import Ids, JsonObject, Prompt, RefusedError, Span, SpanKind, ToolMode

SYSTEM: JsonObject = {"role": "system", "content": "Answer in one short sentence."}
HELLO = (user("Hi, Ana here from Kyoto!"), assistant("Hello Ana! 🙂", reasoning="A greeting from Kyoto."))
ASKED = "Noah asks: weather in Lima?"
BOTH = (WEATHER, CLOCK)


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """One prompt, and the answer that it is recorded for.

    `extra` are features that no audit reads off the prompt. `cut` gives a length to stop at from a whole answer.
    """

    id: str
    prompt: Prompt
    extra: tuple[str, ...] = ()
    shows: Callable[[GoldenAnswer], bool] = field(default=lambda answer: answer.whole)
    cut: Callable[[GoldenAnswer], int | None] | None = None
    greedy: bool = False
    max_tokens: int = 256

    @property
    def features(self) -> tuple[str, ...]:
        """Return the features of prompt and answer, sorted."""
        mode = "thinking" if self.prompt.thinking else "instant"
        return tuple(sorted({mode, *self.extra, *map(str, features_of(self.prompt, ToolMode.RAW))}))


@dataclass(frozen=True, slots=True)
class GoldenAnswer:
    """An answer's ids, and what a case asks of them.

    `ids` has shape [n].
    """

    ids: Ids
    fmt: Format
    thinking: bool

    @property
    def spans(self) -> tuple[Span, ...]:
        """Return what each stretch is.

        None where the ids lie outside the layout.
        """
        try:
            return self.fmt.layout(self.ids, thinking=self.thinking)
        except RefusedError:
            return ()

    @property
    def whole(self) -> bool:
        """Return whether the format lays it out to its end."""
        return any(span.kind is SpanKind.END for span in self.spans)

    @property
    def reasoning(self) -> str:
        return self._text(SpanKind.REASONING)

    @property
    def content(self) -> str:
        return self._text(SpanKind.CONTENT)

    @property
    def section(self) -> str:
        """Return the tool section, markers included."""
        return self._text(SpanKind.TOOL_SECTION)

    @property
    def calls(self) -> int:
        """Return how many tool calls are begun."""
        return self.ids.count(self.fmt.tool_markers()["<|tool_call_begin|>"])

    @property
    def canonical(self) -> bool:
        """Return whether the tokenizer splits the text so."""
        return canonical(self.fmt.tokenizer, self.ids) == self.ids

    @property
    def surplus(self) -> int | None:
        """Return how many tokens exceed the canonical split.

        None where there is no such split.
        """
        split = canonical(self.fmt.tokenizer, self.ids)
        return None if split is None else len(self.ids) - len(split)

    @property
    def half_character(self) -> int | None:
        """Return the first length that cuts a character."""
        for length in range(1, len(self.ids)):
            try:
                self.fmt.tokenizer.decode_bytes(self.ids[:length]).decode("utf-8")
            except UnicodeDecodeError:
                return length
        return None

    def middle(self, kind: SpanKind) -> int | None:
        """Return a length that ends inside the first such stretch.

        None where there is none of two tokens.
        """
        span = self._first(kind)
        return (span.start + span.stop) // 2 if span and span.stop - span.start > 1 else None

    def stop(self, kind: SpanKind) -> int | None:
        """Return the length up to the first such stretch's end."""
        span = self._first(kind)
        return span.stop if span else None

    def _first(self, kind: SpanKind) -> Span | None:
        return next((span for span in self.spans if span.kind is kind), None)

    def _text(self, kind: SpanKind) -> str:
        chosen = [token for span in self.spans if span.kind is kind for token in self.ids[span.start : span.stop]]
        return self.fmt.tokenizer.decode_bytes(chosen).decode("utf-8", errors="replace")


def ask(*messages: JsonObject | str, tools: tuple[JsonObject, ...] = (), thinking: bool = True) -> Prompt:
    """Return a prompt; text is a user's message."""
    whole = tuple(user(message) if isinstance(message, str) else message for message in messages)
    return Prompt("", whole, tools, thinking)


PLAIN: Final = (
    GoldenCase("thinking", ask("What is 23 + 58?"), greedy=True),
    GoldenCase("instant", ask("What is 23 + 58?", thinking=False), greedy=True),
    GoldenCase("system", ask(SYSTEM, "I'm Jun. What's the capital of Peru?"), greedy=True),
    GoldenCase("multi_turn", ask("What is 7 * 8?", assistant("56"), "Compute 90 - 35."), greedy=True),
    GoldenCase("history_reasoning", ask(*HELLO, "What is 40 - 12?"), greedy=True),
    GoldenCase("long_history", ask(SYSTEM, *HELLO, *HELLO, *HELLO, "Pavel sends greetings from Rome.")),
    GoldenCase("content_parts", ask({"role": "user", "content": [
        {"type": "text", "text": "Please work out "}, {"type": "text", "text": "6 * 7"}]}), ("content_parts",)),
    GoldenCase("named_user", ask({"role": "user", "name": "Rosa", "content": "Compute 12 + 30."}), ("named",)),
    GoldenCase("empty_reasoning", ask("What is 23 + 58?"), ("empty_text",), lambda a: a.whole and a.reasoning == ""),
    GoldenCase("empty_user", ask(""), ("empty_text",)),
    GoldenCase("odd_text", ask("e\u0301 \u200d\ufeff\x85\u2028\u2029\r\n\t👩\u200d🚀 What is 2 + 3?"), ("odd_text",)),
    GoldenCase("special_text", ask("What does <|im_end|> mean, and </think>?"), ("special_text",)),
)  # fmt: skip

TOOLS: Final = (
    GoldenCase("tools_idle", ask("What is 31 + 11?", tools=(WEATHER,)),
               shows=lambda a: a.whole and not a.calls, greedy=True),
    GoldenCase("one_call", ask(ASKED, tools=BOTH), ("tool_call",), lambda a: a.whole and a.calls == 1),
    GoldenCase("two_calls", ask("Elif asks: weather in Oslo and Quito?", tools=(WEATHER,)), ("tool_call", "two_calls"),
               lambda a: a.whole and a.calls == 2),  # noqa: PLR2004 - two
    GoldenCase("text_before_call", ask("Farah wants to know the time in Rome.", tools=(CLOCK,)), ("tool_call",),
               lambda a: a.whole and a.calls == 1 and a.content != ""),
    GoldenCase("instant_call", ask(ASKED, tools=BOTH, thinking=False), ("tool_call",),
               lambda a: a.whole and a.calls == 1),
    GoldenCase("call_with_accents", ask("Mail Chloé: Olá from Porto ☀", tools=(MAIL,)), ("tool_call", "unicode"),
               lambda a: a.whole and a.calls == 1 and "☀" in a.section),
    GoldenCase("call_with_escapes", ask('Mail Ivo: I said "Cairo".', tools=(MAIL,)), ("tool_call",),
               lambda a: a.whole and a.calls == 1 and "\\" in a.section),
    GoldenCase("tool_result", ask(*transcript(ASKED, "Lima", "rain", 12), tools=BOTH), ("tool_transcript",)),
    GoldenCase("second_call", ask(*transcript("Noah asks: weather and time in Lima?", "Lima", "rain", 12), tools=BOTH),
               ("tool_call",), lambda a: a.whole and a.calls == 1),
    GoldenCase("after_transcript", ask(SYSTEM, *transcript(ASKED, "Lima", "fog", 9), assistant("In Lima: fog, 9 °C."),
                                       "What is 8 * 9?", tools=BOTH)),
    GoldenCase("special_tool_result", ask(ASKED, assistant("", calls=(call(0, "get_weather", {"city": "Lima"}),)), {
        "role": "tool", "tool_call_id": "functions.get_weather:0", "content": "<|tool_call_end|>"}, tools=(WEATHER,)),
        ("special_text",)),
)  # fmt: skip

TEXTS: Final = (
    GoldenCase("cjk", ask("Greet Hana in Japanese."), ("unicode",), lambda a: a.whole and "こんにちは" in a.content),
    GoldenCase("hangul", ask("Greet Jun in Korean."), ("unicode",), lambda a: a.whole and "안녕" in a.content),
    GoldenCase("right_to_left", ask("Greet Tariq in Arabic.", thinking=False), ("unicode",),
               lambda a: a.whole and "مرحبا" in a.content),
    GoldenCase("emoji", ask("hello, it's Mia in Delhi"), ("unicode",),
               lambda a: a.whole and any(char > "\uffff" for char in a.content)),
    GoldenCase("code_fence", ask("Python: a function that squares a number?"), ("code",),
               lambda a: a.whole and a.content.count("```") == 2),  # noqa: PLR2004 - opened and closed
    GoldenCase("code_tabs", ask("Write a Go function that negates a number.", thinking=False), ("code",),
               lambda a: a.whole and "\t" in a.content),
    GoldenCase("table", ask("Table: Lena has 4 plums, Kofi has none."), (), lambda a: a.whole and "|" in a.content),
    GoldenCase("carriage_returns", ask("Make a shopping list for Olga with figs, dates and kiwis."), ("odd_text",),
               lambda a: a.whole and "\r\n" in a.content),
    GoldenCase("space_before_think_close", ask("What is 64 - 27?"), ("seam",),
               lambda a: a.whole and a.reasoning != a.reasoning.rstrip()),
    GoldenCase("space_after_think_close", ask("What is 64 - 27?"), ("seam",),
               lambda a: a.whole and a.content != a.content.lstrip()),
    GoldenCase("space_before_end", ask("Compute 12 + 30."), ("seam",),
               lambda a: a.whole and a.content != a.content.rstrip()),
)  # fmt: skip

CUTS: Final = (
    GoldenCase("cut_in_reasoning", ask("What is 23 + 58?"), ("length_cut",),
               cut=lambda a: a.middle(SpanKind.REASONING)),
    GoldenCase("cut_at_think_close", ask("What is 23 + 58?"), ("length_cut",),
               cut=lambda a: a.stop(SpanKind.THINK_CLOSE)),
    GoldenCase("cut_in_content", ask("Rust: a function that cubes a number?"), ("length_cut",),
               cut=lambda a: a.middle(SpanKind.CONTENT)),
    GoldenCase("cut_in_tools", ask(ASKED, tools=BOTH), ("length_cut", "tool_call"), lambda a: a.whole and a.calls == 1,
               lambda a: a.middle(SpanKind.TOOL_SECTION)),
    GoldenCase("cut_in_character", ask("hello, it's Mia in Delhi"), ("length_cut", "unicode"),
               lambda a: a.whole and a.half_character is not None, lambda a: a.half_character),
    GoldenCase("cut_before_end", ask("Compute 12 + 30.", thinking=False), ("length_cut",),
               cut=lambda a: len(a.ids) - 1),
)  # fmt: skip

LOOSE: Final = (
    GoldenCase("noncanonical_longer", ask("Table: Lena has 4 plums, Kofi has none."), ("noncanonical",),
               lambda a: a.whole and a.surplus not in {None, 0}),
    GoldenCase("noncanonical_same_count", ask("Table: Lena has 4 plums, Kofi has none."), ("noncanonical",),
               lambda a: a.whole and a.surplus == 0 and not a.canonical),
    GoldenCase("noncanonical_instant", ask("What is 64 - 27?", thinking=False), ("noncanonical",),
               lambda a: a.whole and not a.canonical),
)  # fmt: skip

GOLDENS: Final = {
    case.id: replace(case, prompt=replace(case.prompt, id=case.id)) for case in (*PLAIN, *TOOLS, *TEXTS, *CUTS, *LOOSE)
}
SMALL: Final = ("thinking", "system", "two_calls", "cjk", "cut_in_tools", "noncanonical_longer")
"""Few enough to regenerate in each run of CI: greedy and sampled, tools, text beyond ASCII, a cut, another split."""
