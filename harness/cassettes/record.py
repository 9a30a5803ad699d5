"""The emulator's cassettes, recorded over a real loopback socket.

    python -m harness cassettes record [--only NAME]

Guarantees: each cassette holds one whole answer of the case it is named for, with its true ids from the oracle log. A
case that fails leaves its old file as it was and makes the exit status 1. A case is a prompt and its settings, the same
for recording and replay, so that the request's bytes are the same; the seed that made the recorded answer stands in the
request. Needs torch, through the emulator only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from harness.cassettes.cassette import Cassette, CassetteError, Oracle, Provenance, save_cassette
from harness.cassettes.replay import Tape, recording
from harness.cassettes.staleness import cassette_paths, emulator_digests, versions
from harness.emulator.oracle_log import OracleEntry, read_oracle
from harness.tiny_target.samples import assistant, user
from harness.tiny_target.tools import CLOCK, WEATHER
from harness.views.view import PROFILES, Profile
from pipeline.base.paths import ROOT
from pipeline.base.screen import say, show
from pipeline.formats.format import Format
from pipeline.formats.registry import load_format
from pipeline.formats.tokenizer import TokenizerError, load_tokenizer
from pipeline.generation.engines.openrouter import NoAnswerError, encode_body, open_client
from pipeline.generation.engines.request import request_body
from pipeline.records import Ids, Prompt, RefusedError, Route, Sampling, SpanKind, ToolMode

WEIGHTS = ROOT / "harness" / "tiny_target" / "weights"
SEEDS = range(1, 41)
"""Tried in order until an answer shows what its case is about."""


MODEL: Final = "drafter-gate/tiny-kimi"

THINKING = Prompt("thinking", (user("What is 17 + 26?"),))
INSTANT = Prompt("instant", (user("Write a Python function that doubles a number."),), thinking=False)
TOOLS = Prompt("tools", (user("Mia asks: weather in Oslo?"),), tools=(WEATHER, CLOCK))
TURNS = Prompt(
    "turns",
    (
        {"role": "system", "content": "You are a helpful assistant."},
        user("Hi, Ana here from Kyoto!"),
        assistant("Hello Ana! 🙂", reasoning="A greeting from Kyoto.\nBe friendly to Ana."),
        user("What is 40 - 12?"),
    ),
)


@dataclass(frozen=True, slots=True)
class CassetteCase:
    """One question.

    `shows` names what the answer must hold; `own_ids` asks for the provider's strongest evidence.
    """

    name: str
    prompt: Prompt
    shows: Literal["reasoning", "content", "tools", "cut"]
    tool_mode: ToolMode = ToolMode.NONE
    stream: bool = False
    max_tokens: int = 256
    own_ids: bool = False


CASES: Final = {
    case.name: case
    for case in (
        CassetteCase("reasoning", THINKING, "reasoning"),
        CassetteCase("content_only", INSTANT, "content"),
        CassetteCase("tools_raw", TOOLS, "tools", ToolMode.RAW),
        CassetteCase("tools_structured", TOOLS, "tools", ToolMode.STRUCTURED),
        CassetteCase("multi_turn", TURNS, "reasoning"),
        CassetteCase("length_cut", THINKING, "cut", max_tokens=12),
        CassetteCase("stream", THINKING, "reasoning", stream=True),
        CassetteCase("own_ids", THINKING, "reasoning", stream=True, own_ids=True),
    )
}


@dataclass(frozen=True, slots=True)
class Recorder:
    """What recording needs: emulator, oracle log, format, folders."""

    url: str
    oracle: Path
    fmt: Format
    library: Path
    root: Path = ROOT


def main(arguments: Sequence[str] | None = None) -> int:
    """Record.

    Exit 0, 1 where a cassette failed, 2 where nothing could start.
    """
    parser = argparse.ArgumentParser(prog="python -m harness cassettes", description=__doc__.splitlines()[0])
    parser.add_argument("verb", nargs="?", choices=["record"], default="record", help="record (the only verb)")
    parser.add_argument("--only", metavar="NAME", help="cassettes whose name holds this, as chutes or chutes/stream")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="the emulator's model")
    parser.add_argument("--library", type=Path, default=ROOT / "cassettes", help="where the cassettes go")
    options = parser.parse_args(arguments)
    chosen = [name for name in names() if not options.only or options.only in name]
    if not chosen:
        say(f"no cassette's name holds {options.only!r}; they are {', '.join(names())}")
        return 2
    try:
        fmt = load_format("kimi-k2.5", load_tokenizer(options.weights))
        with tempfile.TemporaryDirectory() as folder, emulator(options.weights, Path(folder) / "oracle.jsonl") as url:
            recorder = Recorder(url, Path(folder) / "oracle.jsonl", fmt, options.library)
            failed = [name for name in chosen if not _is_recorded(name, recorder)]
    except (CassetteError, TokenizerError, OSError) as error:
        say(str(error))
        return 2
    if not options.only and not failed:
        remove_orphans(options.library.parent)
    return 1 if failed else 0


@contextmanager
def emulator(weights: Path, oracle: Path) -> Iterator[str]:
    """Start an emulator, and yield its base URL.

    Raises CassetteError where it does not start.
    """
    command = [sys.executable, "-m", "harness", "emulator", "--port", "0", "--weights", str(weights)]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    command += ["--oracle", str(oracle), "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as server:
        try:
            ready = (server.stdout.readline() if server.stdout else "").split()
            if ready[:1] != ["listening"]:
                raise CassetteError("the emulator did not start; its own message stands above")
            yield ready[1]
        finally:
            server.terminate()


def _is_recorded(name: str, recorder: Recorder) -> bool:
    """Record one cassette, and print what came of it."""
    try:
        seed = record(name, recorder)
    except (CassetteError, NoAnswerError) as error:
        say(f"{name}: {error}")
        return False
    show(f"{name}: recorded with seed {seed}")
    return True


def record(name: str, recorder: Recorder) -> int:
    """Save the first answer that shows its case.

    Returns its seed. Raises CassetteError.

    Raises CassetteError.
    """
    profile, case = case_of(name)
    for seed in SEEDS:
        tape, entry = asyncio.run(ask(name, recorder, seed))
        if shows(case, entry.output_ids, recorder.fmt) and not entry.noncanonical:
            provenance = Provenance(
                recorded_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                source="emulator",
                route=f"emulator/{profile.slug}",
                model=MODEL,
                stream=case.stream,
                versions=versions(recorder.root),
                digests=emulator_digests(recorder.root),
                oracle=Oracle(entry.prompt_ids, entry.output_ids),
            )
            save_cassette(recorder.library / f"{name}.yaml", Cassette(provenance, tape.interactions))
            return seed
    raise CassetteError(f"none of {len(SEEDS)} answers shows {case.shows}; train the target again: nox -s tiny_target")


async def ask(name: str, recorder: Recorder, seed: int) -> tuple[Tape, OracleEntry]:
    """Ask the case under a seed; return recording and truth."""
    body = encode_body(request_of(name, recorder.fmt, seed))
    async with open_client("emulator", recorder.url) as client:
        with recording() as tape:
            answer = await client.send(body)
            if not answer.complete or answer.generation_id is None:
                start = answer.raw[:200].decode(errors="replace")
                raise CassetteError(f"the emulator answered {answer.status}: {start}")
    return tape, next(entry for entry in read_oracle(recorder.oracle) if entry.generation_id == answer.generation_id)


def remove_orphans(root: Path) -> None:
    """Delete emulator cassettes that no case records."""
    known = {f"{name}.yaml" for name in names()}
    for path in cassette_paths(root):
        relative = path.relative_to(root / "cassettes").as_posix()
        if relative.startswith("emulator/") and relative not in known:
            path.unlink()


def names() -> Iterator[str]:
    """Yield the name of every cassette.

    `emulator/PROVIDER/CASE`, its path in the library without the suffix.
    """
    yield from (f"emulator/{slug}/{case}" for slug in PROFILES for case in CASES)


def case_of(name: str) -> tuple[Profile, CassetteCase]:
    """Return provider and case of a cassette's name.

    Raises KeyError.
    """
    _, slug, case = name.split("/")
    return PROFILES[slug], CASES[case]


def request_of(name: str, fmt: Format, seed: int) -> dict[str, object]:
    """Return the body of the case's request."""
    profile, case = case_of(name)
    sampling = Sampling(
        max_tokens=case.max_tokens,
        seed=seed,
        logprobs=case.own_ids and profile.returns_logprobs,
        return_token_ids=case.own_ids and profile.returns_ids,
    )
    route = Route("emulator", MODEL, profile.slug, stream=case.stream)
    return request_body(case.prompt, route, sampling, case.tool_mode, fmt, name)


def shows(case: CassetteCase, ids: Ids, fmt: Format) -> bool:
    """Return whether a true answer shows its case.

    Whole and with the span it is named for, or cut inside it.
    """
    try:
        kinds = {span.kind for span in fmt.layout(ids, thinking=case.prompt.thinking)}
    except RefusedError:
        return False
    if case.shows == "cut":
        return SpanKind.END not in kinds and SpanKind.REASONING in kinds
    wanted = {"reasoning": SpanKind.REASONING, "content": SpanKind.CONTENT, "tools": SpanKind.TOOL_SECTION}
    return {SpanKind.END, wanted[case.shows]} <= kinds
