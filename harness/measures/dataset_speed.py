"""Measure memory and time of `prepare` and `audit`.

`python -m harness dataset-speed`

Guarantees: rows are made in the published schemas. Each program runs in a process of its own, whose peak memory the
system reports. Speed is a ratio to plain iteration of the same Parquet file, in a process of its own too, by `datasets`
where that is installed and by pyarrow elsewhere; which one is printed. Workers are compared by the wall clock, which is
meaningful on idle cores alone, and by the time that each process spent, which shows what idle cores would allow. A
missed aim is exit 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
from pyarrow.parquet import ParquetWriter

from pipeline.base.json_lines import line_of
from pipeline.base.screen import show
from pipeline.records import Json

ROOT = Path(__file__).resolve().parents[2]
TOLD = """
import pathlib, re, resource
own, workers = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
held = int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
print()
print(*(used.ru_utime + used.ru_stime for used in (own, workers)), max(held, workers.ru_maxrss))
"""
"""Printed last by each program: seconds of processor, its own and its workers', and the peak of any process in KiB.

Its own peak is not `ru_maxrss`, which counts what stood in the process before the program did.
"""
AIM_MIB = 500
AIM_WORKERS = 1.7
GROUP = 10_000
TEXT = """river count harbour proof ferry glacier return value index while garden bridge number lantern window table
because before after under yellow quiet seven twelve write explain list compare why how what which function sort merge
path cloud engine copper violin market winter doctor letter island"""
WORDS = TEXT.split()


def text(rng: random.Random, words: int) -> str:
    """Return random words, some of them lines."""
    return " ".join(rng.choices(WORDS, k=words)) + rng.choice(("?", ".", ".\n", ""))


def chat(rng: random.Random, turns: int, user: str, assistant: str, role: str, said: str) -> list[Json]:
    """Return a conversation in a dataset's own keys."""
    return [{role: assistant if at % 2 else user, said: text(rng, 60 if at % 2 else 25)} for at in range(turns)]


def glaive(rng: random.Random, number: int) -> dict[str, Json]:
    """Return a row of B1, three in ten without functions."""
    if rng.random() < 0.3:  # noqa: PLR2004 — the published share
        head = "SYSTEM: You are a helpful assistant, with no access to external functions.\n\n"
        return {"system": head, "chat": f"USER: {text(rng, 20)}\n\nASSISTANT: {text(rng, 60)} <|endoftext|>"}
    head = "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
    function = '{\n    "name": "look_up",\n    "description": "Looks up",\n    "parameters": {"type": "object"}\n}\n'
    call = f'<functioncall> {{"name": "look_up", "arguments": \'{{"x": {number}}}\'}} <|endoftext|>'
    turns = f"ASSISTANT: {call}\n\n\nFUNCTION RESPONSE: {{}}\n\n\nASSISTANT: {text(rng, 30)} <|endoftext|>\n\n\n"
    return {"system": head + function, "chat": f"USER: {text(rng, 15)}\n\n\n{turns}"}


def opencode(rng: random.Random, number: int) -> dict[str, Json]:
    """Return a row of B2."""
    told = {"domain": "generic", "unit_tests": "[]", "average_test_score": "1"}
    return {"id": f"{number:032x}", "input": text(rng, 60), "output": text(rng, 100), **told}


def thoughts(rng: random.Random, number: int) -> dict[str, Json]:
    """Return a row of B4: short question, long answer."""
    answer = f"<think>\n{text(rng, 400)}\n</think>\n\n{text(rng, 40)}"
    messages: list[Json] = [{"content": text(rng, 50), "role": "user"}, {"content": answer, "role": "assistant"}]
    return {"messages": messages, "num_tokens": number, "source": "synthetic"}


def ultrachat(rng: random.Random, number: int) -> dict[str, Json]:
    """Return a row of B6."""
    messages = chat(rng, 2 * rng.randint(1, 3), "user", "assistant", "role", "content")
    return {"prompt": "", "prompt_id": f"{number:064x}", "messages": messages}


def sharegpt(rng: random.Random, number: int) -> dict[str, Json]:
    """Return a row of B7, in pairs of one conversation.

    The second row of a pair continues the first from its last message on.
    """
    conversation, part = divmod(number, 2)
    rng.seed(conversation)
    turns = chat(rng, 8, "human", "gpt", "from", "value")
    return {"id": f"c{conversation:08x}_{3 * part}", "conversations": turns[3:] if part else turns[:4]}


SCHEMAS: Mapping[str, Callable[[random.Random, int], dict[str, Json]]] = {
    "B1": glaive,
    "B2": opencode,
    "B4": thoughts,
    "B6": ultrachat,
    "B7": sharegpt,
}


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds by the clock and processor, and peak MiB.

    Processor time is the process's own and its workers'.
    """

    wall: float
    own: float
    workers: float
    peak: float

    @property
    def processor(self) -> float:
        """All processor time."""
        return self.own + self.workers

    def idle(self, workers: int) -> float:
        """Return seconds by the clock on idle cores.

        One core for the process itself, and one a worker.
        """
        return max(self.own, self.workers / workers) if workers > 1 else self.processor


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where an aim is missed."""
    parser = argparse.ArgumentParser(prog="python -m harness dataset-speed", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, metavar="N", help="rows (default 1,000,000)")
    parser.add_argument("--dataset", choices=sorted(SCHEMAS), action="append", help="which (default: B1, B6 and B7)")
    parser.add_argument("--folder", type=Path, help="where the files go (default: a temporary folder)")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        met = [_measured(name, args.rows, Path(folder)) for name in args.dataset or ("B1", "B6", "B7")]
    return 0 if all(met) else 1


def _measured(name: str, rows: int, folder: Path) -> bool:
    source, evaluations = folder / f"{name}.parquet", folder / "evaluations.jsonl"
    write_parquet(source, SCHEMAS[name], rows)
    rng = random.Random(1)
    evaluations.write_bytes(b"".join(line_of({"question": text(rng, 40)}) for _ in range(240)))
    show(f"{name}: {rows:,} rows, {source.stat().st_size / 2**20:,.0f} MiB of Parquet")
    plain, by = plain_iteration(source)
    one = prepared(name, source, evaluations, 1)
    two = prepared(name, source, evaluations, 2)
    show(f"  plain iteration by {by}: {rows / plain.wall:,.0f} rows/s, {plain.peak:,.0f} MiB")
    ratio = plain.processor / one.processor
    show(f"  prepared: {rows / one.wall:,.0f} rows/s, {ratio:.2f} of plain iteration by processor time")
    show(f"  peak memory: {one.peak:,.0f} MiB, aim {AIM_MIB}")
    possible = one.idle(1) / two.idle(2)
    show(f"  2 workers: {one.wall / two.wall:.2f} times as fast by the clock, {possible:.2f} on idle cores")
    met = one.peak <= AIM_MIB and possible >= AIM_WORKERS
    one, two = audited(name, source, 1), audited(name, source, 2)
    source.unlink()
    ratio, possible = plain.processor / one.processor, one.idle(1) / two.idle(2)
    show(f"  audited: {rows / one.wall:,.0f} rows/s, {ratio:.2f} of plain iteration by processor time")
    show(f"  its peak memory: {one.peak:,.0f} MiB; 2 workers: {possible:.2f} times as fast on idle cores")
    return met and one.peak <= AIM_MIB and possible >= AIM_WORKERS


def write_parquet(path: Path, row: Callable[[random.Random, int], dict[str, Json]], rows: int) -> None:
    """Write rows, each made from its number alone.

    In row groups as the hub's files have them; one row in twenty stands twice.
    """
    schema = pa.Table.from_pylist([row(random.Random(0), 0)]).schema
    with ParquetWriter(path, schema) as writer:
        numbers = iter(range(rows))
        while some := list(islice(numbers, GROUP)):
            made = (row(random.Random(number - number % 20 // 19), number) for number in some)
            writer.write_table(pa.Table.from_pylist(list(made), schema=schema))


def plain_iteration(source: Path) -> tuple[Run, str]:
    """Read the whole file as Python objects; name the library."""
    if importlib.util.find_spec("datasets"):
        options = "data_files=sys.argv[1], split='train', streaming=True"
        code = f"import datasets, sys\nfor _ in datasets.load_dataset('parquet', {options}): pass"
        by = "datasets"
    else:
        code = "import pyarrow.parquet as p, sys\nfor b in p.ParquetFile(sys.argv[1]).iter_batches(1000): b.to_pylist()"
        by = "pyarrow (datasets is not installed)"
    return ran(code, str(source)), by


def prepared(name: str, source: Path, evaluations: Path, workers: int) -> Run:
    """Run `python -m pipeline prepare` on the file."""
    out = source.with_name(f"{name}.prompts.jsonl")
    wanted = ["--dataset", name, "--out", str(out), "--decontaminate", str(evaluations), "--workers", str(workers)]
    code = "import sys\nfrom pipeline.cli.main import main\nif status := main(sys.argv[1:]): sys.exit(status)"
    return ran(code, "prepare", str(source), *wanted)


def audited(name: str, source: Path, workers: int) -> Run:
    """Run `python -m pipeline audit` on the file."""
    code = "import sys\nfrom pipeline.cli.main import main\nif status := main(sys.argv[1:]): sys.exit(status)"
    return ran(code, "audit", str(source), "--dataset", name, "--format", "tiny-kimi", "--workers", str(workers))


def ran(code: str, *arguments: str) -> Run:
    """Run a program's text. Raises RuntimeError where it fails."""
    start = time.monotonic()
    command = [sys.executable, "-c", code + TOLD, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)} ended with status {done.returncode}: {done.stderr[-400:]}")
    own, workers, peak = map(float, done.stdout.splitlines()[-1].split())
    return Run(time.monotonic() - start, own, workers, peak / 1024)
