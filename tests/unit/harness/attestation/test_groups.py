"""Groups of contract tests: which folder belongs to which, and when its material is here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.attestation.required import absent_groups, group_of, is_absent

LIVE = "tests/contract/live/openrouter--siliconflow"
NAME = "live/siliconflow--m/echo.json"


@pytest.mark.parametrize(
    "nodeid, group",
    [
        ("tests/contract/test_gate.py::test_a", "base"),
        (f"{LIVE}/test_live.py::test_a[x]", "live:openrouter/siliconflow"),
        ("tests/contract/live/openrouter--siliconflow--fp8/test_live.py", "live:openrouter/siliconflow/fp8"),
    ],
)
def test_the_folder_says_the_group(nodeid: str, group: str) -> None:
    assert group == group_of(nodeid)


def tree(folder: Path, fmt: str, *, recorded: bool) -> Path:
    """A tree with the table of a live route, and its cassette or not."""
    (folder / LIVE).mkdir(parents=True)
    (folder / LIVE / "cassettes.json").write_text(json.dumps({"cassettes": {NAME: {"format": fmt}}}), "utf-8")
    if recorded:
        (folder / "cassettes" / NAME).parent.mkdir(parents=True)
        (folder / "cassettes" / f"{NAME}.yaml").write_text("", "utf-8")
    return folder


def test_a_live_group_is_here_with_its_cassettes_and_its_vocabulary(tmp_path: Path) -> None:
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
    from harness.attestation import required as groups

    groups._why_absent.cache_clear()
    request.addfinalizer(groups._why_absent.cache_clear)
    for name in ("DRAFTER_GATE_TOKENIZERS", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    root = tree(tmp_path, "glm-5", recorded=True)

    assert "no glm-5 tokenizer was found" in absent_groups(root)["live:openrouter/siliconflow"]
