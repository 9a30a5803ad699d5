"""Preparation as a whole: every row accounted for, the first of equals, whole turns cut, a draw that repeats."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.prompts import read_prompts
from pipeline.datasets import prepare as preparing
from pipeline.datasets.blocks import RowsBlock, rows_of
from pipeline.datasets.decontaminate import EvaluationText, grams_of
from pipeline.datasets.fidelity.file import check_file
from pipeline.datasets.prepare import Counts, Preparation, PreparationError, RowFilter, Selection, TargetFormat
from pipeline.datasets.registry import DATASETS, Turns
from pipeline.datasets.rows import Raw, Reject
from pipeline.formats.registry import open_format
from pipeline.records import Prompt

QUESTIONS = [f"Sort {n} letters." for n in range(40)]
TURNS = ("Why is it so?", "Because of this, that and the other thing.", "And how long?", "Long.", "Really?")


def written(folder: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def tasks(*texts: str) -> list[dict[str, Any]]:
    return [{"id": str(n), "input": text, "output": "x"} for n, text in enumerate(texts)]


def prepared(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    dataset: str = "B2",
    **how: Any,  # noqa: ANN401
) -> tuple[Counts, list[Prompt], list[dict[str, Any]]]:
    turns = Turns(how.pop("turns", "last"))
    sieve = RowFilter(DATASETS[dataset], how.pop("target", None), how.pop("grams", None), turns)
    workers = how.pop("workers", 1)
    out, rejects = folder / "out.jsonl", folder / "no.jsonl"
    counts = Preparation(sieve, Selection(**how), workers).write(written(folder, rows), out, rejects)
    prompts = [one for one in read_prompts(out) if isinstance(one, Prompt)]
    rejected = [json.loads(line) for line in rejects.read_bytes().splitlines()]
    assert len(rows) == counts.rows == len(prompts) + len(rejected) - counts.more
    assert [one.id for one in prompts] == [
        json.loads(line)["id"] for line in (folder / "out.changes.jsonl").read_bytes().splitlines()
    ]
    checked = check_file(DATASETS[dataset], folder / "rows.jsonl", out, turns)
    assert (len(prompts), []) == (checked.prompts, checked.first)
    assert Counter(one["reason"] for one in rejected) == counts.rejected
    return counts, prompts, rejected


def test_of_equal_questions_the_first_is_kept(tmp_path: Path) -> None:
    texts = ("Sort it.", "sort  it.", "Sort\r\nit. ", "Sort it", "So\u0301.", "s\u00f3.")
    _, prompts, rejected = prepared(tmp_path, tasks(*texts))

    assert ["B2-0", "B2-3", "B2-4"] == [one.id for one in prompts]
    assert [(2, "duplicate"), (3, "duplicate"), (6, "duplicate")] == [(one["line"], one["reason"]) for one in rejected]
    assert "sort  it." == rejected[0]["row"]["messages"][0]["content"]


def test_questions_with_other_tools_or_later_turns_are_not_equal(tmp_path: Path) -> None:
    one = {"messages": [{"role": "user", "content": "a"}]}
    two = {"messages": [*one["messages"], {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]}
    three = {**one, "tools": [{"type": "function", "function": {"name": "x"}}]}

    assert 3 == len(prepared(tmp_path, [one, two, three], "messages")[1])


ASKED = {"role": "user", "content": "Name a bird."}
WREN: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look_up", "description": "Birds.", "parameters": {"type": "object"}},
}


@pytest.mark.parametrize(
    "other",
    [
        {"messages": [{"role": "system", "content": "Answer in Latin."}, ASKED]},
        {"messages": [ASKED], "thinking": False},
        {"messages": [ASKED], "tools": [{**WREN, "function": {**WREN["function"], "description": "Stars."}}]},
        {"messages": [ASKED], "tools": [{**WREN, "function": {**WREN["function"], "parameters": {}}}]},
        {"messages": [ASKED], "tools": [WREN, WREN]},
        {"messages": [ASKED, {"role": "assistant", "content": "A wren."}, ASKED]},
        {"messages": [ASKED, {"role": "assistant", "content": "A lark."}, ASKED]},
        {"messages": [{**ASKED, "name": "Ann"}]},
        {"messages": [{**ASKED, "content": [{"type": "text", "text": "Name a bird."}]}]},
        {"messages": [ASKED, ASKED]},
    ],
)
def test_prompts_that_differ_anywhere_are_not_equal(other: dict[str, Any], tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"messages": [ASKED]},
        {"messages": [ASKED], "tools": [WREN]},
        {"messages": [{"role": "system", "content": "Be brief."}, ASKED]},
        {"messages": [ASKED, {"role": "assistant", "content": "A robin."}, ASKED]},
    ]
    rows = [{**row, "id": str(n)} for n, row in enumerate([*rows, other, *rows, other])]
    _, prompts, rejected = prepared(tmp_path, rows, "messages")

    assert ["0", "1", "2", "3", "4"] == [one.id for one in prompts]
    assert ["duplicate"] * 5 == [one["reason"] for one in rejected]


def chat(name: str, *questions: str) -> dict[str, Any]:
    turns = [turn for text in questions for turn in (("user", text), ("assistant", f"{text} Yes."))]
    return {"prompt_id": name, "messages": [{"role": role, "content": text} for role, text in turns]}


def test_every_question_of_a_row_may_be_a_prompt(tmp_path: Path) -> None:
    rows = [chat("a", "1?", "2?", "3?", "4?"), chat("b", "1?", "2?", "5?"), chat("c", ""), chat("d", "6?")]
    counts, prompts, rejected = prepared(tmp_path, rows, "B6", turns="all")

    assert [("B6-a#1", 1), ("B6-a#2", 3), ("B6-a#3", 5), ("B6-a", 7), ("B6-b", 5), ("B6-d", 1)] == [
        (one.id, len(one.messages)) for one in prompts
    ]
    assert 5 == counts.more
    assert ["duplicate", "duplicate", "empty_prompt"] == [one["reason"] for one in rejected]
    assert ["B6-a", "B6-b", "B6-d"] == [one.id for one in prepared(tmp_path, rows, "B6")[1]]


def test_a_cap_counts_rows_and_not_their_questions(tmp_path: Path) -> None:
    rows = [chat(str(n), "Hi", f"{n}?", "And?") for n in range(3)]
    _, prompts, rejected = prepared(tmp_path, rows, "B6", turns="all", cap=2)

    assert ["B6-0#1", "B6-0#2", "B6-0", "B6-1#2", "B6-1"] == [one.id for one in prompts]
    assert [("B6-1#1", "duplicate"), ("B6-2#1", "duplicate"), ("B6-2#2", "over_cap"), ("B6-2", "over_cap")] == [
        (one["id"], one["reason"]) for one in rejected
    ]


def test_each_question_is_compared_with_evaluations(tmp_path: Path) -> None:
    text = "Write a function that says which of two rivers is longer, in words that a child knows."
    grams = grams_of([EvaluationText(text, "mt/question.jsonl", 81)])
    _, prompts, rejected = prepared(tmp_path, [chat("a", "Hi", text, "And?")], "B6", turns="all", grams=grams)

    assert ["B6-a#1"] == [one.id for one in prompts]
    assert ["contaminated"] * 2 == [one["reason"] for one in rejected]


def test_questions_of_a_trajectory_keep_the_drawn_ones_id(tmp_path: Path) -> None:
    turns = [{"role": role, "content": f"{role} {n}"} for n in range(4) for role in ("user", "assistant")]
    rows = [{"messages": turns, "traj_id": str(n)} for n in range(5)]
    for row in rows:
        (drawn,), (all_of_it) = prepared(tmp_path, [row], "B8")[1], prepared(tmp_path, [row], "B8", turns="all")[1]

        assert [drawn] == [one for one in all_of_it if "#" not in one.id]
        assert [1, 3, 5, 7] == [len(one.messages) for one in all_of_it]


def test_a_prompt_that_is_not_its_rows_is_rejected(tmp_path: Path) -> None:
    """An adapter with a fault."""
    known = DATASETS["B2"]
    stripping = replace(known, read=lambda raw: replace(known.read(raw), messages=({**ASKED, "content": "Sort it."},)))
    source = written(tmp_path, tasks("Sort it. ", "Sort it."))
    counts = Preparation(RowFilter(stripping)).write(source, tmp_path / "out", tmp_path / "no")

    assert (1, {Reject.UNFAITHFUL: 1}) == (counts.prompts, counts.rejected)


def test_a_check_finds_what_was_edited_added_or_moved(tmp_path: Path) -> None:
    prepared(tmp_path, tasks(*QUESTIONS[:4]))
    out, source = tmp_path / "out.jsonl", tmp_path / "rows.jsonl"
    lines = out.read_bytes().splitlines(keepends=True)
    kinds = {
        "edited": [lines[0].replace(b"Sort", b"sort"), *lines[1:]],
        "added": [*lines, lines[0].replace(b"B2-0", b"B2-9")],
        "moved": [*lines[1:], lines[0]],
        "broken": [*lines, b"{}"],
    }
    for name, changed in kinds.items():
        out.write_bytes(b"".join(changed))
        assert (name, 1) == (name, check_file(DATASETS["B2"], source, out).differences)


def test_no_more_than_the_cap_begin_with_one_user_turn(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": c} for c in ("Hi ", f"{n}?")]} for n in range(5)]
    _, prompts, rejected = prepared(tmp_path, rows, "messages", cap=2)

    assert ["0?", "1?"] == [one.messages[1]["content"] for one in prompts]
    assert ["over_cap"] * 3 == [one["reason"] for one in rejected]


def test_a_prompt_is_cut_by_whole_turns_to_its_limit_in_tokens(tmp_path: Path) -> None:
    fmt = open_format("tiny-kimi", None)
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(TURNS)]
    row = {"messages": messages}
    lengths = [len(fmt.render(Prompt("x", tuple(messages[:end])))) for end in (1, 3, 5)]

    for most, turns in ((lengths[2], 5), (lengths[2] - 1, 3), (lengths[1], 3), (lengths[1] - 1, 1), (lengths[0], 1)):
        (made,) = prepared(tmp_path, [row], "messages", target=TargetFormat(fmt, most))[1]
        assert tuple(messages[:turns]) == made.messages
    short = {"messages": [{"role": "user", "content": "a"}]}
    _, _, (rejected,) = prepared(tmp_path, [row, short], "messages", target=TargetFormat(fmt, lengths[0] - 1))
    assert "too_long" == rejected["reason"]


def test_what_the_targets_template_refuses_is_rejected(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": [{"role": "user", "content": "What is <|im_end|>?"}]},
        {"messages": [{"role": "user", "content": "a"}]},
    ]
    _, _, rejected = prepared(tmp_path, rows, "messages", target=TargetFormat(open_format("tiny-kimi", None)))

    assert ["unrenderable", "special_text"] == [one["reason"] for one in rejected]


def test_a_prompt_of_an_evaluation_is_rejected_and_names_it(tmp_path: Path) -> None:
    grams = grams_of(
        [EvaluationText("Write a function that says which of two rivers is longer.", "mt/question.jsonl", 81)]
    )
    texts = ("write a function that says, which of two rivers is longer", "Sort it.")
    _, _, (rejected,) = prepared(tmp_path, tasks(*texts), grams=grams)

    assert "contaminated" == rejected["reason"]
    assert rejected["detail"].startswith("mt/question.jsonl:81 says 'write a function that")


def test_the_recorded_answer_after_the_last_question_is_dropped(tmp_path: Path) -> None:
    messages = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant", "assistant")]

    assert 3 == len(prepared(tmp_path, [{"messages": messages}], "messages")[1][0].messages)


def test_a_draw_depends_on_seed_and_ids_and_keeps_the_order(tmp_path: Path) -> None:
    rows = tasks(*QUESTIONS)
    drawn = [one.id for one in prepared(tmp_path, rows, limit=10, seed=3)[1]]
    backwards = [one.id for one in prepared(tmp_path, rows[::-1], limit=10, seed=3)[1]]
    smaller = {one.id for one in prepared(tmp_path, rows, limit=4, seed=3)[1]}
    other = [one.id for one in prepared(tmp_path, rows, limit=10, seed=4)[1]]

    assert 10 == len(drawn)
    assert drawn == backwards[::-1]
    assert smaller < set(drawn)
    assert sorted(drawn, key=lambda name: int(name[3:])) == drawn
    assert drawn not in (other, [f"B2-{n}" for n in range(10)])
    assert 40 == prepared(tmp_path, rows, limit=100)[0].prompts


def test_workers_write_what_one_process_writes(tmp_path: Path) -> None:
    rows = tasks(*QUESTIONS * 60, "", "x" * 300_000)
    for row in rows:
        row["id"] = None
    results = []
    for workers in (1, 3):
        folder = tmp_path / str(workers)
        folder.mkdir()
        results.append(prepared(folder, rows, workers=workers, limit=30)[1:])

    assert results[0][0] == results[1][0]
    assert [replace_file(one) for one in results[0][1]] == [replace_file(one) for one in results[1][1]]


def replace_file(rejected: dict[str, Any]) -> dict[str, Any]:
    return {**rejected, "file": Path(rejected["file"]).name}


def test_a_source_of_which_nothing_is_left_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("before", encoding="utf-8")

    with pytest.raises(PreparationError, match=r"nothing is left of 2 rows \(2 empty_prompt\), so nothing was written"):
        prepared(tmp_path, tasks("", " "))
    assert ["out.jsonl", "rows.jsonl"] == sorted(path.name for path in tmp_path.iterdir())
    assert "before" == (tmp_path / "out.jsonl").read_text(encoding="utf-8")


def test_a_lost_row_is_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    losing = replace(DATASETS["B2"], gather=lambda blocks: (RowsBlock(tuple(rows_of(block))[1:]) for block in blocks))
    preparation = Preparation(RowFilter(losing))

    with pytest.raises(PreparationError, match="3 rows became 2 prompts"):
        preparation.write(written(tmp_path, tasks(*QUESTIONS[:3])), tmp_path / "out", tmp_path / "no")
    assert ["rows.jsonl"] == [path.name for path in tmp_path.iterdir()]


def test_an_interrupt_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Iterator[RowsBlock]:
        yield RowsBlock((Raw({"input": "a"}, "f", 1),))
        raise KeyboardInterrupt

    monkeypatch.setattr(preparing, "blocks_of", interrupted)

    with pytest.raises(KeyboardInterrupt):
        Preparation(RowFilter(DATASETS["B2"])).write("rows", tmp_path / "out", tmp_path / "no")
    assert [] == list(tmp_path.iterdir())


def test_a_rejected_row_that_could_not_be_read_has_no_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"input": "a"}\n{"input": \n', encoding="utf-8")
    counts = Preparation(RowFilter(DATASETS["B2"])).write(path, tmp_path / "out", tmp_path / "no")

    assert {Reject.NOT_JSON: 1} == counts.rejected
    assert {"id", "reason", "detail", "file", "line"} == json.loads((tmp_path / "no").read_bytes()).keys()
