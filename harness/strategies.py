"""Hypothesis strategies: awkward text, completions in the layout, and ids that no tokenizer would choose.

Guarantees: what providers and models really send wrong is drawn on purpose and often: spelled control tokens, white
space at every seam, characters of two to four bytes, byte-order marks, lone tokens of half a character.
"""

from __future__ import annotations

from hypothesis import strategies as st

from pipeline.formats.kimi import ARGUMENT_BEGIN, CALL_BEGIN, CALL_END, SECTION_BEGIN, SECTION_END
from pipeline.formats.parts import Format, Parts
from pipeline.records import Ids

AWKWARD = (
    " ", "  ", "\n", "\r\n", "\r", "\t", "\x85", "\u2028", "\u2029", "\ufeff", "\u200b", "\xa0", "\u0301", "e\u0301",
    "😀", "👩‍👩‍👧", "🇳🇴", "é", "ñ", " é", " ✨", "✨", "中文", "한국", "ไทย", "नमस्ते", "<think>", "</think>",
    "<|im_end|>", "<|im_user|>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|", "|>", "[EOS]", "[BOS]",
    "<|reserved_token_5|>", "'s", "don't", "123456", "==", "}}", '{"a": 1}', "```python\nx = 1\n```", "\x00", "\x1c",
    ".\n\n", " \n", "\n ", "A" * 60, " " * 70, "=" * 90,
)  # fmt: skip


def texts(*, min_size: int = 0) -> st.SearchStrategy[str]:
    """Text that encodes to UTF-8, empty unless `min_size` is 1."""
    pieces = st.one_of(
        st.sampled_from(AWKWARD),
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
        st.from_regex(r"[a-z]{1,8}( [a-z]{1,6}){0,3}", fullmatch=True),
    )
    return st.lists(pieces, min_size=min_size, max_size=6).map("".join)


def plain_texts(*, min_size: int = 0) -> st.SearchStrategy[str]:
    """Text that spells no control token and holds no U+FFFD."""
    return texts(min_size=min_size).filter(lambda text: "<" not in text and "[" not in text and "\ufffd" not in text)


def bodies(
    fmt: Format, text: st.SearchStrategy[str], *, after: bool = True
) -> st.SearchStrategy[tuple[str | int, ...]]:
    """What follows the reasoning: text, a tool section with up to three whole calls, text."""
    marker = {
        name: fmt.tokenizer.id_of(name) for name in (SECTION_BEGIN, SECTION_END, CALL_BEGIN, ARGUMENT_BEGIN, CALL_END)
    }

    def call(index: int, name: str, arguments: str) -> tuple[str | int, ...]:
        identity = f"functions.{name}:{index}"
        return (
            marker[CALL_BEGIN],
            identity,
            marker[ARGUMENT_BEGIN],
            *([arguments] if arguments else []),
            marker[CALL_END],
        )

    def section(calls: list[tuple[str, str]]) -> tuple[str | int, ...]:
        inner = [piece for index, (name, arguments) in enumerate(calls) for piece in call(index, name, arguments)]
        return (marker[SECTION_BEGIN], *inner, marker[SECTION_END]) if calls else ()

    calls = st.lists(st.tuples(st.sampled_from(["f", "get_weather", "a.b"]), text), max_size=3)

    def whole(before: str, drawn: list[tuple[str, str]], behind: str) -> tuple[str | int, ...]:
        tail = behind if drawn and after else ""
        return (*([before] if before else []), *section(drawn), *([tail] if tail else []))

    return st.builds(whole, text, calls, text)


def completions(
    fmt: Format, text: st.SearchStrategy[str] | None = None, *, after: bool = True
) -> st.SearchStrategy[Parts]:
    """Whole answers, thinking or instant, ended; `after` allows text behind a tool section."""
    text = texts() if text is None else text

    def build(reasoning: str | None, body: tuple[str | int, ...]) -> Parts:
        return Parts(reasoning, think_closed=reasoning is not None, body=body, ended=True)

    return st.builds(build, st.one_of(st.none(), text), bodies(fmt, text, after=after))


def cut_completions(text: st.SearchStrategy[str]) -> st.SearchStrategy[Parts]:
    """Answers that the length limit cut, in the reasoning or after it."""

    def build(reasoning: str, body: str | None) -> Parts:
        return Parts(reasoning, think_closed=body is not None, body=(body,) if body else (), ended=False)

    return st.builds(build, text, st.one_of(st.none(), text))


def emitted(fmt: Format) -> st.SearchStrategy[Ids]:
    """Ids that a model might sample, canonical or not, in the layout or not, some of them half characters."""
    tokenizer = fmt.tokenizer
    byte_tokens = [token for token in range(tokenizer.base_size) if len(tokenizer.token_bytes(token)) == 1]
    base = st.one_of(
        st.integers(0, tokenizer.base_size - 1),
        st.sampled_from(byte_tokens),
        texts(min_size=1).map(tokenizer.encode).flatmap(st.sampled_from),
    )
    split_text = texts(min_size=1).map(lambda text: tuple(split_bytes(fmt, text)))
    control = st.integers(tokenizer.base_size, tokenizer.size - 1)
    known = st.sampled_from([fmt.end_id, fmt.think_close_id, *fmt.tool_markers().values()])
    run = st.one_of(st.lists(base, max_size=6).map(tuple), split_text, st.tuples(known), st.tuples(control))
    ended = st.sampled_from([(), (fmt.end_id,)])
    return st.builds(
        lambda runs, end: (*(token for part in runs for token in part), *end), st.lists(run, max_size=6), ended
    )


def split_bytes(fmt: Format, text: str) -> list[int]:
    """The text as one token a byte: as far from canonical as ids can be."""
    found = [fmt.tokenizer.id_of_bytes(bytes([byte])) for byte in text.encode()]
    return [token for token in found if token is not None]
