"""Every file of published, rebuilt and synthetic rows: each row accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest

from harness.fixtures.dataset_rows import adapted
from pipeline.datasets.prepare import Preparation, RowFilter, Selection
from pipeline.datasets.registry import DATASETS
from pipeline.records import Prompt

pytestmark = pytest.mark.reference

Sieves: TypeAlias = Callable[[str, int], RowFilter]
LONG = 40_000
"""Tokens of the tiny target that a prompt may have, whole trajectories among them."""
ADAPTED: Mapping[str, tuple[str, int, Mapping[str, int]]] = {
    "B1_Glaive/glaive_v2_llamafactory_demo.jsonl": ("B1-llamafactory", 72, {}),
    "B1_Glaive/glaive_v2_raw.jsonl": ("B1", 11, {}),
    "B1_Glaive/glaive_v2_rebuilt_raw.jsonl": ("B1", 73, {}),
    "B3_Magicoder/evol_instruct_110k.jsonl": ("B3", 1, {}),
    "B3_Magicoder/oss_instruct_75k.jsonl": ("B3", 1, {}),
    "B4_MixtureOfThoughts/mot_prompt_openings.jsonl": ("B4", 4, {}),
    "B5_OpenThoughts/bespoke_stratos_17k_same_schema.jsonl": ("B5", 1, {}),
    "B5_OpenThoughts/openthoughts_114k_prompt_openings.jsonl": ("B5", 6, {}),
    "B6_UltraChat/ultrachat_200k_prompts_only.jsonl": ("B6", 12, {}),
    "B6_UltraChat/ultrachat_200k_train_sft.jsonl": ("B6", 4, {}),
    "B7_ShareGPT/sharegpt_v3_cleaned_split_sample.jsonl": ("B7", 47, {"no_beginning": 23}),
    "B7_ShareGPT/sharegpt_v3_odd_rows.jsonl": ("B7", 26, {"joined": 8, "no_turns": 5}),
    "B8_SWEagent/nebius_swe_agent_trajectories.jsonl": ("B8", 1, {}),
    "B8_SWEagent/swe_smith_ft_xml.jsonl": ("B8", 3, {}),
    "B8_SWEagent/swe_smith_trajectories_ticks.jsonl": ("B8", 3, {}),
    "B8_SWEagent/swe_smith_trajectories_tool.jsonl": ("B8", 3, {}),
    "B8_SWEagent/swe_smith_trajectories_xml.jsonl": ("B8", 3, {}),
    "synthetic/B1_glaive_odd.jsonl": ("B1", 15, {"tool_twice": 1, "no_turns": 1}),
    "synthetic/B2_opencodeinstruct.jsonl": ("B2", 9, {"empty_prompt": 1}),
    "synthetic/B3_magicoder_evol.jsonl": ("B3", 9, {"empty_prompt": 1}),
    "synthetic/B3_magicoder_oss.jsonl": ("B3", 9, {"empty_prompt": 1}),
    "synthetic/B4_mixture_of_thoughts.jsonl": ("B4", 9, {"no_turns": 1}),
    "synthetic/B5_openthoughts3_1.2M.jsonl": ("B5", 9, {"empty_prompt": 1}),
    "synthetic/B5_openthoughts_114k.jsonl": ("B5", 9, {"empty_prompt": 1}),
    "synthetic/B6_ultrachat.jsonl": ("B6", 9, {"no_turns": 1}),
    "synthetic/B7_sharegpt.jsonl": ("B7", 14, {"no_turns": 2, "plugins": 1, "joined": 1, "no_beginning": 1}),
    "synthetic/B8_nebius_swe_agent.jsonl": ("B8", 9, {"no_turns": 1}),
    "synthetic/B8_swe_smith.jsonl": ("B8", 9, {"no_turns": 1}),
}
"""Each file's dataset, the prompts that its rows give, and the rows that give none; repeats are not yet looked at."""


@pytest.mark.parametrize("name", ADAPTED)
def test_every_row_of_every_file_is_a_prompt_or_has_its_reason(name: str, shared: Path) -> None:
    dataset, prompts, rejected = ADAPTED[name]
    path = shared / "datasets" / name
    found = adapted(dataset, path)
    reasons = Counter(one for one in found.values() if isinstance(one, str))

    assert rejected == reasons
    assert prompts == len(found) - reasons.total()
    assert path.read_bytes().count(b"\n") == len(found)


def test_no_file_is_left_out(shared: Path) -> None:
    folder = shared / "datasets"
    there = {str(path.relative_to(folder)) for path in folder.glob("*/*.jsonl") if path.parent.name[:1] in "Bs"}

    assert set(ADAPTED) == there


@pytest.mark.parametrize("name", ADAPTED)
def test_preparation_of_every_file_loses_no_row(name: str, shared: Path, sieve: Sieves, tmp_path: Path) -> None:
    """The table of measure: `pytest -s` prints it."""
    dataset = DATASETS[ADAPTED[name][0]]
    path = shared / "datasets" / name
    preparation = Preparation(sieve(dataset.name, LONG), Selection(dataset.cap))
    counts = preparation.write(path, tmp_path / "out", tmp_path / "no")
    told = ", ".join(f"{number} {reason}" for reason, number in counts.rejected.most_common())
    print(f"{name}: {counts.rows} rows, {counts.prompts} prompts, {told or 'none rejected'}")  # noqa: T201

    assert path.read_bytes().count(b"\n") == counts.rows == counts.prompts + counts.rejected.total()
    assert counts.prompts == (tmp_path / "out").read_bytes().count(b"\n")
    assert counts.rejected.total() == (tmp_path / "no").read_bytes().count(b"\n")


JOINED: Mapping[str, int] = {
    "B7-idMLILF_0": 21,
    "B7-tgKByb7_0": 11,
    "B7-SWdKUmo_0": 23,
    "B7-w31Bk3K_0": 29,
    "B7-UFUIIB5_0": 17,
    "B7-czgruqm_0": 7,
    "B7-XlDrXs4_0": 5,
}
"""Messages of the odd rows' conversations that came in chunks: all of theirs, once each, but for the last answer."""


def test_real_chunks_join_to_whole_conversations(shared: Path) -> None:
    found = adapted("B7", shared / "datasets" / "B7_ShareGPT" / "sharegpt_v3_odd_rows.jsonl")
    turns = {one.id: len(one.messages) for one in found.values() if isinstance(one, Prompt)}

    assert dict(JOINED) == {name: number for name, number in turns.items() if name in JOINED}
