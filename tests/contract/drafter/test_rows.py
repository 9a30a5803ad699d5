"""Rows as training takes them: mask, policy, counts."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from harness.fixtures.drafters import row, run_folder
from harness.fixtures.manifests import Document, edit_manifest
from pipeline.drafter.row_folders import RowsError
from pipeline.drafter.rows import RowPolicy, read_rows
from pipeline.records import Evidence, Json, Span, SpanKind, TokenRow
from pipeline.shards.shards import ShardFolder

pytestmark = pytest.mark.contract

COUNTED, DELTAS, LOGPROBS, IDS = Evidence.COUNTED, Evidence.STREAM_DELTAS, Evidence.LOGPROBS, Evidence.ENGINE_IDS
THINK, THINK_CLOSE, END = 30, 31, 32


def test_ids_are_prompt_and_output_and_the_mask_is_the_output(tmp_path: Path) -> None:
    """The prefilled `<think>` stands in the prompt and is out; the end token was emitted and is in."""
    spans = (Span(SpanKind.REASONING, 0, 2), Span(SpanKind.THINK_CLOSE, 2, 3), Span(SpanKind.END, 3, 4))
    thought = TokenRow("a", (1, 2, THINK), (7, 7, THINK_CLOSE, END), spans, DELTAS, prompt_evidence=DELTAS)

    found = read_rows([run_folder(tmp_path / "run", [thought])])[0]

    assert ("a", DELTAS, "B1", 7) == (found.id, found.evidence, found.dataset, found.length)
    assert [1, 2, THINK, 7, 7, THINK_CLOSE, END] == found.ids.tolist()
    assert [False, False, False, True, True, True, True] == found.mask.tolist()
    assert (torch.int64, torch.bool) == (found.ids.dtype, found.mask.dtype)


def test_a_think_token_that_the_model_emitted_is_in(tmp_path: Path) -> None:
    spans = (Span(SpanKind.THINK_OPEN, 0, 1), Span(SpanKind.REASONING, 1, 2))
    cut = TokenRow("a", (1, 2), (THINK, 7), spans, DELTAS, prompt_evidence=DELTAS)

    assert [False, False, True, True] == read_rows([run_folder(tmp_path / "run", [cut])], RowPolicy(keep_cut=True))[
        0
    ].mask.tolist()


def test_rows_of_several_shards_and_folders_come_in_order(tmp_path: Path) -> None:
    first = run_folder(tmp_path / "one", [row(f"a{n}", [n], [1, 2]) for n in range(7)], rows_a_shard=3)
    second = run_folder(tmp_path / "two", [row("b", [9, 9, 9], [3])])

    rows = read_rows([first, second])

    assert ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "b"] == [each.id for each in rows]
    assert ([3, 3, 3, 3, 3, 3, 3, 4], 25, 15) == (rows.lengths, rows.tokens, rows.emitted)
    assert [9, 9, 9, 3] == rows[7].ids.tolist()
    assert ["a1", "a2"] == [each.id for each in rows[1:3]]


ALL = [
    row("i", [1], [2, 3], IDS),
    row("l", [1], [2], LOGPROBS),
    row("d", [1], [2], DELTAS),
    row("c", [1], [2], COUNTED),
]


def test_the_default_takes_stream_deltas_and_better(tmp_path: Path) -> None:
    rows = read_rows([run_folder(tmp_path / "run", ALL)])

    assert ["i", "l", "d"] == [each.id for each in rows]
    assert ({"weak_evidence": 1}, None) == (rows.left_out, rows.risk())


def test_counted_rows_are_taken_by_choice_and_their_risk_is_said(tmp_path: Path) -> None:
    measured: Json = {"rows": 1, "same_count_mismatch": {"wrong": 2, "n": 400, "upper95": 0.0157}}
    folder = run_folder(tmp_path / "run", ALL, counted=measured)

    rows = read_rows([folder], RowPolicy(COUNTED))

    assert 4 == len(rows)
    assert rows.risk() == (
        "1 rows are of the grade counted: each may be another split of the same text into as many tokens, and a "
        "drafter would learn it. Measured on their routes: 1 with 2 wrong of 400, at most 1.57 % (95 %). 1 rows have a "
        "prompt that was only counted: another prompt of as many tokens may have been served, and the drafter would "
        "learn the answer to it. How often that is was not measured"
    )


def test_a_risk_that_nobody_measured_is_said_to_be_unknown(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", ALL, counted={"rows": 1, "same_count_mismatch": None})

    assert str(read_rows([folder], RowPolicy(COUNTED)).risk()).count("Measured on their routes: 1 not measured. ")


def test_rows_that_are_too_long_are_counted_and_never_cut(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [row("fits", [1, 2], [3, 4]), row("long", [1, 2, 3], [4, 5])])

    rows = read_rows([folder], RowPolicy(longest=4))

    assert ["fits"] == [each.id for each in rows]
    assert {"too_long": 1} == rows.left_out


def test_a_row_that_emitted_nothing_is_left_out_and_counted(tmp_path: Path) -> None:
    rows = read_rows([run_folder(tmp_path / "run", [row("a", [1], []), row("b", [1], [2])])])

    assert (["b"], {"nothing_emitted": 1}) == ([each.id for each in rows], rows.left_out)


def test_of_rows_with_one_id_the_first_stays(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / name, [row("a", [1], [place])]) for place, name in enumerate(("one", "two"), 2)]

    rows = read_rows(folders)

    assert ([[1, 2]], {"repeated_id": 1}) == ([each.ids.tolist() for each in rows], rows.left_out)


@pytest.mark.parametrize(
    "rows, policy, why",
    [
        ([row("c", [1], [2], COUNTED)], RowPolicy(), r"1 weak_evidence\. --min-evidence counted takes"),
        (
            [row("a", [1], [2, 3])],
            RowPolicy(longest=2),
            r"1 too_long\. Raise what leaves them out above 2: --longest, or in training --tok",
        ),
        ([row("a", [1], [])], RowPolicy(), r"1 nothing_emitted\. Give folders with rows that emitted"),
        ([], RowPolicy(), r"the folders hold none\. Give folders"),
    ],
)
def test_nothing_left_is_an_error_that_says_why(
    tmp_path: Path, rows: list[TokenRow], policy: RowPolicy, why: str
) -> None:
    with pytest.raises(RowsError, match=f"no row is left to train on: {why}"):
        read_rows([run_folder(tmp_path / "run", rows)], policy)


@pytest.mark.parametrize(
    "spans",
    [
        (),
        (Span(SpanKind.CONTENT, 0, 1),),
        (Span(SpanKind.CONTENT, 1, 2),),
        (Span(SpanKind.CONTENT, 0, 2), Span(SpanKind.END, 1, 2)),
        (Span(SpanKind.CONTENT, 0, 3),),
    ],
)
def test_spans_that_do_not_cover_what_was_emitted_are_an_error(tmp_path: Path, spans: tuple[Span, ...]) -> None:
    folder = run_folder(tmp_path / "run", [TokenRow("a", (1,), (2, 3), spans, DELTAS)])

    with pytest.raises(RowsError, match=r"row 'a' in .*: its spans do not cover its 2 emitted tokens"):
        read_rows([folder])


@pytest.mark.parametrize("prompt, output", [([1, -5], [2, 3]), ([1], [2, -5])])
def test_an_id_below_0_is_an_error(tmp_path: Path, prompt: list[int], output: list[int]) -> None:
    folder = run_folder(tmp_path / "run", [row("good", [1], [2]), row("a", prompt, output)])

    with pytest.raises(RowsError, match=r"row 'a' in .*run has the id -5, and ids are numbers from 0\. Generate it"):
        read_rows([folder])


def test_the_digest_is_of_ids_borders_and_order(tmp_path: Path) -> None:
    """What a store of states is begun with: any change to a row must show."""
    given = {
        "same": [row("a", [1, 2], [3]), row("b", [1], [2])],
        "again": [row("a", [1, 2], [3]), row("b", [1], [2])],
        "border": [row("a", [1], [2, 3]), row("b", [1], [2])],
        "id": [row("c", [1, 2], [3]), row("b", [1], [2])],
        "order": [row("b", [1], [2]), row("a", [1, 2], [3])],
        "token": [row("a", [1, 2], [4]), row("b", [1], [2])],
    }
    found = {name: read_rows([run_folder(tmp_path / name, rows)]).sha256 for name, rows in given.items()}

    assert found["same"] == found["again"]
    assert 5 == len(set(found.values()))


def test_the_document_says_what_was_taken_and_what_was_not(tmp_path: Path) -> None:
    rows = read_rows([run_folder(tmp_path / "run", ALL)], RowPolicy(longest=2))

    document = rows.document()

    assert {
        "min_evidence": "stream_deltas",
        "min_prompt_evidence": None,
        "longest": 2,
        "keep_cut": False,
        "keep_looping": False,
    } == document["policy"]
    assert (2, 4, 2) == (document["rows"], document["tokens"], document["emitted"])
    assert ({"logprobs": 1, "stream_deltas": 1}, {"too_long": 1, "weak_evidence": 1}) == (
        document["evidence"],
        document["left_out"],
    )
    assert rows.sha256 == document["sha256"]


# Prompts, cut and looping answers

LOOP = [7] * 300
CUT = TokenRow("cut", (1,), (7, 8), (Span(SpanKind.CONTENT, 0, 2),), IDS, prompt_evidence=IDS)
HOSTED = replace(row("hosted", [1], [7, 2]), prompt_evidence=COUNTED)


@pytest.mark.parametrize(
    "given, reason, flag, policy",
    [
        (CUT, "cut", "--keep-cut takes", RowPolicy(keep_cut=True)),
        (row("l", [1], [*LOOP, 2]), "looping", "--keep-looping takes", RowPolicy(keep_looping=True)),
        (
            HOSTED,
            "weak_prompt_evidence",
            "--min-prompt-evidence counted takes",
            RowPolicy(min_prompt_evidence=COUNTED),
        ),
    ],
    ids=["cut", "looping", "prompt"],
)
def test_a_row_left_out_is_counted_and_taken_by_its_flag(
    given: TokenRow, reason: str, flag: str, policy: RowPolicy, tmp_path: Path
) -> None:
    folder = run_folder(tmp_path / "run", [row("good", [1], [7, 2]), given])

    assert {reason: 1} == read_rows([folder]).left_out
    assert ["good", given.id] == [entry.id for entry in read_rows([folder], policy).entries]
    with pytest.raises(RowsError, match=rf"1 {reason}\. {flag}"):
        read_rows([run_folder(tmp_path / "alone", [given])])


@pytest.mark.parametrize("route, grade", [("local", IDS), ("vllm", IDS), ("openrouter/chutes", COUNTED)])
def test_an_old_shard_has_the_prompt_evidence_that_is_sure(route: str, grade: Evidence, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [row("a", [1], [7, 2], IDS)], route=route)
    path = folder / "shard-00000.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["prompt_evidence"]), path)

    def change(document: Document) -> None:
        (shard,) = document["shards"]
        del shard["prompt_evidence"], shard["cut"]
        shard["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()

    edit_manifest(folder, change)

    assert {grade: 1} == read_rows([folder], RowPolicy(COUNTED)).prompt_evidence
    assert [{grade: 1}] == [
        shard.prompt_evidence for shard in ShardFolder(folder, route=route, metadata={"run": "run"}).shards
    ]
