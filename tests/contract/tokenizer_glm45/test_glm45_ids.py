"""The real vocabulary of GLM-4.5, 4.6 and 4.7: published ids, and the prompts and answers of their layouts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.fixtures.answers import route
from harness.strategies.contract import control_ids, text_ids
from pipeline.formats.registry import FORMATS, open_format
from pipeline.formats.tokenizer_json import GLM_4_SHA256
from pipeline.proof.fingerprint import Fingerprint, TraitName
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import (
    Completion,
    Delta,
    Evidence,
    Ids,
    Prompt,
    Reason,
    Refusal,
    Span,
    SpanKind,
    TokenLogprob,
    TokenRow,
    ToolCall,
    Usage,
)

pytestmark = pytest.mark.contract

FORMAT = open_format("glm-4.5")
TOKENIZER = FORMAT.tokenizer
PROMPT = Prompt("r", ({"role": "user", "content": "hi"},))
LEAD = {TraitName.TURN_END: "by_role", TraitName.THINK_LEAD: "written"}
KNOWN = route(LEAD)
USER, OBSERVATION, END_OF_TEXT = 151336, 151338, 151329
THINK, CLOSE, LINE_FEED = 151350, 151351, 198
WHOLE: Ids = (LINE_FEED, THINK, 4416, 13, CLOSE, LINE_FEED, 9450, 13, USER)
"""`\\n<think>So.</think>\\nYes.<|user|>`"""


test_text_has_the_ids_that_the_library_gives_it = text_ids(
    TOKENIZER,
    "40 3003 2684 220 108714 100461 2513 25 94083 586 51609 11 111085 323 220 88277 1773 80169 220 421 "
    "856 621 220 16 510 197 18755 1654 6 4086 18755 11157 229 111 9281 229 112 9281 239 102 124564 9281 "
    "239 102 124564 9281 239 100 14913 101 86522 77740 30366 97 34200 220 49438 35705 34339 5241 2928 256",
)
test_control_tokens_have_their_published_ids = control_ids(
    TOKENIZER,
    {
        "<|endoftext|>": END_OF_TEXT,
        "[gMASK]": 151331,
        "<sop>": 151333,
        "<|system|>": 151335,
        "<|user|>": USER,
        "<|assistant|>": 151337,
        "<|observation|>": OBSERVATION,
        "<think>": THINK,
        "</think>": CLOSE,
        "<tool_call>": 151352,
        "</tool_call>": 151353,
        "<tool_response>": 151354,
        "</tool_response>": 151355,
        "<arg_key>": 151356,
        "</arg_key>": 151357,
        "<arg_value>": 151358,
        "</arg_value>": 151359,
        "/nothink": 151360,
    },
)


@pytest.mark.parametrize("name", ["glm-4.5", "glm-4.6", "glm-4.7"])
def test_the_three_releases_are_pinned_to_one_vocabulary(name: str) -> None:
    assert GLM_4_SHA256 == FORMATS[name].sha256 == open_format(name).tokenizer.sha256


@pytest.mark.parametrize(
    "name, thinking, expected",
    [
        ("glm-4.5", True, "<|user|>\nhi<|assistant|>"),
        ("glm-4.6", True, "<|user|>\nhi<|assistant|>"),
        ("glm-4.7", True, "<|user|>hi<|assistant|><think>"),
        ("glm-4.5", False, "<|user|>\nhi/nothink<|assistant|>\n<think></think>"),
        ("glm-4.6", False, "<|user|>\nhi/nothink<|assistant|>\n<think></think>"),
        ("glm-4.7", False, "<|user|>hi<|assistant|></think>"),
    ],
)
def test_a_prompt_says_whether_to_think_in_its_releases_own_way(name: str, thinking: bool, expected: str) -> None:
    ids = open_format(name).render(replace(PROMPT, thinking=thinking))

    assert f"[gMASK]<sop>{expected}" == TOKENIZER.decode_text(ids)
    assert (151360 in ids) == ("/nothink" in expected)


def answered(known: Fingerprint = KNOWN, **changes: object) -> TokenRow | Refusal:
    usage = Usage(len(FORMAT.render(PROMPT)), len(WHOLE))
    whole = Completion("So.", "\nYes.", finish_reason="stop", usage=usage, provider="P", model="m")
    return reconstruct(PROMPT, replace(whole, **changes), FORMAT, known)  # type: ignore[arg-type]  # its own fields


def counted(tokens: int) -> Usage:
    return Usage(len(FORMAT.render(PROMPT)), tokens)


def test_the_models_line_feed_and_its_tag_open_the_thinking() -> None:
    spans = FORMAT.layout(WHOLE, thinking=True)

    assert (
        Span(SpanKind.THINK_OPEN, 0, 2),
        Span(SpanKind.REASONING, 2, 4),
        Span(SpanKind.THINK_CLOSE, 4, 5),
        Span(SpanKind.CONTENT, 5, 8),
        Span(SpanKind.END, 8, 9),
    ) == spans
    assert WHOLE == FORMAT.assemble(FORMAT.parse(WHOLE, thinking=True)).ids


def test_an_answer_is_rebuilt_with_its_unseen_line_feed() -> None:
    row = answered()

    assert isinstance(row, TokenRow)
    assert (WHOLE, Evidence.COUNTED) == (row.output_ids, row.evidence)


def test_deltas_rebuild_it_too() -> None:
    """Only the count tells of the tag."""
    deltas = (Delta("reasoning", "So"), Delta("reasoning", "."), *(Delta("content", t) for t in ("\n", "Yes", ".")))
    row = answered(route(LEAD, stream=True), deltas=deltas)

    assert isinstance(row, TokenRow)
    assert (WHOLE, Evidence.COUNTED) == (row.output_ids, row.evidence)


@pytest.mark.parametrize(
    "lead, expected", [(None, Reason.ROUTE_UNPROVEN), ("none", Reason.AMBIGUOUS_LAYOUT)], ids=["unmeasured", "none"]
)
@pytest.mark.parametrize("stream", [False, True])
def test_without_a_proof_of_how_thinking_begins_no_text_tells_it(
    stream: bool, lead: str | None, expected: Reason
) -> None:
    known = route(
        {TraitName.TURN_END: "by_role"} | ({} if lead is None else {TraitName.THINK_LEAD: lead}), stream=stream
    )
    deltas = (Delta("reasoning", "So."), Delta("content", "\nYes.")) if stream else None
    row = answered(known, deltas=deltas)

    assert isinstance(row, Refusal)
    assert expected is row.reason


def test_a_stream_that_shows_the_line_feed_as_content_is_refused() -> None:
    """Servers whose parser has not seen `<think>` yet send what comes before it as content."""
    deltas = (Delta("content", "\n"), Delta("reasoning", "So."), Delta("content", "\nYes."))
    row = answered(route(LEAD, stream=True), deltas=deltas, content="\n\nYes.")

    assert isinstance(row, Refusal)
    assert Reason.LAYOUT_INVALID is row.reason


def test_thinking_without_its_line_feed_does_not_close_the_count() -> None:
    row = answered(usage=counted(len(WHOLE) - 1))

    assert isinstance(row, Refusal)
    assert Reason.COUNT_MISMATCH is row.reason


@pytest.mark.parametrize(
    "begin, expected",
    [((LINE_FEED, THINK), None), ((THINK,), Reason.LAYOUT_INVALID), ((271, THINK), Reason.LAYOUT_INVALID)],
    ids=["line feed", "nothing", "two line feeds"],
)
def test_returned_ids_that_open_it_otherwise_are_refused(begin: Ids, expected: Reason | None) -> None:
    ids = (*begin, *WHOLE[2:])
    row = answered(route(), token_ids=ids, usage=counted(len(ids)))

    assert expected == (row.reason if isinstance(row, Refusal) else None)
    assert [271] == TOKENIZER.encode("\n\n")


def test_logprobs_show_the_line_feed_whatever_is_known_of_it() -> None:
    entries = tuple(TokenLogprob("", TOKENIZER.token_bytes(token), 0.0) for token in WHOLE)
    row = answered(route(), logprobs=entries)

    assert isinstance(row, TokenRow)
    assert (WHOLE, Evidence.LOGPROBS) == (row.output_ids, row.evidence)


def test_an_empty_thinking_is_refused() -> None:
    """Only the count tells of it."""
    row = answered(reasoning=None, usage=counted(len(WHOLE) - 2))

    assert isinstance(row, Refusal)
    assert Reason.AMBIGUOUS_LAYOUT is row.reason


def test_the_model_may_answer_without_thinking() -> None:
    """Whether it did shows in no text: a parser that failed shows thinking as content."""
    row = answered(reasoning=None, usage=counted(4))

    assert isinstance(row, Refusal)
    assert Reason.AMBIGUOUS_LAYOUT is row.reason


def test_told_not_to_think_the_answer_needs_no_proof_of_it() -> None:
    """The answer is content."""
    prompt = replace(PROMPT, thinking=False)
    usage = Usage(len(FORMAT.render(prompt)), 4)
    completion = Completion(None, "\nYes.", finish_reason="stop", usage=usage, provider="P", model="m")
    row = reconstruct(prompt, completion, FORMAT, route({TraitName.TURN_END: "by_role"}))

    assert isinstance(row, TokenRow)
    assert (LINE_FEED, 9450, 13, USER) == row.output_ids


def test_calls_are_lines_between_markers() -> None:
    """They end with the marker of the tool."""
    call = "\n<tool_call>f\n<arg_key>day</arg_key>\n<arg_value>007</arg_value>\n</tool_call>"
    section = (151352, 69, LINE_FEED, 151356, 1292, 151357, LINE_FEED, 151358, 125744, 151359, LINE_FEED, 151353)
    ids = (*WHOLE[:5], LINE_FEED, *section, OBSERVATION)
    row = answered(content=call, usage=counted(len(ids)))

    assert isinstance(row, TokenRow)
    assert ids == row.output_ids
    assert Span(SpanKind.TOOL_SECTION, 6, 18) == row.spans[4]


def test_parsed_calls_are_refused_since_their_types_were_guessed() -> None:
    row = answered(content="", finish_reason="tool_calls", tool_calls=(ToolCall("c", "f", '{"day": 7}'),))

    assert isinstance(row, Refusal)
    assert Reason.STRUCTURED_CALLS is row.reason


def test_a_prompt_that_spells_nothink_is_refused_without_ids() -> None:
    prompt = Prompt("r", ({"role": "user", "content": "hi/nothink"},), thinking=False)
    usage = Usage(len(FORMAT.render(prompt)), 4)
    completion = Completion(None, "\nYes.", finish_reason="stop", usage=usage, provider="P", model="m")
    row = reconstruct(prompt, completion, FORMAT, KNOWN)

    assert isinstance(row, Refusal)
    assert Reason.SPECIAL_TEXT is row.reason
