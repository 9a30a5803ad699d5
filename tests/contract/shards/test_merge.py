"""One set of several runs: what the policy keeps, what is set aside, and what is no input."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.fixtures.manifests import Document, as_unsigned, edit_manifest
from pipeline.base.signing import signer
from pipeline.cli.main import main
from pipeline.records import Evidence, Json, Reason, Refusal, Span, SpanKind, TokenRow
from pipeline.shards import manifest as manifests
from pipeline.shards import merge_inputs
from pipeline.shards.manifest import Manifest, Session
from pipeline.shards.merge import Merged, MergePolicy, merge, table_of
from pipeline.shards.merge_inputs import MergeError, read_inputs
from pipeline.shards.shards import QUARANTINE, Quarantined, ShardFolder

pytestmark = pytest.mark.contract

Rows = list[tuple[str, str, Evidence]]
COUNTED, DELTAS, LOGPROBS, IDS = Evidence.COUNTED, Evidence.STREAM_DELTAS, Evidence.LOGPROBS, Evidence.ENGINE_IDS


def run(
    folder: Path, rows: Rows, *, route: str = "emulator/chutes", ended: str | None = "now", **settings: Json
) -> Path:
    """A finished run: a row has an id, a dataset and its evidence; the prompt's ids are the id's bytes."""
    name, tokenizer = str(settings.get("format", "tiny-kimi")), str(settings.get("tokenizer_sha256", "ab"))
    metadata = {"run": folder.name, "format": name, "tokenizer_sha256": tokenizer}
    shards = ShardFolder(folder, route=route, metadata=metadata, rows_a_shard=3)
    for row_id, dataset, evidence in rows:
        spans = (Span(SpanKind.CONTENT, 0, 1), Span(SpanKind.END, 1, 2))
        prompt = tuple(row_id.partition("#")[0].encode())
        shards.accept(TokenRow(row_id, prompt, (7, 9), spans, evidence, prompt_evidence=evidence), dataset)
    shards.refuse(Quarantined("no", Refusal(Reason.COUNT_MISMATCH, "9 and 8", field="usage"), dataset=rows[0][1]))
    shards.flush()
    told: dict[str, Json] = {"route": route, "model": "m/k", "format": name, "tokenizer_sha256": tokenizer, **settings}
    result: dict[str, Json] = {"complete": True, "cost": {"usd": "0.25", "emulated": True}}
    session = Session("then", "cd" * 32, {"pipeline/": "1"}, {"pipeline/": "1"}, ended, "complete")
    found = Manifest(folder.name, told, (session,), result, tuple(shards.shards), shards.quarantine)
    manifests.write(folder, found)
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    local = run(
        tmp_path / "local", [("a", "B1", IDS), ("b", "B1", IDS), ("c", "B2", IDS), ("d", "B1", IDS)], route="local"
    )
    hosted = run(tmp_path / "hosted", [("e", "B4", COUNTED), ("f", "B4", DELTAS), ("g", "B4", LOGPROBS)])
    return [local, hosted]


def merged(runs: list[Path], policy: MergePolicy | None = None, rows_a_shard: int = 4096) -> Merged:
    return merge(read_inputs(runs), policy or MergePolicy(), runs[0].parent / "set", rows_a_shard)


def ids(folder: Path) -> list[str]:
    paths = sorted(folder.glob("shard-*.parquet"))
    return [row_id for path in paths for row_id in pq.read_table(path).column("id").to_pylist()]


def aside(folder: Path) -> list[tuple[str, str]]:
    lines = map(json.loads, (folder / "set_aside.jsonl").read_bytes().splitlines())
    return [(line["id"], line["reason"]) for line in lines]


def test_rows_are_copied_as_they_are_into_new_shards(runs: list[Path], tmp_path: Path) -> None:
    found = merged(runs, rows_a_shard=4)

    assert ["a", "b", "c", "d", "e", "f", "g"] == ids(tmp_path / "set")
    assert [4, 3] == [shard.rows for shard in found.shards]
    before = [
        row for folder in runs for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()
    ]
    after = [row for path in sorted((tmp_path / "set").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert before == after
    metadata = pq.read_schema(tmp_path / "set" / "shard-00000.parquet").metadata
    assert (b"tiny-kimi", b"ab") == (metadata[b"format"], metadata[b"tokenizer_sha256"])


def test_the_manifest_has_a_table_by_dataset_and_route(runs: list[Path], tmp_path: Path) -> None:
    merged(runs)

    document = json.loads((tmp_path / "set" / "manifest.json").read_bytes())

    common: dict[str, object] = {"set_aside": {}}
    assert [
        common
        | {"dataset": "B1", "route": "local", "rows_in": 3, "rows": 3, "prompt_tokens": 3, "output_tokens": 6}
        | {
            "evidence": {"engine_ids": 3},
            "prompt_evidence": {"engine_ids": 3},
            "cut": 0,
            "refused": {"count_mismatch": 1},
            "usd": None,
        },
        common
        | {"dataset": "B2", "route": "local", "rows_in": 1, "rows": 1, "prompt_tokens": 1, "output_tokens": 2}
        | {"evidence": {"engine_ids": 1}, "prompt_evidence": {"engine_ids": 1}, "cut": 0, "refused": {}, "usd": None},
        common
        | {"dataset": "B4", "route": "emulator/chutes", "rows_in": 3, "rows": 3, "prompt_tokens": 3, "output_tokens": 6}
        | {"prompt_evidence": {"counted": 1, "logprobs": 1, "stream_deltas": 1}, "cut": 0}
        | {"evidence": {"counted": 1, "logprobs": 1, "stream_deltas": 1}, "refused": {"count_mismatch": 1}}
        | {"usd": "0.25"},
    ] == document["table"]
    assert {"rows_in": 7, "rows": 7, "set_aside": 0, "refused": 2} == document["rows"]
    assert ["local", "hosted"] == [given["run"] for given in document["inputs"]]
    digest = hashlib.sha256((runs[0] / "manifest.json").read_bytes()).hexdigest()
    assert digest == document["inputs"][0]["manifest_sha256"]


def test_every_shard_of_the_set_is_named_with_its_digest(runs: list[Path], tmp_path: Path) -> None:
    merged(runs, rows_a_shard=2)

    document = json.loads((tmp_path / "set" / "manifest.json").read_bytes())

    on_disk = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (tmp_path / "set").glob("*.parquet")
    }
    assert on_disk == {shard["file"]: shard["sha256"] for shard in document["shards"]}
    listed = (tmp_path / "set" / "set_aside.jsonl").read_bytes()
    assert hashlib.sha256(listed).hexdigest() == document["set_aside"]["sha256"]


@pytest.mark.parametrize("grade, kept", [(COUNTED, "abcdefg"), (DELTAS, "abcdfg"), (LOGPROBS, "abcdg"), (IDS, "abcd")])
def test_weaker_evidence_is_set_aside(grade: Evidence, kept: str, runs: list[Path], tmp_path: Path) -> None:
    merged(runs, MergePolicy(grade))

    assert [*kept] == ids(tmp_path / "set")
    assert [(row, "weak_evidence") for row in "efg" if row not in kept] == aside(tmp_path / "set")


def test_a_cap_keeps_the_first_rows_of_its_dataset(runs: list[Path], tmp_path: Path) -> None:
    merged(runs, MergePolicy(caps={"B1": 1, "B4": 2}))

    assert ["a", "c", "e", "f"] == ids(tmp_path / "set")
    assert [("b", "over_cap"), ("d", "over_cap"), ("g", "over_cap")] == aside(tmp_path / "set")


def test_a_cap_holds_for_a_datasets_variants_together(tmp_path: Path) -> None:
    given = run(tmp_path / "r", [("a", "B8-nebius", IDS), ("b", "B8-smith-xml", IDS), ("c", "B80", IDS)])

    merged([given], MergePolicy(caps={"B8": 1}))

    assert ["a", "c"] == ids(tmp_path / "set")


def test_a_prompt_is_kept_once_where_that_is_asked(tmp_path: Path) -> None:
    given = [run(tmp_path / "one", [("p#1", "B1", IDS)]), run(tmp_path / "two", [("p#2", "B1", IDS), ("q", "B1", IDS)])]

    merged(given, MergePolicy(dedup=True))

    assert ["p#1", "q"] == ids(tmp_path / "set")
    assert [("p#2", "duplicate_prompt")] == aside(tmp_path / "set")


def test_two_datasets_may_use_the_same_id(tmp_path: Path) -> None:
    given = [run(tmp_path / "one", [("a", "B1", IDS)]), run(tmp_path / "two", [("a", "B2", IDS)])]

    merged(given)

    assert (["a", "a"], []) == (ids(tmp_path / "set"), aside(tmp_path / "set"))


def test_an_id_stands_once(tmp_path: Path) -> None:
    given = [run(tmp_path / "one", [("a", "B1", IDS)]), run(tmp_path / "two", [("a", "B1", IDS), ("b", "B1", IDS)])]

    merged(given)

    assert (["a", "b"], [("a", "repeated_id")]) == (ids(tmp_path / "set"), aside(tmp_path / "set"))


def test_rows_in_are_rows_out_and_rows_set_aside(runs: list[Path]) -> None:
    found = merged(runs, MergePolicy(DELTAS, {"B1": 2}, dedup=True))

    assert 7 == found.total("rows_in") == found.total("rows") + found.total("set_aside")
    assert sum(shard.rows for shard in found.shards) == found.total("rows")


def test_the_same_inputs_give_the_same_bytes(runs: list[Path], tmp_path: Path) -> None:
    for name in ("one", "two"):
        merge(read_inputs(runs), MergePolicy(), tmp_path / name)

    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "two").iterdir())
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in files)


# What is no input


def changed_shard(folder: Path) -> None:
    with (folder / "shard-00000.parquet").open("ab") as file:
        file.write(b"x")


def missing_shard(folder: Path) -> None:
    (folder / "shard-00000.parquet").unlink()


def unnamed_shard(folder: Path) -> None:
    (folder / "shard-00009.parquet").write_bytes((folder / "shard-00000.parquet").read_bytes())


def changed_quarantine(folder: Path) -> None:
    with (folder / "quarantine.jsonl").open("a") as file:
        file.write('{"id": "x", "reason": "count_mismatch"}\n')


def another_format(folder: Path) -> None:
    edit_manifest(folder, lambda document: document["settings"].update(format="kimi-k2.5"))


def no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def no_json(folder: Path) -> None:
    (folder / "manifest.json").write_text("{")


def other_version(folder: Path) -> None:
    edit_manifest(folder, lambda document: document.update(manifest=9))


def no_cost(folder: Path) -> None:
    edit_manifest(folder, lambda document: document.pop("cost"))


def no_shards(folder: Path) -> None:
    edit_manifest(folder, lambda document: document.pop("shards"))


def no_rows_of_a_shard(folder: Path) -> None:
    edit_manifest(folder, lambda document: document["shards"][0].pop("rows"))


def no_end(folder: Path) -> None:
    (folder / "manifest.json").write_text("[" * 100_000)


def other_run(folder: Path) -> None:
    edit_manifest(folder, lambda document: document.update(run="elsewhere"))


FAULTS: dict[Callable[[Path], None], str] = {
    changed_shard: "was changed since it was written",
    missing_shard: "is named by the manifest and not there",
    unnamed_shard: "is not in the manifest",
    changed_quarantine: "is not what the manifest says",
    another_format: "settings are not those that its digest names",
    no_manifest: "holds no manifest.json",
    no_json: "is no manifest of rows",
    other_version: "is of version 9",
    no_cost: "is no manifest of a run",
    no_shards: "is no manifest of rows",
    no_rows_of_a_shard: "is no manifest of rows",
    no_end: "is no manifest of rows",
    other_run: "is of another run than its manifest says",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_folder_that_contradicts_its_manifest_is_refused(
    fault: Callable[[Path], None], runs: list[Path], tmp_path: Path
) -> None:
    """And nothing is written."""
    fault(runs[1])

    with pytest.raises(MergeError) as caught:
        merged(runs)

    assert FAULTS[fault] in str(caught.value)
    assert ["hosted", "local"] == sorted(path.name for path in tmp_path.iterdir())


def test_a_run_whose_last_session_never_ended_is_refused(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(MergeError, match="its last session never ended"):
        merged([run(tmp_path / "killed", [("z", "B4", IDS)], ended=None), *runs])


@pytest.mark.parametrize("key, value", [("format", "glm-5"), ("tokenizer_sha256", "cd")])
def test_runs_of_other_vocabularies_are_no_one_set(key: str, value: str, runs: list[Path], tmp_path: Path) -> None:
    other = run(tmp_path / "other", [("z", "B4", IDS)], **{key: value})

    with pytest.raises(MergeError, match=f"one set has one {key}, and these differ: "):
        merged([*runs, other])


def test_a_run_is_given_once(runs: list[Path]) -> None:
    with pytest.raises(MergeError, match="are the same run"):
        merged([*runs, runs[0]])


def test_a_merged_set_is_not_merged_again(runs: list[Path], tmp_path: Path) -> None:
    merged(runs)

    with pytest.raises(MergeError, match="is a merged set"):
        read_inputs([tmp_path / "set"])


@pytest.mark.parametrize(
    "policy, words",
    [
        (MergePolicy(caps={"B9": 1}), "no row is of the dataset 'B9'"),
        (MergePolicy(caps={"B1": 0, "B2": 0, "B4": 0}), "the policy keeps none of 7 rows"),
    ],
)
def test_a_policy_that_fits_no_row_writes_nothing(
    policy: MergePolicy, words: str, runs: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(MergeError, match=words):
        merged(runs, policy)

    assert ["hosted", "local"] == sorted(path.name for path in tmp_path.iterdir())


def test_a_folder_with_something_in_it_is_not_written_to(runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine").write_text("")

    with pytest.raises(MergeError, match="is there already and not empty"):
        merged(runs)


# Two facts of a row


def as_old(folder: Path) -> None:
    """Make the shards what they were before prompts had evidence."""

    def change(document: Document) -> None:
        for shard in document["shards"]:
            path = folder / shard["file"]
            pq.write_table(pq.read_table(path).drop_columns(["prompt_evidence"]), path)
            del shard["prompt_evidence"], shard["cut"]
            shard["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()

    edit_manifest(folder, change)


def test_old_and_new_shards_make_one_set(runs: list[Path], tmp_path: Path) -> None:
    for folder in runs:
        as_old(folder)
    new = run(tmp_path / "new", [("x", "B4", DELTAS)])

    found = merged([*runs, new])

    total = sum((cell.prompt_evidence for cell in found.cells.values()), start=Counter[str]())
    assert {"engine_ids": 4, "counted": 3, "stream_deltas": 1} == total


def test_rows_that_are_neither_kept_nor_set_aside_stop_a_merge(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a fault of ours loses a row, so one is made: nothing is written of the rows."""
    monkeypatch.setattr("pipeline.shards.merge._write_rows", lambda *_: None)

    with pytest.raises(MergeError, match="7 rows became 0 kept and 0 set aside: please report it"):
        merge(read_inputs(runs), MergePolicy(), tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_counted_prompts_weaken_a_row_unless_asked_for(runs: list[Path], tmp_path: Path) -> None:
    as_old(runs[1])

    merged(runs, MergePolicy(DELTAS))

    assert [("f", "weak_prompt_evidence"), ("g", "weak_prompt_evidence")] == aside(tmp_path / "set")[1:]
    merge(read_inputs(runs), MergePolicy(DELTAS, min_prompt_evidence=COUNTED), tmp_path / "more")
    assert [*"abcdfg"] == ids(tmp_path / "more")
    with pytest.raises(MergeError, match="--min-prompt-evidence counted keeps"):
        merge(read_inputs(runs[1:]), MergePolicy(DELTAS), tmp_path / "none")


# The verb


def test_the_table_says_what_came_of_each_dataset(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "set")

    assert 0 == main(["merge", out, *map(str, runs), "--min-evidence", "stream_deltas", "--cap", "B1=2", "--dedup"])

    printed = capsys.readouterr().out
    assert "7 rows in: 5 in 1 shards in " in printed
    assert "1 set aside: 1 weak_evidence" in printed
    assert "1 refused before: 1 count_mismatch" in printed
    assert "not split" in printed


def test_json_is_the_same_table(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["merge", str(tmp_path / "set"), *map(str, runs), "--json"])

    told = json.loads(capsys.readouterr().out)
    again = merge(read_inputs(runs), MergePolicy(), tmp_path / "again")
    assert (7, 7, 0, [*table_of(again)]) == (told["rows_in"], told["rows"], told["set_aside"], told["table"])


def test_a_bad_input_is_one_sentence_and_exit_2(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(["merge", str(tmp_path / "set"), str(runs[0]), str(tmp_path)])

    said = capsys.readouterr().err
    assert ("error: ", 1) == (said[:7], said.count("\n"))


def test_an_unsigned_input_is_exit_2_and_taken_by_a_flag(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_unsigned(runs[0])
    command = ["merge", str(tmp_path / "set"), *map(str, runs)]

    assert (2, 0) == (main(command), main([*command, "--accept-unsigned"]))

    first = capsys.readouterr().err.splitlines()[0]
    assert f"error: {runs[0]}/manifest.json has no signature, so anyone may have written it" in first


@pytest.mark.parametrize("cap", ["B1", "B1=", "=3", "B1=-1", "B1=x"])
def test_a_cap_that_is_none_is_refused(cap: str, runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        main(["merge", str(tmp_path / "set"), str(runs[0]), "--cap", cap])

    assert 2 == left.value.code


# Who vouches for it


def test_rows_are_those_of_the_bytes_that_were_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another shard takes the file's place once its digest is known."""
    folder = run(tmp_path / "run", [("a", "B1", COUNTED)])
    other = run(tmp_path / "other" / "run", [("a", "B1", IDS)])
    (given,) = read_inputs([folder])

    class Hashes:
        """The true hashes, and somebody who waits for them."""

        @staticmethod
        def sha256(data: bytes) -> object:
            found = hashlib.sha256(data)
            (folder / "shard-00000.parquet").write_bytes((other / "shard-00000.parquet").read_bytes())
            return found

    monkeypatch.setattr(merge_inputs, "hashlib", Hashes)

    assert ["counted"] == [grade for batch in given.batches() for grade in batch.column("evidence").to_pylist()]


def test_a_set_names_who_signed_its_runs(runs: list[Path], tmp_path: Path) -> None:
    as_unsigned(runs[1])

    merge(read_inputs(runs, accept_unsigned=True), MergePolicy(), tmp_path / "set")
    document = json.loads((tmp_path / "set" / "manifest.json").read_bytes())

    assert [signer().public_key.keyid, None] == [each["signed_by"] for each in document["inputs"]]
    assert "signature" not in document


def test_an_empty_quarantine_of_a_full_disk_is_none(runs: list[Path], tmp_path: Path) -> None:
    """What was refused could not be written, but the file was made."""
    folder = run(tmp_path / "run", [("z", "B4", IDS)])
    edit_manifest(folder, lambda document: document.update(quarantine={"file": QUARANTINE, "sha256": None, "bytes": 0}))
    (folder / QUARANTINE).write_bytes(b"")

    assert 8 == merged([*runs, folder]).total("rows")
