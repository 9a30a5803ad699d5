"""Kimi's other releases on the real vocabulary: K2, K2-Thinking and K2.6, each held to the properties of K2.5."""

from __future__ import annotations

import pytest

from harness.fixtures.answers import route
from harness.strategies import suite as suites
from pipeline.formats.format import Format
from pipeline.formats.registry import load_format, open_format
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import Completion, Evidence, Prompt, Reason, Refusal, TokenRow, Usage

pytestmark = pytest.mark.contract

NAMES = ("kimi-k2", "kimi-k2-thinking", "kimi-k2.6")
TOKENIZER = open_format("kimi-k2.5").tokenizer
FORMATS = {name: load_format(name, TOKENIZER) for name in (*NAMES, "kimi-k2-0905", "kimi-k2.6-preserve-thinking")}
HI = Prompt("r", ({"role": "user", "content": "hi"},))
ROUTE = route()


def answered(name: str, reasoning: str | None, content: str, completion_tokens: int) -> TokenRow | Refusal:
    fmt = FORMATS[name]
    usage = Usage(len(fmt.render(HI)), completion_tokens)
    completion = Completion(reasoning, content, finish_reason="stop", usage=usage, provider="P", model="m")
    return reconstruct(HI, completion, fmt, ROUTE)


@pytest.fixture(params=NAMES)
def fmt(request: pytest.FixtureRequest) -> Format:
    return FORMATS[request.param]


def test_parse_is_the_inverse_of_assemble(fmt: Format) -> None:
    suites.inverse(fmt)()


def test_assemble_is_the_inverse_of_parse_or_it_refuses(fmt: Format) -> None:
    suites.inverse_or_refusal(fmt)()


def test_no_answer_is_rebuilt_wrong(fmt: Format) -> None:
    suites.never_wrong_anywhere(fmt)()


def test_lossless_views_give_every_canonical_answer_back(fmt: Format) -> None:
    suites.exact_anywhere(fmt)()


def test_views_that_lose_white_space_are_refused(fmt: Format) -> None:
    suites.refused_anywhere(fmt)()


@pytest.mark.parametrize(
    "name, ending",
    [
        ("kimi-k2", [163588, 69702, 163601]),
        ("kimi-k2-0905", [163588, 69702, 163601]),
        ("kimi-k2-thinking", [163588, 69702, 163601]),
        ("kimi-k2.6", [163588, 69702, 163601, 163606]),
    ],
)
def test_only_k2_5_and_later_open_the_thinking_in_the_prompt(name: str, ending: list[int]) -> None:
    assert ending == list(FORMATS[name].render(HI))[-len(ending) :]


def test_k2_thinking_emits_the_tag_that_opens_its_thinking() -> None:
    """The ids of a published report with the tag that no API shows before them."""
    row = answered("kimi-k2-thinking", "I think so.\n", "\n\nYes.", 10)

    assert isinstance(row, TokenRow)
    assert (163606, 40, 2704, 971, 341, 163607, 382, 14104, 13, 163586) == row.output_ids
    assert row.evidence is Evidence.COUNTED


@pytest.mark.parametrize("name", ["kimi-k2", "kimi-k2-0905"])
def test_k2_answers_without_thinking(name: str) -> None:
    row = answered(name, None, "\n\nYes.", 4)

    assert isinstance(row, TokenRow)
    assert (382, 14104, 13, 163586) == row.output_ids


def test_k2_0905_is_k2_with_another_default_and_with_names() -> None:
    asked = ({"role": "user", "content": "hi", "name": "Ann"}, {"role": "assistant", "content": "4"}, HI.messages[0])
    text = TOKENIZER.decode_text(FORMATS["kimi-k2-0905"].render(Prompt("r", asked)))

    assert (
        "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>"
        "<|im_user|>Ann<|im_middle|>hi<|im_end|><|im_assistant|>assistant<|im_middle|>4<|im_end|>"
        "<|im_user|>user<|im_middle|>hi<|im_end|><|im_assistant|>assistant<|im_middle|>"
    ) == text


def test_reasoning_of_a_model_that_does_not_think_is_refused() -> None:
    row = answered("kimi-k2", "I think so.\n", "\n\nYes.", 9)

    assert isinstance(row, Refusal)
    assert row.reason is Reason.LAYOUT_INVALID


def test_thinking_is_kept_in_history_where_the_job_asks_for_it() -> None:
    history = Prompt(
        "r",
        (
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "reasoning_content": "easy", "content": "4"},
            {"role": "user", "content": "3+3?"},
        ),
    )
    plain, kept = (FORMATS[name].render(history) for name in ("kimi-k2.6", "kimi-k2.6-preserve-thinking"))
    at = plain.index(163607)

    assert kept == (*plain[:at], 73398, *plain[at:])
