"""What ages and what goes stale: live cassettes by date, emulator cassettes and goldens by digest and by pin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.cassettes.cassette import Cassette, Interaction, Provenance, save_cassette
from harness.cassettes.staleness import (
    EMULATOR_SOURCES,
    emulator_digests,
    oldest_live,
    other_pins,
    stale_emulator,
    stale_live,
)
from pipeline.gate.digests import DigestError

PROVENANCE = Provenance(
    recorded_at="2026-11-29T20:36:25Z",
    source="emulator",
    route="emulator/chutes",
    model="drafter-gate/tiny-kimi",
    stream=False,
    versions={"openai": "3.57.0"},
    digests={"emulator": "aa", "lock": "bb"},
)
INTERACTION = Interaction("GET", "http://emulator.invalid/api/v1/models", {}, b"", 200, "OK", {}, b"{}")


def test_only_live_cassettes_age(tmp_path: Path) -> None:
    old = replace(PROVENANCE, source="live", route="openrouter/chutes", recorded_at="2026-01-01T00:00:00Z")
    newer = replace(old, recorded_at="2026-03-01T00:00:00Z")
    emulated = replace(PROVENANCE, recorded_at="2020-01-01T00:00:00Z")
    for name, provenance in {"a": old, "b": newer, "c": emulated}.items():
        save_cassette(tmp_path / "cassettes" / f"{name}.yaml", Cassette(provenance, (INTERACTION,)))

    assert {"openrouter/chutes drafter-gate/tiny-kimi": old.recorded} == oldest_live(tmp_path)
    assert {} == stale_live(tmp_path, newer.recorded)
    late = PROVENANCE.recorded
    assert {
        "openrouter/chutes drafter-gate/tiny-kimi": "openrouter/chutes drafter-gate/tiny-kimi: the oldest live"
        " cassette is 332 days old, limit 90, so the gate is shut for it"
    } == stale_live(tmp_path, late)


def test_only_emulator_cassettes_go_stale_by_digest() -> None:
    cassette = Cassette(PROVENANCE, (INTERACTION,))
    live = Cassette(replace(PROVENANCE, source="live"), (INTERACTION,))

    assert None is stale_emulator(cassette, {"emulator": "aa", "lock": "bb"})
    assert "recorded before a change of: lock. Run: nox -s cassettes" == stale_emulator(cassette, {"lock": "cc"})
    assert None is stale_emulator(live, {"lock": "cc"})


def test_a_local_build_of_a_pinned_version_is_the_pinned_version(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("# pins\ntorch==2.13.0\nopenai==3.57.0\n", "utf-8")

    assert ["openai 3.56.0 (locked: 3.57.0)"] == [
        *other_pins({"torch": "2.13.0+cpu", "openai": "3.56.0", "cpu": "any"}, tmp_path)
    ]


@pytest.mark.parametrize("moved", EMULATOR_SOURCES)
def test_a_moved_source_is_an_error_and_not_unhashed(moved: str, tmp_path: Path) -> None:
    for pattern in {*EMULATOR_SOURCES} - {moved}:
        path = tmp_path / pattern.replace("*", "one")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    with pytest.raises(DigestError, match="matches no file"):
        emulator_digests(tmp_path)
