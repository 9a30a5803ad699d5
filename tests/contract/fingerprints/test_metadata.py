"""What answers say beside their text, held against the view that made them."""

from __future__ import annotations

from typing import Any

import pytest

from harness.fixtures.exchanges import (
    TOKENIZER,
    Told,
    learned,
    line,
    shown,
    text_ids,
    thought_ids,
    words,
)
from pipeline.proof.fingerprint import TraitName

pytestmark = pytest.mark.contract

# The prompt as it was served


def test_one_token_more_is_the_beginning_that_the_family_has() -> None:
    told = Told(prefix=(TOKENIZER.id_of("[BOS]"),))
    found = learned(line(n, text_ids(n), told=told) for n in range(25))

    assert (["[BOS]"], 25, True) == shown(found.traits[TraitName.PROMPT_PREFIX])


def test_one_token_more_in_one_shape_may_be_a_message_cost() -> None:
    told = Told(prefix=(TOKENIZER.id_of("[BOS]"),))
    lines = (line(n, text_ids(n), told=told) for n in range(90) if n % 3)

    assert (["[BOS]"], 60, False) == shown(learned(lines).traits[TraitName.PROMPT_PREFIX])


def test_an_offset_that_names_no_token_proves_nothing() -> None:
    told = Told(prefix=tuple(TOKENIZER.encode("Mind the gap.")))
    found = learned(line(n, text_ids(n), told=told) for n in range(25))

    assert (len(told.prefix), 25, False) == shown(found.traits[TraitName.PROMPT_PREFIX])
    assert ("no control token explains the difference",) == found.traits[TraitName.PROMPT_PREFIX].lacks


def test_prompts_with_tools_are_learned_apart() -> None:
    lines = [line(n, text_ids(n)) for n in range(20)]
    lines += [line(n, text_ids(n), tools=True, told=Told(prefix=(5,) * 7)) for n in range(20, 40)]
    found = learned(lines)

    assert ([], 20, True) == shown(found.traits[TraitName.PROMPT_PREFIX])
    assert (7, 20, False) == shown(found.traits[TraitName.PROMPT_PREFIX_TOOLS])


# Finish reasons, ids and counts


def test_ids_and_logprobs_are_missed_only_where_requested() -> None:
    came = learned(line(n, text_ids(n), returns=True) for n in range(25))
    unasked = learned(line(n, text_ids(n)) for n in range(25))
    refused = learned({**line(n, text_ids(n)), "request": asking(n)} for n in range(25))

    assert [(True, 25, True), ("bytes", 25, True)] == [
        shown(came.traits[name]) for name in (TraitName.IDS, TraitName.LOGPROBS)
    ]
    assert {TraitName.IDS, TraitName.LOGPROBS}.isdisjoint(unasked.traits)
    assert [(False, 25, True), ("none", 25, True)] == [
        shown(refused.traits[name]) for name in (TraitName.IDS, TraitName.LOGPROBS)
    ]


def asking(number: int) -> dict[str, Any]:
    request: Any = line(number, text_ids(number))["request"]
    return {**request, "logprobs": True, "return_token_ids": True}


def test_a_finish_reason_that_hid_a_cut_is_what_the_route_does() -> None:
    lines = [line(n, text_ids(n)) for n in range(25)]
    body = str(lines[0]["body"]).replace('"native_finish_reason": "stop"', '"native_finish_reason": "length"')
    found = learned([{**lines[0], "body": body}, *lines[1:]])

    assert ("hides_cut", 1, False) == shown(found.traits[TraitName.FINISH])


def test_a_reasoning_count_by_characters_is_an_estimate() -> None:
    lines = (line(n, thought_ids(words(n), words(n + 1)), thinking=True) for n in range(40))
    value, _, proven = shown(learned(lines).traits[TraitName.REASONING_TOKENS])

    assert ("estimate", True) == (value, proven)
