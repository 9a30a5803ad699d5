"""`python -m harness.engines.agreement ENGINE --python PYTHON --model DIR`: greedy ids of an engine and transformers.

Guarantees: both are asked by the same ids; where an answer differs, its first difference is told with the margin there,
the gap between the two likeliest tokens under each. Later tokens answer to another text and are not compared. A margin
within `NEAR` on both sides is rounding; exit 1 where a first difference lies under a wider one. `--keep DIR` records
both sides as golden sets, `--check FILE` holds the engine's answers against one.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Final

from harness.engines.__main__ import add_engine, start_of
from harness.engines.answers import compared
from harness.engines.golden_set import Compared, GoldenSet, GoldenSetError, Verdict, compare, read, write
from harness.engines.launch import running
from harness.engines.settings import Start
from harness.tiny_target.grammar import samples
from harness.tiny_target.words import Split
from pipeline.engines.generation import EngineError, Generation
from pipeline.engines.served import DIALECTS
from pipeline.engines.serving import Ask, Served
from pipeline.formats.registry import open_format
from pipeline.plan import weights_sha256
from pipeline.records import Json, Sampling

PROMPTS: Final = 256
MOST: Final = 96
SEED: Final = 7


def asks(count: int, most: int) -> list[Ask]:
    """Greedy requests over held-out samples of the tiny target's grammar."""
    fmt, greedy = open_format("tiny-kimi"), Sampling(temperature=0.0, max_tokens=most)
    held_out = islice(samples(SEED, Split.HELD_OUT), count)
    return [Ask(fmt.render(sample.prompt), greedy, (fmt.end_id,)) for sample in held_out]


def by_transformers(model: Path, wanted: Sequence[Ask], rows: int) -> tuple[dict[str, Json], list[Generation]]:
    """What computes in this process, and the same answers by it."""
    from pipeline.engines.local import load_engine

    engine = load_engine(model, threads=2)
    found: list[Generation] = []
    for start in range(0, len(wanted), rows):
        batch = wanted[start : start + rows]
        found += engine.generate([each.prompt for each in batch], [each.sampling for each in batch])
    facts: dict[str, Json] = {"engine": "transformers", "version": version("transformers"), "device": "cpu"}
    backend = str(engine.model.config._attn_implementation)  # noqa: SLF001 - it is told nowhere else
    return facts | {"dtype": "float32", "attention_backend": backend}, found


async def by_engine(name: str, url: str, wanted: Sequence[Ask], rows: int) -> list[Generation]:
    """The same answers from a server. Raises EngineError."""
    async with Served(DIALECTS[name](), url, in_flight=rows) as server:
        return await server.generate_all(wanted)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure. 0, 1 for a wide difference, 2 where the engine failed."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.engines.agreement", description=(__doc__ or "").split("\n")[0]
    )
    add_engine(parser)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--max-tokens", type=int, default=MOST)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write both sides there, as golden sets")
    parser.add_argument("--check", type=Path, metavar="FILE", help="hold the engine's answers against a golden set")
    options, more = parser.parse_known_args(arguments)
    start, wanted = start_of(options, more), asks(options.prompts, options.max_tokens)
    try:
        with running(start) as engine:
            begun = time.monotonic()
            theirs = asyncio.run(by_engine(start.name, engine.url, wanted, start.rows))
            seconds, facts, started = time.monotonic() - begun, engine.facts, engine.seconds
    except EngineError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    key = key_of(facts.document(), start, options.max_tokens)
    golden = GoldenSet(key, prompts_sha256(wanted), tuple(theirs))
    facts_of_ours, ours = by_transformers(start.model, wanted, start.rows)
    if options.keep:
        own = GoldenSet(key_of(facts_of_ours, start, options.max_tokens), golden.prompts_sha256, tuple(ours))
        write(options.keep / f"{start.name}-{start.device}.jsonl", golden)
        write(options.keep / "transformers-cpu.jsonl", own)
    found = compared(ours, theirs)
    rate = sum(len(each.ids) for each in theirs) / seconds
    timed: dict[str, Json] = {"start_seconds": round(started, 1), "tokens_a_second": round(rate, 1)}
    sys.stdout.write(json.dumps(key | timed | found) + "\n")
    changed = options.check is not None and checked(golden, options.check)
    return 1 if found["wide"] or changed else 0


def key_of(facts: dict[str, Json], start: Start, most: int) -> dict[str, Json]:
    """All that decides greedy ids."""
    sampling: dict[str, Json] = {"temperature": 0.0, "max_tokens": most}
    return {"weights_sha256": weights_sha256(start.model), **facts, "rows": start.rows, **sampling}


def prompts_sha256(wanted: Sequence[Ask]) -> str:
    """One digest over the prompts' ids."""
    return hashlib.sha256(json.dumps([each.prompt for each in wanted]).encode()).hexdigest()


def checked(golden: GoldenSet, against: Path) -> bool:
    """Say on stderr what the set is beside the recorded one; whether it changed."""
    try:
        found = compare(read(against), golden)
    except (GoldenSetError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return True
    sys.stderr.write("".join(f"{line}\n" for line in said(found)))
    return found.verdict is Verdict.CHANGED


def said(found: Compared) -> Iterator[str]:
    """The verdict, and every first difference with its margins."""
    stale = f", STALE: recorded under another {', '.join(found.moved)}" if found.moved else ""
    yield f"{found.verdict.upper()}{stale}"
    for each in found.differences:
        margins = f"margins {each.our_margin:.4f} and {each.their_margin:.4f}"
        yield f"  prompt {each.prompt}, token {each.at}: {each.ours} was, {each.theirs} is; {margins}"


if __name__ == "__main__":
    sys.exit(main())
