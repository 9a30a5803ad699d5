"""A probe over a real socket: estimate, budget, permit, exchanges, and what is learned of them. Needs no torch."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from harness.emulator.account import RateLimit
from harness.emulator.answers import PoolAnswerer
from harness.emulator.server import Terms
from harness.fixtures.runs import MODEL, SlowAnswerer, silent
from harness.live.fingerprint_diff import as_asked, learned_from
from harness.live.live import main as live
from harness.live.rehearsal import COMMITTED, FMT, PAID, Shop, known_answer, known_pool, opened
from pipeline.base.money import pico, usd_text
from pipeline.cli.probe import report
from pipeline.fingerprints.exchanges import Exchange, read_exchanges
from pipeline.gate.gate import Kind
from pipeline.generation.engines.openrouter import KEY_VARIABLE, encode_body
from pipeline.generation.generate import run_generation
from pipeline.generation.ledger import Ledger, Request, exchanged
from pipeline.generation.outcome import BUDGET_SPENT, TROUBLE, UNUSABLE, StopError
from pipeline.generation.plan import RetryPolicy
from pipeline.generation.probe.probe import run_probe
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.wire.completion import completion_of_json, completion_of_sse
from pipeline.records import Json
from pipeline.shards.manifest import run_of

KEY = "sk-or-v1-" + "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A paid route, as far as the program knows, that was probed whole; it asks for a key."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY_VARIABLE, KEY)
        with opened(folder, terms=Terms(require_key=True)) as shop:
            findings = shop.probe(shop.wanted(route=PAID))
            assert (0, "", []) == (findings.code, findings.message, findings.left_out)
            yield shop


# Money


def test_the_highest_cost_is_shown_before_anything_is_sent(shop: Shop) -> None:
    heard: list[tuple[str, int]] = []
    wanted = shop.wanted(few=True, repeats=1)

    def hear(text: str) -> None:
        heard.append((text, len(shop.trial.entries())))

    permit, world = shop.permit(wanted), shop.world
    asyncio.run(run_probe(permit, wanted, say=hear, root=world.root, ledger=world.ledger))

    few = len(COMMITTED.chosen(few=True))
    said = "\n".join(text for text, _ in heard)
    assert {0} == {sent_before for _, sent_before in heard}
    assert f"{2 * few} requests; {few} probes as a stream and as one body, 1 times each" in said
    assert "at $0.5 and $2 a million tokens in and out, of a budget of $1.0000 (emulated: no money)" in said
    assert 2 * few == len(shop.trial.entries())


def test_what_was_spent_is_what_was_billed(shop: Shop) -> None:
    wanted = shop.wanted(few=True, repeats=2)

    findings = shop.probe(wanted)

    billed = sum((Decimal(entry.cost) for entry in shop.trial.entries()), Decimal(0))
    assert pico(billed) == findings.spent_pico
    assert {"answered": 4 * len(wanted.chosen)} == findings.by_fate()
    assert [] == [told.why for told in findings.told if told.why]
    assert f"${usd_text(findings.spent_pico)} spent (emulated: no money)" in list(report(findings, wanted))[-1]


def test_a_budget_below_the_worst_case_sends_nothing(shop: Shop) -> None:
    with pytest.raises(StopError, match="nothing was sent, for all requests together need more") as caught:
        shop.probe(shop.wanted(budget="0.01"))

    assert BUDGET_SPENT == caught.value.code
    assert "at most $0." in shop.said[1]
    assert ([], False) == (shop.trial.entries(), shop.exchanges.exists())


def test_the_days_cap_holds_for_all_that_was_spent_that_day(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dollar a UTC day in all, whatever budget was asked for."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    ledger = Ledger(shop.world.ledger)
    with ledger.transaction():
        spent = Request("ab" * 32, "another run", PAID, "row", b"{}", pico("0.9"))
        ledger.lose(ledger.claim(spent, lambda: None), "its answer never came")
    ledger.close()

    with pytest.raises(StopError, match=r"of \$1.0000 a UTC day") as caught:
        shop.probe(shop.wanted(route=PAID))

    assert BUDGET_SPENT == caught.value.code
    assert [] == shop.trial.entries()


def test_the_same_command_again_asks_nothing_twice(shop: Shop) -> None:
    wanted = shop.wanted(few=True, repeats=1)
    first = shop.probe(wanted)
    before = shop.exchanges.read_bytes()

    again = shop.probe(wanted)

    assert len(first.told) == len(shop.trial.entries())
    assert (first.by_fate(), first.spent_pico) == (again.by_fate(), again.spent_pico)
    assert f"{len(first.told)} of them asked before" in shop.said[-2]
    assert before == shop.exchanges.read_bytes()


def test_another_probe_of_the_route_asks_it_anew(shop: Shop) -> None:
    """The ledger has yesterday's answers to the same prompts, and they say nothing of today."""
    wanted = shop.wanted(few=True, repeats=1)
    shop.probe(wanted)

    other = replace(wanted, plan=replace(wanted.plan, out=shop.world.folder / "other"))
    shop.probe(other)

    assert 4 * len(wanted.chosen) == len(shop.trial.entries())


def test_a_folder_that_was_begun_otherwise_is_left_as_it_is(shop: Shop) -> None:
    shop.probe(shop.wanted(few=True, repeats=1))

    with pytest.raises(StopError, match="was begun with repeats 1 and is asked for 2") as caught:
        shop.probe(shop.wanted(few=True, repeats=2))
    assert UNUSABLE == caught.value.code


# What does not go well


def test_what_is_turned_away_is_shown(tmp_path: Path) -> None:
    """The same command goes on."""
    with opened(tmp_path, terms=Terms(rate=RateLimit(5))) as shop:
        wanted = shop.wanted(few=True, repeats=1)
        wanted = replace(wanted, plan=replace(wanted.plan, patience=RetryPolicy(1), concurrency=1))

        findings = shop.probe(wanted)

        assert (TROUBLE, {"answered": 5, "again": 3}) == (findings.code, findings.by_fate())
        assert "3 in a row were turned away at every attempt: status 429" in findings.message
        assert 5 == len(shop.exchanges.read_bytes().splitlines())
        shop.trial.service.rate.per_minute = None
        again = shop.probe(wanted)
        assert (0, {"answered": 14}) == (again.code, again.by_fate())
        assert 14 == len(shop.trial.entries()) == len(shop.exchanges.read_bytes().splitlines())


def test_ctrl_c_lets_what_is_in_flight_come_in(tmp_path: Path) -> None:
    slow = SlowAnswerer(known_pool(COMMITTED.probes, FMT), seconds=0.05, at={6: signal.SIGINT})
    with opened(tmp_path, slow) as shop:
        wanted = shop.wanted(few=True, repeats=1)

        findings = shop.probe(wanted)
        sent = len(shop.trial.entries())
        again = shop.probe(wanted)

        assert (130, {"answered": sent}) == (findings.code, findings.by_fate())
        assert 6 <= sent < 14
        assert (0, 14) == (again.code, len(shop.trial.entries()))


def test_an_error_in_the_place_of_an_answer_is_left_out_by_name(tmp_path: Path) -> None:
    """A pool without an answer for one of the probes; the emulator says so in the body of a 200."""
    few = COMMITTED.chosen(few=True)
    with opened(tmp_path, known_pool(few[1:], FMT)) as shop:
        findings = shop.probe(shop.wanted(few=True, repeats=1))

        assert [f"{few[0].id}/{form}/1: an error in its body" for form in ("json", "stream")] == findings.left_out
        assert 2 * len(few) - 2 == len(shop.exchanges.read_bytes().splitlines())


# What the permit is for


@pytest.mark.parametrize(
    "changes",
    [{"kind": Kind.GENERATE}, {"prompts_sha256": "ab" * 32}, {"prompts_sha256": None}, {"route": PAID}],
    ids=["kind", "prompts", "no prompts", "route"],
)
def test_a_permit_for_something_else_sends_nothing(shop: Shop, changes: dict[str, object]) -> None:
    wanted = shop.wanted(few=True)

    with pytest.raises(StopError, match="the permit is not for these probes on this route"):
        shop.probe(wanted, shop.permit(wanted, **changes))
    assert [] == shop.trial.entries()


def test_a_prompt_that_is_not_committed_is_not_sent(shop: Shop) -> None:
    wanted = shop.wanted(few=True)
    other = replace(wanted.chosen[0].prompt, messages=({"role": "user", "content": "Write me a novel."},))

    with pytest.raises(StopError, match="the permit is not for these probes on this route"):
        shop.probe(replace(wanted, chosen=(replace(wanted.chosen[0], prompt=other),)))
    assert [] == shop.trial.entries()


def test_a_probes_permit_generates_nothing(shop: Shop) -> None:
    permit = shop.permit(shop.wanted())
    generating = run_generation(
        permit, shop.world.plan(), progress=silent, root=shop.world.root, ledger=shop.world.ledger
    )

    with pytest.raises(StopError, match="a probe's permit sends the committed probes alone"):
        asyncio.run(generating)
    assert [] == shop.trial.entries()


# Exchanges


def test_exchanges_are_what_was_sent_and_what_came(whole: Shop) -> None:
    run = run_of(whole.world.out)
    assert run is not None
    kept = {one.identity[:12]: one for one in exchanged(whole.world.ledger, run)}

    lines = [json.loads(line) for line in whole.exchanges.read_bytes().splitlines()]

    assert 6 * len(COMMITTED.probes) == len(lines) == len(kept)
    for line in lines:
        one = kept[line["id"]]
        assert (one.body, one.answer.raw) == (encode_body(line["request"]), line["body"].encode())
        read = completion_of_sse(line["body"]) if line["stream"] else completion_of_json(line["body"].encode())
        assert ("SiliconFlow", MODEL) == (read.provider, read.model)


def test_exchanges_are_read_by_the_command_that_learns(whole: Shop) -> None:
    assert {"verbatim"} == {getattr(one, "fidelity", "a bad line") for one in read_exchanges(whole.exchanges)}


def test_the_key_stands_in_nothing_that_a_probe_writes(whole: Shop) -> None:
    written = [path for path in whole.world.folder.rglob("*") if path.is_file()]

    assert whole.world.ledger in written
    assert [] == [path.name for path in written if KEY[9:].encode() in path.read_bytes()]


def test_an_answer_that_holds_the_key_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one body the client takes it out; in a stream each delta has a piece."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    (probe,) = COMMITTED.chosen(few=False, only=("echo_characters",))
    said = replace(probe, known=replace(probe.known, content=f"It is {KEY}."))
    pool = PoolAnswerer(by_prompt={FMT.render(probe.prompt): known_answer(said, FMT)})
    with opened(tmp_path, pool) as shop:
        wanted = replace(shop.wanted(route=PAID, repeats=1), chosen=(probe,))
        findings = shop.probe(wanted)

        assert [f"{probe.id}/{form}/1: an answer that holds the key" for form in ("json", "stream")] == sorted(
            findings.left_out
        )
        assert b"" == shop.exchanges.read_bytes()
        assert 2 == live(["record", str(shop.world.out), "--root", str(shop.world.root)])
        assert "no answer is left to record" in capsys.readouterr().err


def test_a_whole_probe_proves_what_counts_and_bytes_tell(whole: Shop) -> None:
    exchanges = [one for one in read_exchanges(whole.exchanges) if isinstance(one, Exchange)]

    learned, _ = learned_from(exchanges)

    proven: dict[TraitName, Json] = {
        TraitName.END_COUNTED: False,
        TraitName.THINK_CLOSE_COUNTED: True,
        TraitName.COUNT_NATIVE: True,
        TraitName.PROMPT_PREFIX: [],
        TraitName.SEAM: "kept",
        TraitName.LINE_ENDS: "kept",
    }
    found = {one.stream: one for one in (as_asked(each, [MODEL]) for each in learned)}
    assert proven == {name: found[False].proven(name) for name in proven}
    streamed = {**proven, TraitName.DELTAS: "tokens"}
    assert streamed == {name: found[True].proven(name) for name in streamed}
