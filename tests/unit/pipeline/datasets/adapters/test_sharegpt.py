"""ShareGPT's chunks: joined where they meet, each row accounted for."""

from __future__ import annotations

from typing import Any

import pytest

from harness.fixtures.dataset_rows import prompt
from pipeline.datasets.adapters.sharegpt import MOST_PARTS, joined_chunks
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
    found = outcomes(row("shareA1", 0, 4), row("shareA1", start, 8))

    assert [("B7-shareA1_0", 7), ("B7-shareA1_4" if start == 4 else "B7-shareA1_3", Reject.JOINED)] == summary(found)
    assert [turn["value"] for turn in TURNS[:7]] == [m["content"] for m in found[0].messages]  # type: ignore[union-attr]


def test_chunks_may_come_in_any_order_and_among_others() -> None:
    found = outcomes(
        row("shareA1", 8, 10), row("shareB2", 0, 2), row("shareA1", 4, 8), row("shareB2", 2, 4), row("shareA1", 0, 4)
    )

    assert [
        ("B7-shareA1_0", 9),
        ("B7-shareA1_4", Reject.JOINED),
        ("B7-shareA1_8", Reject.JOINED),
        ("B7-shareB2_0", 3),
        ("B7-shareB2_2", Reject.JOINED),
    ] == summary(found)


def test_a_conversation_ends_where_a_chunk_is_missing() -> None:
    found = outcomes(row("shareA1", 0, 4), row("shareA1", 6, 8))

    assert [("B7-shareA1_0", 3), ("B7-shareA1_6", Reject.NO_BEGINNING)] == summary(found)
    assert "2 messages before it are not in the source" == found[1].detail  # type: ignore[union-attr]


def test_after_a_contradiction_only_what_repeats_is_joined() -> None:
    other = row("shareA1", 3, 6)
    other["conversations"] = [{"from": "gpt", "value": "no"}, *TURNS[4:6]]
    found = outcomes(row("shareA1", 0, 4), other, row("shareA1", 3, 5), row("shareA1", 5, 6))

    assert [
        ("B7-shareA1_0", 5),
        ("B7-shareA1_3", Reject.NO_BEGINNING),
        ("B7-shareA1_3", Reject.JOINED),
        ("B7-shareA1_5", Reject.NO_BEGINNING),
    ] == summary(found)


def talk(name: str, number: int, *texts: str) -> dict[str, Any]:
    roles = ("human", "gpt")
    turns = [{"from": roles[at % 2], "value": text} for at, text in enumerate(texts)]
    return {"id": f"{name}_{number}", "conversations": turns}


@pytest.mark.parametrize("name", ["identity", "example", "dummy-conversation", "account"])
@pytest.mark.parametrize("turns", [2, 4])
def test_ids_that_only_count_name_conversations_of_their_own(name: str, turns: int) -> None:
    rows = [talk(name, n, *(f"{n} says {at}" for at in range(turns))) for n in range(4)]

    assert [(f"B7-{name}_{n}", turns - 1) for n in range(4)] == summary(outcomes(*rows))


def test_whole_conversations_are_not_joined_by_a_number_alone() -> None:
    rows = [talk("identity", n, f"Who is {n}?", f"It is {n}.") for n in (0, 2, 4, 9)]

    assert [(f"B7-identity_{n}", 1) for n in (0, 2, 4, 9)] == summary(outcomes(*rows))


def test_counted_rows_that_disagree_stand_alone_without_a_first() -> None:
    rows = [talk("identity", n, f"Who is {n}?", f"It is {n}.") for n in (3, 4)]

    assert [("B7-identity_3", 1), ("B7-identity_4", 1)] == summary(outcomes(*rows))


def test_a_counted_row_that_begins_with_an_answer_is_not_joined() -> None:
    answered = {"id": "identity_2", "conversations": [{"from": "gpt", "value": "I"}, {"from": "human", "value": "?"}]}
    rows = [talk("identity", 0, "a", "b"), talk("identity", 1, "c", "d"), answered]

    assert [("B7-identity_0", 1), ("B7-identity_1", 1), ("B7-identity_2", Reject.NO_BEGINNING)] == summary(
        outcomes(*rows)
    )


def test_a_beginning_without_an_end_is_joined_under_any_name() -> None:
    found = outcomes(row("long name", 0, 7), row("long name", 7, 10))

    assert [("B7-long name_0", 9), ("B7-long name_7", Reject.JOINED)] == summary(found)


def test_more_rows_than_a_conversation_has_parts_stand_alone() -> None:
    rows = [talk("chat", 2 * n, "Why?", f"{n}.") for n in range(MOST_PARTS + 10)]

    assert [(f"B7-chat_{2 * n}", 1) for n in range(MOST_PARTS + 10)] == summary(outcomes(*rows))


def test_a_continuation_alone_is_no_prompt() -> None:
    assert [("B7-shareA1_4", Reject.NO_BEGINNING)] == summary(outcomes(row("shareA1", 4, 8)))
    assert [("B7-x_4", Reject.NO_BEGINNING), ("B7-x_8", Reject.NO_BEGINNING)] == summary(
        outcomes(row("x", 4, 8), row("x", 8, 10))
    )


def test_an_offset_of_any_length_is_that_of_a_continuation() -> None:
    found = outcomes(row("shareA1", 0, 2), {**row("shareA1", 0, 2), "id": f"b_{'9' * 5000}"})

    assert [("B7-shareA1_0", 1), (f"B7-b_{'9' * 5000}", Reject.NO_BEGINNING)] == summary(found)


def test_half_a_surrogate_pair_survives_the_wait() -> None:
    odd = row("shareA1", 0, 2)
    odd["conversations"] = [{"from": "human", "value": "half \ud83d"}, TURNS[1]]
    found, *others = outcomes(odd, row("a\ud800", 0, 3), row("a\ud800", 3, 4))

    assert isinstance(found, Prompt)
    assert "half \ud83d" == found.messages[0]["content"]
    assert [(None, Reject.WRONG_SHAPE), ("B7-a\ud800_3", Reject.JOINED)] == summary(others)


def test_an_empty_row_does_not_shadow_the_full_row_of_its_id() -> None:
    assert [(None, Reject.NO_TURNS), ("B7-shareA1_0", 1)] == summary(
        outcomes(row("shareA1", 0, 0), row("shareA1", 0, 2))
    )


def test_rows_whose_ids_name_no_chunk_stand_alone() -> None:
    one, two = ({**row("x", 0, 2), "id": value} for value in (17, "plain"))
    (hashed,) = outcomes({"conversations": TURNS[:2]})

    assert [("B7-17", 1), ("B7-plain", 1)] == summary(outcomes(one, two))
    assert isinstance(hashed, Prompt)
    assert len("B7-") + 20 == len(hashed.id)


def test_footers_and_doubled_questions_are_dropped() -> None:
    turns = [
        {"from": "system", "value": "*This conversation is shared from [**ChatHub**](https://chathub.gg)*"},
        {"from": "user", "value": "Why <b>so</b>?"},
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


@pytest.mark.parametrize("text", ["100 / 7\nGive the quotient.", "3 / 2\nWrite it.", "1 / 2\n\nTell me.", "2 / 3 \nx"])
def test_a_text_that_may_begin_with_a_page_number_is_kept(text: str) -> None:
    assert [text] == [m["content"] for m in prompt("B7", talk("a", 0, text, "So.")).messages]


@pytest.mark.parametrize(
    "text",
    [
        "Quote: *This conversation is shared from [**ChatHub**](https://chathub.gg)*",
        "*This conversation is shared from [**ChatHub**](https://chathub.gg)*\nBe brief.",
        "You are a pirate.",
    ],
)
def test_a_system_turn_that_is_more_than_a_footer_is_kept(text: str) -> None:
    turns = [{"from": "system", "value": text}, {"from": "human", "value": "Hi"}]

    assert [text, "Hi"] == [m["content"] for m in prompt("B7", {"conversations": turns}).messages]


@pytest.mark.parametrize(
    "one, why",
    [
        (row("shareA1", 0, 2, plugins=["kayak"]), Reject.PLUGINS),
        ({"id": "a_0", "conversations": "none"}, Reject.WRONG_SHAPE),
        ({"id": "a_0", "conversations": [{"from": "judge", "value": "x"}]}, Reject.UNKNOWN_ROLE),
        ({"id": "a_0", "conversations": [{"from": "gpt", "value": "x"}, TURNS[0]]}, Reject.NO_BEGINNING),
    ],
)
def test_a_row_that_cannot_be_kept_is_rejected(one: dict[str, Any], why: Reject) -> None:
    assert [(None, why)] == summary(outcomes(one))
