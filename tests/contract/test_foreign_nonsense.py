"""Nonsense of the other side is its error, named so; an error of ours is ours.

Deep nesting, a template that builds ten gigabytes, and an engine's answers, in this process and over a Unix socket.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from harness.emulator.account import Account
from harness.emulator.catalog import MODEL, endpoint_entries
from harness.fixtures.raw_peer import peering, response
from harness.fixtures.runs import byte_format, make_world, whole_run
from pipeline.base.json_lines import MOST_NESTED, foreign_json
from pipeline.cli.main import main
from pipeline.formats.chat_template import FILE_NAME, load_template
from pipeline.formats.tokenizer import TokenizerError
from pipeline.generation.backends.server import ServerBackend, judgement_of
from pipeline.generation.billing import Verdict, bill_of
from pipeline.generation.budget import Budget
from pipeline.generation.engines.dialects import DIALECTS
from pipeline.generation.engines.openrouter import KEY_VARIABLE, HttpAnswer
from pipeline.generation.engines.server import EngineFacts, EngineServer, ServerRequest
from pipeline.generation.ledger import Ledger, LedgerAnswer
from pipeline.generation.ledger_writer import LedgerWriter
from pipeline.generation.outcome import Row, StopError
from pipeline.generation.paid_client import PaidClient, retry_after_seconds
from pipeline.generation.retry import RetryingClient
from pipeline.proof.wire.completion import completion_of_json, completion_of_sse
from pipeline.records import Json, Prompt, Reason, Refusal, RefusedError, Route, Sampling

pytestmark = pytest.mark.contract

DEEP = ["[" * 200_000, "[" * 200_000 + "]" * 200_000, '{"a":' * 200_000, "[" * 900 + "]" * 900]
"""Cut off, whole, of objects, and so deep that it can be read and hardly walked."""
IDS = ["cut off", "whole", "objects", "nearly too deep"]


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """The provider's pages by their ends, over a Unix socket."""
    monkeypatch.setenv(KEY_VARIABLE, "sk-or-v1-" + "0123456789abcdef" * 4)
    found = {"key": dumped(Account().key_entry()), "endpoints": dumped(endpoint_entries(MODEL, 1 << 20))}

    def reply(head: bytes, _: bytes) -> list[bytes]:
        name = "key" if b"/key " in head.partition(b"\r\n")[0] else "endpoints"
        return response(found[name], headers={"content-type": "application/json"})

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "wire")

        async def connect(*_: object, **__: object) -> anyio.abc.SocketStream:
            return await anyio.connect_unix(path)

        monkeypatch.setattr(anyio, "connect_tcp", connect)
        with peering(reply, path):
            yield found


def dumped(value: Json) -> bytes:
    return json.dumps({"data": value}).encode()


@pytest.mark.parametrize("deep", DEEP, ids=IDS)
@pytest.mark.parametrize("page", ["endpoints", "key"])
@pytest.mark.parametrize(
    "within", ["%s", '{"data":%s}', '{"data":{"endpoints":[{"pricing":%s}]}}'], ids=["all", "data", "price"]
)
def test_a_page_that_is_nested_too_deeply_is_the_providers_error(
    deep: str, page: str, within: str, pages: dict[str, bytes], tmp_path: Path
) -> None:
    pages[page] = (within % deep).encode()
    (tmp_path / "tokenizer").mkdir()
    world = make_world(tmp_path, byte_format(tmp_path / "tokenizer"))
    route = Route("openrouter", MODEL, "siliconflow", stream=True)

    with pytest.raises(StopError, match=rf"{page} answered 200 with \d+ bytes that are not JSON"):
        whole_run(world, world.plan(route=route, base_url="http://provider.invalid/api/v1"))


@pytest.mark.parametrize("deep", DEEP, ids=IDS)
def test_an_answer_nested_too_deeply_is_refused_or_unread(deep: str) -> None:
    body = '{"id":"g","choices":%s,"usage":{"prompt_tokens":%s,"cost":%s}}' % (deep, deep, deep)  # noqa: UP031
    with pytest.raises(RefusedError):
        completion_of_json(body.encode())
    with pytest.raises(RefusedError):
        completion_of_sse(f"data: {body}\n\ndata: [DONE]\n\n")
    headers = f'{{"error":{{"metadata":{{"headers":{deep}}}}}}}'.encode()

    assert bill_of(body.encode()).cost_pico is None
    assert retry_after_seconds(HttpAnswer(429, headers, "application/json", None, None)) is None


@pytest.mark.parametrize(
    "text",
    [*DEEP, "[" * (MOST_NESTED + 2) + "]" * (MOST_NESTED + 2), "{", "\x00", "9" * 5000],
    ids=[*IDS, "a little too deep", "half", "a null byte", "a number too long"],
)
def test_json_of_others_is_read_or_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        foreign_json(text)


PROMPT = Prompt("a", ({"role": "user", "content": "x"},))
GREEDY = [
    '{{ "x" * 10000000000 }}',
    "{{ messages[0].content * 10000000000 }}",
    "{{ messages[0].content|center(10000000000) }}",
    "{{ messages[0].content * 10 ** 40 }}",
    "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    "{{ 1 // 0 }}",
]


@pytest.mark.parametrize("source", GREEDY, ids=["constant", "text", "filter", "overflow", "endless", "zero"])
def test_a_template_that_takes_too_much_refuses_its_prompt(source: str, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(source)
    template = load_template(tmp_path)
    assert template is not None

    with pytest.raises(RefusedError, match="cannot render this prompt") as refused:
        template.text(PROMPT)

    assert Reason.PROMPT_UNSUPPORTED is refused.value.refusal.reason


def test_a_template_that_cannot_be_compiled_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")

    with pytest.raises(TokenizerError, match="no usable chat template"):
        load_template(tmp_path)


ASKED = ServerRequest((1, 2, 3), Sampling(max_tokens=8), (9,))


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("deep", DEEP, ids=IDS)
def test_an_engines_nonsense_is_asked_for_again(name: str, deep: str) -> None:
    raw = f'{{"output_ids":{deep},"choices":{deep}}}'.encode()

    judgement = judgement_of(LedgerAnswer(200, raw), DIALECTS[name](), ASKED)

    assert Verdict.LATER is judgement.verdict
    assert "no JSON" in judgement.why


def test_an_error_of_ours_is_internal_and_not_the_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken for a contradiction of the engine's, and asked for again at every run."""
    dialect, asked = DIALECTS["sglang"](), list[bytes]()
    plan = make_world(tmp_path, byte_format(tmp_path)).plan(route=Route("sglang", "m/k"))
    ledger = Ledger(tmp_path / "ledger.sqlite")

    def broken(*_: object) -> None:
        raise KeyError("ours")

    class Server(EngineServer):
        async def send(self, body: bytes) -> HttpAnswer:
            asked.append(body)
            return HttpAnswer(200, b"{}", "application/json", None, None)

    monkeypatch.setattr(type(dialect), "generation", broken)

    async def work() -> Refusal:
        server = Server(dialect, "http://provider.invalid")
        server.facts = EngineFacts("sglang", "1", "m/k", None, 1 << 20, None, None, None)
        async with LedgerWriter(ledger) as writer:
            client = RetryingClient(PaidClient(writer, Budget(), server), plan.patience, 1)
            (outcome,) = await ServerBackend(plan, server, client, "run-1").complete([Row(PROMPT, (1, 2, 3))])
        assert isinstance(outcome.answer, Refusal)
        return outcome.answer

    refusal = asyncio.run(work())
    ledger.close()

    assert (Reason.INTERNAL_ERROR, 1) == (refusal.reason, len(asked))
    assert "KeyError at server.py" in refusal.detail


@pytest.mark.parametrize(
    "error, words",
    [(RecursionError("maximum recursion depth exceeded"), "nested too deeply"), (MemoryError(), "not enough memory")],
    ids=["depth", "memory"],
)
def test_what_the_machine_cannot_hold_asks_for_no_report(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr("pipeline.cli.ledger.run_ledger", fail)

    assert main(["ledger"])

    said = capsys.readouterr().err
    assert words in said
    assert "report" not in said
