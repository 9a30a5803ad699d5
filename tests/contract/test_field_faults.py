"""Faults found in the field: contradictions that once passed for agreement."""

from __future__ import annotations

import pytest

from harness.fixtures.answers import CLOSE, CONTENT, END, FORMAT, PROMPT, answer, counts, of, reason, route
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.reconstruct import Expected, reconstruct
from pipeline.records import Delta, Json, Prompt, Reason, TokenRow

pytestmark = pytest.mark.contract

ENCODE, DECODE = FORMAT.tokenizer.encode, FORMAT.tokenizer.decode_text


def deltas(text: str) -> tuple[Delta, ...]:
    return tuple(Delta("content", DECODE([token])) for token in ENCODE(text))


@pytest.mark.parametrize("streamed", [False, True], ids=["body", "stream"])
@pytest.mark.parametrize("unclosed", ["reasoning", "content", None])
def test_asked_for_thinking_must_be_shown(streamed: bool, unclosed: Json) -> None:
    """A parser that failed puts thinking and answer into the content; `</think>` may have stood anywhere in it."""
    text = "The user greets. Hello!"
    usage = counts(len(ENCODE(text)) + 2)
    shown = answer(reasoning=None, content=text, usage=usage, deltas=deltas(text) if streamed else None)

    assert Reason.AMBIGUOUS_LAYOUT is reason(of(shown, route({TraitName.UNCLOSED: unclosed}, stream=streamed)))


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("content, reasoning", [('{"tag": "', '"}'), ("[1, ", "2]"), ('ok: {"a": [', '"b"]}\nDone.')])
def test_fields_that_halve_a_json_value_are_refused(content: str, reasoning: str, counted: bool) -> None:
    """A parser took `<think>` inside a text for its own, so the fields stand in the wrong order."""
    tokens = len(ENCODE(content)) + len(ENCODE(reasoning)) + 1 + counted
    shown = answer(reasoning=reasoning, content=content, usage=counts(tokens))

    assert Reason.LAYOUT_INVALID is reason(of(shown, route({TraitName.THINK_CLOSE_COUNTED: counted})))


@pytest.mark.parametrize("suffix", ["-0905", "-2507", "-0324", "-0528", "-9999", "-20261201", "-instruct", "-FP8"])
def test_a_model_with_another_suffix_is_another_model(suffix: str) -> None:
    asked = Expected("P", "m")

    assert isinstance(reconstruct(PROMPT, answer(), FORMAT, route(), asked), TokenRow)
    assert Reason.WRONG_MODEL is reason(reconstruct(PROMPT, answer(model=f"m{suffix}"), FORMAT, route(), asked))


@pytest.mark.parametrize("char", ["\U0001e5d0", "\U0001fa77", "\u0295"], ids=["new letter", "new emoji", "changed"])
def test_characters_that_engines_split_in_two_ways_are_refused(char: str) -> None:
    """In an answer, and in a prompt that only a count speaks for."""
    text = f"It is {char}"
    shown = answer(content=text, usage=counts(len(ENCODE("So it is.")) + len(ENCODE(text)) + 2))
    asking = Prompt("r", ({"role": "user", "content": text},))
    asked = answer(usage=counts(len(ENCODE("So it is.")) + len(CONTENT) + 2, len(FORMAT.render(asking))))

    assert Reason.UNICODE_VERSION is reason(of(shown))
    assert Reason.UNICODE_VERSION is reason(of(asked, prompt=asking))


def test_returned_ids_prove_such_characters() -> None:
    text = "It is \U0001e5d0"
    ids = (*ENCODE("So it is."), CLOSE, *ENCODE(text), END)
    asking = Prompt("r", ({"role": "user", "content": text},))
    served = FORMAT.render(asking)
    told = answer(content=text, token_ids=ids, prompt_ids=served, usage=counts(len(ids), len(served)))

    assert isinstance(reconstruct(asking, told, FORMAT, None), TokenRow)
