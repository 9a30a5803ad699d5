"""Faults found in the field: rows that were lost, joined or edited in preparation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import main
from pipeline.datasets.registry import DATASETS, Turns, gathered, outcomes_of
from pipeline.datasets.rows import Rejected
from pipeline.datasets.sources import blocks_of

pytestmark = pytest.mark.reference

Prepared = tuple[dict[str, list[str]], dict[str, str], dict[str, Any]]


@pytest.fixture
def prepare(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Prepared]:
    """Texts of the prompts by id, reasons of rejected rows by id, and what is printed."""

    def run(source: str, dataset: str, *more: str) -> Prepared:
        out = tmp_path / "prompts.jsonl"
        path = str(shared / source)
        status = main(["prepare", path, "--dataset", dataset, "--out", str(out), "--check", "--json", *more])
        assert 0 == status
        prompts = [json.loads(line) for line in out.read_bytes().splitlines()]
        rejected = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_bytes().splitlines()]
        texts = {one["id"]: [turn["content"] for turn in one["messages"]] for one in prompts}
        return texts, {one["id"]: one["reason"] for one in rejected}, json.loads(capsys.readouterr().out)

    return run


def test_copies_in_scripts_without_blanks_are_contaminated(prepare: Callable[..., Prepared], shared: Path) -> None:
    evaluations = str(shared / "faults" / "field" / "evals_cjk")
    texts, reasons, _ = prepare("faults/field/d-cjk.jsonl", "messages", "--decontaminate", evaluations)
    named = ("en-exact", "en-wrapped", "zh2-exact", "zh2-wrapped", "zh-exact", "zh-wrapped", "zh-one-char", "ja-exact")

    assert ["free"] == list(texts)
    assert dict.fromkeys((*named, "th-exact", "th-wrapped"), "contaminated") == reasons


def test_ids_that_count_are_conversations_of_their_own(prepare: Callable[..., Prepared]) -> None:
    texts, reasons, _ = prepare("faults/field/d-ids.jsonl", "B7", "--no-decontaminate")

    assert {
        "B7-identity_0": ["Who are you?"],
        "B7-identity_1": ["Tell me your name please."],
        "B7-identity_2": ["Which city lies on the Seine?", "Paris.", "And on the Thames?"],
        "B7-identity_3": ["Sing a song."],
    } == texts
    assert {} == reasons


def test_a_fraction_is_no_page_number(prepare: Callable[..., Prepared]) -> None:
    texts, reasons, _ = prepare("faults/field/d-pages.jsonl", "B7", "--no-decontaminate")

    assert {
        "B7-aaa": ["100 / 7\nGive the quotient to three places."],
        "B7-bbb": ["2 / 3\n\nIs this a page number?"],
        "B7-ccc": ["3 / 2\nWrite it as a mixed number."],
    } == texts
    assert {} == reasons


def test_a_gzip_file_is_said_to_be_one(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = shared / "faults" / "field" / "d-z.jsonl.gz"
    status = main(["prepare", str(path), "--dataset", "B7", "--out", str(tmp_path / "out.jsonl"), "--no-decontaminate"])

    assert (2, f"error: {path} is gzip, which is not read here. Run: gunzip -k {path}\n") == (
        status,
        capsys.readouterr().err,
    )


FILES: Mapping[str, tuple[str, int, int]] = {
    "B1_Glaive/glaive_v2_llamafactory_demo.jsonl": ("B1-llamafactory", 71, 226),
    "B1_Glaive/glaive_v2_raw.jsonl": ("B1", 11, 35),
    "B1_Glaive/glaive_v2_rebuilt_raw.jsonl": ("B1", 70, 213),
    "B3_Magicoder/evol_instruct_110k.jsonl": ("B3", 1, 1),
    "B3_Magicoder/oss_instruct_75k.jsonl": ("B3", 1, 1),
    "B4_MixtureOfThoughts/mot_prompt_openings.jsonl": ("B4", 4, 4),
    "B5_OpenThoughts/bespoke_stratos_17k_same_schema.jsonl": ("B5", 1, 1),
    "B5_OpenThoughts/openthoughts_114k_prompt_openings.jsonl": ("B5", 6, 6),
    "B6_UltraChat/ultrachat_200k_prompts_only.jsonl": ("B6", 12, 12),
    "B6_UltraChat/ultrachat_200k_train_sft.jsonl": ("B6", 4, 13),
    "B7_ShareGPT/sharegpt_v3_cleaned_split_sample.jsonl": ("B7", 47, 91),
    "B7_ShareGPT/sharegpt_v3_odd_rows.jsonl": ("B7", 25, 81),
    "B8_SWEagent/nebius_swe_agent_trajectories.jsonl": ("B8", 1, 31),
    "B8_SWEagent/swe_smith_ft_xml.jsonl": ("B8", 3, 60),
    "B8_SWEagent/swe_smith_trajectories_ticks.jsonl": ("B8", 3, 45),
    "B8_SWEagent/swe_smith_trajectories_tool.jsonl": ("B8", 3, 45),
    "B8_SWEagent/swe_smith_trajectories_xml.jsonl": ("B8", 3, 60),
    "synthetic/B1_glaive_odd.jsonl": ("B1", 15, 23),
    "synthetic/B2_opencodeinstruct.jsonl": ("B2", 8, 8),
    "synthetic/B3_magicoder_evol.jsonl": ("B3", 9, 9),
    "synthetic/B3_magicoder_oss.jsonl": ("B3", 8, 8),
    "synthetic/B4_mixture_of_thoughts.jsonl": ("B4", 8, 8),
    "synthetic/B5_openthoughts3_1.2M.jsonl": ("B5", 8, 8),
    "synthetic/B5_openthoughts_114k.jsonl": ("B5", 8, 8),
    "synthetic/B6_ultrachat.jsonl": ("B6", 8, 10),
    "synthetic/B7_sharegpt.jsonl": ("B7", 13, 16),
    "synthetic/B8_nebius_swe_agent.jsonl": ("B8", 9, 12),
    "synthetic/B8_swe_smith.jsonl": ("B8", 4, 7),
}
"""Each file's dataset, and its prompts without a cap: one a row, and one a question."""


@pytest.mark.parametrize("turns", Turns)
@pytest.mark.parametrize("name", FILES)
def test_every_prompt_says_what_its_row_says(name: str, turns: Turns, prepare: Callable[..., Prepared]) -> None:
    """The measure: `pytest -s` prints what was compared."""
    dataset, last, every = FILES[name]
    more = ("--no-decontaminate", "--turns", turns, "--cap-first-turn", "0")
    _, _, told = prepare(f"datasets/{name}", dataset, *more)
    checked = told["checked"]
    print(name, turns, checked, told["changed"])  # noqa: T201

    assert (last if turns is Turns.LAST else every, 0) == (checked["prompts"], checked["differences"])


def test_a_conversation_of_four_questions_gives_four_prompts(shared: Path, prepare: Callable[..., Prepared]) -> None:
    name = "datasets/B6_UltraChat/ultrachat_200k_train_sft.jsonl"
    texts, _, told = prepare(name, "B6", "--no-decontaminate", "--turns", "all")
    rows = [json.loads(line) for line in (shared / name).read_bytes().splitlines()]
    questions = sum(turn["role"] == "user" for row in rows for turn in row["messages"])

    assert (4, questions - 4, questions, questions) == (
        told["rows"],
        told["more_questions"],
        told["prompts"],
        len(texts),
    )
    for row in rows:
        turns = [turn["content"] for turn in row["messages"]]
        mine = {name: said for name, said in texts.items() if name.startswith(f"B6-{row['prompt_id']}")}
        assert [turns[:end] for end in range(1, len(turns), 2)] == list(mine.values())


def test_real_conversations_in_parts_are_joined(shared: Path) -> None:
    """Each part's turns stand in the joined row where its id says, which `--check` holds too."""
    dataset = DATASETS["B7"]
    blocks = blocks_of(shared / "datasets" / "B7_ShareGPT" / "sharegpt_v3_odd_rows.jsonl", dataset.schema)
    rows = [pair for block in gathered(dataset, blocks) for pair in outcomes_of(dataset, block)]
    parts = {len(raw.parts) for raw, outcome in rows if raw is not None and not isinstance(outcome, Rejected)}

    assert {0, 2, 3} == parts
