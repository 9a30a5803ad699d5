"""Many real answers of the emulated routes, with true ids.

Guarantees: every answer went over a real loopback socket through the real client, and is joined to its entry in the
oracle log by generation id. Needs torch, through the emulator only.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

from harness.emulator.oracle_log import OracleEntry, read_oracle
from harness.views.roundtrip import MODEL, RoundTrip, read
from pipeline.base.paths import ROOT
from pipeline.base.prompts import read_prompts
from pipeline.formats.format import Format
from pipeline.generation.engines.openrouter import OpenRouter, encode_body
from pipeline.generation.engines.request import request_body
from pipeline.proof.oracle import shown_only
from pipeline.records import Completion, Prompt, Refusal, RefusedError, Route, Sampling, TokenRow, ToolMode

PROMPTS = ROOT / "harness" / "tiny_target" / "prompts.jsonl"
CONCURRENCY = 48


class SurveyError(Exception):
    """The emulator did not start, or an answer is missing."""


@dataclass(frozen=True, slots=True)
class SurveyedAnswer:
    """One answer: how it was asked, its bytes, the truth.

    `named` is set for an engine's own endpoint, which names no provider and returns the ids beside the text: the answer
    then has that name, and only what a hosted API shows.
    """

    trip: RoundTrip
    prompt: Prompt
    raw: bytes
    truth: OracleEntry
    max_tokens: int
    named: str = ""

    @property
    def completion(self) -> Completion | RefusedError:
        """Return the answer off the wire, or its refusal."""
        try:
            found = read(self.raw, stream=self.trip.stream)
        except RefusedError as error:
            return error
        return replace(shown_only(found), provider=self.named) if self.named else found

    def is_wrong(self, row: TokenRow | Refusal) -> bool:
        """Return whether a row's ids are not the true ones."""
        truth = self.truth
        return isinstance(row, TokenRow) and (row.output_ids, row.prompt_ids) != (truth.output_ids, truth.prompt_ids)


@dataclass(frozen=True, slots=True)
class SurveyQuestion:
    """One request to make.

    `length_cut` gives it a limit that most answers reach.
    """

    trip: RoundTrip
    prompt: Prompt
    seed: int
    length_cut: bool = False

    @property
    def max_tokens(self) -> int:
        """Return the limit in tokens.

        Cut answers end at varied places.
        """
        return 6 + self.seed % 29 if self.length_cut else 256


def questions(trips: Iterable[RoundTrip], each: int, *, seed: int, cut_every: int = 8) -> Iterator[SurveyQuestion]:
    """Yield `each` questions for every way to ask.

    Over the shipped prompts; every `cut_every`-th is cut by length.
    """
    prompts = [prompt for prompt in read_prompts(PROMPTS) if isinstance(prompt, Prompt)]
    with_tools = [prompt for prompt in prompts if prompt.tools]
    for place, trip in enumerate(trips):
        chosen = with_tools if trip.tools_sent else prompts
        for turn, prompt in enumerate(islice(cycle(chosen), each)):
            number = seed + place * 100_000 + turn
            named = replace(prompt, id=f"{trip.name}/{number}")
            yield SurveyQuestion(trip, named, number, length_cut=turn % cut_every == cut_every - 1)


@contextmanager
def emulator(*options: str) -> Iterator[tuple[str, Path]]:
    """Start an emulator; yield its URL and its oracle log.

    Raises SurveyError where it does not start.
    """
    with tempfile.TemporaryDirectory() as folder:
        oracle = Path(folder) / "oracle.jsonl"
        command = [sys.executable, "-m", "harness", "emulator", "--port", "0", "--oracle", str(oracle), *options]
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as server:
            try:
                line = (server.stdout.readline() if server.stdout else "").split()
                if line[:1] != ["listening"]:
                    raise SurveyError("the emulator did not start; its own message stands above")
                yield line[1], oracle
            finally:
                server.terminate()


def survey(wanted: Iterable[SurveyQuestion], fmt: Format, *, resegment: float = 0.0) -> list[SurveyedAnswer]:
    """Ask every question; return the answers in order.

    Raises SurveyError for an answer that is not status 200.
    """
    wanted = list(wanted)
    with emulator("--resegment", str(resegment), "--max-batch", str(CONCURRENCY)) as (url, oracle):
        answers = asyncio.run(ask_all(url, wanted, fmt))
        truths = {entry.generation_id: entry for entry in read_oracle(oracle)}
    return [
        SurveyedAnswer(question.trip, question.prompt, raw, truths[generation], question.max_tokens)
        for question, (raw, generation) in zip(wanted, answers, strict=True)
    ]


async def ask_all(url: str, wanted: Sequence[SurveyQuestion], fmt: Format) -> list[tuple[bytes, str]]:
    """Ask every question; return bytes and generation ids.

    At most `CONCURRENCY` at once.
    """
    slots = asyncio.Semaphore(CONCURRENCY)
    async with OpenRouter(url) as client:

        async def one(question: SurveyQuestion) -> tuple[bytes, str]:
            async with slots:
                return await _ask(client, question, fmt)

        return await asyncio.gather(*(one(question) for question in wanted))


async def _ask(client: OpenRouter, question: SurveyQuestion, fmt: Format) -> tuple[bytes, str]:
    trip = question.trip
    route = Route("emulator", MODEL, trip.profile.slug, trip.stream)
    mode = ToolMode.NONE
    if question.prompt.tools:
        mode = ToolMode.STRUCTURED if trip.tools_sent else ToolMode.RAW
    sampling = Sampling(1.0, question.max_tokens, question.seed, trip.logprobs, trip.ids)
    body = request_body(question.prompt, route, sampling, mode, fmt, question.prompt.id)
    answer = await client.send(encode_body(body))
    if answer.status != 200 or answer.generation_id is None:  # noqa: PLR2004 — HTTP's own number
        raise SurveyError(f"{question.prompt.id}: status {answer.status}, {answer.raw[:200]!r}")
    return answer.raw, answer.generation_id
