"""Measure a whole run beside a bare loop that reads.

`python -m harness load`

Guarantees: both sides read the same bytes from the same raw peer, a process of its own, in turns. Our side has
everything on: ledger, budget, proof, shards, event log. Ratios are of requests a second, by the clock and by the
client's processor time, which a busy machine changes less. Also measured: memory over a long run with a large file of
prompts open, the ledger's own cost, and a resume on a large ledger. Exit 1 where an aim is missed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness.fixtures.canned_peer import Canned, canned, load_peer
from harness.fixtures.forks import told_by
from harness.fixtures.runs import byte_format, whole_run
from harness.measures.load.ledger import cost_of_a_request, prefilled
from harness.measures.load.sides import Spent, a_prompt, bare, load_world, memory, ours, plan_of
from pipeline.base.screen import show

IN_FLIGHT = (64, 256, 1024)
AIM, AIMED_AT = 0.35, frozenset({64, 256})
REQUESTS, TOKENS, ROUNDS = 3000, 300, 3
MARKS, LINES = (1000, 5000, 20_000), 1_000_000
"""Requests. Before the second the first shard is written: what that takes must have been taken before the first."""
GROWTH_AIM = 1.1
RESUME_AIM, LEDGER_ROWS = 5.0, 1_000_000


@dataclass(frozen=True, slots=True)
class Ratio:
    """Our requests a second over the bare loop's.

    By the clock and by processor time; `failed` are ours.
    """

    in_flight: int
    wall: float
    cpu: float
    per_second: float
    failed: int


def speed(folder: Path, said: Canned, in_flight: int, requests: int, rounds: int) -> Ratio:
    """Return the medians of several rounds, the sides in turns."""
    pairs: list[tuple[Spent, Spent]] = []
    with load_peer(said) as url:
        for number in range(rounds):
            world = load_world(folder / f"{in_flight}-{number}", url, requests)
            pairs.append((bare(url, requests, in_flight, world), ours(world, in_flight)))
            shutil.rmtree(world.folder)
    wall = median(other.wall / own.wall for other, own in pairs)
    cpu = median(other.cpu / own.cpu for other, own in pairs)
    best = max(own.requests / own.wall for _, own in pairs)
    return Ratio(in_flight, wall, cpu, best, sum(own.failed for _, own in pairs))


def memory_growth(folder: Path, marks: Sequence[int], lines: int) -> Mapping[int, int]:
    """Return the most bytes held up to each mark.

    Marks are counts of requests; a file of `lines` prompts is open.
    """
    with load_peer(_said(folder, TOKENS // 10, whole=False)) as url:
        world = load_world(folder / "memory", url, lines)
        return memory(world, IN_FLIGHT[0], marks[-1], marks)


def resume_seconds(folder: Path, rows: int) -> float:
    """Return the seconds of a session that resumes.

    A whole session, on a ledger of `rows` rows.
    """
    with load_peer(_said(folder, TOKENS, whole=False)) as url:
        world = load_world(folder / "resume", url, 20)
        told_by(lambda: whole_run(world, plan_of(world, 4, limit=10)).code, silent=True)
        run = str(json.loads((world.out / "manifest.json").read_text())["run"])
        told_by(lambda: prefilled(world, run, rows))

        def work() -> float:
            began = time.perf_counter()
            whole_run(world, plan_of(world, 4))
            return time.perf_counter() - began

        return float(str(told_by(work, silent=True)))


def _said(folder: Path, tokens: int, *, whole: bool) -> Canned:
    place = Path(tempfile.mkdtemp(dir=folder))
    return canned(byte_format(place), a_prompt(), tokens, whole=whole)


def _speed_lines(folder: Path, requests: int, rounds: int, flights: Sequence[int]) -> Iterator[tuple[str, bool]]:
    for whole in (False, True):
        said = _said(folder, TOKENS, whole=whole)
        way = "in one piece" if whole else "an event a chunk"
        yield f"streams of {said.tokens} tokens, {len(said.body)} bytes, {way}:", True
        for in_flight in flights:
            found = speed(folder, said, in_flight, requests, rounds)
            aimed = in_flight in AIMED_AT and not whole
            good = found.failed == 0 and (not aimed or max(found.wall, found.cpu) >= AIM)
            figures = f"{found.wall:.2f} by the clock, {found.cpu:.2f} by processor time"
            yield f"  {in_flight:5} in flight: {figures}; {found.per_second:.0f} a second, {found.failed} failed", good


def _memory_lines(folder: Path) -> Iterator[tuple[str, bool]]:
    found = memory_growth(folder, MARKS, LINES)
    said = ", ".join(f"{found[mark] / 2**20:.0f} MiB up to {mark} requests" for mark in MARKS)
    yield f"memory, of {LINES} prompts: {said}", found[MARKS[2]] <= found[MARKS[0]] * GROWTH_AIM


def _ledger_lines(folder: Path) -> Iterator[tuple[str, bool]]:
    (place := folder / "ledger").mkdir()
    cost = float(str(told_by(lambda: cost_of_a_request(place, 5000))))
    yield f"ledger: {cost:.0f} microseconds of processor time a request", True


def _resume_lines(folder: Path, rows: int) -> Iterator[tuple[str, bool]]:
    seconds = resume_seconds(folder, rows)
    yield f"resume on a ledger of {rows} rows: {seconds:.1f} s", seconds < RESUME_AIM


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where an aim is missed."""
    parser = argparse.ArgumentParser(prog="python -m harness load", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"a side and round (default {REQUESTS})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    parts: dict[str, Callable[[Path], Iterator[tuple[str, bool]]]] = {
        "speed": lambda folder: _speed_lines(folder, options.requests, options.rounds, options.in_flight or IN_FLIGHT),
        "ledger": _ledger_lines,
        "resume": lambda folder: _resume_lines(folder, options.ledger_rows),
        "memory": _memory_lines,
    }
    parser.add_argument("--in-flight", type=int, action="append", metavar="N", help="default 64, 256 and 1024")
    parser.add_argument("--ledger-rows", type=int, default=LEDGER_ROWS, help=f"default {LEDGER_ROWS}")
    parser.add_argument("--part", action="append", choices=list(parts), help="default: all")
    options = parser.parse_args(arguments)
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        for part in options.part or parts:
            for line, good in parts[part](Path(folder)):
                show(f"{line}{'' if good else '  MISSED'}")
                missed += not good
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
