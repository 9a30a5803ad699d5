"""Sample from a Hugging Face causal model in this process.

Guarantees: what is returned is what was sampled, the end token included, with its logprobs; nothing is decoded on the
way. Each row draws from its own seed, so an answer does not depend on the batch it was in, save where float rounding
(about 1e-5 nats) moves a draw across the border of two tokens. Needs torch and transformers.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from pipeline.base.screen import say_logs_of_transformers
from pipeline.generation.engines.output import EngineError, EngineOutput, complete

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

    from pipeline.records import Ids, Sampling

__all__ = ["EngineError", "EngineOutput", "LocalEngine", "complete", "load_engine"]


@dataclass(slots=True)
class _Row:
    """One prompt's answer so far.

    `draws` are its uniform numbers in [0, 1), one a token, shape [max_tokens].
    """

    draws: torch.Tensor
    sampling: Sampling
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    runner_up: list[tuple[int, float]] = field(default_factory=list)
    finished: bool = False

    @property
    def done(self) -> bool:
        return self.finished or len(self.ids) >= self.sampling.max_tokens


@dataclass(slots=True)
class _Batch:
    """The unfinished rows, and their state on the model.

    Last token [n], mask [n, past + 1], cache.
    """

    rows: list[_Row]
    tokens: torch.Tensor
    mask: torch.Tensor
    cache: DynamicCache


class LocalEngine:
    """A causal model that stops at `end_ids`.

    float32 on the CPU.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval()
        generation = model.generation_config
        end = None if generation is None else generation.eos_token_id
        end = model.config.eos_token_id if end is None else end
        self.end_ids = frozenset([end] if isinstance(end, int) else end or [])
        self.context = int(model.config.max_position_embeddings)

    def generate(self, prompts: Sequence[Ids], sampling: Sequence[Sampling]) -> list[EngineOutput]:
        """Return one answer a prompt, run as one batch.

        Of `sampling`, temperature, max_tokens and seed are read. Temperature 0 is greedy; without a seed the row draws
        a fresh one. Raises EngineError for an empty prompt, and for one that leaves no room for max_tokens.
        """
        self._require_room(prompts, sampling)
        rows = [_Row(_draws(each), each) for each in sampling]
        if rows:
            with torch.inference_mode():
                tokens, mask = _left_padded(prompts)
                batch = _Batch(rows, tokens, mask, DynamicCache(config=self.model.config))
                while batch.rows:
                    logits = self._next_logits(batch)
                    chosen = _sample(logits, batch.rows)
                    _record(logits, chosen, batch.rows, self.end_ids)
                    batch = _advance(batch, chosen)
        return [EngineOutput(tuple(row.ids), tuple(row.logprobs), tuple(row.runner_up), row.finished) for row in rows]

    def _next_logits(self, batch: _Batch) -> torch.Tensor:
        """Return logits of the next token, float64 [n, vocabulary]."""
        positions = (batch.mask.cumsum(1) - 1).clamp(min=0)[:, -batch.tokens.shape[1] :]
        output = self.model(
            input_ids=batch.tokens,
            attention_mask=batch.mask,
            position_ids=positions,
            cache=batch.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = output.logits
        return logits[:, -1].double()

    def _require_room(self, prompts: Sequence[Ids], sampling: Sequence[Sampling]) -> None:
        for prompt, each in zip(prompts, sampling, strict=True):
            if not prompt or each.max_tokens < 1:
                raise EngineError("the prompt is empty or max_tokens below 1; give at least one token of each")
            if len(prompt) + each.max_tokens > self.context:
                wanted = f"{len(prompt)} prompt tokens + max_tokens {each.max_tokens}"
                raise EngineError(f"{wanted} exceed the model's context of {self.context}; lower max_tokens")


def load_engine(directory: Path, *, threads: int | None = None) -> LocalEngine:
    """Load the model of a Hugging Face directory.

    It is read from disk only. `threads` sets torch's, for the whole process. Raises EngineError.
    """
    if not (directory / "config.json").is_file():
        raise EngineError(f"{directory}: no model there (no config.json); give its directory with --weights DIR")
    if threads is not None:
        torch.set_num_threads(threads)
    say_logs_of_transformers()
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(
            directory, config=config, dtype=torch.float32, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise EngineError(f"{directory}: the model does not load ({str(error).splitlines()[0]})") from None
    return LocalEngine(model)


def _draws(sampling: Sampling) -> torch.Tensor:
    seed = secrets.randbits(63) if sampling.seed is None else sampling.seed % 2**63
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(sampling.max_tokens, generator=generator, dtype=torch.float64)


def _left_padded(prompts: Sequence[Ids]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, prompts))
    tokens = torch.zeros((len(prompts), longest), dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return tokens, mask


def _sample(logits: torch.Tensor, rows: Sequence[_Row]) -> torch.Tensor:
    """Draw ids [n] by inverse distribution function.

    One number a row and step, so that a row never sees its neighbours.
    """
    temperatures = torch.tensor([row.sampling.temperature for row in rows], dtype=torch.float64)
    greedy = temperatures == 0
    scaled = logits / temperatures.masked_fill(greedy, 1.0)[:, None]
    reached = scaled.softmax(-1).cumsum(-1)
    draws = torch.stack([row.draws[len(row.ids)] for row in rows])
    # The last sum may fall short of 1 by rounding, and a draw above it must still name a token that can be.
    sampled = torch.searchsorted(reached, (draws * reached[:, -1])[:, None], right=True)[:, 0]
    return torch.where(greedy, logits.argmax(-1), sampled.clamp(max=logits.shape[1] - 1))


def _record(logits: torch.Tensor, chosen: torch.Tensor, rows: Sequence[_Row], end_ids: frozenset[int]) -> None:
    logprobs = logits.log_softmax(-1)
    own = logprobs.gather(1, chosen[:, None])
    others = logprobs.scatter(1, chosen[:, None], -torch.inf).max(-1)
    columns = (chosen.tolist(), own[:, 0].tolist(), others.indices.tolist(), others.values.tolist())
    for row, token, logprob, other, other_logprob in zip(rows, *columns, strict=True):
        row.ids.append(token)
        row.logprobs.append(logprob)
        row.runner_up.append((other, other_logprob))
        row.finished = token in end_ids


def _advance(batch: _Batch, chosen: torch.Tensor) -> _Batch:
    """Return the next batch, without the rows that ended."""
    left = [index for index, row in enumerate(batch.rows) if not row.done]
    tokens, mask = chosen[:, None], torch.cat([batch.mask, torch.ones_like(chosen)[:, None]], dim=1)
    if len(left) < len(batch.rows):
        keep = torch.tensor(left, dtype=torch.long)
        tokens, mask = tokens[keep], mask[keep]
        batch.cache.batch_select_indices(keep)
    return _Batch([batch.rows[index] for index in left], tokens, mask, batch.cache)
