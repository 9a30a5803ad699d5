"""Faults: those that change nothing of an answer leave it provable, those that must be refused are, on either form."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from harness.emulator.catalog import MODEL
from harness.fixtures.runs import byte_format
from harness.measures.chaos.faults import FAULTS, OK, PRICE, End, Fault, ShownFault
from harness.views.openrouter import Meta, body_of, events_of
from harness.views.roundtrip import true_fingerprint
from harness.views.view import PROFILES, view
from pipeline.formats.format import Format
from pipeline.generation.billing import bill_of, completion_of
from pipeline.generation.ledger import LedgerAnswer
from pipeline.generation.outcome import refusing_errors
from pipeline.proof.reconstruct import Expected, reconstruct
from pipeline.records import Prompt, Refusal, TokenRow

PROFILE = PROFILES["chutes"]
PROMPT = Prompt("a", ({"role": "user", "content": "What is 1 + 1?"},))
DRAWS = range(30)
HARMLESS = {"none", "junk logprobs", "no cost", "usage form", "comments", "slow"}
BY_NAME = {fault.name: fault for fault in FAULTS}


@pytest.fixture(scope="module")
def fmt(tmp_path_factory: pytest.TempPathFactory) -> Format:
    return byte_format(Path(tmp_path_factory.mktemp("tokenizer")))


def true_answer(fmt: Format, *, stream: bool) -> ShownFault:
    encode = fmt.tokenizer.encode
    ids = (*encode(" Think more more."), fmt.think_close_id, *encode(" It is 2, aa."), fmt.end_id)
    shown = view(ids, PROFILE, fmt, thinking=True, tools_sent=False, stream=stream)
    meta = Meta("gen-1-a", 1, MODEL, PROFILE.name, len(fmt.render(PROMPT)), 0.0000695)
    body = "".join(events_of(shown, meta)) if stream else json.dumps(body_of(shown, meta))
    return ShownFault(OK, {"x-generation-id": "gen-1-a"}, body.encode())


def row_of(shown: ShownFault, fmt: Format, *, stream: bool) -> TokenRow | Refusal:
    answer = LedgerAnswer(shown.status, shown.body, {"complete": shown.end is End.WHOLE})
    completion = refusing_errors(lambda: completion_of(answer, stream=stream))
    if isinstance(completion, Refusal):
        return completion
    known = true_fingerprint(PROFILE, stream=stream)
    return reconstruct(PROMPT, completion, fmt, known, Expected(PROFILE.name, MODEL, 256))


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.name in HARMLESS], ids=lambda fault: fault.name)
def test_what_changes_nothing_leaves_the_row_provable(fault: Fault, stream: bool, fmt: Format) -> None:
    true = true_answer(fmt, stream=stream)
    wanted = row_of(true, fmt, stream=stream)

    assert isinstance(wanted, TokenRow)
    for seed in DRAWS:
        assert wanted == row_of(fault.change(true, Random(seed)), fmt, stream=stream)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if not fault.passes], ids=lambda fault: fault.name)
def test_what_must_be_refused_is(fault: Fault, stream: bool, fmt: Format) -> None:
    true = true_answer(fmt, stream=stream)

    for seed in DRAWS:
        assert isinstance(row_of(fault.change(true, Random(seed)), fmt, stream=stream), Refusal)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
@pytest.mark.parametrize("name", ["bytes twice", "chunk twice", "chunk lost", "ends early"])
def test_damage_never_makes_another_row(name: str, stream: bool, fmt: Format) -> None:
    true = true_answer(fmt, stream=stream)
    wanted = row_of(true, fmt, stream=stream)

    for seed in range(200):
        found = row_of(BY_NAME[name].change(true, Random(seed)), fmt, stream=stream)
        assert isinstance(found, Refusal) or found == wanted


def test_a_price_is_never_doubled_in_part(fmt: Format) -> None:
    true = true_answer(fmt, stream=True)
    cost = bill_of(true.body).cost_pico

    damaged = [BY_NAME["bytes twice"].change(true, Random(seed)).body for seed in range(300)]

    assert {cost, None} >= {bill_of(body).cost_pico for body in damaged}
    assert all(match[0] in true.body for body in damaged for match in PRICE.finditer(body))


def test_the_weights_are_of_a_thousand() -> None:
    assert 1000 == sum(fault.weight for fault in FAULTS)
