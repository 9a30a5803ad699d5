"""Which folders of rows are refused, one reason each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.fixtures.drafters import ATTESTATION, TOKENIZER, TREE, row, run_folder
from harness.fixtures.manifests import Document, edit_manifest
from pipeline.drafter.row_folders import RowsError, job_of, read_folders
from pipeline.drafter.rows import read_rows
from pipeline.gate.gate import Job, Kind
from pipeline.records import Evidence
from pipeline.shards.manifest import Session
from pipeline.shards.merge import MergePolicy, merge
from pipeline.shards.merge_inputs import read_inputs

pytestmark = pytest.mark.contract

OTHER = "ef" * 32
ENDED = Session("then", ATTESTATION, TREE, TREE, "now", "complete")
ROWS = [row("a", [1], [2]), row("b", [1], [3])]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "run", ROWS)


def refusal(*folders: Path) -> str:
    with pytest.raises(RowsError) as caught:
        read_rows(folders)
    return str(caught.value)


def test_a_run_and_a_merged_set_of_it_hold_the_same_rows(run: Path, tmp_path: Path) -> None:
    merge(read_inputs([run]), MergePolicy(), tmp_path / "set")

    assert [each.ids.tolist() for each in read_rows([run])] == [
        each.ids.tolist() for each in read_rows([tmp_path / "set"])
    ]


def test_the_summary_names_what_stands_behind_the_rows(run: Path) -> None:
    found = read_folders([run])[0].summary()

    assert ("run", "tiny-kimi", TOKENIZER, [ATTESTATION]) == (
        found["folder"],
        found["format"],
        found["tokenizer_sha256"],
        found["attestations"],
    )


def test_a_merged_set_names_the_attestations_of_its_runs(run: Path, tmp_path: Path) -> None:
    other = run_folder(tmp_path / "other", [row("c", [1], [2])], sessions=(replace(ENDED, attestation=OTHER),))
    merge(read_inputs([run, other]), MergePolicy(), tmp_path / "set")

    assert (ATTESTATION, OTHER) == read_folders([tmp_path / "set"])[0].attestations


# What the gate is asked


def test_the_job_names_the_rows_vocabulary(run: Path) -> None:
    assert Job(Kind.TRAIN, format="tiny-kimi", tokenizer_sha256=TOKENIZER) == job_of(read_folders([run]))


def test_without_a_format_no_contract_of_a_vocabulary_is_asked(tmp_path: Path) -> None:
    """Such rows hold the engine's own ids, so no rebuilding by a vocabulary stands behind them."""
    folder = run_folder(tmp_path / "run", [row("a", [1], [2], Evidence.ENGINE_IDS)], format="")

    assert Job(Kind.TRAIN) == job_of(read_rows([folder]).folders)


@pytest.mark.parametrize("grade", [Evidence.LOGPROBS, Evidence.STREAM_DELTAS, Evidence.COUNTED])
def test_without_a_format_nothing_but_the_engines_ids_is_taken(tmp_path: Path, grade: Evidence) -> None:
    folder = run_folder(tmp_path / "run", [row("a", [1], [2], grade)], format="")

    assert f"has rows of the grade {grade} and no format" in refusal(folder)


# Folders that are not what they say


def test_no_folder_is_refused() -> None:
    assert "no folder of rows was named" in refusal()


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    assert f"{tmp_path} holds no manifest.json: give a folder that `generate` or `merge` wrote (its --out)" == refusal(
        tmp_path
    )


def test_a_changed_shard_is_refused(run: Path) -> None:
    path = run / "shard-00000.parquet"
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)

    assert f"{path} was changed since it was written" in refusal(run)


def test_a_shard_that_is_gone_is_refused(run: Path) -> None:
    (run / "shard-00000.parquet").unlink()

    assert "shard-00000.parquet is named by the manifest and not there" in refusal(run)


def test_a_shard_that_nobody_named_is_refused(run: Path) -> None:
    (run / "shard-00001.parquet").write_bytes(b"PAR1")

    assert "shard-00001.parquet is not in the manifest" in refusal(run)


def test_a_shard_of_another_run_is_refused(run: Path, tmp_path: Path) -> None:
    """Even where somebody wrote its hash into the manifest."""
    other = run_folder(tmp_path / "other", ROWS)
    (run / "shard-00000.parquet").write_bytes((other / "shard-00000.parquet").read_bytes())
    shards = json.loads((other / "manifest.json").read_bytes())["shards"]

    assert "is of another run than its manifest says (run)" in refusal(
        edit_manifest(run, lambda it: it.update(shards=shards))
    )


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda it: it.update(manifest=9), "is of version 9"),
        (lambda it: it.pop("settings"), "is no manifest of rows (KeyError: 'settings')"),
        (lambda it: it["settings"].update(model="other"), "the settings are not those that its digest names"),
        (lambda it: it["shards"][0].pop("rows"), "is no manifest of rows (KeyError: 'rows')"),
        (lambda it: it["shards"][0].update(rows=7), "holds 2 rows and its manifest says 7"),
        (lambda it: it["sessions"][0].update(attestation=""), "names '' for an attestation's hash"),
        (lambda it: it["sessions"][0].update(attestation="none"), "names 'none' for an attestation's hash"),
        (lambda it: it["sessions"][0].update(ended=None), "its last session never ended"),
        (lambda it: it.pop("sessions"), "is no manifest of rows (KeyError: 'sessions')"),
    ],
)
def test_a_manifest_that_proves_nothing_is_refused(run: Path, change: Callable[[Document], object], why: str) -> None:
    assert why in refusal(edit_manifest(run, change))


def test_a_manifest_that_is_no_json_is_refused(run: Path) -> None:
    (run / "manifest.json").write_text("[" * 100_000)

    assert "is no manifest of rows (RecursionError" in refusal(run)


def test_a_tokenizer_that_is_no_hash_is_refused(tmp_path: Path) -> None:
    assert "where the hash of a tokenizer belongs" in refusal(run_folder(tmp_path / "run", ROWS, tokenizer_sha256="ab"))


# Whether they agree


def test_rows_of_different_vocabularies_are_refused(run: Path, tmp_path: Path) -> None:
    other = run_folder(tmp_path / "other", [row("c", [1], [2])], tokenizer_sha256=OTHER)

    assert f"one drafter has one tokenizer_sha256, and these differ: {TOKENIZER[:12]} in {run}" in refusal(run, other)


def test_rows_of_different_formats_are_refused(run: Path, tmp_path: Path) -> None:
    other = run_folder(tmp_path / "other", [row("c", [1], [2])], format="kimi-k2.5")

    assert "one drafter has one format, and these differ" in refusal(run, other)


def test_one_run_twice_is_refused(run: Path, tmp_path: Path) -> None:
    merge(read_inputs([run]), MergePolicy(), tmp_path / "set")

    assert "both hold the run run. Give it once" in refusal(run, tmp_path / "set")


def test_runs_under_different_attestations_may_meet(run: Path, tmp_path: Path) -> None:
    """Runs lie weeks apart, and an attestation lives for days."""
    later = Session("then", OTHER, {"pipeline/": "2"}, {"pipeline/": "2"}, "now", "complete")
    other = run_folder(tmp_path / "other", [row("c", [1], [2])], sessions=(later,))

    assert 3 == len(read_rows([run, other]))


def test_one_attestation_of_two_trees_is_refused(run: Path, tmp_path: Path) -> None:
    tree = {"pipeline/": "2"}
    other = run_folder(
        tmp_path / "other", [row("c", [1], [2])], sessions=(replace(ENDED, tree_start=tree, tree_end=tree),)
    )

    assert f"name the same attestation {ATTESTATION[:12]} for two different trees" in refusal(run, other)


def test_rows_of_a_tree_that_changed_are_taken_by_choice_alone(tmp_path: Path) -> None:
    changed = replace(ENDED, tree_end={"pipeline/": "2"})
    folder = run_folder(tmp_path / "run", ROWS, sessions=(changed,))

    assert "the tree did not stay as attested while its rows were made" in refusal(folder)
    assert 2 == len(read_rows([folder], accept_changed_tree=True))


def test_a_killed_session_before_the_same_tree_is_no_change(tmp_path: Path) -> None:
    killed = Session("then", ATTESTATION, TREE)

    assert 2 == len(read_rows([run_folder(tmp_path / "run", ROWS, sessions=(killed, ENDED))]))


def test_a_killed_session_before_another_tree_is_refused(tmp_path: Path) -> None:
    killed = Session("then", OTHER, {"pipeline/": "0"})
    folder = run_folder(tmp_path / "run", ROWS, sessions=(killed, ENDED))

    assert "or nobody saw the end of a session" in refusal(folder)
