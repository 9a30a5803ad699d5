"""What a route does to parsed calls, held against the view that made them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from harness.fixtures.exchanges import (
    PLAIN,
    Told,
    arguments_of,
    call_ids,
    learned,
    line,
    shown,
    words,
)
from pipeline.proof.fingerprint import TraitName

pytestmark = pytest.mark.contract


@pytest.mark.parametrize("form", ["verbatim", "prefix_cut", "invented"])
def test_ids_of_calls_say_what_was_done_to_them(form: Any) -> None:  # noqa: ANN401 — one literal of three
    profile = replace(PLAIN, tool_ids=form)
    found = learned(line(n, call_ids(n, "{}"), profile, tools=True) for n in range(25))

    assert (form, 25, True) == shown(found.traits[TraitName.TOOL_IDS])


def test_ids_that_a_copy_redacted_have_no_say() -> None:
    told = Told(fidelity="keys sorted, ids redacted")
    found = learned(line(n, call_ids(n, "{}"), tools=True, told=told) for n in range(25))

    assert TraitName.TOOL_IDS not in found.traits
    assert TraitName.TOOL_ARGUMENTS not in found.traits


def test_arguments_are_verbatim_where_no_other_way_closes() -> None:
    found = learned(line(n, call_ids(n, arguments_of(n)), tools=True) for n in range(25))

    assert ("verbatim", 25, True) == shown(found.traits[TraitName.TOOL_ARGUMENTS])


def test_arguments_with_keys_in_order_may_have_been_sorted() -> None:
    lines = (line(n, call_ids(n, json.dumps({"a": words(n), "b": [n, n]})), tools=True) for n in range(25))
    trait = learned(lines).traits[TraitName.TOOL_ARGUMENTS]

    assert ("verbatim", 25, False) == shown(trait)


def test_rewritten_arguments_close_the_count_in_another_way() -> None:
    profile = replace(PLAIN, tool_arguments="reserialised")
    found = learned(line(n, call_ids(n, arguments_of(n)), profile, tools=True) for n in range(25))

    assert ("reserialised", 25, True) == shown(found.traits[TraitName.TOOL_ARGUMENTS])


def test_arguments_without_tokens_unescaped_are_no_other_way() -> None:
    """Half a surrogate pair, escaped: written without escapes it is no text."""
    arguments = '{"b": "\\ud800", "a": 1}'
    found = learned(line(n, call_ids(n, arguments), tools=True) for n in range(25))

    assert (True, 25, True) == shown(found.traits[TraitName.END_COUNTED_TOOLS])
    assert TraitName.TOOL_ARGUMENTS in found.traits
