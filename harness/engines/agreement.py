"""Compare the greedy ids of an engine with transformers' ids.

`python -m harness engines agreement ENGINE --python PYTHON --model DIR`

Guarantees: both receive the same prompt ids. Only the first difference of an answer counts, since later tokens follow
another text. It is reported with the margin of both sides: the gap between the two likeliest tokens, infinite past the
end of an answer. A margin within `NEAR` on both sides is rounding; exit 1 for a first difference under a wider one. The
prompts are the tiny target's own unless `--questions` names others, which the model's own template renders.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import islice, takewhile
from pathlib import Path
from typing import Final

from harness.engines.__main__ import add_engine, start_of
from harness.engines.launch import running
from harness.tiny_target.grammar import samples
from harness.tiny_target.words import Split
from pipeline.base.files import weights_sha256
from pipeline.base.screen import say, show_json
from pipeline.formats.registry import open_format
from pipeline.generation.engines.dialects import DIALECTS
from pipeline.generation.engines.output import EngineError, EngineOutput
from pipeline.generation.engines.server import EngineServer, ServerRequest
from pipeline.records import Json, Sampling

PROMPTS: Final = 256
MOST: Final = 96
SEED: Final = 7


def asks(count: int, most: int) -> list[ServerRequest]:
    """Return greedy requests from the tiny target's held-out grammar."""
    fmt, greedy = open_format("tiny-kimi"), Sampling(temperature=0.0, max_tokens=most)
    held_out = islice(samples(SEED, Split.HELD_OUT), count)
    return [ServerRequest(fmt.render(sample.prompt), greedy, (fmt.end_id,)) for sample in held_out]


def asks_of(options: argparse.Namespace, model: Path) -> list[ServerRequest]:
    """Return the requests that a command line names. Raises EngineError."""
    if not options.questions:
        return asks(options.prompts, options.max_tokens)
    from pipeline.drafter.decoding.prompts import PromptError, evaluation_prompts_in, template_renderer

    greedy = Sampling(temperature=0.0, max_tokens=options.max_tokens)
    try:
        found = evaluation_prompts_in(options.questions, template_renderer(model))
    except (PromptError, OSError) as error:
        raise EngineError(str(error)) from None
    return [ServerRequest(question.ids, greedy) for question in found[: options.prompts]]


def by_transformers(
    model: Path, wanted: Sequence[ServerRequest], rows: int
) -> tuple[dict[str, Json], list[EngineOutput]]:
    """Return transformers' facts and its answers to the same requests."""
    from pipeline.generation.engines.local import load_engine

    engine = load_engine(model, threads=2)
    found: list[EngineOutput] = []
    for start in range(0, len(wanted), rows):
        batch = wanted[start : start + rows]
        found += engine.generate([each.prompt for each in batch], [each.sampling for each in batch])
    facts: dict[str, Json] = {"engine": "transformers", "version": version("transformers"), "device": "cpu"}
    backend = str(engine.model.config._attn_implementation)  # noqa: SLF001 - it is told nowhere else
    return facts | {"dtype": "float32", "attention_backend": backend}, found


async def by_engine(name: str, url: str, wanted: Sequence[ServerRequest], rows: int) -> list[EngineOutput]:
    """Return the same answers from a server. Raises EngineError."""
    async with EngineServer(DIALECTS[name](), url, in_flight=rows) as server:
        return await server.generate_all(wanted)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 1 for a wide difference, 2 for a failure."""
    parser = argparse.ArgumentParser(
        prog="python -m harness engines agreement", description=(__doc__ or "").split("\n")[0]
    )
    add_engine(parser)
    add_prompts(parser)
    options, more = parser.parse_known_args(arguments)
    start = start_of(options, more)
    try:
        wanted = asks_of(options, start.model)
        with running(start) as engine:
            begun = time.monotonic()
            theirs = asyncio.run(by_engine(start.name, engine.url, wanted, start.rows))
            seconds, facts, started = time.monotonic() - begun, engine.facts, engine.seconds
    except EngineError as error:
        say(f"error: {error}")
        return 2
    key = key_of(facts.document(), start.model, start.rows, options.max_tokens)
    _, ours = by_transformers(start.model, wanted, start.rows)
    found = compared(ours, theirs)
    rate = sum(len(each.ids) for each in theirs) / seconds
    timed: dict[str, Json] = {"start_seconds": round(started, 1), "tokens_a_second": round(rate, 1)}
    show_json(key | timed | found)
    return 1 if found["wide"] else 0


def add_prompts(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the prompts."""
    parser.add_argument("--prompts", type=int, default=PROMPTS, metavar="N", help=f"at most so many ({PROMPTS})")
    parser.add_argument("--max-tokens", type=int, default=MOST, metavar="N", help=f"of an answer at most ({MOST})")
    questions = "evaluation sets or prompts as `pipeline evaluate` reads them"
    parser.add_argument("--questions", type=Path, nargs="+", metavar="FILE", help=questions)


def key_of(facts: dict[str, Json], model: Path, rows: int, most: int) -> dict[str, Json]:
    """Return everything that decides greedy ids."""
    sampling: dict[str, Json] = {"temperature": 0.0, "max_tokens": most}
    return {"weights_sha256": weights_sha256(model), **facts, "rows": rows, **sampling}


NEAR: Final = 0.01
"""Nats. Float32 moves a logprob of the tiny target by 1e-5 between engines, bfloat16 by 1e-2."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token in which two answers differ.

    Margins are each side's gap to its own runner-up, in nats.
    """

    prompt: int
    at: int
    ours: int | None
    theirs: int | None
    our_margin: float
    their_margin: float

    @property
    def is_near(self) -> bool:
        """Whether rounding explains it."""
        return max(abs(self.our_margin), abs(self.their_margin)) <= NEAR


def first_difference(prompt: int, ours: EngineOutput, theirs: EngineOutput) -> Difference | None:
    """Return where two answers to one prompt differ, or None."""
    if ours.ids == theirs.ids:
        return None
    pairs = zip(ours.ids, theirs.ids, strict=False)
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(ours.ids), len(theirs.ids)))
    return Difference(prompt, at, _at(ours, at), _at(theirs, at), margin(ours, at), margin(theirs, at))


def margin(generation: EngineOutput, at: int) -> float:
    """Return the gap between a token and its runner-up.

    Infinite past the end of an answer, where no rounding puts a token.
    """
    if at >= len(generation.ids):
        return float("inf")
    return generation.logprobs[at] - generation.runner_up[at][1]


def _at(generation: EngineOutput, at: int) -> int | None:
    return generation.ids[at] if at < len(generation.ids) else None


def furthest(ours: Sequence[EngineOutput], theirs: Sequence[EngineOutput]) -> float:
    """Return the largest logprob distance over equal tokens, in nats.

    Compared only as long as both answers are equal.
    """
    distances = [0.0]
    for mine, other in zip(ours, theirs, strict=True):
        tokens = zip(mine.ids, other.ids, mine.logprobs, other.logprobs, strict=False)
        distances += [abs(a - b) for _, _, a, b in takewhile(lambda token: token[0] == token[1], tokens)]
    return max(distances)


def compared(ours: Sequence[EngineOutput], theirs: Sequence[EngineOutput]) -> dict[str, Json]:
    """Return counts, the distance of logprobs and every first difference."""
    pairs = enumerate(zip(ours, theirs, strict=True))
    found = [each for n, (mine, other) in pairs if (each := first_difference(n, mine, other)) is not None]
    return {
        "prompts": len(ours),
        "tokens": sum(len(each.ids) for each in ours),
        "equal": len(ours) - len(found),
        "near": sum(each.is_near for each in found),
        "wide": sum(not each.is_near for each in found),
        "furthest_logprob": furthest(ours, theirs),
        "first_differences": [asdict(each) for each in found],
    }
