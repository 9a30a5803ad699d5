"""Sources: every kind of file gives the same rows, streamed, and what cannot be read is said in one sentence."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.parquet import write_table

from pipeline.datasets import blocks, sources
from pipeline.datasets import json_values as jsonvalues
from pipeline.datasets.registry import DATASETS, prompts_of
from pipeline.datasets.rows import Raw, Reject, Rejected
from pipeline.datasets.sources import SourceError, blocks_of
from pipeline.records import Prompt

ROWS = [{"id": f"r{n}", "input": f"Sort {n} é\u2028 things.", "output": "x" * n} for n in range(1500)]
SCHEMA = DATASETS["B2"].schema


def as_lines(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")


def as_array(path: Path) -> None:
    path.write_text(json.dumps(ROWS, ensure_ascii=False, indent=1), encoding="utf-8")


def as_parquet(path: Path) -> None:
    write_table(pa.Table.from_pylist(ROWS), path, row_group_size=400)


def as_marked_lines(path: Path) -> None:
    text = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
    path.write_bytes(b"\xef\xbb\xbf" + text.encode("utf-8"))


def rows(source: Path | str) -> list[Raw | Rejected]:
    return [row for block in blocks_of(source, SCHEMA) for row in blocks.rows_of(block)]


@pytest.mark.parametrize("write", [as_lines, as_array, as_parquet, as_marked_lines])
def test_every_kind_of_file_gives_the_same_prompts_in_order(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / "rows")
    made = [one for one in prompts_of("B2", tmp_path / "rows") if isinstance(one, Prompt)]

    assert [(f"B2-{row['id']}", row["input"]) for row in ROWS] == [(p.id, p.messages[0]["content"]) for p in made]


@pytest.mark.parametrize("write", [as_lines, as_array, as_parquet])
def test_every_row_says_where_it_stands(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / "rows")

    assert [(str(tmp_path / "rows"), n) for n in range(1, 1501)] == [(r.file, r.line) for r in rows(tmp_path / "rows")]


def test_lines_keep_their_numbers_over_blank_ones(tmp_path: Path) -> None:
    as_marked_lines(tmp_path / "rows")

    assert list(range(1, 3000, 2)) == [row.line for row in rows(tmp_path / "rows")]


def test_counts_of_blocks_are_the_rows_that_they_hold(tmp_path: Path) -> None:
    for write in (as_marked_lines, as_array, as_parquet):
        write(tmp_path / "rows")
        for block in blocks_of(tmp_path / "rows", SCHEMA):
            assert len(list(blocks.rows_of(block))) == blocks.count_of(block)


@given(
    st.lists(
        st.recursive(
            st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
        )
    ),
    st.sampled_from([1, 7, 64]),
    st.sampled_from([None, 1]),
)
def test_an_array_is_read_whole_wherever_its_parts_are_cut(values: list[Any], part: int, indent: int | None) -> None:
    whole = jsonvalues.PART
    jsonvalues.PART = part
    try:
        text = json.dumps(values, ensure_ascii=False, indent=indent).encode("utf-8", "surrogatepass")
        if b"\xed" not in text:
            assert values == [json.loads(one) for one in jsonvalues.values_in(io.BytesIO(text))]
    finally:
        jsonvalues.PART = whole


def test_one_object_over_many_lines_is_one_row(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(ROWS[0], indent=2), encoding="utf-8")

    assert [ROWS[0]] == [row.value for row in rows(tmp_path / "one.json") if isinstance(row, Raw)]


def test_only_the_columns_that_are_wanted_are_read_of_parquet(tmp_path: Path) -> None:
    as_parquet(tmp_path / "rows")

    assert {"id", "input"} == {key for row in rows(tmp_path / "rows") if isinstance(row, Raw) for key in row.value}


def test_a_folder_gives_its_parquet_files_sorted_by_name(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "x.parquet").write_bytes(b"")
    for name in ("data/b.parquet", "data/a.parquet"):
        write_table(pa.Table.from_pylist([{"id": name, "input": name}]), tmp_path / name)
    (tmp_path / "data" / "info.json").write_text("{}", encoding="utf-8")

    assert ["data/a.parquet", "data/b.parquet"] == [r.value["input"] for r in rows(tmp_path) if isinstance(r, Raw)]
    assert ["data/b.parquet"] == [r.value["input"] for r in rows(f"{tmp_path}/*/b*") if isinstance(r, Raw)]


def test_a_malformed_line_is_a_rejected_row_with_its_place(tmp_path: Path) -> None:
    lines = [
        json.dumps(ROWS[0]),
        "{",
        '{"input": NaN}',
        '{"input": "a", "input": "b"}',
        "[]",
        '"x"',
        json.dumps(ROWS[1]),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_bytes("\n".join(lines).encode() + b'\n{"input": "\xff"}\n' + b"[" * 200_000)
    found = [row for row in rows(path) if isinstance(row, Rejected)]

    assert [2, 3, 4, 5, 6, 8, 9] == [row.line for row in found]
    assert {(Reject.NOT_JSON, str(path))} == {(row.reason, row.file) for row in found}


def test_a_record_that_cannot_be_written_again_is_rejected(tmp_path: Path) -> None:
    """Writers stop at fewer objects in one another than readers."""
    deep = [f'{{"input": "a", "x": {"[" * depth}{"]" * depth}}}' for depth in (199, 200, 300)]
    (tmp_path / "lines.jsonl").write_text("\n".join(deep), encoding="utf-8")
    (tmp_path / "array.json").write_text(f"[{', '.join(deep)}]", encoding="utf-8")

    for name in ("lines.jsonl", "array.json"):
        assert [Raw, Rejected, Rejected] == [type(row) for row in rows(tmp_path / name)]


def parquet(path: Path, **columns: pa.Array) -> Path:
    write_table(pa.table(columns), path)
    return path


def test_text_of_parquet_that_is_no_utf8_is_one_rejected_row(tmp_path: Path) -> None:
    places, data = pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0])), pa.py_buffer(b"a\xff\xfe")
    path = parquet(tmp_path / "x.parquet", input=pa.Array.from_buffers(pa.string(), 2, [None, places, data]))
    good, bad = rows(path)

    assert {"input": "a"} == getattr(good, "value", None)
    assert isinstance(bad, Rejected)
    assert (Reject.NOT_JSON, 2) == (bad.reason, bad.line)
    assert "codec can't decode byte 0xff" in bad.detail


@pytest.mark.parametrize(
    "value, said",
    [
        (pa.array([b"a"]), "input holds b'a' (bytes), for which JSON has no form"),
        (pa.array([Decimal("1.5")]), "input holds Decimal('1.5') (Decimal), for which JSON has no form"),
        (pa.array([[{"at": date(2024, 1, 2)}]]), "input holds datetime.date(2024, 1, 2) (date), for which"),
        (pa.array([{"x": float("nan")}]), "input holds nan (float), for which JSON has no form"),
        (pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())), "input holds ('a', 'b') (tuple), for which"),
        (pa.array([2**62], pa.timestamp("ms")), "the record holds what no JSON can: "),
    ],
)
def test_a_parquet_value_without_a_json_form_is_a_rejected_row(value: pa.Array, said: str, tmp_path: Path) -> None:
    (found,) = rows(parquet(tmp_path / "x.parquet", input=value))

    assert isinstance(found, Rejected)
    assert found.detail.startswith(said)
    assert found.document()


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_text_of_parquet_is_text_in_every_encoding(kind: pa.DataType, tmp_path: Path) -> None:
    path = parquet(tmp_path / "x.parquet", input=pa.array(["a", None, "é"]).cast(kind))

    assert ["a", None, "é"] == [row.value["input"] for row in rows(path) if isinstance(row, Raw)]


def test_a_parquet_file_that_has_a_column_twice_is_refused(tmp_path: Path) -> None:
    write_table(pa.table([pa.array(["a"]), pa.array(["b"])], names=["input", "input"]), tmp_path / "x.parquet")

    with pytest.raises(SourceError, match="has the column input twice"):
        rows(tmp_path / "x.parquet")


def test_a_line_that_is_too_long_is_skipped_without_being_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LONGEST_LINE", 100)
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"input": "a"}}\n{{"input": "{"b" * 500}"}}\n{{"input": "c"}}\n', encoding="utf-8")
    found = rows(path)

    assert [(1, Raw), (2, Rejected), (3, Raw)] == [(row.line, type(row)) for row in found]


@pytest.mark.parametrize(
    "text, said",
    [
        ('[{"input": "a"}, {"inp', "record 2 is no JSON"),
        ('[{"input": "a"}', "the array is cut off after 1 records"),
        ('[{"input": "a"} {"input": "b"}]', "record 2 does not follow a comma"),
        ('[{"input": "a"},]', "a comma stands after the last of 1 records"),
        ('[{"input": "a"}] []', "text follows the array of 1 records"),
        ("[" * 100_000, "record 1 is nested too deeply to read"),
        (b'[{"input": "\xff"}]', "not UTF-8"),
        (b"PAR1 and nothing else", "is no whole Parquet file"),
        ("", "holds no rows"),
        ("[]", "holds no rows"),
        ("\n \n", "holds no rows"),
        (
            '{"chat": "a", "system": "b"}\n',
            "has the columns chat, system; B2 wants input. Name its dataset with --dataset",
        ),
        ("[{}]", "has the columns none; B2 wants input"),
    ],
)
def test_a_file_that_cannot_be_read_is_said_in_one_sentence(text: str | bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())

    with pytest.raises(SourceError, match=re.escape(said)):
        rows(path)


def test_a_parquet_file_with_other_columns_names_both(tmp_path: Path) -> None:
    write_table(pa.Table.from_pylist([{"prompt": "a"}]), tmp_path / "x.parquet")

    with pytest.raises(SourceError, match=r"has the columns prompt; B3 wants problem, or instruction\. "):
        list(prompts_of("B3", tmp_path / "x.parquet"))


def test_a_first_row_without_the_column_is_one_rejected_row(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"output": "x"}\n{"input": "a"}\n', encoding="utf-8")

    assert [Rejected, Prompt] == [type(one) for one in prompts_of("B2", tmp_path / "rows.jsonl")]


def test_what_is_not_there_is_said_with_what_may_be_given(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(
        SourceError, match=r"none\.jsonl: there is no such file\. Give a file, a folder, a glob, or hub:"
    ):
        rows(tmp_path / "none.jsonl")
    with pytest.raises(SourceError, match=r"empty: no file in it ends in \.parquet, \.jsonl, \.ndjson, \.json"):
        rows(tmp_path / "empty")
    with pytest.raises(SourceError, match=r"unknown dataset 'B9'; there are B1, B1-llamafactory, B2"):
        list(prompts_of("B9", tmp_path))


def test_each_id_comes_once(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "input": "x"}\n{"id": "a", "input": "y"}\n', encoding="utf-8")
    _, again = prompts_of("B2", tmp_path / "rows.jsonl")

    assert isinstance(again, Rejected)
    assert ("B2-a", Reject.REPEATED, 2) == (again.id, again.reason, again.line)


# The hub


@pytest.mark.parametrize("source", ["hub:a/b", "hub:a/b@main", "hub:a/b@", "hub:@0123456"])
def test_a_hub_dataset_needs_a_pinned_commit(source: str) -> None:
    with pytest.raises(SourceError, match="names no pinned revision"):
        rows(source)


def test_a_hub_dataset_without_the_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)

    with pytest.raises(SourceError, match=r"hub datasets need the package datasets\. Run: pip install datasets"):
        rows("hub:a/b@0123456")


def test_a_hub_dataset_is_asked_for_by_revision_config_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def load_dataset(*args: object, **more: object) -> list[dict[str, Any]]:
        calls.append(SimpleNamespace(args=args, **more))
        return ROWS[:600]

    library = ModuleType("datasets")
    library.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", library)
    found = rows("hub:nvidia/OpenCodeInstruct@0123456789:train:test")

    assert 600 == len(found)
    assert [("nvidia/OpenCodeInstruct", "train"), "test", "0123456789", True] == [
        calls[0].args,
        calls[0].split,
        calls[0].revision,
        calls[0].streaming,
    ]


def test_a_hub_row_that_json_has_no_form_for_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("datasets")
    library.load_dataset = lambda *_, **__: [{"input": "a"}, {"input": b"a"}]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", library)

    assert [Raw, Rejected] == [type(row) for row in rows("hub:a/b@0123456")]


def test_a_hub_that_fails_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: object, **__: object) -> None:
        raise RuntimeError("no such repository")

    library = ModuleType("datasets")
    library.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", library)

    with pytest.raises(SourceError, match=r"hub:a/b@0123456: not read \(RuntimeError: no such repository\)"):
        rows("hub:a/b@0123456")
