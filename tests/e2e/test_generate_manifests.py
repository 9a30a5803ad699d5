"""A run goes on only in a folder that a known key signed, and only with what its manifest names."""

from __future__ import annotations

import json
import shutil

import pytest

from harness.fixtures.manifests import as_unsigned, edit_manifest
from harness.fixtures.runs import ROWS, SlowAnswerer, World, emulating, pool, sample_ids
from pipeline.generation.outcome import StopError

FIRST = 12
SHARD, QUARANTINE = "shard-00000.parquet", "quarantine.jsonl"


def test_what_was_planted_in_a_folder_is_moved_aside(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    with emulating(world, pool(world.fmt)) as live:
        live.run(live.plan(limit=FIRST))
        shutil.copy(world.out / SHARD, world.out / "shard-00001.parquet")
        (world.out / QUARANTINE).write_text('{"id": "row-30", "reason": "count_mismatch", "detail": ""}\n')
        second = live.run()

    assert ("complete", ROWS, 0) == (second.outcome, second.rows["accepted"], second.rows["refused"])
    assert dict.fromkeys(sample_ids(), 1) == world.asked()
    assert {"shard-00001.parquet.unnamed", "quarantine.jsonl.unnamed"} == {
        path.name for path in world.out.glob("*.unnamed")
    }
    assert (
        f"{world.out}: moved to shard-00001.parquet.unnamed, quarantine.jsonl.unnamed, for" in capsys.readouterr().err
    )


def test_rows_of_a_shard_that_was_not_named_yet_come_again(world: World) -> None:
    """What a kill between a shard and its entry leaves; the ledger has the answers."""
    with emulating(world, pool(world.fmt)) as live:
        live.run(live.plan(limit=FIRST))
        before = world.rows()
        edit_manifest(world.out, lambda document: document.update(shards=[]))
        second = live.run(live.plan(limit=FIRST))

    assert (FIRST, 0, FIRST) == (second.rows["accepted"], second.rows["asked"], second.rows["from_ledger"])
    assert sorted(map(str, before)) == sorted(map(str, world.rows()))
    assert FIRST == sum(world.asked().values())


@pytest.mark.parametrize("change", [{"cost": {"usd": "0", "emulated": True}}, {"run": "ab" * 16}], ids=["cost", "run"])
def test_a_run_does_not_go_on_under_an_edited_manifest(change: dict[str, object], world: World) -> None:
    with emulating(world, slow := SlowAnswerer(pool(world.fmt))) as live:
        live.run(live.plan(limit=FIRST))
        path = world.out / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_bytes()) | change))
        with pytest.raises(StopError, match=r"manifest\.json was changed after it was signed by"):
            live.run(live.plan(accept_unsigned=True))

    assert FIRST == slow.asked


def test_a_run_that_nobody_signed_asks_nothing_unless_told(world: World) -> None:
    with emulating(world, slow := SlowAnswerer(pool(world.fmt))) as live:
        live.run(live.plan(limit=FIRST))
        as_unsigned(world.out)
        with pytest.raises(StopError, match=r"has no signature, so anyone .* --accept-unsigned takes it"):
            live.run()
        asked = slow.asked
        second = live.run(live.plan(accept_unsigned=True))

    assert (FIRST, "complete", ROWS) == (asked, second.outcome, second.rows["accepted"])
    assert "signature" not in json.loads((world.out / "manifest.json").read_bytes())
