"""Secrets: planted wherever a provider or an environment can put them, and looked for in everything that is written.

A whole run on a paid route, over a real connection (a Unix socket: this suite has no network), against a peer that says
its secrets in headers, bodies and streams, plainly and escaped. The ledger keeps paid answers byte for byte, a
provider's own user ids among them, on this machine alone; the key stands nowhere, in whatever form it is echoed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from harness.cassettes.cassette import Cassette, Interaction, Provenance, dump_cassette
from harness.cassettes.replay import recording
from harness.emulator.account import Account
from harness.emulator.catalog import MODEL, endpoint_entries
from harness.fixtures.canned_peer import canned
from harness.fixtures.raw_peer import peering, response
from harness.fixtures.runs import World, byte_format, make_world, prompt_line, whole_run
from pipeline.base.prompts import prompt_of
from pipeline.cli.ledger import document
from pipeline.cli.report import print_summary, progress
from pipeline.generation.breaker import Sign
from pipeline.generation.engines.openrouter import KEY_VARIABLE, KeyMissingError, NoAnswerError, open_client
from pipeline.generation.ledger import Ledger, LedgerAnswer, Request, State, listing
from pipeline.generation.ledger_writer import spill
from pipeline.generation.outcome import StopError
from pipeline.generation.plan import BreakerPolicy, Plan, RetryPolicy
from pipeline.generation.summary import Summary
from pipeline.records import Json, Route

pytestmark = pytest.mark.contract

HEX = "0123456789abcdef" * 4
KEY = "sk-or-v1-" + HEX
USER = "user_2" + "abcdefghij0123456789xyz"
COOKIE = "__cf_bm=" + "c00kie" * 6
ORGANISATION = "org-" + "AbC123dEf456GhI7"
TEAM = "team_" + "0f1e2d3c4b5a69788796"
KEY_ID = "4d2c" * 9
OTHER_KEY = "sk-proj-" + "9876543210fedcba" * 3
PASSWORD = "hunter" + "2" * 9
"""Spelled in pieces, so that no scanner takes them for real."""

KEY_FORMS = (KEY, HEX, KEY.upper(), base64.b64encode(KEY.encode()).decode()[:-4])
ANYWHERE = (*KEY_FORMS, COOKIE, OTHER_KEY, PASSWORD)
"""In no artefact at all."""

SPOKEN = (USER, ORGANISATION, TEAM, KEY_ID)
"""In no artefact but the raw answers that the local ledger keeps."""

RAW = json.dumps({"error": f"{TEAM} has no credits, api_key_id {KEY_ID}", "team_id": TEAM})
HEADERS = {"set-cookie": COOKIE, "openai-organization": ORGANISATION, "x-clerk-auth-message": f"{KEY}; {USER}"}
ROWS = 16


def error(code: int, message: str) -> dict[str, Json]:
    said: dict[str, Json] = {"code": code, "message": message, "metadata": {"raw": RAW, "provider_name": "Chutes"}}
    return {"error": said, "user_id": USER}


def dumped(value: Json) -> bytes:
    return json.dumps(value).encode()


def event(value: Json, name: str = "") -> bytes:
    return (b"event: " + name.encode() + b"\n" if name else b"") + b"data: " + dumped(value) + b"\n\n"


ECHO = f"No auth for {KEY} of {ORGANISATION}, {USER}"
ESCAPED = dumped(error(400, "KEY")).replace(b"KEY", KEY.replace("-", "\\u002d").encode())
PERCENT = error(400, f"GET /?key={KEY.replace('-', '%2D')}")
CHUNK: dict[str, Json] = {"id": "gen-1-load", "model": MODEL, "provider": "SiliconFlow", "choices": []}


def answers(good: bytes) -> dict[int, tuple[int, bytes, dict[str, str]]]:
    """By row: status, body and further headers. The rows that are not there are answered well."""
    half = good.rindex(b"data: {", 0, len(good) // 2)
    last = good.index(b"data: [DONE]")
    stop = event({**CHUNK, "choices": [{"index": 0, "delta": {"refusal": f"{ECHO} no"}}]})
    return {
        1: (400, dumped(error(400, ECHO)), {}),
        2: (200, dumped(error(502, ECHO)), {}),
        3: (200, good[:half] + event({**CHUNK, **error(502, ECHO)}) + good[half:], {}),
        4: (200, good[:half] + event(error(502, ECHO), "error"), {}),
        5: (200, good + event(error(502, ECHO)), {}),
        6: (200, good[:half] + b'data: {"user_id":"' + USER.encode() + b'","cut\n\n', {}),
        7: (400, ESCAPED, {}),
        8: (502, dumped(error(502, ECHO)), {"x-generation-id": KEY}),
        9: (429, dumped(error(429, ECHO)), {"retry-after": KEY, "x-ratelimit-reset": KEY}),
        10: (200, good, {"x-generation-id": f"gen-{HEX}", "content-type": f"text/event-stream; k={KEY}"}),
        11: (400, dumped(PERCENT), {}),
        12: (200, good[:half] + stop + good[half:], {}),
        13: (200, good[:last] + event({"user_id": USER, "error": None, **CHUNK})[:-9], {}),
        14: (400, f"<html>{ECHO}</html>".encode(), {}),
    }


@dataclass
class Peer:
    """The provider; `heads` are the requests as it got them."""

    good: bytes
    heads: list[bytes]
    shut: bool = False
    """It refuses the key, in an answer that says it."""

    def reply(self, head: bytes, body: bytes) -> list[bytes]:
        self.heads.append(head)
        if head.startswith(b"GET") and b"/key " in head.partition(b"\r\n")[0]:
            return self._said(401, dumped(error(401, ECHO)), {}) if self.shut else self._data(Account().key_entry())
        if head.startswith(b"GET"):
            return self._data(endpoint_entries(MODEL, 1 << 20))
        number = json.loads(body)["messages"][0]["content"].split()[2]
        return self._said(*answers(self.good).get(int(number) % 100, (200, self.good, {})))

    def _data(self, value: Json) -> list[bytes]:
        return self._said(200, dumped({"data": value}), {})

    def _said(self, status: int, body: bytes, more: dict[str, str]) -> list[bytes]:
        return response(body, status=status, headers={**HEADERS, "content-type": "text/event-stream", **more})


@dataclass
class Place:
    """A run's world, its provider, and what was said on the terminal."""

    world: World
    peer: Peer

    def plan(self, **changes: object) -> Plan:
        return self.world.plan(
            route=Route("openrouter", MODEL, "siliconflow", stream=True),
            base_url="http://provider.invalid/api/v1",
            watch=BreakerPolicy(accepted=frozenset(Sign)),
            patience=RetryPolicy(attempts=2, first=0.001, longest=0.01),
            concurrency=4,
            **changes,
        )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setenv("OPENAI_API_KEY", OTHER_KEY)
    monkeypatch.setenv("OPENAI_ORG_ID", ORGANISATION)
    monkeypatch.setenv("OPENAI_PROJECT_ID", TEAM)
    monkeypatch.setenv("DRAFTER_GATE_NOTE", f"https://me:{PASSWORD}@proxy.invalid")
    (vocabulary := tmp_path / "tokenizer").mkdir()
    world = make_world(tmp_path, byte_format(vocabulary))
    lines = [prompt_line(100 + number) for number in range(ROWS)]  # as many digits each, so that one count fits all
    world.write_prompts(*lines)
    peer = Peer(canned(world.fmt, prompt_of(json.loads(lines[0])), 60, whole=True).body, [])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "wire")

        async def connect(*_: object, **__: object) -> anyio.abc.SocketStream:
            return await anyio.connect_unix(path)

        monkeypatch.setattr(anyio, "connect_tcp", connect)
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        with peering(peer.reply, path):
            yield Place(world, peer)


def files_of(world: World) -> Iterator[tuple[str, bytes]]:
    """Everything that a run writes, by name."""
    for path in sorted([*world.out.rglob("*"), *world.ledger.parent.rglob("*")]):
        if path.is_file():
            yield path.relative_to(world.folder).as_posix(), path.read_bytes()


def secrets_in(data: bytes, secrets: tuple[str, ...]) -> list[str]:
    lowered = data.lower()
    return [secret for secret in secrets if secret.lower().encode() in lowered]


def finished(place: Place, **changes: object) -> Summary:
    with progress(emulated=False) as show:
        summary = whole_run(place.world, place.plan(**changes), show)
    print_summary(summary, ["generate", "--prompts", "prompts.jsonl"])
    return summary


def test_the_run_meets_every_answer(place: Place) -> None:
    """So that what the other tests look for was really said."""
    summary = finished(place)

    assert {"accepted": 3, "refused": 11, "unknown": 1, "to_ask_again": 1} == {
        name: summary.rows[name] for name in ("accepted", "refused", "unknown", "to_ask_again")
    }
    assert {"upstream_error": 8, "stream_inconsistent": 2, "stream_cut": 1} == dict(summary.by_reason)


def test_nothing_that_a_run_writes_holds_a_secret(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    summary = finished(place)
    captured = capfd.readouterr()

    found = {name: secrets_in(data, ANYWHERE) for name, data in files_of(place.world)}
    spoken = {name: secrets_in(data, SPOKEN) for name, data in files_of(place.world) if not name.startswith("state/")}
    said = "\n".join([json.dumps(summary.document()), captured.out, captured.err]).encode()
    assert {"out/events.jsonl", "out/manifest.json", "out/quarantine.jsonl", "out/shard-00000.parquet"} <= set(found)
    assert {} == {name: secrets for name, secrets in found.items() if secrets}
    assert {} == {name: secrets for name, secrets in spoken.items() if secrets}
    assert [] == secrets_in(said, (*ANYWHERE, *SPOKEN))


def test_the_ledger_keeps_the_bodies_alone_of_an_answer(place: Place) -> None:
    finished(place)
    with Ledger(place.world.ledger).transaction() as ledger:
        entries = ledger.unsettled("openrouter")
        notes = " ".join(str(note) for (note,) in ledger._db.execute("SELECT note FROM requests"))
        heads = " ".join(f"{a} {b}" for a, b in ledger._db.execute("SELECT headers, generation_id FROM answers"))
    ledger.close()

    assert any(USER.encode() in entry.answer.raw for entry in entries if entry.answer)
    assert [] == secrets_in(f"{notes} {heads}".encode(), (*ANYWHERE, *SPOKEN))
    assert [] == secrets_in(json.dumps(document(place.world.ledger, listing(place.world.ledger))).encode(), SPOKEN)


def test_only_the_key_goes_out_and_to_the_provider_alone(place: Place) -> None:
    """Nothing else of the environment does."""
    finished(place)
    heads = b"\n".join(place.peer.heads)

    assert all(f"Bearer {KEY}".encode() in head for head in place.peer.heads)
    assert [] == secrets_in(heads, (OTHER_KEY, ORGANISATION, TEAM, PASSWORD, COOKIE))


def test_a_refused_key_is_a_sentence_without_it(place: Place) -> None:
    place.peer.shut = True

    with pytest.raises(StopError, match="answered 401") as caught:
        whole_run(place.world, place.plan())

    told = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert [] == secrets_in(told.encode(), (*ANYWHERE, *SPOKEN))


@pytest.mark.parametrize("value", [KEY + "\n", "short" + "0", f"{KEY} {KEY}"], ids=["line end", "short", "two"])
def test_a_malformed_key_is_not_repeated(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, value)

    with pytest.raises(KeyMissingError) as caught:
        open_client("openrouter")

    assert [] == secrets_in("".join(traceback.format_exception(caught.value)).encode(), (KEY, value.strip()))


def test_a_connection_that_fails_says_so_without_the_key(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError(f"Bearer {KEY} was refused by https://me:{PASSWORD}@proxy.invalid")

    monkeypatch.setattr(anyio, "connect_tcp", refuse)

    async def once() -> None:
        async with open_client("openrouter", "http://provider.invalid/api/v1") as client:
            assert KEY not in repr(client)
            await client.send(b"{}")

    with pytest.raises(NoAnswerError) as caught:
        asyncio.run(once())

    told = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert [] == secrets_in(told.encode(), ANYWHERE)
    assert place.peer.heads == []


def test_no_logger_is_told_the_key_however_much_is_logged(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    finished(place)

    assert [] == secrets_in(caplog.text.encode(), ANYWHERE)


def test_an_answer_spilled_beside_a_full_disk_holds_no_key(place: Place) -> None:
    async def once() -> bytes:
        async with open_client("openrouter", "http://provider.invalid/api/v1") as client:
            answer = await client.send(json.dumps({"messages": [{"content": "What is 101 + 1?"}]}).encode())
            kept = LedgerAnswer(answer.status, answer.raw, {}, answer.generation_id)
            request = Request("a", "run", place.plan().route, "row-101", b"{}", 1)
            with Ledger(place.world.ledger).transaction() as ledger:
                entry = ledger.claim(request, lambda: None)
            ledger.close()
            assert State.RESERVED == entry.state
            return spill(place.world.ledger, entry, kept).read_bytes()

    spilled = asyncio.run(once())

    assert [] == secrets_in(spilled + base64.b64decode(json.loads(spilled)["raw"]), ANYWHERE)


@pytest.mark.usefixtures("place")
def test_a_cassette_of_such_answers_holds_none_of_it() -> None:
    async def record() -> tuple[Interaction, ...]:
        async with open_client("openrouter", "http://provider.invalid/api/v1") as client:
            with recording() as tape:
                for number in (100, 101, 102, 107, 109, 111):
                    body = {"messages": [{"role": "user", "content": f"What is {number} + 1?"}]}
                    await client.send(json.dumps(body).encode())
        return tape.interactions

    where = Provenance("2026-01-01T00:00:00Z", "live", "openrouter/siliconflow", MODEL, stream=True, versions={})
    text = dump_cassette(Cassette(where, asyncio.run(record())))

    assert [] == secrets_in(text.encode(), (*ANYWHERE, *SPOKEN))
    assert "gen-1-load" in text
