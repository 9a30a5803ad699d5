"""A run that goes wrong pauses itself: canaries, trips, the report, and how it goes on. Against a loopback emulator."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.emulator.service import Faults
from harness.fixtures.manifests import edit_manifest
from harness.fixtures.runs import SlowAnswerer, World, emulating, make_world, pool, prompt_line
from harness.measures.breaker import IN_FLIGHT, SIGNS, Turning, bad_ids, faults, measure
from pipeline.base.money import pico
from pipeline.formats.format import Format
from pipeline.generation.breaker import CANARIES, Sign
from pipeline.generation.outcome import BUDGET_SPENT, TRIPPED, UNUSABLE, StopError
from pipeline.generation.plan import BreakerPolicy
from pipeline.generation.run import EVENTS
from pipeline.generation.summary import Summary

ROWS = 300


@pytest.fixture
def world(world: World) -> World:
    world.write_prompts(*(prompt_line(number) for number in range(ROWS)))
    return world


def turning(world: World, sign: Sign, after: int, watch: BreakerPolicy | None = None) -> Summary:
    """One session against a provider that turns bad after so many answers."""
    answers = Turning(pool(world.fmt), bad_ids(sign, world.fmt), after)
    with emulating(world, answers, faults(sign, answers)) as live:
        return live.run(live.plan(watch=watch or BreakerPolicy()))


@pytest.mark.parametrize("sign", [sign for sign in SIGNS if sign is not Sign.COST])
def test_canaries_that_are_bad_are_all_that_is_asked(sign: Sign, tmp_path: Path, fmt: Format) -> None:
    found = measure(sign, tmp_path, fmt, good=0, rows=ROWS)

    assert (str(sign), TRIPPED, CANARIES) == (found.tripped, found.summary.code, found.after_first)


@pytest.mark.parametrize("sign", SIGNS)
def test_a_provider_that_turns_bad_is_asked_little_more(sign: Sign, tmp_path: Path, fmt: Format) -> None:
    """No more than the canaries and what is in flight."""
    found = measure(sign, tmp_path, fmt, good=100, rows=ROWS)

    assert (TRIPPED, "paused") == (found.summary.code, found.summary.outcome)
    assert 0 < found.after_first <= CANARIES + IN_FLIGHT


def test_a_paused_run_names_the_sign_the_rows_and_the_cost(world: World) -> None:
    summary = turning(world, Sign.REFUSED, 0)

    paused = json.loads((world.out / "manifest.json").read_text())["paused"]
    assert ("refused", 28 / 30, 0.9, 30) == tuple(paused[name] for name in ("sign", "value", "limit", "window"))
    assert set(paused["rows"]) <= {str(line["id"]) for line in world.quarantine()}
    assert paused["spent_usd"] in str(summary.message)
    assert "refused: 28 of the last 30 rows (93%, limit 90%)" in str(summary.message)


def test_a_paused_run_goes_on_only_when_it_is_told_to(world: World) -> None:
    first = turning(world, Sign.REFUSED, 0)
    with emulating(world, pool(world.fmt)) as live:
        with pytest.raises(StopError, match=r"paused by the breaker: refused: 28 of .*--resume.*--accept-trip") as stop:
            live.run()
        resumed = live.run(live.plan(watch=BreakerPolicy(resume=True)))
        again = live.run()

    assert (TRIPPED, UNUSABLE) == (first.code, stop.value.code)
    assert ("complete", ROWS - CANARIES, CANARIES) == (
        *(resumed.outcome, resumed.rows["accepted"], resumed.rows["refused"]),
    )
    assert ("complete", 0) == (again.outcome, again.rows["asked"])


def test_a_resumed_run_is_judged_again(world: World) -> None:
    turning(world, Sign.REFUSED, 0)
    second = turning(world, Sign.REFUSED, 0, BreakerPolicy(resume=True))

    assert (TRIPPED, CANARIES) == (second.code, second.rows["asked"])


def test_a_trip_that_was_accepted_stops_nothing(world: World) -> None:
    turning(world, Sign.REFUSED, 0)
    second = turning(world, Sign.REFUSED, 0, BreakerPolicy(accepted=frozenset({Sign.REFUSED, Sign.COST})))

    assert ("complete", ROWS) == (second.outcome, second.rows["refused"])


def test_a_pause_outlives_a_session_that_was_killed(world: World) -> None:
    turning(world, Sign.REFUSED, 0)
    edit_manifest(world.out, lambda document: document["sessions"][-1].update(ended=None))
    with emulating(world, pool(world.fmt)) as live, pytest.raises(StopError, match="paused by the breaker"):
        live.run()


def test_the_event_log_tells_the_run_line_by_line(world: World) -> None:
    turning(world, Sign.WRONG_PROVIDER, 40)
    lines = [json.loads(line) for line in (world.out / EVENTS).read_text().splitlines()]
    rows = [line for line in lines if line["event"] == "row"]

    told = [line["event"] for line in lines if line["event"] != "row"]
    assert ["started", "estimate", "canaries", "tripped", "ended"] == told
    assert {"accepted", "refused"} == {line["fate"] for line in rows}
    assert {"counted"} == {line["evidence"] for line in rows if line["fate"] == "accepted"}
    assert {"wrong_provider"} == {line["reason"] for line in rows if line["fate"] == "refused"}
    assert ("paused", TRIPPED) == (lines[-1]["outcome"], lines[-1]["exit"])


def test_a_file_no_longer_than_the_canaries_is_asked_whole(world: World) -> None:
    world.write_prompts(*(prompt_line(number) for number in range(10)))

    assert 10 == turning(replace(world), Sign.LENGTH_CUT, 0).rows["asked"]


def test_a_run_beyond_its_budget_pauses_at_the_first_estimate(world: World) -> None:
    with emulating(world, pool(world.fmt)) as live:
        whole = replace(live, folder=world.folder).run(live.plan())
    each = pico(str(whole.cost["usd"])) // ROWS
    (tight := replace(world, folder=world.folder / "second")).folder.mkdir()
    tight = make_world(tight.folder, world.fmt)
    tight.write_prompts(*(prompt_line(number) for number in range(ROWS)))
    budget = each * ROWS // 2
    with emulating(tight, pool(world.fmt)) as live:
        first = live.run(live.plan(budget_pico=budget))
        second = live.run(live.plan(budget_pico=budget, watch=BreakerPolicy(accepted=frozenset({Sign.BUDGET}))))

    assert (TRIPPED, "budget") == (first.code, (first.paused or {}).get("sign"))
    assert 50 <= first.rows["asked"] < 50 + 16
    assert BUDGET_SPENT == second.code


def test_an_estimate_comes_from_what_the_route_has_cost(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    with emulating(world, pool(world.fmt)) as live:
        first = live.run(live.plan(limit=100))
        second = live.run()
    unknown, known = [line for line in capsys.readouterr().err.splitlines() if line.startswith("estimate")]

    assert "estimate for 100 rows: not known: too few answers of this route are in the ledger" == unknown
    assert known.startswith("estimate for 200 rows: $")
    assert "from 100 measured answers" in known
    low, high = (pico(part) for part in re.findall(r"\$([0-9.]+)", known))
    assert low < pico(str(second.cost["usd"])) - pico(str(first.cost["usd"])) < high


def test_a_killed_run_does_not_pause_on_what_the_kill_left(world: World) -> None:
    """Requests that were in flight when it was killed are unknown in the ledger: no sign of how the provider does."""
    slow = SlowAnswerer(pool(world.fmt), seconds=0.3, at={60: signal.SIGINT}, again_after=0.05)
    with emulating(world, slow) as live:
        first = live.run(live.plan(concurrency=16))
        slow.at.clear()
        slow.seconds = 0.0
        second = live.run()

    assert 130 == first.code
    assert 0 < second.rows["unknown"] <= 16
    assert (1, "incomplete", ROWS) == (second.code, second.outcome, second.rows["accepted"] + second.rows["unknown"])


def test_an_answer_beyond_its_highest_cost_pauses_the_run(world: World) -> None:
    async def dear(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for part in body:
            yield re.sub(rb'"cost":[0-9.e-]+', b'"cost":0.5', part)

    with emulating(world, pool(world.fmt), Faults(body=dear)) as live:
        summary = live.run(live.plan(budget_pico=pico(100)))

    assert (TRIPPED, "overcharged") == (summary.code, (summary.paused or {}).get("sign"))
    assert summary.rows["asked"] <= 16


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "Hi", "partial": True}],
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
    ],
    ids=["a key that is sent and not rendered", "an answer that a provider would go on with"],
)
def test_a_prompt_read_otherwise_than_rendered_is_not_sent(world: World, messages: list[dict[str, object]]) -> None:
    odd = {"id": "odd", "messages": messages}
    world.write_prompts(prompt_line(1), json.dumps(odd))
    with emulating(world, pool(world.fmt)) as live:
        summary = live.run()

    (line,) = world.quarantine()
    assert ("odd", "prompt_unsupported", 1) == (line["id"], line["reason"], summary.rows["asked"])


def test_a_secret_in_a_providers_words_is_in_no_quarantine(world: World) -> None:
    planted = "sk-or-" + "v1-" + "0123456789abcdef" * 4

    async def leaking(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for part in body:
            yield part.replace(b'"provider":"Chutes"', f'"provider":"Chutes {planted}"'.encode())

    with emulating(world, pool(world.fmt), Faults(body=leaking)) as live:
        summary = live.run()

    assert {"wrong_provider"} == {line["reason"] for line in world.quarantine()}
    assert planted not in str(world.quarantine()) + str(summary)
    assert planted not in (world.out / EVENTS).read_text() + (world.out / "manifest.json").read_text()
