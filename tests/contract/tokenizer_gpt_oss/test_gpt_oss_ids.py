"""The real gpt-oss vocabulary: ids that were published, and the prompts and answers of harmony."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.fixtures.answers import answer, route
from harness.strategies.contract import control_ids, text_ids
from pipeline.formats.harmony.format import HarmonyFormat
from pipeline.formats.registry import open_format
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import Evidence, Ids, Json, Prompt, Reason, Refusal, SpanKind, TokenRow, ToolCall, Usage

pytestmark = pytest.mark.contract

FORMAT = open_format("gpt-oss")
TOKENIZER = FORMAT.tokenizer
PROMPT = Prompt("r", ({"role": "user", "content": "hi"},))
HARMONY: dict[TraitName, Json] = {
    TraitName.TURN_END: "by_role",
    TraitName.THINK_LEAD: "written",
    TraitName.LINE_ENDS: "kept",
    TraitName.PROMPT_SETTINGS: {"date": "2026-11-30", "effort": "medium"},
}
KNOWN = route(HARMONY)
RETURN, CONSTRAIN, CHANNEL, START, END, MESSAGE, CALL = 200002, 200003, 200005, 200006, 200007, 200008, 200012
ASSISTANT, ANALYSIS, COMMENTARY, FINAL = 173781, 35644, (12606, 815), 17196
THINKS: Ids = (CHANNEL, ANALYSIS, MESSAGE)
TURNS: Ids = (END, START, ASSISTANT, CHANNEL, FINAL, MESSAGE)


test_text_has_the_ids_that_the_library_gives_it = text_ids(
    TOKENIZER,
    "30754 3508 220 7633 2548 3283 25 153475 737 30469 11 185558 326 220 95839 788 46865 220 538 1215 951 "
    "220 16 734 197 39336 2167 6 7454 39336 173468 111 55506 112 28823 102 2524 28823 102 2524 28823 100 "
    "100793 14681 628 62720 8548 2618 256",
)
test_control_tokens_have_their_published_ids = control_ids(
    TOKENIZER,
    {
        "<|startoftext|>": 199998,
        "<|endoftext|>": 199999,
        "<|return|>": RETURN,
        "<|constrain|>": CONSTRAIN,
        "<|channel|>": CHANNEL,
        "<|start|>": START,
        "<|end|>": END,
        "<|message|>": MESSAGE,
        "<|call|>": CALL,
    },
)


@pytest.mark.parametrize("word, expected", [("assistant", (ASSISTANT,)), ("commentary", COMMENTARY)])
def test_the_words_of_headers_have_their_published_ids(word: str, expected: Ids) -> None:
    assert expected == tuple(TOKENIZER.encode(word))


def served(day: str, prompt: Prompt = PROMPT) -> Ids:
    """The prompt as an engine renders it on this day."""
    assert isinstance(FORMAT, HarmonyFormat)
    return replace(FORMAT, day=day).render(prompt)


def test_a_prompt_has_a_system_message_with_the_day() -> None:
    """The conversation follows, then the turn of the model."""
    prompt = Prompt("r", ({"role": "system", "content": "Be brief."}, *PROMPT.messages))
    expected = (
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
        "Knowledge cutoff: 2024-06\nCurrent date: 2025-06-28\n\nReasoning: medium\n\n"
        "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>"
        "<|start|>developer<|message|># Instructions\n\nBe brief.<|end|>"
        "<|start|>user<|message|>hi<|end|><|start|>assistant"
    )

    assert expected == TOKENIZER.decode_text(served("2025-06-28", prompt))
    assert list(served("2025-06-28", prompt)) == TOKENIZER.encode_prompt(expected)


def told(tokens: int, known: object = KNOWN, **changes: object) -> TokenRow | Refusal:
    whole = answer(reasoning="So.", content="Yes.", usage=Usage(len(served("2026-11-30")), tokens))
    return reconstruct(PROMPT, replace(whole, **changes), FORMAT, known)  # type: ignore[arg-type]  # their own fields


SO, YES = (5808, 13), (13022, 13)
WHOLE: Ids = (*THINKS, *SO, *TURNS, *YES, RETURN)


def test_reasoning_and_content_are_rebuilt_with_their_headers() -> None:
    """No text shows the headers."""
    row = told(14)

    assert isinstance(row, TokenRow)
    assert WHOLE == row.output_ids
    assert served("2026-11-30") == row.prompt_ids
    assert Evidence.COUNTED is row.evidence
    kinds = [SpanKind.THINK_OPEN, SpanKind.REASONING, SpanKind.THINK_CLOSE, SpanKind.CONTENT, SpanKind.END]
    assert kinds == [span.kind for span in row.spans]


@pytest.mark.parametrize("tokens", [*range(1, 14), *range(15, 24)])
def test_one_token_more_or_less_is_never_unseen(tokens: int) -> None:
    assert isinstance(told(tokens), Refusal)


def test_the_day_comes_from_returned_prompt_ids() -> None:
    """The row holds the prompt as it was served."""
    row = told(14, token_ids=WHOLE, prompt_ids=served("2031-01-02"))

    assert isinstance(row, TokenRow)
    assert served("2031-01-02") == row.prompt_ids
    assert Evidence.ENGINE_IDS is row.evidence


def test_without_prompt_ids_day_and_effort_need_a_proven_route() -> None:
    unsaid = route({name: value for name, value in HARMONY.items() if name != TraitName.PROMPT_SETTINGS})
    other = route({**HARMONY, TraitName.PROMPT_SETTINGS: {"date": "2026-11-30", "effort": "high"}})
    rows = [told(14, known) for known in (unsaid, other)]

    assert [Reason.ROUTE_UNPROVEN, Reason.PROMPT_MISMATCH] == [row.reason for row in rows if isinstance(row, Refusal)]


@pytest.mark.parametrize(
    "trait, value",
    [(TraitName.TURN_END, "end_of_text"), (TraitName.THINK_LEAD, "absent"), (TraitName.UNCLOSED, "content")],
)
def test_what_no_count_tells_must_be_proven_of_the_route(trait: TraitName, value: str) -> None:
    row = told(14, route({**HARMONY, trait: value}))

    assert isinstance(row, Refusal)
    assert Reason.AMBIGUOUS_LAYOUT is row.reason


def test_a_route_that_counts_no_headers_counts_none_of_them() -> None:
    row = told(5, route({**HARMONY, TraitName.THINK_CLOSE_COUNTED: False}))

    assert isinstance(row, TokenRow)
    assert WHOLE == row.output_ids


FORMS: dict[str, Ids] = {
    "behind the role": (START, ASSISTANT, 316, 28, 44580, 1196, CHANNEL, *COMMENTARY, 220, CONSTRAIN, 4108, MESSAGE),
    "behind the channel": (START, ASSISTANT, CHANNEL, *COMMENTARY, 316, 28, 44580, 1196, 220, CONSTRAIN, 4108, MESSAGE),
    "no constraint": (START, ASSISTANT, CHANNEL, *COMMENTARY, 316, 28, 44580, 1196, 5701, MESSAGE),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_call_is_proven_by_ids_and_refused_without(form: str) -> None:
    """Its header may be written in any way."""
    ids: Ids = (*THINKS, *SO, END, *FORMS[form], *TOKENIZER.encode("{}"), CALL)
    called = {"content": None, "finish_reason": "tool_calls", "tool_calls": (ToolCall("c", "f", "{}"),)}
    proven = told(len(ids), token_ids=ids, prompt_ids=served("2026-11-30"), **called)
    untold = told(len(ids), **called)

    assert isinstance(proven, TokenRow)
    assert ids == proven.output_ids
    assert SpanKind.TOOL_SECTION in {span.kind for span in proven.spans}
    assert isinstance(untold, Refusal)
    assert Reason.STRUCTURED_CALLS is untold.reason


@pytest.mark.parametrize("end, wanted", [(RETURN, True), (CALL, False), (END, False), (199999, False)])
def test_returned_ids_with_another_end_are_refused(end: int, wanted: bool) -> None:
    ids: Ids = (*WHOLE[:-1], end)
    row = told(14, token_ids=ids, prompt_ids=served("2026-11-30"))

    assert wanted == isinstance(row, TokenRow)
    if isinstance(row, Refusal):
        assert row.reason in {Reason.LAYOUT_INVALID, Reason.IDS_CONTRADICT}
