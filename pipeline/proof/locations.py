"""Which field and which character a refusal is about.

Guarantees: nothing is decided here. A refusal keeps its reason and its words, and gains the field and the character.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipeline.base.prompts import texts_of
from pipeline.formats.format import Format
from pipeline.records import Completion, Ids, Prompt, Reason, Refusal, RefusedError


def rendered(fmt: Format, prompt: Prompt) -> Ids:
    """Return the prompt's ids.

    A refusal of one of its texts names the message, the field and the character.
    """
    try:
        return fmt.render(prompt)
    except RefusedError as error:
        raise _located(error, fmt, texts_of(prompt), "messages") from None


def special_text(fmt: Format, prompt: Prompt) -> Refusal | None:
    """Return the refusal of a prompt that has several readings.

    No count tells them apart where the prompt spells a control token, or is ambiguous (`Format.ambiguity`). The refusal
    has the place of the first spelling that one text holds.
    """
    spelled = fmt.special_text(prompt)
    if spelled is None:
        why = fmt.ambiguity(prompt)
        place = "tools" if prompt.tools else "messages"
        return None if why is None else Refusal(Reason.PROMPT_UNSUPPORTED, why, field=place)
    refusal = Refusal(Reason.SPECIAL_TEXT, f"the prompt spells {spelled}", field="messages")
    for place, text in texts_of(prompt):
        if (at := text.find(spelled)) >= 0:
            return replace(refusal, field=place, char_offset=at)
    return refusal


def in_answer(error: RefusedError, fmt: Format, completion: Completion) -> RefusedError:
    """Return the refusal with its field and character."""
    texts = [("reasoning", completion.reasoning or ""), ("content", completion.content or "")]
    texts += [(f"tool_calls[{n}].arguments", call.arguments) for n, call in enumerate(completion.tool_calls)]
    return _located(error, fmt, iter(texts), "content")


def _located(error: RefusedError, fmt: Format, texts: Iterator[tuple[str, str]], default: str) -> RefusedError:
    if error.refusal.field is not None:
        return error
    for place, text in texts:
        try:
            fmt.tokenizer.encode(text)
        except RefusedError as found:
            if found.refusal.reason is error.refusal.reason:
                return found.inside(place)
    return error.inside(default)
