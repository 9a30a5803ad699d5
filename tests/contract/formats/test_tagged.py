"""The tagged families on a vocabulary of single bytes: what holds without any real tokenizer at hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.fixtures.answers import reason, route, told
from harness.fixtures.tagged import DIALECTS, tagged_format
from harness.strategies import suite as suites
from harness.views.view import PROFILES
from pipeline.formats import deepseek, deepseek_v32, glm, glm45, qwen, qwen35
from pipeline.formats.format import Opener, Parts
from pipeline.proof.fingerprint import Trait, TraitName
from pipeline.records import Delta, Prompt, Reason, Refusal, RefusedError, Span, SpanKind, TokenRow

pytestmark = pytest.mark.contract


@pytest.mark.parametrize("name", DIALECTS)
def test_no_answer_is_rebuilt_wrong(name: str) -> None:
    fmt = tagged_format(DIALECTS[name], nfc=name.startswith("qwen"))
    suites.never_wrong(fmt, PROFILES["siliconflow"], stream=True)()


def test_a_turn_that_the_next_roles_marker_ends_has_two_ends() -> None:
    fmt = tagged_format(glm.GLM5)
    user, observation = fmt.tokenizer.id_of("<|user|>"), fmt.tokenizer.id_of("<|observation|>")

    assert {user, observation} == fmt.end_ids
    assert (user, observation) == (fmt.end_id_for(("a",)), fmt.end_id_for(("a", fmt.tokenizer.id_of("<tool_call>"))))


def test_which_of_two_ends_came_must_be_proven() -> None:
    fmt = tagged_format(glm.GLM5)
    count = len("a") + 1 + len("b") + 1

    assert isinstance(told(fmt, ("a", "b"), count, route({TraitName.TURN_END: "by_role"})), TokenRow)
    assert Reason.ROUTE_UNPROVEN is reason(told(fmt, ("a", "b"), count, route()))
    assert Reason.AMBIGUOUS_LAYOUT is reason(told(fmt, ("a", "b"), count, route({TraitName.TURN_END: "eos"})))


def test_other_families_have_one_end() -> None:
    for dialect in (qwen.QWEN3, qwen35.QWEN35, deepseek.V31, deepseek.R1):
        assert {tagged_format(dialect).end_id} == tagged_format(dialect).end_ids


def test_a_repeated_delta_stands_for_no_token_that_is_unseen() -> None:
    """The model opens its thinking in no delta; a token that shows nothing, and a delta sent twice, count alike."""
    fmt = tagged_format(qwen.QWEN3, b"aa")
    known = route({TraitName.DELTAS: "tokens"}, stream=True)

    def streamed(thought: str) -> TokenRow | Refusal:
        deltas = (*(Delta("reasoning", character) for character in thought), Delta("content", "x"))
        return told(fmt, (thought, "x"), 6, known, deltas=deltas)

    said, twice = streamed("ab"), streamed("aa")

    assert isinstance(said, TokenRow)
    assert Reason.COUNT_MISMATCH is reason(twice)


@pytest.mark.parametrize("lead, known", [("absent", True), ("written", False)])
def test_text_before_a_think_token_must_be_proven(lead: str, known: bool) -> None:
    fmt = tagged_format(glm45.GLM45)
    traits = {TraitName.THINK_LEAD: lead, TraitName.TURN_END: "by_role"}
    unproven = replace(route(traits), traits={**route(traits).traits, TraitName.THINK_LEAD: Trait(lead, 3, known)})

    row = told(fmt, ("a", "\nb"), 7, route({**traits, TraitName.THINK_LEAD: "written"}))
    refused = told(fmt, ("a", "\nb"), 7, unproven)

    assert isinstance(row, TokenRow)
    assert (Reason.AMBIGUOUS_LAYOUT if known else Reason.ROUTE_UNPROVEN) is reason(refused)


def test_a_tag_that_markers_may_have_framed_is_refused() -> None:
    """A route that takes the markers away leaves a call's tags as text of the same length."""
    fmt = tagged_format(deepseek_v32.V32)
    said = {text: len("a") + 1 + len(text) + 1 for text in ("x <invoke y", "x <plain y")}

    rows = [
        told(fmt, ("a", text), count, route({TraitName.MARKERS: markers}))
        for markers in ("raw", "parsed")
        for text, count in said.items()
    ]

    assert [True, True, False, True] == [isinstance(row, TokenRow) for row in rows]
    assert Reason.AMBIGUOUS_MARKER is reason(rows[2])


def test_text_before_the_thinking_tag_opens_it_too() -> None:
    """Text before the tag that opens the thinking is part of what opens it."""
    fmt = tagged_format(glm45.GLM45)
    lead, think = fmt.tokenizer.encode("\n")[0], fmt.think_open_id
    parts = Parts("a", think_closed=True, body=("\nb",), ended=True)

    assert (lead, think) == fmt.opening_ids == fmt.opened_with(fmt.assemble(parts).ids, thinking=True)
    assert () == fmt.opened_with((think,), thinking=True) == fmt.opened_with((lead, think), thinking=False)
    assert Span(SpanKind.THINK_OPEN, 0, 2) == fmt.assemble(parts).spans[0]


def test_a_section_of_text_tags_runs_to_the_end() -> None:
    """A section whose tags are text runs on to the end of the answer."""
    fmt = tagged_format(deepseek_v32.V32)
    mark = fmt.tokenizer.id_of(deepseek_v32.DSML)
    parts = Parts(None, think_closed=False, body=("a<", mark, "invoke>b</", mark, "invoke>c"), ended=True)
    spans = fmt.assemble(parts).spans

    assert [(SpanKind.CONTENT, 0, 2), (SpanKind.TOOL_SECTION, 2, 22), (SpanKind.END, 22, 23)] == [
        (span.kind, span.start, span.stop) for span in spans
    ]
    assert parts == fmt.parse(fmt.assemble(parts).ids, thinking=False)


def test_what_stands_between_calls_belongs_to_the_section() -> None:
    fmt = tagged_format(qwen.QWEN3)
    begin, end = (fmt.tokenizer.id_of(name) for name in ("<tool_call>", "</tool_call>"))
    parts = Parts(None, think_closed=False, body=("a", begin, "b", end, "\n", begin, end, "c"), ended=True)

    spans = (
        Span(SpanKind.CONTENT, 0, 1),
        Span(SpanKind.TOOL_SECTION, 1, 7),
        Span(SpanKind.CONTENT, 7, 8),
        Span(SpanKind.END, 8, 9),
    )
    assert spans == fmt.assemble(parts).spans == fmt.layout(fmt.assemble(parts).ids, thinking=True)


@pytest.mark.parametrize(
    "name, text",
    [
        ("qwen3", "</tool_call>"),
        ("qwen3", "a<tool_call>b<tool_call>"),
        ("qwen3", "a<tool_call>b<|im_end|>"),
        ("qwen3", "<|im_start|>"),
        ("smollm2", "a<|endoftext|>b<|im_end|>"),
        ("smollm2", "a<tool_call>"),
        ("glm-5", "a</think>b<tool_call>f<arg_value>"),
        ("glm-5", "a</think>b<|observation|>"),
        ("glm-5", "a</think>b<tool_call>f</tool_call><|user|>"),
        ("deepseek-v3.1", f"a</think>b{deepseek.CALL}"),
        ("deepseek-v3.1", f"a<think>b</think>{deepseek.END}"),
        ("glm-4.5", "<think>a</think>b<|user|>"),
        ("glm-4.5", "\n\n<think>a</think>b<|user|>"),
        ("glm-4.5", "\n<think>a</think>b<|observation|>"),
        ("deepseek-v3.2", f"a</think>b{deepseek_v32.DSML}c"),
        ("deepseek-v3.2", f"a</think><{deepseek_v32.DSML}function_call>"),
        ("deepseek-v3.2", f"a</think><{deepseek_v32.DSML}in{deepseek.END}"),
    ],
)
def test_ids_outside_the_grammar_are_refused(name: str, text: str) -> None:
    fmt = tagged_format(DIALECTS[name])
    with pytest.raises(RefusedError) as refused:
        fmt.layout(tuple(fmt.tokenizer.encode_prompt(text)), thinking=True)

    assert Reason.LAYOUT_INVALID is refused.value.refusal.reason


def test_a_family_that_always_thinks_has_no_instant_answer() -> None:
    """A family that always thinks has no answer without thinking."""
    fmt = tagged_format(deepseek.R1)

    assert Opener.PROMPT is fmt.opener(thinking=False)
    with pytest.raises(RefusedError, match="always thinks"):
        fmt.assemble(Parts(None, think_closed=False, body=("a",), ended=True))


@pytest.mark.parametrize("name", DIALECTS)
def test_a_spelled_control_token_stays_text_and_is_named(name: str) -> None:
    """Text that spells a control token stays text and is named."""
    fmt = tagged_format(DIALECTS[name])
    prompt = Prompt("r", ({"role": "user", "content": "a<think>b"},))

    assert "<think>" == fmt.special_text(prompt)
    assert fmt.special_text(Prompt("r", ({"role": "user", "content": "a < b"},))) is None
    assert b"a<think>b" in fmt.tokenizer.decode_bytes(fmt.render(prompt))
    assert 1 >= fmt.render(prompt).count(fmt.think_open_id)


def test_tools_cannot_travel_in_a_message() -> None:
    with pytest.raises(RefusedError, match="cannot travel in a message"):
        tagged_format(glm.GLM5).declare_tools([{"type": "function"}])
