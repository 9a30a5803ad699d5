"""Exchanges out of the ledger: what stands in a line, and which answers are left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.base.redaction import REMOVED, Redaction
from pipeline.fingerprints.exchanges import Exchange, read_exchanges
from pipeline.generation.ledger import Ledger, LedgerAnswer, LedgerExchange, Request, exchanged
from pipeline.generation.probe.exchange_file import Source, write_exchanges
from pipeline.records import JsonObject, Route

BODY = '{"model":"m/k","stream":false,"temperature":1.0,"user":"é"}'.encode()
RAW = b'\n\n{"id":"gen-1","choices":[{"message":{"content":"say \\"error\\": yes"}}]}'
NO_KEY = Redaction(None)
KEY = "sk-or-v1-" + "0123456789abcdef" * 4
SOURCE = Source("run-1", "https://openrouter.ai/api/v1", "SiliconFlow")
HEADERS: JsonObject = {"content_type": "application/json", "complete": True, "retry_after": None}


def kept(raw: bytes = RAW, status: int = 200, headers: JsonObject = HEADERS) -> LedgerExchange:
    answer = LedgerAnswer(status, raw, headers)
    return LedgerExchange(
        "ab" * 32, "echo/json/1", "openrouter/siliconflow", "m/k", BODY, answer, "2026-11-30T01:02:03.456+00:00"
    )


def test_a_line_has_the_request_and_the_body_as_they_were(tmp_path: Path) -> None:
    left_out = write_exchanges(tmp_path / "e.jsonl", [kept()], SOURCE, NO_KEY)

    (exchange,) = read_exchanges(tmp_path / "e.jsonl")
    line = json.loads((tmp_path / "e.jsonl").read_bytes())
    assert [] == left_out
    assert isinstance(exchange, Exchange)
    assert (RAW.decode(), json.loads(BODY)) == (exchange.body, exchange.request)
    assert ("SiliconFlow", "m/k", 200, False) == (exchange.provider, exchange.model, exchange.status, exchange.stream)
    assert ("verbatim", "openrouter.ai/api/v1/chat/completions") == (exchange.fidelity, exchange.endpoint)
    assert {"content-type": "application/json"} == line["headers"]
    assert {
        "run": "run-1",
        "route": "openrouter/siliconflow",
        "row": "echo/json/1",
        "answered_at": "2026-11-30T01:02:03.456+00:00",
    } == line["source"]


@pytest.mark.parametrize(
    "one, why",
    [
        (kept(b'{"error":{"code":429},"user_id":"u"}', 429), "an error of status 429"),
        (kept(b'{"error":{"code":502},"user_id":"u"}'), "an error in its body"),
        (kept(b'data: {"choices":[],"error" : {"metadata":{"raw":"x"}}}\n\n'), "an error in its body"),
        (kept(headers={"complete": False}), "an answer that was cut off"),
        (kept(b'{"a":"\xff"}'), "an answer that is no UTF-8"),
    ],
)
def test_errors_and_cut_answers_are_left_out_with_the_reason(one: LedgerExchange, why: str, tmp_path: Path) -> None:
    """Bodies of errors can name the account; the ledger has them."""
    left_out = write_exchanges(tmp_path / "e.jsonl", [one], SOURCE, NO_KEY)

    assert [f"echo/json/1: {why}"] == left_out
    assert b"" == (tmp_path / "e.jsonl").read_bytes()


def stream(*deltas: object) -> bytes:
    return "".join(f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n" for delta in deltas).encode()


@pytest.mark.parametrize(
    "raw",
    [
        f'{{"content":"{REMOVED}"}}'.encode(),
        stream({"content": KEY[:20]}, {"content": KEY[20:]}),
        stream(*({"reasoning": part, "reasoning_details": [{"text": part}]} for part in (KEY[9:30], KEY[30:]))),
    ],
    ids=["taken out", "in pieces", "its tail in pieces that are said twice"],
)
def test_an_answer_that_holds_the_key_is_left_out(raw: bytes, tmp_path: Path) -> None:
    left_out = write_exchanges(tmp_path / "e.jsonl", [kept(raw)], SOURCE, Redaction(KEY))

    assert ["echo/json/1: an answer that holds the key"] == left_out


def test_no_error_is_null_in_an_answer(tmp_path: Path) -> None:
    assert [] == write_exchanges(tmp_path / "e.jsonl", [kept(b'{"choices":[],"error":null}')], SOURCE, NO_KEY)


def test_an_address_is_kept_without_user_and_password() -> None:
    assert "host:81/api/v1/chat/completions" == Source("r", "http://me:pass@host:81/api/v1/", "P").endpoint


def test_the_ledger_gives_the_answers_of_one_run_alone(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    route = Route("openrouter", "m/k", "siliconflow", stream=False)
    with ledger.transaction():
        for run in ("run-1", "run-2"):
            for row in ("a", "b", "unanswered"):
                entry = ledger.claim(Request(f"{run}{row}", run, route, row, BODY, 5), lambda: None)
                if row != "unanswered":
                    ledger.answer(entry, LedgerAnswer(200, RAW, HEADERS))
    ledger.close()

    found = exchanged(tmp_path / "ledger.sqlite", "run-1")

    assert [("run-1a", "a"), ("run-1b", "b")] == [(one.identity, one.row) for one in found]
    assert (BODY, RAW, "openrouter/siliconflow", "m/k") == (
        found[0].body,
        found[0].answer.raw,
        found[0].route,
        found[0].model,
    )
    assert [] == exchanged(tmp_path / "none.sqlite", "run-1")
