"""An ordinary answer of an ordinary route, for tests to vary: everything about it closes until a test changes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipeline.formats.parts import Format
from pipeline.formats.registry import open_format
from pipeline.reconstruct import reconstruct
from pipeline.records import Completion, Json, Prompt, Reason, Refusal, TokenRow, Usage
from pipeline.routes import Fingerprint, Trait, TraitName

FORMAT = open_format("tiny-kimi")
ENCODE = FORMAT.tokenizer.encode
PROMPT = Prompt("r", ({"role": "user", "content": "hi"},))
PROMPT_IDS = FORMAT.render(PROMPT)
CLOSE, END = FORMAT.think_close_id, FORMAT.end_id
REASONING, CONTENT = ENCODE("So it is."), ENCODE(" Yes.")
WHOLE = (*REASONING, CLOSE, *CONTENT, END)
NATIVE: dict[TraitName, Json] = {
    TraitName.END_COUNTED: True,
    TraitName.END_COUNTED_TOOLS: True,
    TraitName.THINK_CLOSE_COUNTED: True,
    TraitName.UNCLOSED: "reasoning",
    TraitName.COUNT_NATIVE: True,
    TraitName.PROMPT_PREFIX: [],
    TraitName.SEAM: "kept",
    TraitName.LINE_ENDS: "kept",
    TraitName.MARKERS: "raw",
    TraitName.TOOL_IDS: "verbatim",
    TraitName.TOOL_ARGUMENTS: "verbatim",
}
SECTION = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|>"
)


def route(changes: Mapping[TraitName, Json] | None = None, *, stream: bool = False, proven: bool = True) -> Fingerprint:
    deltas_are: dict[TraitName, Json] = {TraitName.DELTAS: "tokens" if stream else "none"}
    values = {**NATIVE, **deltas_are, **(changes or {})}
    return Fingerprint("P", "m", stream, {str(k): Trait(v, 50 if proven else 3, proven) for k, v in values.items()})


def answer(**changes: object) -> Completion:
    whole = Completion(
        "So it is.",
        " Yes.",
        finish_reason="stop",
        native_finish_reason="stop",
        usage=Usage(len(PROMPT_IDS), len(WHOLE)),
        provider="P",
        model="m",
    )
    return replace(whole, **changes)  # type: ignore[arg-type]  # fields of Completion


def counts(completion_tokens: int | None, prompt_tokens: int | None = len(PROMPT_IDS)) -> Usage:
    return Usage(prompt_tokens, completion_tokens)


def reason(row: TokenRow | Refusal) -> Reason:
    """Why the row was refused; TypeError if it was not."""
    if not isinstance(row, Refusal):
        raise TypeError(f"accepted: {row}")
    return row.reason


def of(completion: Completion, fingerprint: Fingerprint | None = None, prompt: Prompt = PROMPT) -> TokenRow | Refusal:
    known = route(stream=completion.deltas is not None) if fingerprint is None else fingerprint
    return reconstruct(prompt, completion, FORMAT, known)


def told(
    fmt: Format,
    shown: tuple[str | None, str | None],
    tokens: int | None,
    known: Fingerprint | None = None,
    prompt: Prompt = PROMPT,
    **changes: object,
) -> TokenRow | Refusal:
    """What is made of `shown` (reasoning, content), counted as `tokens`, on an ordinary route to `fmt`'s model."""
    usage = Usage(len(fmt.render(prompt)), tokens)
    completion = answer(**{"reasoning": shown[0], "content": shown[1], "usage": usage, **changes})
    return reconstruct(prompt, completion, fmt, known or route(stream=completion.deltas is not None))
