"""Prompts of an evaluation, from every kind of file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.tiny_target.provenance import WEIGHTS
from pipeline.drafter.decoding.prompts import (
    EvaluationPrompt,
    PromptError,
    evaluation_prompts_in,
    formats_of,
    template_renderer,
)
from pipeline.formats.registry import open_format
from pipeline.records import Ids, Prompt


def write(path: Path, *lines: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    return path


def render(prompt: Prompt) -> Ids:
    """As many ids as the first message has characters."""
    return tuple(range(len(str(prompt.messages[0]["content"]))))


def test_ids_are_taken_as_they_lie(tmp_path: Path) -> None:
    path = write(
        tmp_path / "held_out.jsonl",
        {"id": "a", "prompt_ids": [3, 1, 2]},
        {"id": "b", "prompt_ids": [9], "dataset": "gsm8k", "messages": []},
    )

    assert [
        EvaluationPrompt("a", (3, 1, 2), "held_out"),
        EvaluationPrompt("b", (9,), "gsm8k"),
    ] == evaluation_prompts_in([path], None)


def test_messages_are_rendered(tmp_path: Path) -> None:
    one = {"id": "a", "messages": [{"role": "user", "content": "four"}]}
    path = write(tmp_path / "own.jsonl", one, {**one, "id": "b", "dataset": "B1"})

    assert [
        EvaluationPrompt("a", (0, 1, 2, 3), "own"),
        EvaluationPrompt("b", (0, 1, 2, 3), "B1"),
    ] == evaluation_prompts_in([path], render)


def test_a_format_renders_for_the_target_that_has_its_vocabulary() -> None:
    assert ["tiny-kimi"] == formats_of(WEIGHTS)

    fmt = open_format("tiny-kimi")
    found = evaluation_prompts_in([WEIGHTS.parent / "prompts.jsonl"], fmt.render)

    assert 770 not in found[0].ids[-1:]
    assert {"prompts"} == {question.dataset for question in found}


def test_a_target_without_a_known_vocabulary_has_no_format(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}", "utf-8")

    assert [] == formats_of(tmp_path)


def test_an_evaluation_set_gives_each_records_first_question(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mt_bench" / "question.jsonl",
        {"question_id": 81, "turns": ["abc", "and then?"], "reference": ["never"]},
        {"question_id": 82, "turns": ["ab"]},
    )

    expected = [
        EvaluationPrompt("mt_bench/question.jsonl:1", (0, 1, 2), "mt_bench"),
        EvaluationPrompt("mt_bench/question.jsonl:2", (0, 1), "mt_bench"),
    ]
    assert expected == evaluation_prompts_in([path], render)
    assert expected == evaluation_prompts_in([tmp_path], render)


def test_a_set_whose_file_has_a_name_is_called_by_it(tmp_path: Path) -> None:
    path = write(tmp_path / "sets" / "humaneval.jsonl", {"task_id": "HumanEval/0", "prompt": "def"})

    assert ["humaneval"] == [question.dataset for question in evaluation_prompts_in([path], render)]


def test_the_targets_own_template_renders_where_it_is_asked_to() -> None:
    prompt = Prompt("a", ({"role": "user", "content": "count to three"},))

    assert open_format("tiny-kimi").render(prompt) == template_renderer(WEIGHTS)(prompt)


def test_a_target_without_a_tokenizer_has_no_template(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="no tokenizer is read there"):
        template_renderer(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        {"id": "a", "prompt_ids": []},
        {"id": "a", "prompt_ids": [1, -1]},
        {"id": "a", "prompt_ids": [1, True]},
        {"id": "a", "prompt_ids": "1 2"},
        {"id": 4, "prompt_ids": [1]},
        {"id": "a", "prompt_ids": [1], "dataset": 3},
    ],
    ids=str,
)
def test_ids_that_are_none_are_refused_by_line(tmp_path: Path, line: object) -> None:
    path = write(tmp_path / "ids.jsonl", {"id": "ok", "prompt_ids": [1]}, line)

    with pytest.raises(PromptError, match=r"ids.jsonl, line 2: no prompt"):
        evaluation_prompts_in([path], None)


@pytest.mark.parametrize("highest", [40, int("9" * 30)])
def test_an_id_that_the_target_does_not_know_is_refused_by_line(tmp_path: Path, highest: int) -> None:
    good = {"id": "ok", "prompt_ids": [39, 0]}
    path = write(tmp_path / "ids.jsonl", good, {"id": "a", "prompt_ids": [1, highest, 2]})

    with pytest.raises(
        PromptError, match=rf"ids.jsonl, line 2 has the id {highest}, and the target knows ids below 40"
    ):
        evaluation_prompts_in([path], None, 40)
    assert [EvaluationPrompt("ok", (39, 0), "ok")] == evaluation_prompts_in(
        [write(tmp_path / "ok.jsonl", good)], None, 40
    )


def test_a_rendered_id_beyond_the_target_is_refused_by_prompt(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", {"id": "a", "messages": [{"role": "user", "content": "four"}]})
    asked = write(tmp_path / "set.jsonl", {"task_id": "HumanEval/0", "prompt": "four"})

    for file, where in ((path, r"own.jsonl, 'a'"), (asked, r"set.jsonl:1")):
        with pytest.raises(
            PromptError, match=rf"{where} has the id 3, and the target knows ids below 3\. Give prompts"
        ):
            evaluation_prompts_in([file], render, 3)


def test_text_without_a_format_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", {"id": "a", "messages": [{"role": "user", "content": "x"}]})

    with pytest.raises(PromptError, match="not one format alone is known by the target's vocabulary"):
        evaluation_prompts_in([path], None)


def test_a_line_that_is_no_prompt_ends_the_evaluation(tmp_path: Path) -> None:
    good = {"id": "a", "messages": [{"role": "user", "content": "x"}]}
    path = write(tmp_path / "own.jsonl", good, {**good, "id": "b", "message": "misspelt"})

    with pytest.raises(PromptError, match=r"own.jsonl, line 2: unknown key 'message'"):
        evaluation_prompts_in([path], render)


def test_a_prompt_that_is_not_rendered_is_named(tmp_path: Path) -> None:
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    path = write(tmp_path / "own.jsonl", {"id": "seen", "messages": [{"role": "user", "content": image}]})

    with pytest.raises(PromptError, match="'seen' is not rendered"):
        evaluation_prompts_in([path], open_format("tiny-kimi").render)


def test_a_file_that_asks_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="no file in it asks anything"):
        evaluation_prompts_in([write(tmp_path / "empty.jsonl", {"answer": 4})], render)
