"""A dataset's rows as the lines of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.base.prompts import RefusedLine
from pipeline.datasets.prompt_source import is_prepared, lines_of, size_of
from pipeline.datasets.sources import SourceError
from pipeline.records import Prompt, Reason

B4 = [
    {"messages": [{"role": "user", "content": f"{n} + 1?"}, {"role": "assistant", "content": "<think>"}]}
    | {"num_tokens": 3, "source": "s"}
    for n in range(3)
]
PREPARED = {"id": "B4-1", "messages": [{"role": "user", "content": "1 + 1?"}], "dataset": "B4"}


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_published_rows_are_adapted_and_others_refused_lines(tmp_path: Path) -> None:
    path = written(tmp_path / "b4.jsonl", B4[0], {**B4[1], "messages": []}, B4[2])

    first, none, last = lines_of("B4", path)

    assert isinstance(first, Prompt)
    assert isinstance(last, Prompt)
    assert isinstance(none, RefusedLine)
    assert (2, Reason.NO_PROMPT) == (none.line, none.refusal.reason)
    assert none.refusal.detail.startswith("no_turns: ")
    assert none.refusal.detail.endswith("(b4.jsonl, record 2)")


def test_lines_are_counted_over_all_files(tmp_path: Path) -> None:
    written(tmp_path / "1.jsonl", *B4[:2])
    written(tmp_path / "2.jsonl", B4[0], {**B4[1], "messages": []})

    lines = [line.line for line in lines_of("B4", tmp_path) if isinstance(line, RefusedLine)]

    assert [3, 4] == lines


def test_prepared_prompts_are_taken_as_they_are(tmp_path: Path) -> None:
    path = written(tmp_path / "p.jsonl", PREPARED, {"id": "mine", "messages": PREPARED["messages"]})

    assert is_prepared(path)
    assert [("B4-1", "B4"), ("mine", "B4")] == [
        (line.id, line.dataset) for line in lines_of("B4", path) if isinstance(line, Prompt)
    ]


def test_a_variants_prompts_are_its_datasets(tmp_path: Path) -> None:
    path = written(tmp_path / "p.jsonl", {**PREPARED, "dataset": "B8-nebius"})

    assert ["B8-nebius"] == [line.dataset for line in lines_of("B8", path) if isinstance(line, Prompt)]


def test_another_datasets_prompts_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"row B4-1 says that it is of B4, not of B1\. Name its own with --dataset"):
        list(lines_of("B1", written(tmp_path / "p.jsonl", PREPARED)))


@pytest.mark.parametrize("row", [B4[0], {"system": "s", "chat": "c"}, {"messages": "[]", "traj_id": "t"}])
def test_published_rows_are_not_prepared_prompts(row: object, tmp_path: Path) -> None:
    assert not is_prepared(written(tmp_path / "r.jsonl", row))
    assert not is_prepared(tmp_path)


def test_the_size_of_a_source_does_not_depend_on_its_name(tmp_path: Path) -> None:
    one, two = (written(tmp_path / name, *B4) for name in ("a.jsonl", "b.jsonl"))
    other = written(tmp_path / "c.jsonl", *B4[:2])

    assert size_of("B4", one) == size_of("B4", two)
    assert [3, 2] == [size_of("B4", one)[1], size_of("B4", other)[1]]
    assert size_of("B4", one)[0] != size_of("B4", other)[0]
