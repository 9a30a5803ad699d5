"""REQUIRED, and the groups that its tests belong to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.attestation import required as groups
from harness.attestation.required import (
    RequiredError,
    absent_groups,
    differences,
    format_required,
    group_of,
    is_absent,
    read_required,
)
from pipeline.formats.tokenizer import KIMI_SHA256

BASE = "tests/contract/test_a.py::test_a"
KIMI = "tests/contract/tokenizer_kimi/test_k.py::test_k"
LIVE = "tests/contract/live/openrouter--siliconflow"
NAME = "live/siliconflow--m/echo.json"


@pytest.fixture
def no_kimi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine on which no Kimi tokenizer is found."""
    for name in ("DRAFTER_GATE_TOKENIZERS", "HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    groups._why_absent.cache_clear()
    monkeypatch.setattr(groups, "_why_absent", groups._why_absent.__wrapped__)


def written(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(
    "nodeid, group",
    [
        (BASE, "base"),
        ("tests/contract/sub/test_a.py::test_a[tokenizer_kimi]", "base"),
        (KIMI, f"tokenizer:{KIMI_SHA256}"),
        ("tests/contract/live/openrouter--chutes/test_a.py::test_a", "live:openrouter/chutes"),
    ],
)
def test_the_folder_of_a_test_says_its_group(nodeid: str, group: str) -> None:
    assert group == group_of(nodeid)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    listed = {"base": frozenset({BASE, "tests/contract/test_a.py::test_[ü x]"}), group_of(KIMI): frozenset({KIMI})}

    assert listed == read_required(written(tmp_path / "REQUIRED", format_required(listed)))


def test_base_comes_first_and_ids_are_sorted() -> None:
    listed = {group_of(KIMI): frozenset({KIMI}), "base": frozenset({"tests/contract/test_b.py::test_b", BASE})}

    lines = format_required(listed).splitlines()[1:]

    assert ["", "[base]", BASE, "tests/contract/test_b.py::test_b", "", f"[tokenizer:{KIMI_SHA256}]", KIMI] == lines


@pytest.mark.parametrize(
    "text", [BASE, f"[base]\n{BASE}\n{BASE}", f"[base]\n{KIMI}"], ids=["headless", "twice", "group"]
)
def test_a_line_in_the_wrong_place_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(RequiredError, match="is listed twice or in the wrong group"):
        read_required(written(tmp_path / "REQUIRED", text))


def test_a_missing_file_names_the_command_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(RequiredError, match=r"python -m harness required --write"):
        read_required(tmp_path / "REQUIRED")


@pytest.mark.usefixtures("no_kimi")
def test_both_directions_are_compared() -> None:
    required = {"base": frozenset({BASE, "tests/contract/test_a.py::test_gone"})}

    found = [str(objection) for objection in differences(required, [BASE, "tests/contract/test_a.py::test_new"])]

    assert 2 == len(found)
    assert "tests of REQUIRED did not pass (1): tests/contract/test_a.py::test_gone. Run: nox -s contract" in found[0]
    assert (
        "tests passed that REQUIRED does not list (1): tests/contract/test_a.py::test_new. Run: python -m" in found[1]
    )


@pytest.mark.usefixtures("no_kimi")
def test_a_group_whose_material_is_absent_is_not_asked_for(tmp_path: Path) -> None:
    required = {"base": frozenset({BASE}), group_of(KIMI): frozenset({KIMI})}

    assert [] == list(differences(required, [BASE]))
    assert is_absent(tmp_path / "tests/contract/tokenizer_kimi", tmp_path)
    assert not is_absent(tmp_path / "tests/contract/test_a.py", tmp_path)


@pytest.mark.usefixtures("no_kimi")
def test_a_tokenizer_with_another_hash_names_both_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer with another hash is absent and both hashes are named."""
    written(tmp_path / "tiktoken.model", "IQ== 0\n")
    monkeypatch.setenv("DRAFTER_GATE_TOKENIZERS", str(tmp_path))

    why = groups.absent_groups()[f"tokenizer:{KIMI_SHA256}"]

    assert f"{tmp_path} holds the tokenizer 6835144307f0, wanted {KIMI_SHA256[:12]}" == why


# Groups of live routes


@pytest.mark.parametrize(
    "nodeid, group",
    [
        ("tests/contract/test_gate.py::test_a", "base"),
        (f"{LIVE}/test_live.py::test_a[x]", "live:openrouter/siliconflow"),
        ("tests/contract/live/openrouter--siliconflow--fp8/test_live.py", "live:openrouter/siliconflow/fp8"),
    ],
)
def test_the_folder_of_a_live_test_says_its_route(nodeid: str, group: str) -> None:
    assert group == group_of(nodeid)


def tree(folder: Path, fmt: str, *, recorded: bool) -> Path:
    """A tree with the table of a live route, and its cassette or not."""
    (folder / LIVE).mkdir(parents=True)
    (folder / LIVE / "cassettes.json").write_text(json.dumps({"cassettes": {NAME: {"format": fmt}}}), "utf-8")
    if recorded:
        (folder / "cassettes" / NAME).parent.mkdir(parents=True)
        (folder / "cassettes" / f"{NAME}.yaml").write_text("", "utf-8")
    return folder


def test_a_live_group_needs_cassettes_and_vocabulary(tmp_path: Path) -> None:
    root = tree(tmp_path, "tiny-kimi", recorded=True)

    assert "live:openrouter/siliconflow" not in absent_groups(root)
    assert not is_absent(root / LIVE, root)


def test_a_live_group_without_its_cassettes_is_absent(tmp_path: Path) -> None:
    root = tree(tmp_path, "tiny-kimi", recorded=False)

    assert "its cassettes are not here" == absent_groups(root)["live:openrouter/siliconflow"]
    assert is_absent(root / LIVE, root)


def test_a_live_group_without_its_vocabulary_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    groups._why_absent.cache_clear()
    request.addfinalizer(groups._why_absent.cache_clear)
    for name in ("DRAFTER_GATE_TOKENIZERS", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    root = tree(tmp_path, "glm-5", recorded=True)

    assert "no glm-5 tokenizer was found" in absent_groups(root)["live:openrouter/siliconflow"]
