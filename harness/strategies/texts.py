"""Awkward completions as text, for parsers that read text.

Guarantees: the same number draws the same texts; none spells a token that a server never shows (the end of a turn).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from harness.strategies.completions import quick_texts
from pipeline.formats.kimi.format import ARGUMENT_BEGIN, CALL_BEGIN, CALL_END, SECTION_BEGIN, SECTION_END
from pipeline.formats.tokenizer import Tokenizer
from pipeline.records import Ids

SEED = 20_261_130
NEVER_SHOWN = ("<|im_", "[EOS]", "[BOS]", "<|reserved_token")

IDS = (
    "functions.f:0", "functions.f:1", "functions.get_weather:0", "functions.a.b-c:2", "f:0", "functions.f", "call_1",
    "3", "functions.f:-1", "functions.g h:0", "functions.ns:f:0", " functions.f:0 ", "functions.f:0\n", "functions.:0",
    "functions.погода:0", "functions.functions.f:0", "functions.f:0 x", "a|b:1",
)  # fmt: skip
"""Ids of calls, right and wrong."""

ARGUMENTS = (
    "{}", '{"city": "Oslo"}', ' {"city": "Oslo"} ', '{"a": 1}\n', "[1, 2]", '"x"', "null", '{"a": {"b": "}"}}', "{",
    "}", '{"city": Oslo}', '{"a": 1} more', '{"a": 1}{"b": 2}', '{"a": "é😀"}', "x {}", "{\n}", " ", "12",
)  # fmt: skip
"""Arguments of calls, whole objects and other text."""

_RIGHT_ID = st.sampled_from(("functions.f:0", "functions.get_weather:1"))


@dataclass(frozen=True, slots=True)
class Drawn:
    """A completion's text.

    `thinking`: the prompt had opened its thinking.
    """

    text: str
    thinking: bool


def drawn_texts(number: int) -> list[Drawn]:
    """Return `number` texts, no two alike."""
    found: dict[Drawn, None] = {}
    turn = 0
    while len(found) < number:
        found |= dict.fromkeys(_some(max(number - len(found), 50), turn))
        turn += 1
    return list(found)[:number]


def _some(number: int, turn: int) -> list[Drawn]:
    found: list[Drawn] = []

    @seed(SEED + turn)
    @settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(completions())
    def collect(one: Drawn) -> None:
        found.append(one)

    collect()
    return found


def completions() -> st.SearchStrategy[Drawn]:
    """Draw completions as text.

    Thinking or not, a section or not, text after it or not, cut anywhere or whole.
    """
    texts = quick_texts().map(_shown)
    calls = st.lists(st.tuples(st.one_of(_RIGHT_ID, st.sampled_from(IDS)), _arguments(texts)), max_size=3)
    sections = st.one_of(st.none(), calls)
    kept = st.one_of(st.just(1.0), st.just(1.0), st.floats(0.2, 1.0))
    return st.builds(_text, st.one_of(st.none(), texts), texts, sections, st.one_of(st.just(""), texts), kept)


def _arguments(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Draw the arguments of a call.

    Objects in half of the calls, one of them with any text in it.
    """
    within = texts.map(lambda text: json.dumps({"text": text}, ensure_ascii=False))
    return st.one_of(st.just('{"city": "Oslo"}'), within, st.sampled_from(ARGUMENTS), texts)


def _shown(text: str) -> str:
    """Return the text without names of tokens never shown."""
    for name in NEVER_SHOWN:
        text = text.replace(name, "")
    return text


def _text(reasoning: str | None, content: str, calls: list[tuple[str, str]] | None, after: str, kept: float) -> Drawn:
    text = content if reasoning is None else f"{reasoning}</think>{content}"
    if calls is not None:
        inner = "".join(f"{CALL_BEGIN}{one}{ARGUMENT_BEGIN}{two}{CALL_END}" for one, two in calls)
        text += f"{SECTION_BEGIN}{inner}{SECTION_END}{after}"
    return Drawn(text[: round(len(text) * kept)], thinking=reasoning is not None)


def ids_of_text(tokenizer: Tokenizer, text: str) -> Ids:
    """Return the ids of a text that spells control tokens.

    Each text between them is encoded apart.
    """
    ids: list[int] = []
    while (found := tokenizer.find_control(text)) is not None:
        at, name = found
        ids += [*tokenizer.encode(text[:at]), tokenizer.id_of(name)]
        text = text[at + len(name) :]
    return (*ids, *tokenizer.encode(text))
