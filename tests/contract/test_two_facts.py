"""A row's prompt has evidence of its own, and an answer that was cut in a loop is no row."""

from __future__ import annotations

from functools import cache

import pytest

from pipeline.formats.format import Format
from pipeline.formats.registry import open_format
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import Completion, Evidence, Ids, Prompt, Reason, Refusal, TokenRow, Usage

pytestmark = pytest.mark.contract

PROMPT = Prompt("row-1", ({"role": "user", "content": "Hi"},), thinking=False)


@cache
def tiny() -> Format:
    return open_format("tiny-kimi")


def answered(ids: Ids, *, text: str, prompt_ids: Ids | None = None, cut: bool = True) -> TokenRow | Refusal:
    """Prove an answer whose completion ids came back."""
    served, ids = tiny().render(PROMPT), ids if cut else (*ids, tiny().end_id)
    finish, usage = "length" if cut else "stop", Usage(len(served), len(ids))
    given = Completion(None, text, finish_reason=finish, token_ids=ids, prompt_ids=prompt_ids, usage=usage)
    return reconstruct(PROMPT, given, tiny(), None)


def said(text: str, times: int, *, cut: bool = True, lead: str = "") -> TokenRow | Refusal:
    one, first = tuple(tiny().tokenizer.encode(text)), tuple(tiny().tokenizer.encode(lead)) if lead else ()
    return answered((*first, *one * times), text=lead + text * times, cut=cut)


def test_a_prompt_whose_ids_did_not_come_back_is_counted() -> None:
    row = answered(tuple(tiny().tokenizer.encode("Hello")), text="Hello", cut=False)

    assert isinstance(row, TokenRow)
    assert (Evidence.ENGINE_IDS, Evidence.COUNTED) == (row.evidence, row.prompt_evidence)


def test_a_prompt_whose_ids_came_back_is_known_by_them() -> None:
    served = tiny().render(PROMPT)
    row = answered(tuple(tiny().tokenizer.encode("Hello")), text="Hello", prompt_ids=served, cut=False)

    assert isinstance(row, TokenRow)
    assert (Evidence.ENGINE_IDS, Evidence.ENGINE_IDS) == (row.evidence, row.prompt_evidence)


@pytest.mark.parametrize("off", [-1, 1])
def test_prompt_ids_beside_another_count_are_refused(off: int) -> None:
    served, ids = tiny().render(PROMPT), (*tiny().tokenizer.encode("Hello"), tiny().end_id)
    usage = Usage(len(served) + off, len(ids))
    given = Completion(None, "Hello", finish_reason="stop", token_ids=ids, prompt_ids=served, usage=usage)
    found = reconstruct(PROMPT, given, tiny(), None)

    assert isinstance(found, Refusal)
    assert (Reason.PROMPT_MISMATCH, "usage.prompt_tokens") == (found.reason, found.field)


@pytest.mark.parametrize("text, times", [(" the", 400), ("I should look again.\n\n", 80), ("a b c d e\n", 60)])
@pytest.mark.parametrize("lead", ["", "It is "])
def test_an_answer_cut_in_a_loop_is_refused_as_looping(text: str, times: int, lead: str) -> None:
    found = said(text, times, lead=lead)

    assert isinstance(found, Refusal)
    assert Reason.LOOPING is found.reason


def test_a_loop_that_ended_is_a_row_since_it_may_be_asked_for() -> None:
    assert isinstance(said(" the", 400, cut=False), TokenRow)


@pytest.mark.parametrize("text, times", [(" the", 20), ("0,0,0\n", 20), ("-", 60)])
def test_a_short_repetition_at_a_cut_is_no_loop(text: str, times: int) -> None:
    assert isinstance(said(text, times), TokenRow)
