"""Hypothesis strategies for answers: texts, layouts, and raw ids.

Guarantees: what providers and models really send wrong is drawn on purpose and often: spelled control tokens, white
space at every seam, characters of two to four bytes, byte-order marks, lone tokens of half a character. In harmony,
every message that a model may write before its last is drawn, in each of the ways in which its header can be written.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from random import Random
from typing import TypeAlias

from hypothesis import strategies as st

from pipeline.formats.format import Format, Opener, Parts
from pipeline.formats.kimi.format import ARGUMENT_BEGIN, CALL_BEGIN, CALL_END, SECTION_BEGIN, SECTION_END
from pipeline.formats.unicode_tables import CHANGED
from pipeline.records import Ids

AWKWARD = (
    " ", "  ", "\n", "\r\n", "\r", "\t", "\x85", "\u2028", "\u2029", "\ufeff", "\u200b", "\xa0", "\u0301", "e\u0301",
    "😀", "👩‍👩‍👧", "🇳🇴", "é", "ñ", " é", " ✨", "✨", "中文", "한국", "ไทย", "नमस्ते", "<think>", "</think>",
    "<|im_end|>", "<|im_user|>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|", "|>", "[EOS]", "[BOS]",
    "<|reserved_token_5|>", "'s", "don't", "123456", "==", "}}", '{"a": 1}', "```python\nx = 1\n```", "\x00", "\x1c",
    ".\n\n", " \n", "\n ", "A" * 60, " " * 70, "=" * 90,
)  # fmt: skip
_PLAIN_AWKWARD = tuple(text for text in AWKWARD if "<" not in text and "[" not in text)
_NOT_PLAIN = dict.fromkeys(map(ord, "<[\ufffd"), "-")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SURROGATES = range(0xD800, 0xE000)

_WIDE = ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")
"""Names of DeepSeek's markers, in the order in which they stand."""

_CALLS = (
    (" to=functions.f", "commentary ", True),
    (" to=functions.f", "commentary", False),
    (" to=functions.f", "commentary json", False),
    ("", "commentary to=functions.f ", True),
    ("", "commentary to=functions.f json", False),
    ("", "commentary to=functions.get_weather", False),
    ("", "analysis to=python code", False),
)
"""Headers of calls: behind the role, behind `<|channel|>`, and whether `<|constrain|>json` follows."""

_Inside: TypeAlias = "tuple[str, list[tuple[str, ...]]]"
"""What stands in a call: text, then tagged arguments, each with the text after its four markers."""


def texts(*, min_size: int = 0) -> st.SearchStrategy[str]:
    """Draw text that encodes to UTF-8.

    It holds no character that Unicode tables differ in, as no text with one is proven. Never empty where `min_size` is
    1.
    """
    pieces = st.one_of(
        st.sampled_from(AWKWARD),
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
        st.lists(st.text(_LETTERS, min_size=1, max_size=8), min_size=1, max_size=4).map(" ".join),
    )
    return st.lists(pieces, min_size=min_size, max_size=6).map(lambda drawn: CHANGED.sub("-", "".join(drawn)))


def plain_texts(*, min_size: int = 0) -> st.SearchStrategy[str]:
    """Draw text without spelled control tokens and without U+FFFD."""
    return texts(min_size=min_size).filter(lambda text: "<" not in text and "[" not in text and "\ufffd" not in text)


def quick_texts(*, plain: bool = False, min_size: int = 0) -> st.SearchStrategy[str]:
    """Draw the same kinds of text from one number each.

    Five times as fast; nothing shrinks well. `plain` text spells no control token and holds no U+FFFD.
    """
    return st.integers(0, 2**24 - 1).map(partial(_text_of, plain=plain, min_size=min_size))


def _text_of(number: int, *, plain: bool, min_size: int) -> str:
    rng = Random(number)
    kinds = (partial(rng.choice, _PLAIN_AWKWARD if plain else AWKWARD), partial(_any_text, rng), partial(_words, rng))
    text = "".join(rng.choice(kinds)() for _ in range(rng.randint(min_size, 6)))
    return text.translate(_NOT_PLAIN) if plain else text


def _any_text(rng: Random) -> str:
    """Return up to eight characters of any length in UTF-8.

    Each length is as likely as the others.
    """
    drawn = (rng.randrange(rng.choice((0x80, 0x800, 0x10000, 0x110000))) for _ in range(rng.randint(1, 8)))
    return CHANGED.sub("-", "".join("\ufeff" if code in _SURROGATES else chr(code) for code in drawn))


def _words(rng: Random) -> str:
    return " ".join("".join(rng.choices(_LETTERS, k=rng.randint(1, 8))) for _ in range(rng.randint(1, 4)))


def bodies(
    fmt: Format, text: st.SearchStrategy[str], *, after: bool = True
) -> st.SearchStrategy[tuple[str | int, ...]]:
    """Draw what follows the reasoning.

    Text, a tool section with up to three whole calls, and text where `after`.
    """
    text = encodable(fmt, text)
    if not fmt.tool_markers():
        return text.map(lambda drawn: (drawn,) if drawn else ())
    if SECTION_BEGIN not in fmt.tool_markers():
        return tagged_bodies(fmt, text, after=after)
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
    """Draw whole answers, thinking or instant, ended.

    `after` allows text behind a tool section.
    """
    text = texts() if text is None else text
    if fmt.is_headed:
        return headed_completions(fmt, text)

    def build(reasoning: str | None, body: tuple[str | int, ...]) -> Parts:
        return Parts(reasoning, think_closed=reasoning is not None, body=body, ended=True)

    thought = encodable(fmt, text)
    always = fmt.opener(thinking=False) is Opener.PROMPT
    reasoning = st.none() if not thinks(fmt) else thought if always else st.one_of(st.none(), thought)
    return st.builds(build, reasoning, bodies(fmt, text, after=after))


def encodable(fmt: Format, text: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Draw the text as the tokenizer can write it.

    Normalised where it normalises, and without bytes that its vocabulary lacks.
    """
    if missing := fmt.tokenizer.missing_bytes:
        text = text.map(lambda drawn: "".join("-" if missing & {*char.encode()} else char for char in drawn))
    return text.map(lambda drawn: unicodedata.normalize("NFC", drawn)) if fmt.tokenizer.rules.nfc else text


def tagged_bodies(
    fmt: Format, text: st.SearchStrategy[str], *, after: bool
) -> st.SearchStrategy[tuple[str | int, ...]]:
    """Draw bodies of formats that tag each call.

    Text, up to three calls between the format's two markers with text between them, text.
    """
    if fmt.tag_names:
        return text_tag_bodies(fmt, text, after=after)
    if "<tool_call>" not in fmt.tool_markers():
        return wide_bodies(fmt, text, after=after)
    begin, end = (fmt.tool_markers()[name] for name in ("<tool_call>", "</tool_call>"))
    function = "\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n"
    contents = st.sampled_from(
        ['\n{"name": "f", "arguments": {"a": 1}}\n', '{"name":"f","arguments":{}}', function, "{"]
    )
    named = [fmt.tool_markers().get(f"<{name}>") for name in ("arg_key", "/arg_key", "arg_value", "/arg_value")]
    tags = [token for token in named if token is not None]
    argument = st.tuples(text, text, text, text) if tags else st.just(())
    inside = st.tuples(st.one_of(contents, text), st.lists(argument, max_size=2))

    def whole(before: str, calls: list[tuple[_Inside, str]], behind: str) -> tuple[str | int, ...]:
        pieces: list[str | int] = [before]
        for (content, arguments), between in calls:
            tagged = [piece for texts in arguments for pair in zip(tags, texts, strict=True) for piece in pair]
            pieces += [begin, content, *tagged, end, between]
        pieces[-1] = behind if calls and after else pieces[-1] if not calls else ""
        return tuple(piece for piece in pieces if piece != "")

    return st.builds(whole, text, st.lists(st.tuples(inside, text), max_size=3), text)


def wide_bodies(fmt: Format, text: st.SearchStrategy[str], *, after: bool) -> st.SearchStrategy[tuple[str | int, ...]]:
    """Draw bodies as DeepSeek writes them.

    Text, one section of up to three calls, text.
    """
    begin, call, separator, close, end = (fmt.tool_markers()[f"<｜tool▁{name}｜>"] for name in _WIDE)

    def whole(before: str, calls: list[tuple[str, str, str]], behind: str) -> tuple[str | int, ...]:
        inner = [
            piece for name, arguments, between in calls for piece in (call, name, separator, arguments, close, between)
        ]
        pieces = [before, *([begin, *inner[:-1], end, behind if after else ""] if calls else [])]
        return tuple(piece for piece in pieces if piece != "")

    names = st.sampled_from(["f", "get_weather", "function"])
    between = st.sampled_from(["", "\n"])
    return st.builds(whole, text, st.lists(st.tuples(names, text, between), max_size=3), text)


def text_tag_bodies(
    fmt: Format, text: st.SearchStrategy[str], *, after: bool
) -> st.SearchStrategy[tuple[str | int, ...]]:
    """Draw bodies as DeepSeek-V3.2 writes them.

    Text, one section of up to two calls, text.
    """
    (mark,) = fmt.tool_markers().values()

    def tag(name: str, attributes: str = "", close: str = "") -> tuple[str | int, ...]:
        return (f"<{close}", mark, f"{name}{attributes}>")

    def call(parameters: list[tuple[str, str]]) -> Iterator[str | int]:
        yield from (*tag("invoke", ' name="f"'), "\n")
        for key, value in parameters:
            yield from (*tag("parameter", f' name="{key}" string="true"'), value, *tag("parameter", close="/"), "\n")
        yield from (*tag("invoke", close="/"), "\n")

    def whole(before: str, calls: list[list[tuple[str, str]]], behind: str) -> tuple[str | int, ...]:
        inner = [piece for parameters in calls for piece in call(parameters)]
        section = ("\n\n", *tag("function_calls"), "\n", *inner, *tag("function_calls", close="/")) if calls else ()
        return tuple(_joined((before, *section, behind if calls and after else "")))

    parameters = st.lists(st.tuples(st.sampled_from(["city", "days"]), text), max_size=2)
    return st.builds(whole, text, st.lists(parameters, max_size=2), text)


def _joined(pieces: Iterable[str | int]) -> Iterator[str | int]:
    """Yield the pieces, each run of texts as one.

    Empty texts are left out.
    """
    for is_text, run in groupby(pieces, key=lambda piece: isinstance(piece, str)):
        if not is_text:
            yield from run
        elif text := "".join(map(str, run)):
            yield text


def thinks(fmt: Format) -> bool:
    """Return whether the format has reasoning at all."""
    return fmt.opener(thinking=True) is not Opener.NOBODY


def cut_completions(fmt: Format, text: st.SearchStrategy[str]) -> st.SearchStrategy[Parts]:
    """Draw answers that the length limit cut.

    In the reasoning, or after it.
    """

    def build(reasoning: str | None, body: str | None) -> Parts:
        closed = reasoning is not None and body is not None
        return Parts(reasoning, think_closed=closed, body=(body,) if body else (), ended=False)

    text = encodable(fmt, text)
    return st.builds(build, text if thinks(fmt) else st.none(), st.one_of(st.none(), text))


def emitted(fmt: Format, text: st.SearchStrategy[str] | None = None) -> st.SearchStrategy[Ids]:
    """Draw ids that a model might sample.

    Canonical or not, in the layout or not, some of them half characters. `text` has at least a character.
    """
    tokenizer = fmt.tokenizer
    text = texts(min_size=1) if text is None else text
    bases = tokenizer.base_ids
    byte_tokens = [token for token in bases if len(tokenizer.token_bytes(token)) == 1]
    base = st.one_of(
        st.sampled_from(bases),
        st.sampled_from(byte_tokens),
        encodable(fmt, text).map(tokenizer.encode).flatmap(st.sampled_from),
    )
    split_text = text.map(lambda drawn: tuple(split_bytes(fmt, drawn)))
    control = st.sampled_from([tokenizer.id_of(name) for name in tokenizer.control_names])
    known = st.sampled_from([fmt.end_id, fmt.think_close_id, *fmt.tool_markers().values()])
    run = st.one_of(st.lists(base, max_size=6).map(tuple), split_text, st.tuples(known), st.tuples(control))
    opens = fmt.opener(thinking=True) is Opener.MODEL
    begun = st.sampled_from([(), fmt.opening_ids]) if opens else st.just(())
    ended = st.booleans()

    def whole(begin: Ids, runs: list[Ids], end: bool) -> Ids:  # noqa: FBT001 — a drawn value
        body = [token for part in runs for token in part]
        marked = [token for token in body if token in fmt.tool_markers().values()]
        return (*begin, *body, *((fmt.end_id_for(marked),) if end else ()))

    return st.builds(
        whole,
        begun,
        st.lists(run, max_size=6),
        ended,
    )


def split_bytes(fmt: Format, text: str) -> list[int]:
    """Return the text as one token a byte.

    As far from canonical as ids can be.
    """
    found = [fmt.tokenizer.id_of_bytes(bytes([byte])) for byte in text.encode()]
    return [token for token in found if token is not None]


def headed_completions(fmt: Format, text: st.SearchStrategy[str]) -> st.SearchStrategy[Parts]:
    """Draw whole answers in harmony, their reasoning sometimes empty.

    Three of four are a final message alone; the others have steps before it, or end in a call.
    """
    plain = st.builds(_plain, text, text)
    steps = st.lists(st.tuples(st.sampled_from(["analysis", "commentary"]), text), max_size=2)
    last = st.tuples(st.none() | st.sampled_from(_CALLS), text)
    return st.one_of(plain, plain, plain, st.builds(_stepped, st.just(fmt), text, steps, last))


def is_text_alone(parts: Parts) -> bool:
    """Return whether text alone can prove the answer.

    One analysis message, then one final message or its beginning.
    """
    return bool(parts.reasoning) and not any(isinstance(piece, int) for piece in parts.body)


def _plain(reasoning: str, content: str) -> Parts:
    return Parts(reasoning, think_closed=True, body=(content,) if content else (), ended=True)


def _stepped(
    fmt: Format, reasoning: str, steps: list[tuple[str, str]], last: tuple[tuple[str, str, bool] | None, str]
) -> Parts:
    call, content = last
    if not steps and call is None:
        return _plain(reasoning, content)
    body = [piece for channel, text in steps for piece in _message(fmt, "", channel, text)]
    body += _message(fmt, *(call or ("", "final", False))[:2], content, constrained=bool(call and call[2]))
    return Parts(reasoning, think_closed=False, body=tuple(body), ended=True)


def _message(fmt: Format, role: str, channel: str, text: str, *, constrained: bool = False) -> list[str | int]:
    """Return a message, after the `<|end|>` of the one before."""
    id_of = fmt.tokenizer.id_of
    typed: list[str | int] = [id_of("<|constrain|>"), "json"] if constrained else []
    header = [id_of("<|end|>"), id_of("<|start|>"), f"assistant{role}", id_of("<|channel|>"), channel, *typed]
    return [*header, id_of("<|message|>"), *([text] if text else [])]
