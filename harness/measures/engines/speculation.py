"""Let an engine draft with our exported drafter, and compare.

`python -m harness engines speculation ENGINE --python PYTHON --model DIR --drafter DIR`

Guarantees: the engine loads the exported directory unchanged and decodes greedily, one chain a round. Its ids are
compared with transformers' plain greedy decoding, its accepted tokens a round with those that we count on the same
prompts. It passes if no answer differs under a wide margin and both lengths agree within `SPREAD`. Exit 1 if it does
not pass, 2 if the engine failed. vLLM does this on a CPU; SGLang needs a GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import httpx2

from harness.engines.__main__ import add_engine, start_of
from harness.engines.agreement import add_prompts, asks_of, by_transformers, compared
from harness.engines.launch import running
from harness.engines.settings import Name
from pipeline.base.screen import say, show, show_json
from pipeline.generation.engines.dialects import DIALECTS
from pipeline.generation.engines.openrouter import NoAnswerError
from pipeline.generation.engines.output import EngineError, EngineOutput
from pipeline.generation.engines.server import EngineServer, ServerRequest, generation_of
from pipeline.records import Json

DEPTH: Final = 4
SPREAD: Final = 0.05
"""Of an acceptance length: an engine also counts what it accepted past an end token, and half precision parts ways."""
VLLM_COUNTS: Final = {
    "rounds": "vllm:spec_decode_num_drafts_total",
    "drafted": "vllm:spec_decode_num_draft_tokens_total",
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
}
SGLANG_COUNTS: Final = {
    "rounds": "spec_verify_ct",
    "drafted": "spec_num_proposed_drafts",
    "accepted": "spec_num_correct_drafts",
}


@dataclass(frozen=True, slots=True)
class Drafted:
    """Counts of verified drafts, drafted tokens and accepted tokens."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def length(self) -> float:
        """Tokens a pass of the target, its own token included."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0

    def __add__(self, other: Drafted) -> Drafted:
        return Drafted(self.rounds + other.rounds, self.drafted + other.drafted, self.accepted + other.accepted)

    def __sub__(self, other: Drafted) -> Drafted:
        return Drafted(self.rounds - other.rounds, self.drafted - other.drafted, self.accepted - other.accepted)


def flags(name: Name, drafter: Path, depth: int) -> tuple[str, ...]:
    """Return the engine's flags for chains from an exported drafter."""
    if name == "vllm":
        settings = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": depth}
        return "--speculative-config", json.dumps(settings)
    numbers = ("--speculative-num-steps", str(depth), "--speculative-eagle-topk", "1")
    tokens = ("--speculative-num-draft-tokens", str(depth + 1))
    where = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(drafter))
    return (*where, *numbers, *tokens)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve, ask, compare; 0, 1 not passed, 2 engine failed."""
    parser = argparse.ArgumentParser(
        prog="python -m harness engines speculation", description=(__doc__ or "").split("\n")[0]
    )
    add_engine(parser)
    add_prompts(parser)
    parser.add_argument("--drafter", type=Path, required=True, metavar="DIR", help="an exported drafter of this model")
    parser.add_argument("--depth", type=int, default=DEPTH, metavar="N", help=f"drafted tokens a round ({DEPTH})")
    options, more = parser.parse_known_args(arguments)
    start = start_of(options, more)
    start = replace(start, more=(*start.more, *flags(start.name, options.drafter.resolve(), options.depth)))
    try:
        wanted = asks_of(options, start.model)
        with running(start) as engine:
            theirs, counted = asyncio.run(decoded(start.name, engine.url, wanted, start.rows))
            seconds = engine.seconds
    except (EngineError, NoAnswerError, httpx2.TransportError) as error:
        say(f"error: {error}")
        return 2
    own = own_rounds(start.model, options.drafter, wanted, options.depth)
    found = compared(by_transformers(start.model, wanted, start.rows)[1], theirs)
    objections = list(objections_to(found, counted, own))
    told: dict[str, Json] = {"engine": start.name, "device": start.device, "start_seconds": round(seconds, 1)}
    lengths: dict[str, Json] = {"acceptance_length": round(counted.length, 3), "ours": round(own.length, 3)}
    rounds: dict[str, Json] = {"rounds": counted.rounds, "accepted": counted.accepted, "objections": [*objections]}
    show_json(told | lengths | rounds | found)
    show("FAIL" if objections else "PASS")
    return 1 if objections else 0


def objections_to(found: dict[str, Json], theirs: Drafted, ours: Drafted) -> Iterator[str]:
    """Yield why it does not pass."""
    if found["wide"]:
        yield f"{found['wide']} answers differ under a wide margin"
    if not theirs.rounds:
        yield "the engine drafted nothing"
    elif abs(theirs.length - ours.length) > SPREAD * ours.length:
        yield f"its acceptance length {theirs.length:.3f} is not ours, {ours.length:.3f}, within {SPREAD:.0%}"


async def decoded(
    name: Name, url: str, wanted: Sequence[ServerRequest], rows: int
) -> tuple[list[EngineOutput], Drafted]:
    """Return the engine's answers and its count of drafts.

    Raises EngineError, NoAnswerError.
    """
    async with EngineServer(DIALECTS[name](), url, in_flight=rows) as server:
        before = await _metrics(url) if name == "vllm" else Drafted()
        slots = asyncio.Semaphore(rows)

        async def one(ask: ServerRequest) -> bytes:
            async with slots:
                return (await server.send(server.body(ask))).raw

        answers = await asyncio.gather(*map(one, wanted))
        found = [generation_of(server.dialect, ask, raw) for ask, raw in zip(wanted, answers, strict=True)]
        if name == "vllm":
            return found, await _metrics(url) - before
    return found, sum(map(counts_of_sglang, answers), Drafted())


def counts_of_sglang(raw: bytes) -> Drafted:
    """Return an SGLang answer's count of drafts. Raises EngineError."""
    meta = json.loads(raw)["meta_info"]
    counts = {ours: meta.get(theirs) for ours, theirs in SGLANG_COUNTS.items()}
    if not all(isinstance(number, int) for number in counts.values()):
        raise EngineError(f"sglang says nothing of its drafts: {counts}")
    return Drafted(**counts)


def counts_of_vllm(metrics: str) -> Drafted:
    """Return the sums in vLLM's /metrics, zero before any draft."""
    lines = [line for line in metrics.splitlines() if not line.startswith("#")]
    sums = {
        ours: sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0] == theirs)
        for ours, theirs in VLLM_COUNTS.items()
    }
    return Drafted(**{ours: int(number) for ours, number in sums.items()})


async def _metrics(url: str) -> Drafted:
    async with httpx2.AsyncClient(trust_env=False) as client:
        return counts_of_vllm((await client.get(f"{url}/metrics")).text)


def own_rounds(model: Path, directory: Path, wanted: Sequence[ServerRequest], depth: int) -> Drafted:
    """Return the rounds of our own speculative decoding.

    The prompts and the depth of the chain are the same.
    """
    from pipeline.drafter.decoding.drafting import DrafterDrafting
    from pipeline.drafter.decoding.speculate import Limits, speculate
    from pipeline.drafter.decoding.trees import parse_shape
    from pipeline.drafter.decoding.verify import Verifier
    from pipeline.drafter.export.serving import load_drafter
    from pipeline.drafter.target.hidden_states import load_target

    layers = load_target(model)
    drafter = load_drafter(directory, layers.facts, layers.embedding)
    target = load_target(model, layers=drafter.config.aux_layers)
    verifier, drafting, shape = Verifier(target), DrafterDrafting(drafter), parse_shape(f"chain:{depth}")
    found = Drafted()
    for ask in wanted:
        limits = Limits(ask.sampling.max_tokens, verifier.end_ids)
        rounds = speculate(verifier, drafting, shape, ask.prompt, limits).rounds
        found += Drafted(len(rounds), depth * len(rounds), sum(each.accepted for each in rounds))
    return found
