"""Shards, quarantine and manifest: whole files, each row once, and a folder that is continued or refused."""

from __future__ import annotations

import hashlib
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.records import Evidence, Json, Reason, Refusal, Span, SpanKind, TokenRow
from pipeline.shards import manifest as manifests
from pipeline.shards.manifest import MANIFEST, Manifest, ManifestError, Session
from pipeline.shards.shards import QUARANTINE, Quarantined, ShardError, ShardFolder

pytestmark = pytest.mark.contract

SPANS = (Span(SpanKind.REASONING, 0, 2), Span(SpanKind.THINK_CLOSE, 2, 3), Span(SpanKind.END, 3, 4))
SETTINGS: dict[str, Json] = {"route": "emulator/chutes", "sampling": {"temperature": 1.0}}


def row(name: str, evidence: Evidence = Evidence.COUNTED) -> TokenRow:
    return TokenRow(name, (1, 2, 163_839), (7, 8, 163_607, 163_586), SPANS, evidence, "why")


def refused(name: str) -> Quarantined:
    refusal = Refusal(Reason.COUNT_MISMATCH, "9 and 8", field="usage.completion_tokens")
    return Quarantined(name, refusal, request="ab" * 32, dataset="B4")


def malformed(line: int) -> Quarantined:
    return Quarantined(None, Refusal(Reason.MALFORMED_INPUT, "not JSON"), {"file": "p.jsonl", "line": line})


def opened(folder: Path, rows_a_shard: int = 4096) -> ShardFolder:
    return ShardFolder(folder, route="emulator/chutes", metadata={"run": "r"}, rows_a_shard=rows_a_shard)


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_shard_holds_the_rows_as_they_are(tmp_path: Path) -> None:
    shards = opened(tmp_path)
    shards.accept(row("ä"), "B4")
    shards.flush()

    table = pq.read_table(tmp_path / "shard-00000.parquet")

    expected = {
        "id": "ä",
        "prompt_ids": [1, 2, 163_839],
        "output_ids": [7, 8, 163_607, 163_586],
        "spans": [
            {"kind": "reasoning", "start": 0, "stop": 2},
            {"kind": "think_close", "start": 2, "stop": 3},
            {"kind": "end", "start": 3, "stop": 4},
        ],
        "evidence": "counted",
        "detail": "why",
        "dataset": "B4",
        "route": "emulator/chutes",
        "prompt_evidence": "counted",
    }
    assert [expected] == table.to_pylist()
    assert str(table.schema.field("output_ids").type) in {"list<item: int32>", "list<element: int32>"}
    assert table.schema.metadata[b"run"] == b"r"


def test_a_shard_is_bounded_and_described_by_its_hash_and_counts(tmp_path: Path) -> None:
    shards = opened(tmp_path, rows_a_shard=2)
    for name in "abc":
        shards.accept(row(name), "")
    shards.flush()

    assert [("shard-00000.parquet", 2, 6, 8), ("shard-00001.parquet", 1, 3, 4)] == [
        (shard.file, shard.rows, shard.prompt_tokens, shard.output_tokens) for shard in shards.shards
    ]
    for shard in shards.shards:
        assert hashlib.sha256((tmp_path / shard.file).read_bytes()).hexdigest() == shard.sha256
    assert ({"counted": 3}, (9, 12)) == (shards.evidence(), shards.tokens())


def test_a_quarantine_line_says_why_where_and_what_to_replay(tmp_path: Path) -> None:
    shards = opened(tmp_path)
    shards.refuse(refused("a"))
    shards.refuse(malformed(3))
    shards.flush()

    lines = [json.loads(line) for line in (tmp_path / QUARANTINE).read_text().splitlines()]

    assert lines == [
        {
            "id": "a",
            "reason": "count_mismatch",
            "detail": "9 and 8",
            "where": {"field": "usage.completion_tokens"},
            "dataset": "B4",
            "request": "ab" * 32,
        },
        {
            "id": None,
            "reason": "malformed_input",
            "detail": "not JSON",
            "where": {"file": "p.jsonl", "line": 3},
            "dataset": "",
            "request": None,
        },
    ]


def test_a_folder_opened_again_knows_its_rows_and_counts(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.accept(row("a", Evidence.STREAM_DELTAS), "")
    first.refuse(refused("b"))
    first.refuse(malformed(3))
    first.flush()

    second = opened(tmp_path)

    assert [True, True, True, False, False] == [key in second for key in ("id a", "id b", "line 3", "id c", "line 4")]
    assert first.shards == second.shards
    assert ({"stream_deltas": 1}, {"count_mismatch": 1, "malformed_input": 1}) == (second.evidence(), second.reasons)


@pytest.mark.parametrize("again", [row("a"), refused("a")], ids=["accepted", "refused"])
def test_a_row_stands_in_the_folder_once(again: TokenRow | Quarantined, tmp_path: Path) -> None:
    shards = opened(tmp_path)
    shards.accept(row("a"), "")
    shards.flush()

    with pytest.raises(ShardError, match="already"):
        shards.accept(again, "") if isinstance(again, TokenRow) else shards.refuse(again)


def test_a_quarantine_line_that_a_crash_cut_is_removed(tmp_path: Path) -> None:
    """Its row comes again."""
    shards = opened(tmp_path)
    shards.refuse(refused("a"))
    shards.flush()
    whole = (tmp_path / QUARANTINE).read_bytes()
    (tmp_path / QUARANTINE).write_bytes(whole + whole[:-9])

    again = opened(tmp_path)

    assert whole == (tmp_path / QUARANTINE).read_bytes()
    assert ["id a" in again, again.reasons.total()] == [True, 1]


def test_what_a_crash_left_aside_is_no_shard(tmp_path: Path) -> None:
    (tmp_path / ".shard-00000.parquet.tmp").write_bytes(b"half")

    assert [] == opened(tmp_path).shards


def test_a_file_that_is_no_shard_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "shard-00000.parquet").write_bytes(b"half")

    with pytest.raises(ShardError, match=r"shard-00000\.parquet is no shard of this program"):
        opened(tmp_path)


def test_a_missing_shard_before_another_is_refused(tmp_path: Path) -> None:
    shards = opened(tmp_path, rows_a_shard=1)
    shards.accept(row("a"), "")
    shards.accept(row("b"), "")
    (tmp_path / "shard-00000.parquet").unlink()

    with pytest.raises(ShardError, match=r"shard-00000\.parquet is missing"):
        opened(tmp_path)


def test_a_full_disk_leaves_no_part_of_a_shard_and_the_rows_wait(tmp_path: Path) -> None:
    shards = opened(tmp_path)
    for number in range(500):
        shards.accept(row(f"row-{number}"), "")
    shards.refuse(refused("b"))
    with full_disk(100), pytest.raises(OSError, match="File too large"):
        shards.flush()
    left = sorted(path.name for path in tmp_path.iterdir() if path.stat().st_size)

    shards.flush()

    assert [] == left
    assert 500 == opened(tmp_path).shards[0].rows


def test_a_shard_is_bounded_in_ids_too_however_few_the_rows(tmp_path: Path) -> None:
    shards = opened(tmp_path)
    long = tuple(range(1 << 20))
    for number in range(9):
        shards.accept(TokenRow(f"row-{number}", (1,), long, (), Evidence.ENGINE_IDS, ""), "")

    assert [4, 4] == [shard.rows for shard in shards.shards]
    shards.flush()
    assert [4, 4, 1] == [shard.rows for shard in opened(tmp_path).shards]


def test_rows_keep_their_order_over_blocks_of_rows_and_of_ids(tmp_path: Path) -> None:
    shards = opened(tmp_path)
    lengths = [3, *[1] * 300, 1 << 18, *[2] * 10]
    for number, length in enumerate(lengths):
        shards.accept(TokenRow(f"row-{number}", (number,), (7,) * length, SPANS, Evidence.COUNTED, ""), "B1")
    shards.flush()

    table = pq.read_table(tmp_path / "shard-00000.parquet")
    groups = pq.read_metadata(tmp_path / "shard-00000.parquet")
    assert [f"row-{number}" for number in range(len(lengths))] == table["id"].to_pylist()
    assert [[number] for number in range(len(lengths))] == table["prompt_ids"].to_pylist()
    assert lengths == [len(ids) for ids in table["output_ids"].to_pylist()]
    assert [256, 46, 10] == [groups.row_group(at).num_rows for at in range(groups.num_row_groups)]


def test_a_library_that_writes_no_shards_is_met_on_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.shards.shards.CODEC", "lzo")

    with pytest.raises(ShardError, match=r"writes no shards .*LZO.*pip install"):
        opened(tmp_path)


# The manifest


def begun(folder: Path, **changes: Json) -> Manifest:
    return manifests.begin(folder, {**SETTINGS, **changes})


def test_a_folder_goes_on_with_its_settings_run_and_sessions(tmp_path: Path) -> None:
    session = Session("2026-11-29T12:00:00+00:00", "ab" * 32, {"pipeline/": "1"})
    first = begun(tmp_path)
    manifests.write(tmp_path, Manifest(first.run, first.settings, (session,)))

    again = begun(tmp_path)

    assert (first.run, (session,)) == (again.run, again.sessions)


def test_other_settings_are_refused_by_what_differs(tmp_path: Path) -> None:
    manifests.write(tmp_path, begun(tmp_path))

    with pytest.raises(ManifestError, match=r'begun with route "emulator/chutes" and is asked for "local"'):
        begun(tmp_path, route="local")


def test_a_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")

    with pytest.raises(ManifestError, match=r"holds thesis\.tex but no manifest\.json"):
        begun(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"manifest": 2}', b'{"manifest": 1}'])
def test_a_manifest_that_is_none_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(content)

    with pytest.raises(ManifestError, match=r"manifest\.json"):
        begun(tmp_path)


@pytest.mark.parametrize("change, word", [("other", "was changed"), (None, "is gone")])
def test_a_shard_that_is_not_as_it_was_written_is_refused(change: str | None, word: str, tmp_path: Path) -> None:
    shards = opened(tmp_path)
    shards.accept(row("a"), "")
    shards.flush()
    manifest = Manifest("r", SETTINGS, shards=tuple(shards.shards))
    (tmp_path / "shard-00000.parquet").unlink()
    found = opened(tmp_path)
    if change:
        found.accept(row(change), "")
        found.flush()

    with pytest.raises(ManifestError, match=word):
        manifests.check_files(manifest, found)


def test_the_tree_at_the_start_and_at_the_end_is_compared(tmp_path: Path) -> None:
    trees: list[dict[str, str] | None] = [{"pipeline/": "1"}, {"pipeline/": "2"}, None]
    sessions = [Session("t", "d", {"pipeline/": "1"}, tree_end=tree) for tree in trees]
    manifests.write(tmp_path, Manifest("r", SETTINGS, sessions))

    written = json.loads((tmp_path / MANIFEST).read_text())

    assert [True, False, None] == [session["tree_unchanged"] for session in written["sessions"]]
    assert "not finished" in written["sessions"][2]["outcome"]


def test_a_shard_of_another_run_is_not_counted_as_this_runs(tmp_path: Path) -> None:
    for name in ("one", "two"):
        other = ShardFolder(tmp_path / name, route="emulator/chutes", metadata={"run": name})
        other.accept(TokenRow(name, (1,), (2,), (), Evidence.COUNTED, ""), "B1")
        other.flush()
    (tmp_path / "two" / "shard-00000.parquet").replace(tmp_path / "one" / "shard-00001.parquet")

    with pytest.raises(ShardError, match=r"shard-00001\.parquet is of run b'two', this folder of b'one'"):
        ShardFolder(tmp_path / "one", route="emulator/chutes", metadata={"run": "one"})
