"""Replay recorded answers through the real client.

`python -m harness replay EXCHANGES.jsonl`

Guarantees: each answer is sent over a real socket with its recorded status, headers and bytes, once whole and once in
awkward pieces. What the client, the bill and the parser make of it is compared with an independent reading of the same
bytes, and with the openai SDK's where that reads it. Exit 1 for a crash, for changed bytes, for a difference, and for
an empty answer that no sign reports.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import openai

from harness.fixtures.raw_peer import peering, response
from harness.measures.second_readings import SecondReading, read, read_by_sdk
from pipeline.base.json_lines import object_of
from pipeline.base.money import pico
from pipeline.base.screen import say, show
from pipeline.fingerprints.exchanges import Exchange, exchange_of
from pipeline.generation.billing import bill_of, completion_of, verdict_of
from pipeline.generation.breaker import row_signs_of
from pipeline.generation.engines.openrouter import HttpAnswer, Key, OpenRouter, encode_body
from pipeline.generation.ledger import LedgerAnswer
from pipeline.generation.outcome import Outcome, Row, Status
from pipeline.generation.paid_client import retry_after_seconds
from pipeline.records import Completion, Prompt, Reason, Refusal, RefusedError

AT_ONCE = 16
NO_KEY = Key("replay-" + "needs-no-key")
OPENROUTER = ("openrouter.ai/", "openrouter:/")
CHAT = "/chat/completions"
OK = 200


class Came(StrEnum):
    """The outcome of one answer; the last four are failures."""

    EQUAL = "parsed equal"
    EMPTY = "parsed equal, empty and said to be"
    REFUSED = "refused"
    TURNED_AWAY = "error status"
    CRASH = "crash"
    BYTES = "other bytes than sent"
    DIFFERS = "read otherwise"
    SILENT = "silently empty"


FAILURES = frozenset({Came.CRASH, Came.BYTES, Came.DIFFERS, Came.SILENT})


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """An exchange and its response headers."""

    exchange: Exchange
    headers: Mapping[str, str]

    @property
    def is_openrouter(self) -> bool:
        return self.exchange.endpoint.startswith(OPENROUTER)

    def writes(self, *, awkward: bool) -> list[bytes]:
        """Return the response as sent, compressed again where it was."""
        body = self.exchange.body.encode("utf-8", "surrogatepass")
        zipped = self.headers.get("content-encoding") == "gzip"
        sent = gzip.compress(body) if zipped else body
        return response(sent, status=self.exchange.status, headers=self.headers, awkward=awkward)


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outcome of one answer, in words too."""

    id: str
    came: Came
    detail: str = ""
    sdk: str = ""
    """What the SDK made of it: `same`, `other`, `raises`; empty where it was not asked."""


def recorded_in(path: Path) -> Iterator[RecordedAnswer]:
    """Yield the chat completions of a file of exchanges.

    Raises OSError; ValueError for a line that is no exchange.
    """
    with path.open("rb") as file:
        for raw in file:
            if not raw.strip():
                continue
            line = object_of(raw)
            exchange, headers = exchange_of(line), line.get("headers")
            known = {name: str(value) for name, value in headers.items()} if isinstance(headers, dict) else {}
            if exchange.endpoint.endswith(CHAT) or (not exchange.endpoint and exchange.request):
                yield RecordedAnswer(exchange, known)


def replay(found: Sequence[RecordedAnswer]) -> list[Replayed]:
    """Return each answer's outcome, sent whole and in pieces.

    Where the two differ, the failure is returned.
    """
    return asyncio.run(_replay(found))


async def _replay(found: Sequence[RecordedAnswer]) -> list[Replayed]:
    def reply(_: bytes, body: bytes) -> Iterable[bytes]:
        asked = json.loads(body)
        one: RecordedAnswer = found[asked["replay"]]
        return one.writes(awkward=asked["awkward"])

    gate = asyncio.Semaphore(AT_ONCE)
    with peering(reply) as url:
        sdk = openai.AsyncOpenAI(api_key=NO_KEY.value, base_url=url, max_retries=0)
        async with OpenRouter(url, NO_KEY) as client, sdk:

            async def one(number: int) -> Replayed:
                async with gate:
                    ways = [await _sent(client, found[number], number, awkward=way) for way in (False, True)]
                    what = next((way for way in ways if way.came in FAILURES), ways[0])
                    return replace(what, sdk=await _second(sdk, found[number], number))

            return list(await asyncio.gather(*map(one, range(len(found)))))


async def _sent(client: OpenRouter, one: RecordedAnswer, number: int, *, awkward: bool) -> Replayed:
    body = encode_body({"replay": number, "awkward": awkward, **(one.exchange.request or {})})
    try:
        came, detail = _judged(await client.send(body), one.exchange)
    except Exception as error:  # noqa: BLE001 - a crash is what is looked for
        came, detail = Came.CRASH, f"{type(error).__name__}: {error}"
    return Replayed(one.exchange.id, came, detail)


async def _second(sdk: openai.AsyncOpenAI, one: RecordedAnswer, number: int) -> str:
    """Compare the SDK's reading with the plain one."""
    asked: dict[str, object] = {"replay": number, "awkward": False}
    found = await read_by_sdk(sdk, asked, stream=one.exchange.stream)
    if found is None:
        return "raises"
    plain = read(one.exchange.body.encode("utf-8", "surrogatepass"))
    return "same" if _text_of(found) == _text_of(plain) else "other"


def _text_of(reading: SecondReading) -> tuple[object, ...]:
    return reading.content, reading.reasoning, reading.calls


def _judged(answer: HttpAnswer, exchange: Exchange) -> tuple[Came, str]:
    body = exchange.body.encode("utf-8", "surrogatepass")
    if (answer.status, answer.raw, answer.complete) != (exchange.status, body, True):
        return Came.BYTES, f"{answer.status}, {len(answer.raw)} of {len(body)} bytes, complete: {answer.complete}"
    kept = LedgerAnswer(answer.status, answer.raw, {"complete": answer.complete}, answer.generation_id)
    verdict, plain = verdict_of(kept), read(answer.raw)
    retry_after_seconds(answer)
    if (other := _bill(answer.raw, plain)) is not None:
        return Came.DIFFERS, other
    try:
        completion = completion_of(kept, stream=exchange.stream)
    except RefusedError as error:
        # A refusal is right for an error, and for a stream or a body that is none.
        if kept.status != OK:
            return Came.TURNED_AWAY, f"{kept.status} ({verdict})"
        where = "an error, " if plain.error else ""
        return Came.REFUSED, f"{where}{error.refusal.reason} ({error.refusal.field})"
    return _compared(completion, plain)


def _bill(raw: bytes, plain: SecondReading) -> str | None:
    """Return how the bill differs from the plain reading."""
    bill = bill_of(raw)
    cost = None if plain.usage[2] is None else pico(plain.usage[2])
    ours, theirs = (bill.prompt_tokens, bill.completion_tokens, bill.cost_pico), (*plain.usage[:2], cost)
    return None if ours == theirs else f"billed {ours}, read {theirs}"


def _compared(completion: Completion, plain: SecondReading) -> tuple[Came, str]:
    calls = tuple((call.id, call.name, call.arguments) for call in completion.tool_calls)
    counted = completion.usage
    usage = (None, None) if counted is None else (counted.prompt_tokens, counted.completion_tokens)
    ours: dict[str, object] = {
        "content": completion.content or "",
        "reasoning": completion.reasoning or "",
        "calls": calls,
    }
    theirs: dict[str, object] = {"content": plain.content, "reasoning": plain.reasoning, "calls": plain.calls}
    ours, theirs = ours | {"usage": usage}, theirs | {"usage": plain.usage[:2]}
    if ours != theirs:
        return Came.DIFFERS, ", ".join(key for key in ours if ours[key] != theirs[key])
    if plain.error:
        return Came.DIFFERS, "an error was passed over"
    if not plain.nothing:
        return Came.EQUAL, ""
    return (Came.EMPTY, "") if _is_told(completion) else (Came.SILENT, str(completion.finish_reason))


def _is_told(completion: Completion) -> bool:
    """Whether the breaker is told that the answer is empty."""
    row = Row(Prompt("replayed", ()), ())
    seen = row_signs_of(Outcome(row, Status.ANSWERED, completion, "request"), Refusal(Reason.EMPTY_ANSWER, ""))
    return seen is not None and "empty" in seen.signs


def table(found: Sequence[RecordedAnswer], came: Sequence[Replayed]) -> list[dict[str, object]]:
    """Return one object for each API, form and outcome.

    `{"api", "form", "came", "detail", "sdk", "n"}`, most frequent first.
    """
    counts = Counter(
        (
            "openrouter" if one.is_openrouter else "others",
            "stream" if one.exchange.stream else "json",
            *(str(what.came), what.detail, what.sdk),
        )
        for one, what in zip(found, came, strict=True)
    )
    names = ("api", "form", "came", "detail", "sdk")
    ordered = sorted(counts.items(), key=lambda item: (item[0][:2], -item[1]))
    return [{**dict(zip(names, key, strict=True)), "n": n} for key, n in ordered]


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay a file; 1 for a failure, 2 if unreadable."""
    parser = argparse.ArgumentParser(prog="python -m harness replay", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("exchanges", type=Path, metavar="EXCHANGES.jsonl")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    try:
        found = list(recorded_in(options.exchanges))
    except (OSError, ValueError, RefusedError) as error:
        say(f"error: {options.exchanges}: {error}")
        return 2
    came = replay(found)
    for line in table(found, came):
        head = f"{line['api']:10}  {line['form']:6}  {line['n']:5}  {line['came']:32}  {line['detail']:44}"
        show(json.dumps(line) if options.json else f"{head}  SDK: {line['sdk']}")
    failed = [one for one in came if one.came in FAILURES]
    for one in failed:
        say(f"{one.id}: {one.came}: {one.detail}")
    return 1 if failed else 0
