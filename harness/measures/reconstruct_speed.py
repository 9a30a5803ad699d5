"""Measure reconstruct as a ratio to encoding the same text.

`python -m harness reconstruct-speed`

Guarantees: both sides run in this process on one core, in turns, and the medians are compared; nothing is measured in
seconds alone. JSON in and out and the rendering of the prompt are part of our side. The other side is tiktoken for one
format in detail. Then it is, for every vocabulary that is found, what its model's users call: tiktoken for Kimi, the
`tokenizers` library's `encode_batch` in one thread for all others, where that is installed. Two workers and one are
compared by the wall clock, which is meaningful on two idle cores alone, and by the time that all processes spent, which
shows what two idle cores would allow. A missed aim is printed and is no error.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import NamedTuple

import tiktoken

from harness.views.roundtrip import RoundTrip, raw_of, true_fingerprint
from harness.views.view import PROFILES
from pipeline.base.processes import map_lines
from pipeline.base.screen import say, show
from pipeline.cli.reconstruct import dumped, rebuilt
from pipeline.formats.format import Format, Parts
from pipeline.formats.registry import FORMATS, find_tokenizer, open_format
from pipeline.formats.tokenizer import TokenizerError
from pipeline.records import Json, Prompt

TEXT = """the proof of a token sequence is its own bytes and nothing else so we count what the engine counted and refuse
what does not close because a row that is almost right trains the drafter on almost nothing def function return value
index for while import 0 1 2 10 42 2026 café naïve 数据 сервер"""
SIZES = (150, 1000, 4000)
AIM, AIM_FROM = 0.7, 1000
"""Of tiktoken's speed, in rows of so many tokens and more."""
WORKERS_AIM = 1.7
TIKTOKEN, LIBRARY = "tiktoken's", "tokenizers'"
FAMILIES: Mapping[str, float | None] = {
    "kimi-k2.5": AIM,
    "glm-4.5": 2.0,
    "glm-5": 2.0,
    "qwen3": 2.0,
    "qwen3.5": 2.0,
    "deepseek-r1": 0.8,
    "deepseek-v3.1": 0.8,
    "deepseek-v3.2": 0.8,
    "gpt-oss": None,
}
"""One format a vocabulary, and the ratio that it aims at."""
ROUNDS, WORKER_ROUNDS = 9, 5
COPIES = {"json": 40, "stream": 8}
"""How often two workers and one get the same lines: a second's work, beside which starting processes is nothing."""


class Workload(NamedTuple):
    """Rows as JSON lines, and the text in them."""

    lines: list[bytes]
    texts: list[str]
    tokens: int


@dataclass(frozen=True, slots=True)
class Size:
    """Tokens of a measurement, about, and its rounds."""

    tokens: int
    rounds: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print each figure once it is there."""
    parser = argparse.ArgumentParser(
        prog="python -m harness reconstruct-speed", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--format", choices=sorted(FORMATS), help="this one alone; default: kimi-k2.5, then all found")
    parser.add_argument("--tokenizer", metavar="DIR", help="directory with the format's vocabulary")
    parser.add_argument("--tokens", type=int, default=200_000, help="tokens a line, about (default 200000)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each measurement (default {ROUNDS})")
    options = parser.parse_args(arguments)
    found = options.tokenizer or find_tokenizer("kimi-k2.5")
    try:
        fmt = open_format(options.format or ("kimi-k2.5" if found else "tiny-kimi"), options.tokenizer)
    except TokenizerError as error:
        say(f"error: {error}")
        return 2
    size = Size(options.tokens, options.rounds)
    for line in chain(in_detail(fmt, size), () if options.format else of_families(size)):
        show(line)
    return 0


def in_detail(fmt: Format, size: Size) -> Iterator[str]:
    """Measure one format by row length, and with two workers."""
    yield f"{fmt.name}, tokenizer {fmt.tokenizer.sha256[:12]}, one core, median of {size.rounds}"
    encode = _by_tiktoken(fmt)
    for length in SIZES:
        for way in COPIES:
            aim = AIM if way == "json" and length >= AIM_FROM else None
            yield f"{length:5} tokens a row  {way:6}  {measured(fmt, length, size, way, encode, TIKTOKEN, aim)}"
    for way in COPIES:
        yield f"{1000:5} tokens a row  {way:6}  {workers_line(fmt, size, way)}"


def of_families(size: Size) -> Iterator[str]:
    """Measure every vocabulary here, in JSON rows of 1,000 tokens."""
    yield "every vocabulary that is here, 1000 tokens a row, json"
    for name, aim in FAMILIES.items():
        if find_tokenizer(name) is None:
            yield f"{name:14} is not here: name its directory in $DRAFTER_GATE_TOKENIZERS"
            continue
        fmt = open_format(name)
        kimi = name.startswith("kimi")
        encode = _by_tiktoken(fmt) if kimi else _by_library(fmt)
        if encode is None:
            yield f"{name:14} is not measured: `tokenizers` is not installed, as it is for `nox -s bench`"
        else:
            yield f"{name:14} {measured(fmt, 1000, size, 'json', encode, TIKTOKEN if kimi else LIBRARY, aim)}"


Encode = Callable[[list[str]], object]


def _by_tiktoken(fmt: Format) -> Encode:
    """The bare encoder: none of our own checks."""
    tokenizer = fmt.tokenizer
    ranks = dict(zip(tokenizer.pieces(tokenizer.base_ids), tokenizer.base_ids, strict=True))
    merged = {data: token for data, token in ranks.items() if data not in tokenizer.rules.unmerged}
    bare = tiktoken.Encoding("bare", pat_str=tokenizer.rules.pattern, mergeable_ranks=merged, special_tokens={})
    return lambda texts: [bare.encode_ordinary(text) for text in texts]


def _by_library(fmt: Format) -> Encode | None:
    """Return the `tokenizers` library's encoder in one thread, or None.

    None where it is not installed.
    """
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    try:
        library = importlib.import_module("tokenizers")
    except ImportError:
        return None
    read = library.Tokenizer.from_file(str(fmt.tokenizer.directory / "tokenizer.json"))
    return lambda texts: read.encode_batch(texts, add_special_tokens=False)


def measured(fmt: Format, length: int, size: Size, way: str, encode: Encode, theirs: str, aim: float | None) -> str:
    """The ratio, in words."""
    work = workload(fmt, length, max(size.tokens // length, 8), stream=way == "stream")
    known = [true_fingerprint(PROFILES["siliconflow"], stream=way == "stream", fmt=fmt)]
    for result in dumped(rebuilt(work.lines, fmt, known)):
        if b'"refused"' in result:
            raise ValueError(f"a row of the workload was refused: {result[:300]!r}")

    def ours() -> None:
        for _ in dumped(rebuilt(work.lines, fmt, known)):
            pass

    ratio, seconds = compared(lambda: encode(work.texts), ours, size.rounds)
    hoped = f"aim {aim:.2f}" if aim else "no aim"
    return f"{ratio:.2f} of {theirs} speed, {hoped}  ({work.tokens / seconds / 1e6:.2f} M tokens/s)"


def workers_line(fmt: Format, size: Size, way: str, length: int = 1000) -> str:
    """Compare two workers with one on the same repeated lines."""
    work = workload(fmt, length, max(size.tokens // length, 8), stream=way == "stream")
    known = [true_fingerprint(PROFILES["siliconflow"], stream=way == "stream", fmt=fmt)]

    def answer(lines: Iterable[bytes], first: int) -> Iterable[bytes]:
        return dumped(rebuilt(lines, fmt, known, first=first))

    def spent(workers: int) -> tuple[float, float]:
        start, used = time.perf_counter(), _used()
        for _ in map_lines(chain.from_iterable(repeat(work.lines, COPIES[way])), answer, workers):
            pass
        return time.perf_counter() - start, _used() - used

    rounds = [(*spent(1), *spent(2)) for _ in range(min(WORKER_ROUNDS, size.rounds))]
    wall, used, wall_of_two, used_by_two = (min(column) for column in zip(*rounds, strict=True))
    figures = f"{wall / wall_of_two:.2f} by the clock, {2 * used / used_by_two:.2f} by time spent"
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    return f"two workers against one: {figures}, aim {WORKERS_AIM:.2f}  ({load})"


def _used() -> float:
    """Return processor seconds of this process and ended children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def compared(theirs: Callable[[], object], ours: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Return their median time over ours, and ours in seconds."""
    times: dict[str, list[float]] = {"theirs": [], "ours": []}
    for _ in range(rounds):
        for name, run in (("theirs", theirs), ("ours", ours)):
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    own = statistics.median(times["ours"])
    return statistics.median(times["theirs"]) / own, own


def workload(fmt: Format, size: int, rows: int, *, stream: bool) -> Workload:
    """Return `rows` rows of about `size` tokens each.

    A fifth of the tokens are the prompt's, two fifths reasoning.
    """
    draw = random.Random(size)
    lines, texts, total = [], [], 0
    for row in range(rows):
        question, reasoning, content = (_text(draw, share) for share in (size // 5, 2 * size // 5, 2 * size // 5))
        prompt = Prompt(f"r{row}", ({"role": "user", "content": question},))
        prompt_ids = fmt.render(prompt)
        ids = fmt.assemble(Parts(reasoning, think_closed=True, body=(content,), ended=True)).ids
        raw = raw_of(ids, prompt, prompt_ids, RoundTrip(PROFILES["siliconflow"], stream, tools_sent=False), fmt)
        line: dict[str, Json] = {"id": prompt.id, "prompt": {"messages": [dict(prompt.messages[0])]}}
        line |= {"sse": raw.decode()} if stream else {"response": json.loads(raw)}
        lines.append(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        texts += [question, reasoning, content]
        total += len(prompt_ids) + len(ids)
    return Workload(lines, texts, total)


def _text(draw: random.Random, tokens: int) -> str:
    words = [draw.choice(TEXT.split()) for _ in range(max(tokens * 4 // 5, 1))]
    return " ".join(word + draw.choice(["", "", "", ",", ".", ".\n"]) for word in words)
