"""ShareGPT's chunks: joined where they meet, each row accounted for."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.datasets.adapters.sharegpt import joined_chunks
from pipeline.datasets.blocks import RowsBlock, rows_of
from pipeline.datasets.registry import DATASETS
from pipeline.datasets.rows import Raw, Reject, Rejected
from pipeline.records import Prompt

TURNS = [{"from": "gpt" if at % 2 else "human", "value": f"turn {at}"} for at in range(12)]


def row(name: str, start: int, stop: int, **more: object) -> dict[str, Any]:
    return {"id": f"{name}_{start}", "conversations": TURNS[start:stop], **more}


def outcomes(*rows: dict[str, Any]) -> list[Prompt | Rejected]:
    raws = tuple(Raw(one, "sg.json", number) for number, one in enumerate(rows, 1))
    adapt = DATASETS["B7"].adapt
    found = [row for block in joined_chunks([RowsBlock(raws[:2]), RowsBlock(raws[2:])]) for row in rows_of(block)]
    return [one if isinstance(one, Rejected) else adapt(one) for one in found]


def summary(found: list[Prompt | Rejected]) -> list[tuple[str | None, object]]:
    return [(one.id, len(one.messages)) if isinstance(one, Prompt) else (one.id, one.reason) for one in found]


@pytest.mark.parametrize("start", [3, 4])
def test_chunks_are_joined_whether_they_repeat_a_message_or_none(start: int) -> None:
    found = outcomes(row("a", 0, 4), row("a", start, 8))

    assert [("B7-a_0", 7), ("B7-a_4" if start == 4 else "B7-a_3", Reject.JOINED)] == summary(found)
    assert [turn["value"] for turn in TURNS[:7]] == [m["content"] for m in found[0].messages]  # type: ignore[union-attr]


def test_chunks_may_come_in_any_order_and_among_others() -> None:
    found = outcomes(row("a", 8, 10), row("b", 0, 2), row("a", 4, 8), row("b", 2, 4), row("a", 0, 4))

    assert [
        ("B7-a_0", 9),
        ("B7-a_4", Reject.JOINED),
        ("B7-a_8", Reject.JOINED),
        ("B7-b_0", 3),
        ("B7-b_2", Reject.JOINED),
    ] == summary(found)


def test_a_conversation_ends_where_a_chunk_is_missing() -> None:
    found = outcomes(row("a", 0, 4), row("a", 6, 8))

    assert [("B7-a_0", 3), ("B7-a_6", Reject.NO_BEGINNING)] == summary(found)
    assert "2 messages before it are not in the source" == found[1].detail  # type: ignore[union-attr]


def test_a_contradicting_chunk_is_not_joined_but_a_later_one_may() -> None:
    other = row("a", 3, 6)
    other["conversations"] = [{"from": "gpt", "value": "no"}, *TURNS[4:6]]
    found = outcomes(row("a", 0, 4), other, row("a", 4, 6))

    assert [("B7-a_0", 5), ("B7-a_3", Reject.NO_BEGINNING), ("B7-a_4", Reject.JOINED)] == summary(found)


def test_a_continuation_alone_is_no_prompt() -> None:
    assert [(None, Reject.NO_BEGINNING)] == summary(outcomes(row("a", 4, 8)))
    assert [(None, Reject.NO_BEGINNING)] * 2 == summary(outcomes(row("a", 4, 8), row("a", 8, 10)))


def test_an_offset_of_any_length_is_that_of_a_continuation() -> None:
    found = outcomes(row("a", 0, 2), {**row("a", 0, 2), "id": f"b_{'9' * 5000}"})

    assert [(None, Reject.NO_BEGINNING), ("B7-a_0", 1)] == summary(found)


def test_half_a_surrogate_pair_survives_the_wait() -> None:
    odd = row("a", 0, 2)
    odd["conversations"] = [{"from": "human", "value": "half \ud83d"}, TURNS[1]]
    found, *others = outcomes(odd, row("a\ud800", 0, 2), row("a\ud800", 2, 4))

    assert isinstance(found, Prompt)
    assert "half \ud83d" == found.messages[0]["content"]
    assert [(None, Reject.WRONG_SHAPE), ("B7-a\ud800_2", Reject.JOINED)] == summary(others)


def test_an_empty_row_does_not_shadow_the_full_row_of_its_id() -> None:
    assert [(None, Reject.NO_TURNS), ("B7-a_0", 1)] == summary(outcomes(row("a", 0, 0), row("a", 0, 2)))


def test_rows_whose_ids_name_no_chunk_stand_alone() -> None:
    one, two = ({**row("x", 0, 2), "id": value} for value in (17, "plain"))
    (hashed,) = outcomes({"conversations": TURNS[:2]})

    assert [("B7-17", 1), ("B7-plain", 1)] == summary(outcomes(one, two))
    assert isinstance(hashed, Prompt)
    assert len("B7-") + 20 == len(hashed.id)


def test_footers_page_numbers_and_doubled_questions_are_dropped() -> None:
    turns = [
        {"from": "system", "value": "*This conversation is shared from [**ChatHub**](https://chathub.gg)*"},
        {"from": "user", "value": "1 / 2\nWhy <b>so</b>?"},
        {"from": "human", "value": "Why <b>so</b>?"},
        {"from": "bing", "value": "bashCopy codels"},
        {"from": "human", "value": "And?", "markdown": None},
        {"from": "bard", "value": "So."},
    ]
    (found,) = outcomes({"id": "a_0", "conversations": turns})

    assert isinstance(found, Prompt)
    assert [
        ("user", "Why <b>so</b>?"),
        ("assistant", "bashCopy codels"),
        ("user", "And?"),
    ] == [(message["role"], message["content"]) for message in found.messages]


@pytest.mark.parametrize(
    "one, why",
    [
        (row("a", 0, 2, plugins=["kayak"]), Reject.PLUGINS),
        ({"id": "a_0", "conversations": "none"}, Reject.WRONG_SHAPE),
        ({"id": "a_0", "conversations": [{"from": "judge", "value": "x"}]}, Reject.UNKNOWN_ROLE),
        ({"id": "a_0", "conversations": [{"from": "gpt", "value": "x"}, TURNS[0]]}, Reject.NO_BEGINNING),
    ],
)
def test_a_row_that_cannot_be_kept_is_rejected(one: dict[str, Any], why: Reject) -> None:
    assert [(None, why)] == summary(outcomes(one))
