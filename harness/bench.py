"""`python -m harness.bench`: what reconstruct costs, as a ratio to tiktoken's bare encoding of the same text.

Guarantees: both sides run in this process on one core, turn about, and the medians are compared; nothing is measured in
seconds alone. JSON in and out and the rendering of the prompt are part of our side. Two workers against one are
compared by the wall clock, which says something on two idle cores alone, and by the time that all processes spent,
which says what two idle cores would allow.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from harness.roundtrips import Trip, raw_of, true_fingerprint
from harness.views import PROFILES
from pipeline.formats.parts import Format, Parts
from pipeline.formats.registry import FORMATS, find_tokenizer, open_format
from pipeline.offline import dumped, rebuilt
from pipeline.records import Json, Prompt
from pipeline.tokenizers import TokenizerError
from pipeline.workers import spread

TEXT = """the proof of a token sequence is its own bytes and nothing else so we count what the engine counted and refuse
what does not close because a row that is almost right trains the drafter on almost nothing def function return value
index for while import 0 1 2 10 42 2026 café naïve 数据 сервер"""
SIZES = (150, 1000, 4000)
ROUNDS = 9
WORKER_ROUNDS, COPIES = 5, 8


@dataclass(frozen=True, slots=True)
class Workload:
    """Rows as JSON lines, and the text of them that the bare encoder encodes."""

    lines: list[bytes]
    texts: list[str]
    tokens: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print one line a size."""
    parser = argparse.ArgumentParser(prog="python -m harness.bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--format", choices=sorted(FORMATS), help="default: kimi-k2.5 where its tokenizer is found")
    parser.add_argument("--tokenizer", metavar="DIR", help="directory with tiktoken.model")
    parser.add_argument("--tokens", type=int, default=200_000, help="tokens a size, about (default 200000)")
    options = parser.parse_args(arguments)
    found = options.tokenizer or find_tokenizer("kimi-k2.5")
    try:
        fmt = open_format(options.format or ("kimi-k2.5" if found else "tiny-kimi"), options.tokenizer)
    except TokenizerError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{fmt.name}, tokenizer {fmt.tokenizer.sha256[:12]}, one core, median of {ROUNDS}\n")
    for size in SIZES:
        for route in ("json", "stream"):
            sys.stdout.write(line_of(fmt, size, options.tokens, stream=route == "stream") + "\n")
    for route in ("json", "stream"):
        sys.stdout.write(workers_line(fmt, options.tokens, stream=route == "stream") + "\n")
    return 0


def line_of(fmt: Format, size: int, tokens: int, *, stream: bool) -> str:
    """One measured line."""
    work = workload(fmt, size, max(tokens // size, 8), stream=stream)
    known = [true_fingerprint(PROFILES["siliconflow"], stream=stream)]
    encode = fmt.tokenizer.encode

    for result in dumped(rebuilt(work.lines, fmt, known)):
        if b'"refused"' in result:
            raise ValueError(f"a row of the workload was refused: {result[:300]!r}")

    def ours() -> None:
        for _ in dumped(rebuilt(work.lines, fmt, known)):
            pass

    def bare() -> None:
        for text in work.texts:
            encode(text)

    ratio, per_second = compared(bare, ours, work.tokens)
    way = "stream" if stream else "json"
    return f"{size:5} tokens a row  {way:6}  {ratio:.2f} of tiktoken's speed  ({per_second / 1e6:.2f} M tokens/s)"


def workers_line(fmt: Format, tokens: int, *, stream: bool, size: int = 1000) -> str:
    """Two workers against one on the same lines, many times over, by the wall clock."""
    work = workload(fmt, size, max(tokens // size, 8), stream=stream)
    known = [true_fingerprint(PROFILES["siliconflow"], stream=stream)]

    def answer(lines: Iterable[bytes], first: int) -> Iterable[bytes]:
        return dumped(rebuilt(lines, fmt, known, first=first))

    def spent(workers: int) -> tuple[float, float]:
        start, used = time.perf_counter(), _used()
        for _ in spread(chain.from_iterable(repeat(work.lines, COPIES)), answer, workers):
            pass
        return time.perf_counter() - start, _used() - used

    rounds = [(*spent(1), *spent(2)) for _ in range(WORKER_ROUNDS)]
    wall, used, wall_of_two, used_by_two = (min(column) for column in zip(*rounds, strict=True))
    way = "stream" if stream else "json"
    figures = f"{wall / wall_of_two:.2f} by the clock, {2 * used / used_by_two:.2f} by time spent"
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    return f"{size:5} tokens a row  {way:6}  two workers against one: {figures} ({load})"


def _used() -> float:
    """Processor seconds of this process and of the children that it has seen end."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def compared(bare: Callable[[], None], ours: Callable[[], None], tokens: int) -> tuple[float, float]:
    """`bare`'s median time over `ours`, and our tokens a second."""
    times: dict[str, list[float]] = {"bare": [], "ours": []}
    for _ in range(ROUNDS):
        for name, run in (("bare", bare), ("ours", ours)):
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    own = statistics.median(times["ours"])
    return statistics.median(times["bare"]) / own, tokens / own


def workload(fmt: Format, size: int, rows: int, *, stream: bool) -> Workload:
    """`rows` rows of about `size` tokens each, a fifth of them the prompt's, two fifths reasoning."""
    draw = random.Random(size)
    lines, texts, total = [], [], 0
    for row in range(rows):
        question, reasoning, content = (_text(draw, share) for share in (size // 5, 2 * size // 5, 2 * size // 5))
        prompt = Prompt(f"r{row}", ({"role": "user", "content": question},))
        prompt_ids = fmt.render(prompt)
        ids = fmt.assemble(Parts(reasoning, think_closed=True, body=(content,), ended=True)).ids
        raw = raw_of(ids, prompt, prompt_ids, Trip(PROFILES["siliconflow"], stream, tools_sent=False), fmt)
        line: dict[str, Json] = {"id": prompt.id, "prompt": {"messages": [dict(prompt.messages[0])]}}
        line |= {"sse": raw.decode()} if stream else {"response": json.loads(raw)}
        lines.append(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        texts += [question, reasoning, content]
        total += len(prompt_ids) + len(ids)
    return Workload(lines, texts, total)


def _text(draw: random.Random, tokens: int) -> str:
    words = [draw.choice(TEXT.split()) for _ in range(max(tokens * 4 // 5, 1))]
    return " ".join(word + draw.choice(["", "", "", ",", ".", ".\n"]) for word in words)


if __name__ == "__main__":
    sys.exit(main())
