"""REQUIRED, and the groups that its tests belong to."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.attestation import required as groups
from harness.attestation.required import RequiredError, differences, format_required, group_of, is_absent, read_required
from pipeline.formats.tokenizer import KIMI_SHA256

BASE = "tests/contract/test_a.py::test_a"
KIMI = "tests/contract/tokenizer_kimi/test_k.py::test_k"


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
def test_a_tokenizer_with_another_hash_is_absent_and_both_hashes_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "tiktoken.model", "IQ== 0\n")
    monkeypatch.setenv("DRAFTER_GATE_TOKENIZERS", str(tmp_path))

    why = groups.absent_groups()[f"tokenizer:{KIMI_SHA256}"]

    assert f"{tmp_path} holds the tokenizer 6835144307f0, wanted {KIMI_SHA256[:12]}" == why
