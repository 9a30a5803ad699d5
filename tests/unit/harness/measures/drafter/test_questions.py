"""Questions of evaluation sets, and which of them are held out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.measures.drafter.questions import Question, QuestionsError, chosen, read_questions


def asked(path: Path, *lines: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def numbered(name: str, count: int) -> list[Question]:
    return [Question(f"{name}-{number}", name, ("?",)) for number in range(count)]


def test_turns_and_what_users_say_in_messages_are_asked(tmp_path: Path) -> None:
    said = [{"role": role, "content": text} for role, text in (("system", "s"), ("user", "u"), ("assistant", "a"))]
    path = asked(tmp_path / "set.jsonl", {"turns": ["one", "two"]}, {"messages": said})

    assert [("set", ("one", "two")), ("set", ("u",))] == [(each.dataset, each.turns) for each in read_questions([path])]


def test_files_of_one_name_are_sets_by_their_folders(tmp_path: Path) -> None:
    files = [asked(tmp_path / name / "question.jsonl", {"turns": ["?"]}) for name in ("mt_bench", "gsm8k")]

    assert ["mt_bench", "gsm8k"] == [each.dataset for each in read_questions(files)]


def test_an_id_says_set_place_and_content(tmp_path: Path) -> None:
    """The hash is of the line: a set that changed gives other rows, not others of the same name."""
    first, second = read_questions([asked(tmp_path / "set.jsonl", {"turns": ["?"]}, {"turns": ["!"]})])

    assert ("set-00000-", "set-00001-") == (first.id[:10], second.id[:10])
    assert first.id[10:] != second.id[10:]


def test_the_limit_is_of_each_set(tmp_path: Path) -> None:
    files = [asked(tmp_path / f"{name}.jsonl", *[{"turns": [str(n)]} for n in range(5)]) for name in "ab"]

    assert ["a", "a", "b", "b"] == [each.dataset for each in read_questions(files, 2)]


@pytest.mark.parametrize(
    "line",
    [{}, [], {"turns": []}, {"turns": "text"}, {"turns": [" "]}, {"turns": [1]}, {"messages": [{"role": "user"}]}],
)
def test_a_line_in_which_nothing_is_asked_is_named(tmp_path: Path, line: object) -> None:
    path = asked(tmp_path / "set.jsonl", {"turns": ["?"]}, line)

    with pytest.raises(QuestionsError, match=r"set\.jsonl, line 2"):
        read_questions([path])


def test_an_empty_file_and_two_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(QuestionsError, match="holds no question"):
        read_questions([asked(tmp_path / "set.jsonl")])
    path = asked(tmp_path / "full.jsonl", {"turns": ["?"]})
    with pytest.raises(QuestionsError, match="two of the files would both be the set"):
        read_questions([path, path])


def test_as_many_of_each_set_are_held_out_and_spread_over_it() -> None:
    found = chosen([*numbered("a", 8), *numbered("b", 4)], 6)

    held = [each.id for each in found if each.held_out]
    assert ["a-0", "a-2", "a-5", "b-0", "b-1", "b-2"] == held


def test_what_is_left_over_goes_to_the_first_sets() -> None:
    found = chosen([*numbered("a", 9), *numbered("b", 9), *numbered("c", 9)], 4)

    assert [2, 1, 1] == [sum(each.held_out for each in found if each.dataset == name) for name in "abc"]


def test_nothing_may_be_held_out_and_not_everything() -> None:
    assert not any(each.held_out for each in chosen(numbered("a", 3), 0))
    with pytest.raises(QuestionsError, match="3 of the 3 questions of a are to be held out"):
        chosen(numbered("a", 3), 3)
