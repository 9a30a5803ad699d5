"""Files that are no lines of UTF-8: named, with the command that mends them, wherever prompts are read."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import sqlite3
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc
from pyarrow.parquet import write_table

from pipeline.base.file_kinds import FileKindError
from pipeline.base.prompts import read_prompts
from pipeline.cli.main import main
from pipeline.datasets.blocks import rows_of
from pipeline.datasets.decontaminate import asked_in
from pipeline.datasets.registry import prompts_of
from pipeline.datasets.rows import Raw
from pipeline.datasets.sources import Schema, SourceError, blocks_of
from pipeline.generation.plan import prompts_file_of
from pipeline.records import Prompt

ROWS = [{"id": str(n), "messages": [{"role": "user", "content": f"Why {n}?"}]} for n in range(2)]
TEXT = "".join(json.dumps(row) + "\n" for row in ROWS)
TABLE = pa.table({"id": ["0"]})


def rows(path: Path) -> list[Raw]:
    blocks = blocks_of(path, Schema("any", [frozenset()], frozenset({"id"})))
    return [row for block in blocks for row in rows_of(block) if isinstance(row, Raw)]


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rows.jsonl", TEXT)


def tarred(path: Path) -> None:
    inner = path.with_suffix(".inner")
    inner.write_text(TEXT)
    with tarfile.open(path, "w") as archive:
        archive.add(inner, "rows.jsonl")
    inner.unlink()


def arrow_file(path: Path) -> None:
    with ipc.new_file(path, TABLE.schema) as sink:
        sink.write_table(TABLE)


def arrow_stream(path: Path) -> None:
    with ipc.new_stream(path, TABLE.schema) as sink:
        sink.write_table(TABLE)


def database(path: Path) -> None:
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE rows (id TEXT)")
    made.close()


WRITERS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "gzip": (lambda path: path.write_bytes(gzip.compress(TEXT.encode())), "gzip", "gunzip -k"),
    "bzip2": (lambda path: path.write_bytes(bz2.compress(TEXT.encode())), "bzip2", "bunzip2 -k"),
    "xz": (lambda path: path.write_bytes(lzma.compress(TEXT.encode())), "xz", "xz -dk"),
    "zstd": (lambda path: path.write_bytes(pa.compress(TEXT.encode(), "zstd", asbytes=True)), "zstd", "zstd -d"),
    "lz4": (lambda path: path.write_bytes(pa.compress(TEXT.encode(), "lz4", asbytes=True)), "lz4", "lz4 -dk"),
    "zip": (zipped, "a zip archive", "unzip"),
    "tar": (tarred, "a tar archive", "tar -xf"),
    "arrow": (arrow_file, "an Arrow file", "python -c"),
    "arrow stream": (arrow_stream, "an Arrow stream", "python -c"),
    "sqlite": (database, "an SQLite database", "sqlite3 -json"),
    "pointer": (
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"),
        "a Git LFS pointer",
        "git",
    ),
    "utf-16": (lambda path: path.write_text(TEXT, encoding="utf-16"), "UTF-16", "iconv -f UTF-16"),
    "utf-32": (lambda path: path.write_text(TEXT, encoding="utf-32"), "UTF-32", "iconv -f UTF-32"),
    "utf-16le": (lambda path: path.write_text(TEXT, encoding="utf-16-le"), "holds NUL bytes", "JSON lines in UTF-8"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_no_text_is_named_with_its_command(name: str, tmp_path: Path) -> None:
    """Whatever the file is called, and wherever it is read."""
    write, kind, command = WRITERS[name]
    path = tmp_path / "rows.jsonl"
    write(path)

    for read in (lambda: list(prompts_of("messages", path)), lambda: asked_in(tmp_path)):
        with pytest.raises(SourceError, match=f"{re.escape(str(path))} (is )?{kind}.*{re.escape(command)}"):
            read()
    for look in (lambda: list(read_prompts(path)), lambda: prompts_file_of(path)):
        with pytest.raises(FileKindError, match=f"{re.escape(str(path))} (is )?{kind}.*{re.escape(command)}"):
            look()


MENDED = {"arrow": "rows.parquet", "arrow stream": "rows.parquet", "gzip": "rows.jsonl", "utf-16": "rows.utf8"}


@pytest.mark.parametrize("name", MENDED)
def test_the_command_makes_the_file_readable(name: str, tmp_path: Path) -> None:
    path = tmp_path / ("rows.jsonl.gz" if name == "gzip" else "rows")
    WRITERS[name][0](path)
    with pytest.raises(SourceError) as refused:
        list(prompts_of("messages", path))
    command = str(refused.value).partition("Run: ")[2]
    subprocess.run(["bash", "-c", f"PATH={Path(pa.__file__).parents[4] / 'bin'}:$PATH; {command}"], check=True)

    assert ["0"] == [row.value["id"] for row in rows(tmp_path / MENDED[name])][:1]


def test_parquet_is_read_as_rows_and_refused_as_prompts(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_table(pa.Table.from_pylist(ROWS), path)

    assert [Prompt, Prompt] == [type(one) for one in prompts_of("messages", path)]
    with pytest.raises(FileKindError, match=f"is Parquet.*prepare {re.escape(str(path))} --dataset messages"):
        list(read_prompts(path))


@pytest.mark.parametrize("name", ["array", "mark", "crlf", "mark and array"])
def test_texts_of_other_writers_are_read_as_rows(name: str, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    written = {"array": json.dumps(ROWS), "mark": TEXT, "crlf": TEXT.replace("\n", "\r\n")}.get(name, json.dumps(ROWS))
    path.write_bytes((b"\xef\xbb\xbf" if "mark" in name else b"") + written.encode())

    assert ["0", "1"] == [one.id for one in prompts_of("messages", path)]
    if "array" in name:
        with pytest.raises(FileKindError, match="is one JSON array, and prompts stand one on a line"):
            list(read_prompts(path))
    else:
        assert ["0", "1"] == [one.id for one in read_prompts(path)]


@pytest.mark.parametrize("text", ["id,prompt\n1,Why?\n", "id\tprompt\n", "Why?\nHow?\n", "<!DOCTYPE html><html>"])
def test_text_that_is_no_json_is_said_so(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    status = main(
        ["prepare", str(path), "--dataset", "messages", "--out", str(tmp_path / "o.jsonl"), "--no-decontaminate"]
    )

    assert (2, f"error: {path} is no JSON: it begins {text.splitlines()[0]!r}") == (
        status,
        capsys.readouterr().err.partition(". Write")[0],
    )


def test_a_packed_file_in_a_folder_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(TEXT)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(TEXT.encode()))

    with pytest.raises(SourceError, match=r"b\.jsonl\.gz is packed, so its rows would be left out"):
        list(prompts_of("messages", tmp_path))
    with pytest.raises(SourceError, match=r"b\.jsonl\.gz is gzip"):
        asked_in(tmp_path)


def test_evaluations_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(TEXT)
    (tmp_path / "b.csv").write_text("prompt\nWhy?\n")

    assert [str(tmp_path / "b.csv")] == asked_in(tmp_path)[1]
    (tmp_path / "a.jsonl").write_text(TEXT + '{"prompt": "cut\n')
    with pytest.raises(SourceError, match=r"a\.jsonl:3 cannot be read, so what it asks would not be compared"):
        asked_in(tmp_path)
