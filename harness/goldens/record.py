"""Goldens made by the local engine on the tiny target.

Guarantees: one prompt a batch, one thread, one seed. What is recorded was sampled in a run of its own, so that the same
key gives it again; the search over seeds only says which seed that is. Torch is loaded when an engine is, and not
before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cassettes.record import MODEL
from harness.goldens.cases import GoldenAnswer, GoldenCase
from harness.goldens.golden import Golden, GoldenError, GoldenToken, piece
from pipeline.formats.format import Format
from pipeline.formats.registry import load_format
from pipeline.formats.tokenizer import load_tokenizer
from pipeline.gate.digests import file_sha256
from pipeline.records import Ids, Json, Sampling

if TYPE_CHECKING:
    from pipeline.generation.engines.local import LocalEngine
    from pipeline.generation.engines.output import EngineOutput

ENGINE = "transformers"
PACKAGES = ("torch", "transformers", "tiktoken")
THREADS = 1
BATCH = 32
SEEDS = 4096
"""Tried before a case is given up; the rarest (another split of the same length) comes once in some hundred answers."""

DIGITS = 4
"""Logprobs are recorded to 0.0001 nats: they are read by people, and differ between machines after that."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The engine and the format on one model."""

    engine: LocalEngine
    fmt: Format
    weights: Path

    def generate(self, prompt_ids: Ids, *sampling: Sampling) -> list[EngineOutput]:
        return self.engine.generate([prompt_ids] * len(sampling), sampling)


def load_bench(weights: Path) -> Bench:
    """Load torch and the model.

    Raises EngineError, TokenizerError.
    """
    from pipeline.generation.engines.local import load_engine

    fmt = load_format("kimi-k2.5", load_tokenizer(weights))
    return Bench(load_engine(weights, threads=THREADS), fmt, weights)


def make(case: GoldenCase, bench: Bench) -> Golden:
    """Return a golden that shows its case.

    Of the first seed whose answer does. Raises GoldenError where none does.
    """
    prompt_ids = bench.fmt.render(case.prompt)
    for sampling in candidates(case, prompt_ids, bench):
        sampled = alone_and_cut(case, sampling, prompt_ids, bench)
        if sampled is not None:
            settings, output = sampled
            text = bench.fmt.tokenizer.decode_bytes(output.ids)
            origin, tokens = provenance(settings, bench), _tokens(output, bench.fmt)
            return Golden(origin, case.id, case.features, case.prompt, prompt_ids, tokens, text)
    raise GoldenError(f"{case.id}: none of {SEEDS} answers shows it. Change the case, or run: nox -s tiny_target")


def again(golden: Golden, bench: Bench) -> Golden:
    """Return what the engine gives today.

    Under the golden's own sampling; prompt ids are rendered today.
    """
    recorded: Any = golden.provenance["sampling"]
    sampling = Sampling(recorded["temperature"], recorded["max_tokens"], recorded["seed"])
    prompt_ids = bench.fmt.render(golden.prompt)
    (output,) = bench.generate(prompt_ids, sampling)
    tokens = _tokens(output, bench.fmt)
    text = bench.fmt.tokenizer.decode_bytes(output.ids)
    return Golden(provenance(sampling, bench), golden.case, golden.features, golden.prompt, prompt_ids, tokens, text)


def other_key(golden: Golden, bench: Bench) -> Iterator[str]:
    """Yield what changed since the golden was recorded.

    A difference of tokens is then no surprise.
    """
    recorded: Any = golden.provenance["sampling"]
    today = provenance(Sampling(recorded["temperature"], recorded["max_tokens"], recorded["seed"]), bench)
    for name, value in today.items():
        if name != "recorded_at" and golden.provenance.get(name) != value:
            yield f"{name} was {golden.provenance.get(name)}, is {value}"


def provenance(sampling: Sampling, bench: Bench) -> dict[str, Json]:
    """Return what decides the tokens, and when they were taken."""
    return {
        "recorded_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "engine": ENGINE,
        "versions": {name: version(name) for name in PACKAGES},
        "model": MODEL,
        "weights_sha256": file_sha256(bench.weights / "model.safetensors"),
        "tokenizer_sha256": bench.fmt.tokenizer.sha256,
        "device": "cpu",
        "dtype": "float32",
        "threads": THREADS,
        "batch": 1,
        "sampling": {
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            "max_tokens": sampling.max_tokens,
        },
    }


def candidates(case: GoldenCase, prompt_ids: Ids, bench: Bench) -> Iterator[Sampling]:
    """Yield settings whose answer shows the case.

    Found in batches.
    """
    if case.greedy:
        yield Sampling(0.0, case.max_tokens, 0)
        return
    for start in range(1, SEEDS, BATCH):
        settings = [Sampling(1.0, case.max_tokens, seed) for seed in range(start, start + BATCH)]
        for sampling, output in zip(settings, bench.generate(prompt_ids, *settings), strict=True):
            if case.shows(_answer(case, output, bench)):
                yield sampling


def alone_and_cut(
    case: GoldenCase, sampling: Sampling, prompt_ids: Ids, bench: Bench
) -> tuple[Sampling, EngineOutput] | None:
    """Return the run that is recorded, alone and cut.

    None where alone it does not show the case.
    """
    (output,) = bench.generate(prompt_ids, sampling)
    answer = _answer(case, output, bench)
    if not case.shows(answer):
        return None
    if case.cut is None:
        return sampling, output
    length = case.cut(answer)
    if length is None:
        return None
    shorter = Sampling(sampling.temperature, length, sampling.seed)
    return shorter, bench.generate(prompt_ids, shorter)[0]


def _answer(case: GoldenCase, output: EngineOutput, bench: Bench) -> GoldenAnswer:
    return GoldenAnswer(output.ids, bench.fmt, case.prompt.thinking)


def _tokens(output: EngineOutput, fmt: Format) -> tuple[GoldenToken, ...]:
    rows = zip(output.ids, output.logprobs, output.runner_up, strict=True)
    return tuple(
        GoldenToken(token, piece(token, fmt.tokenizer), round(logprob, DIGITS), other, round(other_logprob, DIGITS))
        for token, logprob, (other, other_logprob) in rows
    )
