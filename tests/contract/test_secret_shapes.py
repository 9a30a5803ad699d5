"""A prompt that holds what has the shape of a key is not sent, on no route; what was paid for before is used.

Whole runs over a real connection (a Unix socket: this suite has no network). Keys are put together here, so that no
scanner takes them for real.
"""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import anyio
import pytest

from harness.fixtures.canned_peer import canned
from harness.fixtures.raw_peer import peering
from harness.fixtures.runs import World, byte_format, make_world, prompt_line, whole_run
from pipeline.base.prompts import prompt_of
from pipeline.base.redaction import MARK, Redaction, redact
from pipeline.base.secret_shapes import shapes_in
from pipeline.datasets.features import Feature, shape_of
from pipeline.generation.backends.local import LocalBackend
from pipeline.generation.backends.server import ServerBackend
from pipeline.generation.breaker import Sign
from pipeline.generation.budget import Budget
from pipeline.generation.engines.dialects import DIALECTS
from pipeline.generation.engines.openrouter import KEY_VARIABLE
from pipeline.generation.engines.server import EngineFacts, EngineServer
from pipeline.generation.ledger import Ledger
from pipeline.generation.ledger_writer import LedgerWriter
from pipeline.generation.outcome import Row
from pipeline.generation.paid_client import PaidClient
from pipeline.generation.plan import BreakerPolicy, Plan
from pipeline.generation.retry import RetryingClient
from pipeline.records import Json, JsonObject, Prompt, Reason, Refusal, Route

pytestmark = pytest.mark.contract

HEX = "0f1e2d3c4b5a6978" * 4
ROUTER = "sk-or-v1-" + HEX
KEYS = {
    "OpenRouter": ROUTER,
    "OpenAI": "sk-" + "proj-" + "Ab1Cd2Ef3Gh4Ij5Kl6Mn",
    "Anthropic": "sk-" + "ant-api03-" + HEX,
    "AWS": "AK" + "IA" + "QX3T7ZLM2PWK9RVB",
    "AWS, for a while": "AS" + "IA" + "QX3T7ZLM2PWK9RVB",
    "Google": "AI" + "za" + "SyB4x-7Qw9Lk2Jh5Gf8Ds1Ap6Zo3Xi0Cv-Nm"[:35],
    "Slack": "xo" + "xb-" + "2718281828-314159265358-" + "aBcDeFgHiJkLmNoPqRsTuVwX",
    "GitHub": "gh" + "p_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE3fG5",
    "GitHub, fine-grained": "github" + "_pat_" + "11ABCDEFG0" + "aB3dE5gH7jK9mN1pQ3sT5v",
    "Hugging Face": "hf" + "_" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345",
    "Groq": "gs" + "k_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE3fG5",
    "signed token": "ey" + "JhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0." + "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    "PEM": "-----BEGIN " + "PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END " + "PRIVATE KEY-----",
    "PEM of RSA": "-----BEGIN " + "RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n",
}

ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 in a longer text": lambda text: base64.b64encode(f"the key: {text}?".encode()).decode().rstrip("="),
    "base64 behind a word": lambda text: "data/" + base64.urlsafe_b64encode(text.encode()).decode(),
    "base64 with line ends": lambda text: base64.encodebytes(f"{'words of a letter ' * 4}{text}".encode()).decode(),
    "base64 of base64": lambda text: base64.b64encode(base64.b64encode(text.encode())).decode(),
    "base64 of UTF-16": lambda text: base64.b64encode(text.encode("utf-16-le")).decode(),
    "hex": lambda text: text.encode().hex(),
    "hex in capitals": lambda text: text.encode().hex().upper(),
    "hex with colons": lambda text: text.encode().hex(":"),
    "hex of C": lambda text: ", ".join(f"0x{byte:02x}" for byte in text.encode()),
    "UTF-16": lambda text: text.encode("utf-16-le").decode("latin-1"),
    "UTF-16, the other way": lambda text: text.encode("utf-16-be").decode("latin-1"),
    "UTF-32": lambda text: text.encode("utf-32-le").decode("latin-1"),
    "percent": lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    "percent, twice": lambda text: "".join(f"%25{byte:02x}" for byte in text.encode()),
    "\\u": lambda text: "".join(f"\\u{ord(char):04x}" for char in text),
    "\\u in a string": lambda text: "".join(f"\\\\u{ord(char):04X}" for char in text),
    "\\x": lambda text: "".join(f"\\x{ord(char):02x}" for char in text),
    "HTML": lambda text: "".join(f"&#{ord(char)};" for char in text),
}


@pytest.mark.parametrize("encode", ENCODINGS.values(), ids=ENCODINGS)
def test_every_key_is_seen_behind_every_encoding(encode: Callable[[str], str]) -> None:
    assert [] == [name for name, key in KEYS.items() if not [*shapes_in(f'Use "{encode(key)}" there.')]]


@pytest.mark.parametrize("encode", ENCODINGS.values(), ids=ENCODINGS)
def test_no_quotation_holds_a_key_in_any_encoding(encode: Callable[[str], str]) -> None:
    quoted = redact(f"No auth for {encode(ROUTER)}, sorry", 4000)

    assert MARK in quoted
    assert encode(ROUTER)[:60] not in quoted


@pytest.mark.parametrize("name", ["base64", "base64 in a longer text", "hex", "hex in capitals", "percent", "\\u"])
def test_the_key_in_use_leaves_an_answer_in_any_encoding(name: str) -> None:
    left = Redaction(ROUTER).of(f'{{"message":"No auth for {ENCODINGS[name](ROUTER)}"}}'.encode())

    assert b"[key removed]" in left
    assert [] == [*shapes_in(left.decode())]


@pytest.mark.parametrize(
    "text",
    [
        "a risk-or-benefit-analysis-of-2026 of sk-learn, hf_transfer and an asiatic AKIA lily",
        "sk-... is where your key goes; set OPENROUTER_API_KEY=sk-or-v1-… first",
        "sha256 " + "0123456789abcdef" * 4 + " and " + base64.b64encode(bytes(range(256))).decode(),
        "user_2abcdefghijklmnopqrstuvwxyz of org-abc123 asks: what is a cookie, and who is the bearer of a token?",
        "https://example.com/a?page=2&sort=up and me@example.com: -----BEGIN CERTIFICATE-----",
        "\\u0041\\u0042 %41%42 &#65; 41 42 43 44 45 46 47 48 49 4a 4b 4c 4d 4e 4f 50",
        "the ProjectDescriptionOfTheLongestIdentifierThatAnybodyEverWroteDown1234567890abcdefABCDEF",
    ],
)
def test_what_only_looks_like_a_key_is_sent(text: str) -> None:
    assert [] == [*shapes_in(text)]


TOOL: JsonObject = {"type": "function", "function": {"name": "buy", "parameters": {"type": "object"}}}
CALL: JsonObject = {"id": "a", "type": "function", "function": {"name": "buy", "arguments": f'{{"key":"{ROUTER}"}}'}}
USER: JsonObject = {"role": "user", "content": "What is 104 + 1?"}


def described(text: str) -> JsonObject:
    return {"type": "function", "function": {"name": "buy", "description": text, "parameters": {"type": "object"}}}


PLACES: dict[str, dict[str, Json]] = {
    "a question": {"messages": [{"role": "user", "content": f"Is {ROUTER} a key?"}]},
    "a part": {"messages": [{"role": "user", "content": [{"type": "text", "text": f"Is {ROUTER} a key?"}]}]},
    "a system text": {"messages": [{"role": "system", "content": f"Use {ROUTER}."}, dict(USER)]},
    "a tool's result": {"messages": [dict(USER), {"role": "tool", "tool_call_id": "a", "content": f"k={ROUTER}"}]},
    "a call": {"messages": [dict(USER), {"role": "assistant", "content": "", "tool_calls": [dict(CALL)]}, dict(USER)]},
    "thoughts": {"messages": [dict(USER), {"role": "assistant", "content": "", "reasoning": ROUTER}, dict(USER)]},
    "a tool": {"messages": [dict(USER)], "tools": [dict(described(f"Uses {ROUTER}."))]},
    "a name": {"messages": [dict(USER)], "tools": [{**TOOL, ROUTER: 1}]},
    "base64": {"messages": [{"role": "user", "content": ENCODINGS["base64"](ROUTER)}]},
}


@dataclass
class Provider:
    """Answers every question alike, and keeps the requests."""

    answer: object
    asked: list[bytes] = field(default_factory=list)

    def reply(self, head: bytes, body: bytes) -> tuple[bytes]:
        self.asked += [body] if head.startswith(b"POST") else []
        return self.answer.reply(head, body)  # type: ignore[attr-defined, no-any-return]


@dataclass
class Place:
    world: World
    provider: Provider

    def plan(self, **changes: object) -> Plan:
        accepted = BreakerPolicy(accepted=frozenset(Sign))
        route = Route("openrouter", "drafter-gate/tiny-kimi", "siliconflow", stream=True)
        return self.world.plan(route=route, base_url="http://provider.invalid/api/v1", watch=accepted, **changes)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv(KEY_VARIABLE, "sk-or-v1-" + "0123456789abcdef" * 4)
    (vocabulary := tmp_path / "tokenizer").mkdir()
    world = make_world(tmp_path, byte_format(vocabulary))
    lines = [{"id": name, **prompt} for name, prompt in PLACES.items()]
    world.write_prompts(prompt_line(104), *map(json.dumps, lines))
    provider = Provider(canned(world.fmt, prompt_of(json.loads(prompt_line(104))), 60, whole=True))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "wire")

        async def connect(*_: object, **__: object) -> anyio.abc.SocketStream:
            return await anyio.connect_unix(path)

        monkeypatch.setattr(anyio, "connect_tcp", connect)
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        with peering(provider.reply, path):
            yield Place(world, provider)


def requests_of(world: World) -> list[str]:
    ledger = Ledger(world.ledger)
    try:
        return [row for (row,) in ledger._db.execute("SELECT row FROM requests ORDER BY row")]
    finally:
        ledger.close()


def test_a_prompt_with_a_key_is_refused_before_it_is_reserved(place: Place) -> None:
    summary = whole_run(place.world, place.plan())

    refused = {str(line["id"]): line["reason"] for line in place.world.quarantine()}
    assert dict.fromkeys(PLACES, "secret_shape") == refused
    assert (1, len(PLACES), {"secret_shape": len(PLACES)}) == (
        *(summary.rows["accepted"], summary.rows["refused"]),
        dict(summary.by_reason),
    )
    assert (1, 0) == (summary.rows["asked"], summary.rows["from_ledger"])
    assert 1 == len(place.provider.asked)
    assert ["row-104"] == requests_of(place.world)


def test_the_refusal_says_where_and_not_what(place: Place) -> None:
    summary = whole_run(place.world, place.plan())
    written = b"".join(path.read_bytes() for path in place.world.out.rglob("*") if path.is_file())

    told = {str(line["id"]): line["where"]["field"] for line in place.world.quarantine()}  # type: ignore[call-overload, index]
    assert {"a question": "messages[0].content", "a tool": "tools[0].function.description"}.items() <= told.items()
    assert "--allow-secret-shapes" in summary.first_of_reason[Reason.SECRET_SHAPE]
    assert HEX.encode() not in written


def test_a_user_may_send_such_prompts(place: Place) -> None:
    place.world.write_prompts(json.dumps({"id": "a", **PLACES["a question"]}))

    summary = whole_run(place.world, place.plan(allow_secret_shapes=True))

    assert 1 == summary.rows["asked"] == len(place.provider.asked)
    assert HEX.encode() in place.provider.asked[0]


def test_an_answer_that_was_paid_for_is_used_all_the_same(place: Place) -> None:
    """A ledger from before this rule, or from a run that could send: nothing paid is lost or sent again."""
    question = {"id": "a", "messages": [{"role": "user", "content": f"Is {ROUTER} a key?"}]}
    place.provider.answer = canned(place.world.fmt, prompt_of(question), 60, whole=True)  # type: ignore[arg-type]
    place.world.write_prompts(json.dumps(question))
    whole_run(place.world, place.plan(allow_secret_shapes=True))

    summary = whole_run(place.world, place.plan(out=place.world.folder / "another"))

    assert 1 == len(place.provider.asked)
    assert (1, 0, 1) == (summary.rows["accepted"], summary.rows["asked"], summary.rows["from_ledger"])


def test_a_run_that_may_send_them_is_another_run(place: Place) -> None:
    whole_run(place.world, place.plan())

    with pytest.raises(Exception, match="prompts_with_keys"):
        whole_run(place.world, place.plan(allow_secret_shapes=True))


ROW = Row(prompt_of({"id": "a", **PLACES["a call"]}), (1, 2, 3))
REFUSED = (Reason.SECRET_SHAPE, "messages[1].tool_calls[0].function.arguments")


def test_a_model_in_this_process_is_not_asked_either(tmp_path: Path) -> None:
    """A row of our own model would be trained on, and passed on with the key in it."""
    backend = object.__new__(LocalBackend)  # what loads a model needs torch
    backend._plan = make_world(tmp_path, byte_format(tmp_path)).plan()

    refusal = backend.refusal(ROW)

    assert refusal is not None
    assert REFUSED == (refusal.reason, refusal.field)


@pytest.mark.parametrize("api", ["sglang", "vllm"])
def test_an_engines_server_is_not_asked_either(api: Literal["sglang", "vllm"], tmp_path: Path) -> None:
    plan = make_world(tmp_path, byte_format(tmp_path)).plan(route=Route(api, "m/k"))
    ledger = Ledger(tmp_path / "ledger.sqlite")

    async def work() -> Refusal:
        server = EngineServer(DIALECTS[api](), "http://provider.invalid")
        server.facts = EngineFacts(api, "1", "m/k", None, 1 << 20, None, None, None)
        async with LedgerWriter(ledger) as writer:
            client = RetryingClient(PaidClient(writer, Budget(), server), plan.patience, 1)
            (outcome,) = await ServerBackend(plan, server, client, "run-1").complete([ROW])
        assert isinstance(outcome.answer, Refusal)
        return outcome.answer

    refusal = asyncio.run(work())
    with ledger.transaction():
        assert 0 == ledger.writes("run-1")
    ledger.close()
    assert REFUSED == (refusal.reason, refusal.field)


def test_an_audit_names_the_rows_before_anything_is_asked() -> None:
    (found,) = shape_of(Prompt("a", ({"role": "user", "content": ROUTER},)))

    assert (Feature.SECRET_SHAPE, "messages[0].content") == (found.feature, found.where)
    assert HEX not in found.what
