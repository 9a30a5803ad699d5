"""Trouble on the wire: refused rows, sentences, and no money lost. Against a real loopback emulator; no torch."""

from __future__ import annotations

import re
import shutil
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from harness.emulator.errors import ApiError
from harness.emulator.faults import FAULTS
from harness.emulator.request import ChatRequest
from harness.emulator.service import Faults
from harness.fixtures.runs import (
    HASTY,
    MODEL,
    ROWS,
    SlowAnswerer,
    World,
    emulating,
    pool,
    prompt_line,
    sample_ids,
)
from pipeline.base.money import pico
from pipeline.generation.breaker import Sign
from pipeline.generation.ledger import Ledger
from pipeline.generation.outcome import StopError
from pipeline.generation.plan import BreakerPolicy, RetryPolicy
from pipeline.generation.preflight import require_fingerprint
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import Prompt, Refusal, Route, Sampling, TokenRow, ToolMode
from pipeline.shards.manifest import hold


def test_a_port_where_nobody_listens_is_one_sentence(world: World) -> None:
    """Nothing is written."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    with pytest.raises(StopError, match=rf"127\.0\.0\.1:{port} could not be reached.*python -m harness emulator"):
        world.run(world.plan(base_url=f"http://127.0.0.1:{port}/api/v1"))

    assert not world.out.exists()


def test_an_emulator_that_dies_stops_the_run(world: World) -> None:
    """A new one goes on with it."""
    slow = SlowAnswerer(pool(world.fmt), seconds=0.02)
    with emulating(world, slow) as live:
        process = live.start()
        while slow.asked < 8:
            time.sleep(0.005)
    out, err = process.communicate(timeout=60)
    with emulating(world, pool(world.fmt)) as live:
        second = live.run(live.plan(resend_unknown=True))

    assert "Traceback" not in err
    assert out.startswith("1 ")
    assert ("complete", ROWS) == (second.outcome, second.rows["accepted"])


def now_and_then(status: int) -> Faults:
    """Every fourth of the first requests is turned away."""
    refused: list[int] = []

    def sometimes(_: ChatRequest) -> ApiError | None:
        refused.append(status)
        return ApiError(status, "try later") if len(refused) % 4 == 1 and len(refused) < ROWS else None

    return Faults(before=sometimes)


@pytest.mark.parametrize("status", [429, 503])
def test_what_is_turned_away_for_now_is_free_and_asked_again(status: int, world: World) -> None:
    """The same run asks again."""
    with emulating(world, pool(world.fmt), now_and_then(status)) as live:
        summary = live.run(live.plan(patience=HASTY))

    assert (0, "complete", ROWS, 0) == (
        *(summary.code, summary.outcome, summary.rows["accepted"], summary.cost["unsettled_requests"]),
    )
    assert dict.fromkeys(sample_ids(), 1) == world.asked()
    assert pico(world.billed()) == pico(str(summary.cost["usd"]))


@pytest.mark.parametrize("status", [429, 503])
def test_what_is_always_turned_away_is_free(status: int, world: World) -> None:
    """The next run asks it."""
    with emulating(world, pool(world.fmt), now_and_then(status)) as live:
        first = live.run(live.plan(patience=RetryPolicy(attempts=1)))
        second = live.run()

    assert (1, "incomplete", 10) == (first.code, first.outcome, first.rows["to_ask_again"])
    assert (0, "complete", ROWS) == (second.code, second.outcome, second.rows["accepted"])
    assert dict.fromkeys(sample_ids(), 1) == world.asked()


@pytest.mark.parametrize("status", [408, 500, 502, 504, 524])
def test_what_may_have_been_billed_counts_at_its_worst(status: int, world: World) -> None:
    """It is asked again only where the user says so."""
    refused: list[int] = []

    def sometimes(_: ChatRequest) -> ApiError | None:
        refused.append(status)
        return ApiError(status, "lost on the way") if len(refused) % 10 == 1 and len(refused) < ROWS else None

    with emulating(world, pool(world.fmt), Faults(before=sometimes)) as live:
        first = live.run()
        second = live.run()
        third = live.run(live.plan(resend_unknown=True))

    assert (1, 4, 4) == (first.code, first.rows["unknown"], first.cost["unsettled_requests"])
    assert (1, 0, 4) == (second.code, second.rows["asked"], second.rows["unknown"])
    assert (0, "complete", 4, ROWS) == (third.code, third.outcome, third.rows["asked"], third.rows["accepted"])
    assert pico(str(third.cost["unsettled_worst_usd"])) == pico(str(first.cost["unsettled_worst_usd"])) > 0


@pytest.mark.parametrize(
    "status, word",
    [(401, "refuses this run"), (402, "refuses"), (503, "3 rows in a row were turned away at every attempt")],
)
def test_a_provider_that_answers_nobody_stops_the_run(status: int, word: str, world: World) -> None:
    """It is free of charge."""
    faults = Faults(before=lambda _: ApiError(status, "No cookie auth credentials found"))
    with emulating(world, pool(world.fmt), faults) as live:
        summary = live.run(live.plan(patience=HASTY))

    assert (1, 0, "0.0000") == (summary.code, summary.rows["accepted"], summary.cost["usd"])
    assert word in str(summary.message)
    assert 0 == summary.cost["unsettled_requests"]


def test_a_prompt_that_the_provider_rejects_is_one_refused_row(world: World) -> None:
    def picky(request: ChatRequest) -> ApiError | None:
        said = request.prompt.messages[0]["content"]
        return ApiError(400, "Provider returned error") if said == "What is 7 + 1?" else None

    with emulating(world, pool(world.fmt), Faults(before=picky)) as live:
        summary = live.run()

    (line,) = world.quarantine()
    assert ("row-7", "upstream_error", "400: Provider returned error") == (line["id"], line["reason"], line["detail"])
    assert (0, ROWS - 1) == (summary.code, summary.rows["accepted"])


def test_a_cut_stream_is_kept_refused_and_counted_at_its_worst(world: World) -> None:
    async def cut(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for part in body:
            yield part[: len(part) // 2] if b"data:" in part else part

    with emulating(world, pool(world.fmt), Faults(body=cut)) as live:
        summary = live.run(live.plan(watch=BreakerPolicy(accepted=frozenset(Sign))))

    assert {"stream_cut": ROWS} == summary.by_reason
    assert (ROWS, "0.0000") == (summary.cost["unsettled_requests"], summary.cost["usd"])
    assert pico(str(summary.cost["unsettled_worst_usd"])) >= pico(world.billed())


def test_a_folder_begun_otherwise_is_refused(world: World) -> None:
    """Nothing is asked before."""
    with emulating(world, pool(world.fmt)) as live:
        live.run()
        count = sum(world.asked().values())
        with pytest.raises(StopError, match="was begun with sampling"):
            live.run(live.plan(sampling=Sampling(temperature=0.5)))
        world.write_prompts(prompt_line(1))
        with pytest.raises(StopError, match="was begun with prompts_sha256"):
            live.run()

    assert count == sum(world.asked().values())


def test_two_runs_at_once_are_one_too_many(world: World) -> None:
    held = Ledger(world.ledger)
    with emulating(world, pool(world.fmt)) as live, pytest.raises(StopError, match="in use by another run"):
        live.run()
    held.close()


def test_a_provider_that_the_model_lacks_is_refused(world: World) -> None:
    """The refusal names those that there are."""
    with emulating(world, pool(world.fmt)) as live, pytest.raises(StopError, match=r"it has .*chutes"):
        live.run(live.plan(route=Route("emulator", MODEL, "moonshot", stream=True)))


def test_a_paid_route_without_a_fingerprint_is_not_paid_for(world: World) -> None:
    plan = world.plan(route=Route("openrouter", "moonshotai/kimi-k2.5", "siliconflow", stream=True))

    with pytest.raises(StopError, match="has no fingerprint"):
        require_fingerprint(plan, None)
    require_fingerprint(replace(plan, sampling=Sampling(return_token_ids=True)), None)


@pytest.mark.parametrize("fault", ["cost-string", "negative-cost"])
def test_a_cost_that_is_unread_stops_and_is_paid_once(fault: str, world: World) -> None:
    with emulating(world, pool(world.fmt), FAULTS[fault]) as live:
        first = live.run(live.plan(concurrency=1))
        asked = sum(world.asked().values())
    with emulating(world, pool(world.fmt)) as live:
        second = live.run(live.plan(concurrency=1))

    assert ("stopped", 1, 1) == (first.outcome, asked, first.cost["unsettled_requests"])
    assert "cannot be read" in (first.message or "")
    assert ("complete", ROWS, ROWS) == (second.outcome, second.rows["accepted"], sum(world.asked().values()))


def test_a_key_of_ones_own_costs_what_upstream_bills(world: World) -> None:
    with emulating(world, pool(world.fmt), FAULTS["byok"]) as live:
        summary = live.run()

    assert ("complete", 0) == (summary.outcome, summary.cost["unsettled_requests"])
    assert 0 < pico(str(summary.cost["usd"]))


def test_a_folder_that_another_run_writes_is_refused(world: World) -> None:
    """Under another state folder, so that it is not the ledger that says it."""
    with emulating(world, pool(world.fmt)) as live:
        with hold(world.out), pytest.raises(StopError, match="is being written by another run") as caught:
            live.run()
        after = live.run()

    assert 2 == caught.value.code
    assert ("complete", ROWS) == (after.outcome, after.rows["accepted"])


def test_control_characters_of_a_provider_reach_no_screen(world: World) -> None:
    """They stand in the names of provider and model, and in the finish reason."""
    with emulating(world, pool(world.fmt), FAULTS["escape"]) as live:
        summary = live.run()

    shown = [summary.message or "", *summary.first_of_reason.values(), *(str(line) for line in world.quarantine())]
    assert any("owned" in text for text in shown)
    assert [] == [text for text in shown if not text.isprintable()]


@pytest.mark.parametrize("state", ["lost", "another"])
def test_another_ledger_does_not_begin_a_budget_anew(state: str, world: World) -> None:
    with emulating(world, pool(world.fmt)) as live:
        live.run(live.plan(limit=5))
        kept = world.ledger.parent.rename(world.folder / "kept")
        if state == "another":
            live.run(live.plan(out=world.folder / "other", limit=1))
        asked = sum(world.asked().values())
        with pytest.raises(StopError, match=r"was begun with ledger [0-9a-f]{12}, and") as caught:
            live.run()
        unasked = sum(world.asked().values())
        if state == "another":
            world.ledger.parent.rename(world.folder / "foreign")
        else:
            shutil.rmtree(world.ledger.parent)
        kept.rename(world.ledger.parent)
        after = live.run()

    assert (2, asked) == (caught.value.code, unasked)
    assert str(world.ledger) in str(caught.value)
    assert ("complete", ROWS) == (after.outcome, after.rows["accepted"])


def test_a_foreign_folder_is_left_as_it_is(world: World) -> None:
    world.out.mkdir()
    (world.out / "notes.txt").write_text("mine")
    with emulating(world, pool(world.fmt)) as live, pytest.raises(StopError, match=r"holds notes\.txt but no manifest"):
        live.run()

    assert ["notes.txt"] == [path.name for path in world.out.iterdir()]


def test_an_answer_that_makes_an_error_is_one_refused_row(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is kept."""

    def stumbling(prompt: Prompt, *rest: Any) -> TokenRow | Refusal:  # noqa: ANN401 - handed on as it came
        if prompt.id == "row-3":
            raise ZeroDivisionError("halves of nothing")
        return reconstruct(prompt, *rest)

    monkeypatch.setattr("pipeline.generation.generate.reconstruct", stumbling)
    with emulating(world, pool(world.fmt)) as live:
        first = live.run()
        second = live.run()
    (line,) = world.quarantine()
    ledger = Ledger(world.ledger)
    with ledger.transaction():
        entry = ledger.find(str(line["request"]))
    ledger.close()

    assert ("row-3", "internal_error") == (line["id"], line["reason"])
    assert re.fullmatch(r"ZeroDivisionError at generate\.py:\d+: halves of nothing", str(line["detail"]))
    assert (0, ROWS - 1, 0) == (first.code, first.rows["accepted"], second.rows["asked"])
    assert entry is not None
    assert entry.answer is not None
    assert b"data: [DONE]" in entry.answer.raw


@pytest.mark.parametrize("mode", [ToolMode.RAW, ToolMode.STRUCTURED])
@pytest.mark.parametrize("depth", [200, 400, 20_000])
def test_a_prompt_nested_too_deeply_is_one_refused_row(mode: ToolMode, depth: int, world: World) -> None:
    schema = '{"type":"object","properties":{"a":' * depth + '{"type":"string"}' + "}}" * depth
    tool = '{"type":"function","function":{"name":"f","description":"d","parameters":' + schema + "}}"
    deep = '{"id":"deep","messages":[{"role":"user","content":"hi"}],"tools":[' + tool + "]}"
    world.write_prompts(prompt_line(1), deep, prompt_line(2))
    with emulating(world, pool(world.fmt)) as live:
        summary = live.run(live.plan(tool_mode=mode))

    (line,) = world.quarantine()
    assert (depth < 20_000, "malformed_input") == (line["id"] == "deep", line["reason"])
    assert "nested too deeply" in str(line["detail"])
    assert (0, 2, 2) == (summary.code, summary.rows["asked"], summary.rows["accepted"])
