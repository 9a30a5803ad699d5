"""What answers show of a route by their bytes, held against the view that made them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from harness.fixtures.exchanges import (
    PLAIN,
    UNCOUNTED,
    Told,
    call_ids,
    edged_ids,
    edited,
    learned,
    line,
    message_of,
    shown,
    spaced_ids,
    text_ids,
    thought_ids,
    with_count,
    words,
)
from harness.views.view import Deltas, Seam
from pipeline.proof.fingerprint import TraitName
from pipeline.records import Json

pytestmark = pytest.mark.contract

# White space


def test_white_space_is_kept_where_the_count_needs_it() -> None:
    found = learned(line(n, edged_ids(n), thinking=True) for n in range(25))

    assert ("kept", 25, True) == shown(found.traits[TraitName.SEAM])


@pytest.mark.parametrize("field", ["reasoning", "content"])
def test_white_space_stripped_at_one_edge_is_not_kept(field: str) -> None:
    """A full stop and one with a line feed are one token each: the count is the same without it."""
    kept = [line(n, edged_ids(n), thinking=True) for n in range(25)]
    stripped = [edited(one, reasoning_details=None, **{field: str(message_of(one)[field]).rstrip()}) for one in kept]
    few, enough = (learned([*kept[:many], *stripped[many:]]).traits[TraitName.SEAM] for many in (2, 3))

    assert ("kept", 25, False) == shown(few)
    assert (f"2 of 3 answers whose count closes show white space at the end of {field}",) == few.lacks
    assert ("kept", 25, True) == shown(enough)


def test_an_edge_before_parsed_calls_is_not_the_end_of_content() -> None:
    text = [line(n, thought_ids(f"\n\n{words(n)}\n", f"\n\n{words(n)}"), thinking=True) for n in range(25)]
    calls = [line(n, call_ids(n, "{}", text=f"{words(n)}\n"), tools=True) for n in range(25, 50)]
    trait = learned([*text, *calls]).traits[TraitName.SEAM]

    assert ("kept", 50, False) == shown(trait)
    assert ("0 of 3 answers whose count closes show white space at the end of content",) == trait.lacks


def test_one_count_that_only_stripping_explains_is_not_outvoted() -> None:
    lines = [line(n, edged_ids(n), thinking=True) for n in range(60)]
    lines[7] = with_count(lines[7], +1)
    trait = learned(lines).traits[TraitName.SEAM]

    assert ("kept", 59, False) == shown(trait)
    assert ("the count of 1 closes only with white space that was stripped",) == trait.lacks


def test_unvaried_white_space_may_hide_an_uncounted_token() -> None:
    """A token of white space that was added, and an end token that was counted, have the same count as these."""
    alike = [line(n, edged_ids(n), UNCOUNTED, thinking=True) for n in range(25)]
    other = [line(n, thought_ids(words(n), words(n + 1)), UNCOUNTED, thinking=True) for n in range(25, 30)]
    instant = [line(n, text_ids(n), UNCOUNTED) for n in range(30, 50)]
    alone, varied = (
        learned(lines).traits[TraitName.SEAM] for lines in ([*alike, *instant], [*alike, *other, *instant])
    )

    assert ("kept", 25, False) == shown(alone)
    assert (
        "its white space always makes as many tokens, so it may be added and another token not counted",
    ) == alone.lacks
    assert ("kept", 25, True) == shown(varied)


def test_white_space_of_one_field_says_nothing_of_the_other() -> None:
    lines = (line(n, thought_ids(f"\n\n{words(n)}\n", words(n + 1)), thinking=True) for n in range(25))
    trait = learned(lines).traits[TraitName.SEAM]

    assert ("kept", 25, False) == shown(trait)
    assert [
        f"0 of 3 answers whose count closes show white space at the {edge} of content" for edge in ("start", "end")
    ] == [*trait.lacks]


def test_added_white_space_is_no_uncounted_token() -> None:
    """A space more in each field: the count is short of a token, as if `</think>` were not counted."""
    profile = replace(PLAIN, seam=Seam.ADDED)
    lines = [line(n, text_ids(n)) for n in range(20)]
    lines += [line(n, thought_ids(words(n), words(n + 1)), profile, thinking=True) for n in range(20, 45)]
    found = learned(lines)

    assert (True, 20, True) == shown(found.traits[TraitName.END_COUNTED])
    close = found.traits[TraitName.THINK_CLOSE_COUNTED]
    assert close.value is not False
    assert not close.trait.proven
    assert "1 beside the text, or 2 if its white space was added" in {one.why for one in close.against}
    assert not found.traits[TraitName.SEAM].trait.proven


def test_one_stripped_field_shows_in_the_count() -> None:
    """As Qwen3 does on some routes: the thinking keeps its line ends, and the content loses them."""
    lines = [line(n, text_ids(n)) for n in range(20)]
    lines += [half_stripped(n) for n in range(20, 45)]

    assert ("stripped", 25, True) == shown(learned(lines).traits[TraitName.SEAM])


def half_stripped(number: int) -> dict[str, Json]:
    one = line(number, spaced_ids(number), thinking=True)
    return edited(one, content=str(message_of(one)["content"]).strip())


def test_stripped_white_space_shows_in_counts_alone() -> None:
    lines = [line(n, text_ids(n), replace(PLAIN, seam=Seam.STRIPPED)) for n in range(20)]
    found = learned(
        [*lines, *(line(n, spaced_ids(n), replace(PLAIN, seam=Seam.STRIPPED), thinking=True) for n in range(20, 40))]
    )

    assert ("stripped", 20, True) == shown(found.traits[TraitName.SEAM])
    assert (True, 20, True) == shown(found.traits[TraitName.END_COUNTED])


def test_a_copy_that_was_written_anew_has_no_say_in_white_space() -> None:
    told = Told(fidelity="verbatim streams, JSON re-keyed")
    found = learned(line(n, spaced_ids(n), thinking=True, told=told) for n in range(25))

    assert TraitName.SEAM not in found.traits
    assert (True, 25, False) == shown(found.traits[TraitName.THINK_CLOSE_COUNTED])


def test_line_ends_of_both_kinds_in_one_answer_were_kept() -> None:
    r"""Whoever changes them makes them alike: a text with `\r\n` alone may have had `\n`."""
    both, alike = (
        learned(line(n, text_ids(n, f"{words(n)}\r\n{words(n)}{end}{words(n)}")) for n in range(20))
        for end in ("\n", "\r\n")
    )

    assert ("kept", 20, True) == shown(both.traits[TraitName.LINE_ENDS])
    assert (None, 0, False) == shown(alike.traits[TraitName.LINE_ENDS])


# Deltas


@pytest.mark.parametrize("kind", [Deltas.TOKENS, Deltas.BATCHES])
def test_what_one_delta_is(kind: Deltas) -> None:
    profile = replace(PLAIN, deltas=kind)
    lines = (line(n, text_ids(n, words(n, least=9)), profile, stream=True) for n in range(25))

    assert (kind.value, 25, True) == shown(learned(lines).traits[TraitName.DELTAS])


def test_deltas_that_end_inside_tokens_are_rechunked() -> None:
    lines = [rechunked(line(n, text_ids(n, words(n, least=9)), stream=True)) for n in range(25)]

    assert ("rechunked", 25, True) == shown(learned(lines).traits[TraitName.DELTAS])


def test_a_few_batches_on_a_route_of_tokens_explain_themselves() -> None:
    lines = [line(n, text_ids(n, words(n, least=9)), stream=True) for n in range(25)]
    lines[7] = line(7, text_ids(7, words(7, least=9)), replace(PLAIN, deltas=Deltas.BATCHES), stream=True)
    trait = learned(lines).traits[TraitName.DELTAS]

    assert ("tokens", 24, True) == shown(trait)
    assert ["batches"] == [one.value for one in trait.against]


def rechunked(one: Mapping[str, Json]) -> dict[str, Json]:
    """The same stream, its text cut every five characters."""
    events = str(one["body"]).split("\n\n")
    kept = [event for event in events if '"content":"' not in event or '"content":""' in event]
    said = [event for event in events if event not in kept]
    template = json.loads(said[0].removeprefix("data: "))
    text = "".join(json.loads(event[6:])["choices"][0]["delta"]["content"] for event in said)
    cut: list[str] = []
    for at in range(0, len(text), 5):
        template["choices"][0]["delta"]["content"] = text[at : at + 5]
        cut.append("data: " + json.dumps(template))
    return {**one, "body": "\n\n".join([kept[0], *cut, *kept[1:]])}


# Markers


def test_markers_come_raw_where_tools_stand_in_a_message() -> None:
    found = learned(line(n, call_ids(n, "{}"), tools=False) for n in range(25))

    assert ("raw", 25, True) == shown(found.traits[TraitName.MARKERS])
    assert TraitName.LEAKS not in found.traits
    assert (True, 25, True) == shown(found.traits[TraitName.END_COUNTED_TOOLS])


def test_one_marker_that_leaked_is_what_the_route_does() -> None:
    lines = [line(n, text_ids(n), tools=True) for n in range(25)]
    odd = json.loads(str(lines[0]["body"]))
    odd["choices"][0]["message"]["content"] = "So <|tool_calls_section_begin|>"
    lines[0] = {**lines[0], "body": json.dumps(odd)}
    trait = learned(lines).traits[TraitName.LEAKS]

    assert (True, 1, False) == shown(trait)
    assert () == trait.against
