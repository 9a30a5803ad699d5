"""Generate against a real loopback emulator: what becomes of rows. Needs starlette; the local route, torch."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from harness.emulator.answers import Ask, PoolAnswerer, Sampled
from harness.fixtures.runs import (
    MODEL,
    ROWS,
    SlowAnswerer,
    World,
    emulating,
    pool,
    prompt_line,
)
from harness.views.view import PROFILES
from pipeline.base.money import pico
from pipeline.base.paths import ROOT
from pipeline.base.prompts import prompt_of
from pipeline.formats.registry import open_format
from pipeline.generation.breaker import Sign
from pipeline.generation.ledger import Ledger, State
from pipeline.generation.plan import BreakerPolicy
from pipeline.records import Route, Sampling

# Rows


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
@pytest.mark.parametrize("provider", sorted(PROFILES))
def test_every_row_is_accepted_truly_or_refused_with_a_reason(provider: str, stream: bool, world: World) -> None:
    with emulating(world, pool(world.fmt)) as live:
        every = BreakerPolicy(
            accepted=frozenset(Sign)
        )  # a lossy route's rows are all refused, which would pause the run
        summary = live.run(live.plan(route=Route("emulator", MODEL, provider, stream), watch=every))

    assert [] == world.false_rows()
    assert (ROWS, ROWS) == (summary.rows["accepted"] + summary.rows["refused"], len(world.rows() + world.quarantine()))
    assert pico(world.billed()) == pico(str(summary.cost["usd"]))
    assert ("complete", 0) == (summary.outcome, summary.code)


def test_a_quarantined_row_names_its_request_in_the_ledger(world: World) -> None:
    empty = PoolAnswerer(common=[(world.fmt.end_id,)])
    with emulating(world, empty) as live:
        live.run()

    (first, *_) = world.quarantine()
    ledger = Ledger(world.ledger)
    with ledger.transaction():
        entry = ledger.find(str(first["request"]))
    ledger.close()

    assert entry is not None
    assert entry.answer is not None
    assert State.SETTLED == entry.state
    assert b"data: [DONE]" in entry.answer.raw


def test_bad_lines_are_refused_and_the_others_asked(world: World) -> None:
    image = {"id": "image", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}
    spelled = {"id": "spelled", "messages": [{"role": "user", "content": "<|im_end|>"}]}
    half = '{"id": "half", "messages": [{"role": "user", "content": "\\ud83d"}]}'
    long = {"id": "long", "messages": [{"role": "user", "content": "x" * 3000}]}
    odd = [json.dumps(image), json.dumps(spelled), half, json.dumps(long)]
    world.write_prompts("nonsense", prompt_line(1), prompt_line(1), "", *odd)
    with emulating(world, pool(world.fmt)) as live:
        summary = live.run()
        again = live.run()

    reasons = [(line["id"], line["where"].get("line"), line["reason"]) for line in world.quarantine()]  # type: ignore[union-attr]
    assert reasons == [
        (None, 1, "malformed_input"),
        ("row-1", 3, "malformed_input"),
        ("image", None, "prompt_unsupported"),
        ("spelled", None, "special_text"),
        ("half", None, "lone_surrogate"),
        ("long", None, "prompt_unsupported"),
    ]
    assert (1, 1, 0) == (summary.rows["asked"], summary.rows["accepted"], summary.rows["left"])
    assert (0, 7, 0, 0) == (again.rows["asked"], again.rows["done_before"], again.rows["left"], again.code)
    assert 6 == len(world.quarantine())


def test_the_manifest_says_under_which_proof_the_rows_came(world: World) -> None:
    with emulating(world, pool(world.fmt)) as live:
        live.run()

    manifest = json.loads((world.out / "manifest.json").read_text())
    (session,) = manifest["sessions"]
    assert ("ab" * 32, True, "complete") == (session["attestation"], session["tree_unchanged"], session["outcome"])
    assert world.fmt.tokenizer.sha256 == manifest["settings"]["tokenizer_sha256"]
    assert (ROWS, True) == (sum(shard["rows"] for shard in manifest["shards"]), manifest["cost"]["emulated"])
    assert manifest["counted"]["same_count_mismatch"] is None


def test_a_tree_that_changes_while_the_run_is_on_is_said(world: World) -> None:
    slow = SlowAnswerer(pool(world.fmt))

    class Meddler(SlowAnswerer):
        async def answer(self, ask: Ask) -> Sampled:
            (world.folder / "root" / "pipeline" / "new.py").write_text("")
            return await super().answer(ask)

    with emulating(world, Meddler(slow.pool)) as live:
        summary = live.run()

    manifest = json.loads((world.out / "manifest.json").read_text())
    assert (("pipeline/",), False) == (summary.tree_changed, manifest["sessions"][0]["tree_unchanged"])


def test_the_limit_takes_the_first_rows_and_can_be_raised(world: World) -> None:
    with emulating(world, pool(world.fmt)) as live:
        first = live.run(live.plan(limit=10))
        second = live.run(live.plan(limit=25))

    assert [(10, 10, 0), (15, 25, 10)] == [
        (found.rows["asked"], found.rows["accepted"], found.rows["done_before"]) for found in (first, second)
    ]


def test_a_limit_below_what_is_there_hides_no_row(world: World) -> None:
    with emulating(world, pool(world.fmt)) as live:
        live.run(live.plan(limit=25))
        lower = live.run(live.plan(limit=10))
        whole = live.run()

    rows = lower.rows
    assert (ROWS, 25, 0, 15) == (
        rows["in_file"],
        rows["accepted"] + rows["refused"],
        rows["left"],
        rows["beyond_limit"],
    )
    assert ("complete within --limit", 0, False) == (lower.outcome, lower.code, lower.result()["complete"])
    assert ("complete", ROWS, 0) == (whole.outcome, whole.rows["in_file"], whole.rows["beyond_limit"])


def test_a_lossy_route_is_said_to_be_one_before_it_is_asked(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    with emulating(world, pool(world.fmt)) as live:
        summary = live.run(live.plan(route=Route("emulator", MODEL, "atlascloud", stream=True), limit=2))
        live.run(live.plan(out=world.folder / "kept", limit=2))

    said = capsys.readouterr().err
    assert ({"seam_lossy": 2}, 1) == (summary.by_reason, said.count("warning: "))
    assert "emulator/atlascloud" in said
    assert "every row will be refused" in said


def test_no_more_requests_are_in_flight_than_asked_for(world: World) -> None:
    slow = SlowAnswerer(pool(world.fmt), seconds=0.02)
    with emulating(world, slow) as live:
        live.run(live.plan(concurrency=5))

    assert 5 == slow.most


# The local route


def test_the_local_route_gives_rows_by_engine_ids_and_goes_on(world: World) -> None:
    fmt = open_format("tiny-kimi")
    plan = world.plan(
        route=Route("local", MODEL),
        fmt=fmt,
        weights=ROOT / "harness" / "tiny_target" / "weights",
        base_url=None,
        concurrency=8,
        sampling=Sampling(seed=5),
    )

    first = world.run(replace(plan, limit=10))
    second = world.run(replace(plan, limit=16))

    assert [10, 6] == [first.rows["asked"], second.rows["asked"]]
    assert {"engine_ids"} == set(second.by_evidence)
    assert 16 == second.rows["accepted"] + second.rows["refused"]
    assert ("0.0000", 0) == (second.cost["usd"], second.code)
    assert all(
        row["prompt_ids"] == list(fmt.render(prompt_of(json.loads(prompt_line(int(str(row["id"])[4:]))))))
        for row in world.rows()
    )
