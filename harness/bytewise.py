"""Harmony on a vocabulary of single bytes, for tests to spell answers in: no real vocabulary is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.ordinary import answer, route
from pipeline.formats.harmony import load_medium
from pipeline.reconstruct import reconstruct
from pipeline.records import Evidence, Ids, Json, JsonObject, Prompt, Reason, Refusal, TokenRow, Usage
from pipeline.routes import TraitName
from pipeline.tokenizers import Rules, Tokenizer

NAMES = ("<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>", "<|call|>")
BYTES = Tokenizer(
    Path(),
    {bytes([byte]): byte for byte in range(256)},
    {name: 256 + at for at, name in enumerate(NAMES)},
    "0" * 64,
    Rules(r"(?s:.)"),
)
FORMAT = load_medium("toy", BYTES)
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
TURN = "<|end|><|start|>assistant"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
LEGAL = (
    f"{FINAL}c<|return|>",
    f"{FINAL}<|return|>",
    f"{ANALYSIS}{TURN}{FINAL}c<|return|>",
    f"{ANALYSIS}r{TURN}<|channel|>final <|constrain|>json<|message|>{{}}<|return|>",
    f"{CALL}<|call|>",
    " to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
    " to=functions.f<|channel|>commentary<|message|>{}<|call|>",
    f"{ANALYSIS}r{TURN} to=functions.f<|channel|>commentary <|constrain|>json<|message|>{{}}<|call|>",
    f"{ANALYSIS}r{TURN} to=functions.f<|channel|>commentary<|constrain|>json<|message|>{{}}<|call|>",
    f"{ANALYSIS}r{TURN}<|channel|>commentary to=functions.f code<|message|>{{}}<|call|>",
    f"{ANALYSIS}r{TURN}<|channel|>analysis to=python code<|message|>x<|call|>",
)
"""Answers in harmony, each in another way."""
USER: JsonObject = {"role": "user", "content": "hi"}
PROMPT = Prompt("r", (USER,))
HARMONY: dict[TraitName, Json] = {
    TraitName.TURN_END: "by_role",
    TraitName.THINK_LEAD: "written",
    TraitName.PROMPT_SETTINGS: {"date": "2026-11-30", "effort": "medium"},
}
"""What else a route to such a model must be proven of."""


def ids_of(text: str) -> Ids:
    """The ids of a text that spells control tokens."""
    return tuple(BYTES.encode_prompt(text))


def text_of(ids: Sequence[int]) -> str:
    """The text of ids, control tokens spelled."""
    return BYTES.decode_text(ids)


def told(reasoning: str | None, content: str | None, tokens: int, **changes: object) -> TokenRow | Refusal:
    """What is made of an answer to `PROMPT` that shows these texts and was counted as `tokens`."""
    usage = Usage(len(FORMAT.render(PROMPT)), tokens)
    whole = answer(reasoning=reasoning, content=content, usage=usage, **changes)
    return reconstruct(PROMPT, whole, FORMAT, route(HARMONY))


def verdict(row: TokenRow | Refusal) -> Reason | Evidence:
    """Why it was refused, or why it is believed."""
    return row.reason if isinstance(row, Refusal) else row.evidence
