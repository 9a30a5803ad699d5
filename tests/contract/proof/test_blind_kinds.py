"""Faults that keep the number of tokens, so that no count can see them: each has a check or a refusal of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from harness.fixtures.answers import (
    CLOSE,
    ENCODE,
    END,
    FORMAT,
    PROMPT,
    PROMPT_IDS,
    REASONING,
    WHOLE,
    answer,
    counts,
    of,
    reason,
    route,
    told,
)
from harness.views.resplit import resplit
from pipeline.generation.engines.request import request_body
from pipeline.proof.fingerprint import Fingerprint, Trait, TraitName
from pipeline.proof.stream_deltas import crossed_boundary
from pipeline.records import (
    Delta,
    Evidence,
    Json,
    JsonObject,
    Prompt,
    Reason,
    Refusal,
    Route,
    Sampling,
    TokenRow,
    ToolCall,
    ToolMode,
)

pytestmark = pytest.mark.contract


def called(identity: str, arguments: str) -> dict[str, Any]:
    """The changes that make an answer one of a parsed call."""
    return {"finish_reason": "tool_calls", "content": None, "tool_calls": (ToolCall(identity, "f", arguments),)}


def test_a_call_index_renumbered_by_history_is_refused() -> None:
    """The id that the client sees has as many tokens as the one that was sampled."""
    call: Json = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calling: JsonObject = {"role": "assistant", "content": "", "tool_calls": [call]}
    result: JsonObject = {"role": "tool", "tool_call_id": "functions.f:0", "content": ""}
    prompt = replace(PROMPT, messages=(*PROMPT.messages, calling, result))
    assert len(ENCODE("functions.f:0")) == len(ENCODE("functions.f:1"))

    row = told(FORMAT, ("So.", None), 30, prompt=prompt, **called("functions.f:1", "{}"))
    assert Reason.STRUCTURED_CALLS is reason(row)


def test_reordered_argument_keys_are_refused_if_rewritten() -> None:
    """Argument keys in another order are refused where arguments are written anew."""
    sampled, shown = '{"b": 1, "a": 2}', '{"a": 2, "b": 1}'
    assert len(ENCODE(sampled)) == len(ENCODE(shown))

    shown_so = answer(**called("functions.f:0", shown))
    assert Reason.STRUCTURED_CALLS is reason(of(shown_so, route({TraitName.TOOL_ARGUMENTS: "reserialised"})))
    assert Reason.ROUTE_UNPROVEN is reason(of(shown_so, without(TraitName.TOOL_ARGUMENTS)))


def without(name: TraitName) -> Fingerprint:
    known = route()
    return replace(known, traits={key: trait for key, trait in known.traits.items() if key != name})


@pytest.mark.parametrize("streamed", [False, True], ids=["body", "stream"])
def test_a_replacement_character_is_refused_whatever_the_count(streamed: bool) -> None:
    """A character that was cut shows as one, and is encoded again in as many tokens."""
    content = " ok \ufffd"
    deltas = (Delta("reasoning", "So it is."), Delta("content", content)) if streamed else None

    for tokens in range(1, 40):
        row = of(answer(content=content, deltas=deltas, usage=counts(tokens)))
        assert Reason.REPLACEMENT_CHAR is reason(row)


def test_a_cut_that_may_have_hidden_half_a_character_is_refused() -> None:
    deltas = (Delta("reasoning", "So it is."), Delta("content", " "))
    cut = {"finish_reason": "length", "native_finish_reason": "length"}
    emitted = len(REASONING) + 1 + len(ENCODE(" "))

    assert Reason.AMBIGUOUS_LAYOUT is reason(of(answer(content=" ", deltas=deltas, usage=counts(emitted), **cut)))


def test_line_ends_are_refused_where_the_route_changes_them() -> None:
    """CR LF and LF are a token each; one change that was ever seen is enough, proven or not."""
    known = route()
    changing = replace(known, traits={**known.traits, TraitName.LINE_ENDS: Trait("changed", 1, proven=False)})
    row = told(FORMAT, ("So it is.", "a\nb"), len(REASONING) + 1 + len(ENCODE("a\nb")) + 1, changing)

    assert isinstance(row, Refusal)
    assert (Reason.SEAM_LOSSY, "content", 1) == (row.reason, row.field, row.char_offset)
    assert isinstance(told(FORMAT, ("So it is.", "ab"), len(REASONING) + 1 + len(ENCODE("ab")) + 1, changing), TokenRow)


def test_line_ends_that_add_tokens_show_in_the_count() -> None:
    """The compact vocabulary has no token of CR LF, so that a text without the CR has fewer tokens."""
    around = len(REASONING) + 2
    shown, sampled = len(ENCODE("a\nb")), len(ENCODE("a\r\nb"))
    known = without(TraitName.LINE_ENDS)
    assert shown < sampled

    assert isinstance(told(FORMAT, ("So it is.", "a\nb"), around + shown, known), TokenRow)
    assert Reason.COUNT_MISMATCH is reason(told(FORMAT, ("So it is.", "a\nb"), around + sampled, known))


def test_another_end_token_of_the_same_count_is_refused() -> None:
    """The end token comes with the format, pinned to its vocabulary; [EOS] of the tokenizer's config ends no turn."""
    other = FORMAT.tokenizer.id_of("[EOS]")
    ids = (*WHOLE[:-1], other)
    config = json.loads((FORMAT.tokenizer.directory / "generation_config.json").read_text())

    assert config["eos_token_id"] == FORMAT.end_id
    assert other != FORMAT.end_id == WHOLE[-1]
    assert Reason.LAYOUT_INVALID is reason(of(answer(token_ids=ids)))


def test_prompt_and_answer_are_encoded_apart() -> None:
    """A prompt that ends where an answer begins with what a tokenizer would join to it."""
    prompt = Prompt("r", ({"role": "user", "content": "hi"},), thinking=False)
    joined = FORMAT.tokenizer.encode_prompt("<think></think>\n\n")
    row = told(FORMAT, (None, "\n\nSure"), len(ENCODE("\n\nSure")) + 1, prompt=prompt)

    assert isinstance(row, TokenRow)
    assert FORMAT.render(prompt) == row.prompt_ids
    assert (*ENCODE("\n\nSure"), END) == row.output_ids
    assert joined[:2] == list(row.prompt_ids[-2:])


def test_the_end_token_is_never_chosen_from_the_text() -> None:
    """Where a format ends in one of several tokens, the finish reason alone says which, and a cut says none."""
    cut = answer(finish_reason="length", native_finish_reason="length", usage=counts(len(WHOLE) - 1))
    whole, open_end = of(answer()), of(cut)

    assert isinstance(whole, TokenRow)
    assert isinstance(open_end, TokenRow)
    assert (whole.output_ids, whole.output_ids[:-1]) == (WHOLE, open_end.output_ids)
    assert Reason.FINISH_UNKNOWN is reason(of(answer(finish_reason="function_call")))


@pytest.mark.parametrize("key", ["thinking_budget", "thinking_token_budget", "reasoning_effort", "logit_bias"])
def test_tokens_that_a_budget_forces_are_never_asked_for(key: str) -> None:
    route_asked = Route("openrouter", "m", "p")
    with pytest.raises(ValueError, match=key):
        request_body(PROMPT, route_asked, Sampling(extra={key: 8}), ToolMode.NONE, FORMAT, "s")

    assert {"enabled": True} == request_body(PROMPT, route_asked, Sampling(), ToolMode.NONE, FORMAT, "s")["reasoning"]


def test_two_faults_that_cancel_show_in_another_answer() -> None:
    """An end token wrongly thought uncounted, a closing tag wrongly thought counted: right for answers that think."""
    mistaken = route({TraitName.END_COUNTED: False})
    true = route({TraitName.THINK_CLOSE_COUNTED: False})
    instant = replace(PROMPT, thinking=False)
    thought, short = len(WHOLE) - 1, len(ENCODE(" Yes.")) + 1

    assert isinstance(of(answer(usage=counts(thought)), true), TokenRow)
    assert isinstance(of(answer(usage=counts(thought)), mistaken), TokenRow)
    assert isinstance(told(FORMAT, (None, " Yes."), short, true, instant), TokenRow)
    assert Reason.COUNT_MISMATCH is reason(told(FORMAT, (None, " Yes."), short, mistaken, instant))


def test_a_space_lost_and_a_token_gained_show_in_the_deltas() -> None:
    """One token fewer and one more close the count; a delta that ends inside a rebuilt token does not fit."""
    text = FORMAT.tokenizer.decode_text(REASONING)
    ends = range(1, len(text))
    inside = next(at for at in ends if crossed_boundary(FORMAT.tokenizer, REASONING, [text[:at]]) is not None)
    deltas = (Delta("reasoning", text[:inside]), Delta("reasoning", text[inside:]), Delta("content", " Yes."))

    assert Reason.DELTAS_CONTRADICT is reason(of(answer(deltas=deltas)))


TEXT = "Three letters, then banana."


def same_length() -> tuple[int, ...]:
    found = resplit(FORMAT.tokenizer, ENCODE(TEXT), Random(1), same_count=True)
    assert found is not None
    return found


def test_a_resplit_is_recovered_from_token_deltas() -> None:
    """A resplit of the same length is recovered from deltas that are tokens."""
    split = same_length()
    assert (len(ENCODE(TEXT)), TEXT.encode()) == (len(split), FORMAT.tokenizer.decode_bytes(split))
    pieces = [("reasoning", token) for token in REASONING] + [("content", token) for token in split]
    deltas = tuple(Delta(name, FORMAT.tokenizer.decode_text([token])) for name, token in pieces)  # type: ignore[arg-type]  # a field's name
    row = of(answer(content=TEXT, deltas=deltas, usage=counts(len(REASONING) + 1 + len(split) + 1)))

    assert isinstance(row, TokenRow)
    assert (Evidence.STREAM_DELTAS, (*REASONING, CLOSE, *split, END)) == (row.evidence, row.output_ids)


def test_a_resplit_is_refused_in_batches_of_tokens() -> None:
    """A resplit of the same length is refused where deltas are batches of tokens."""
    split = same_length()
    first = next(end for end in range(1, len(split)) if not ends_canonically(split[:end]))
    cut = len(FORMAT.tokenizer.decode_text(split[:first]))
    deltas = (Delta("reasoning", "So it is."), Delta("content", TEXT[:cut]), Delta("content", TEXT[cut:]))
    told_so = answer(content=TEXT, deltas=deltas, usage=counts(len(REASONING) + 1 + len(split) + 1))

    assert Reason.DELTAS_CONTRADICT is reason(of(told_so, route({TraitName.DELTAS: "batches"}, stream=True)))


def ends_canonically(tokens: tuple[int, ...]) -> bool:
    text = FORMAT.tokenizer.decode_text(tokens)
    ends = {len(FORMAT.tokenizer.decode_text(ENCODE(TEXT)[:end])) for end in range(len(ENCODE(TEXT)) + 1)}
    return len(text) in ends


def test_a_resplit_in_a_body_is_the_risk_of_counted_alone() -> None:
    """Nothing in a body tells it; only `counted` takes it, whose measured rate is stated; returned ids refute it."""
    split = same_length()
    shown = answer(content=TEXT, usage=counts(len(REASONING) + 1 + len(split) + 1))
    row = of(shown)
    returned = of(replace(shown, token_ids=(*REASONING, CLOSE, *split, END), prompt_ids=PROMPT_IDS))

    assert isinstance(row, TokenRow)
    assert isinstance(returned, TokenRow)
    assert (Evidence.COUNTED, Evidence.ENGINE_IDS) == (row.evidence, returned.evidence)
    assert row.output_ids != returned.output_ids
