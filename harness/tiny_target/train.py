"""The tiny target's training: grammar to vocabulary to weights.

Guarantees: the same seed and steps on the same machine and library versions give the same weights; only completion
tokens are learnt. The model is a plain LlamaForCausalLM that every engine can serve: head_dim 32, eight layers
(EAGLE-3's default layer ids collide below seven), tied embeddings, about 1.3 M parameters. Minutes on two cores. Needs
torch and transformers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from random import Random
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from harness.tiny_target.conversion import copy_template, write_tokenizer_json
from harness.tiny_target.grammar import samples
from harness.tiny_target.layout import taught_ids, texts
from harness.tiny_target.provenance import write_provenance
from harness.tiny_target.vocabulary import BASE_SIZE, train_ranks, write_vocabulary
from harness.tiny_target.words import Split
from pipeline.formats.registry import load_format
from pipeline.formats.tokenizer import CONTROL_TOKENS, load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.formats.format import Format
    from pipeline.records import Ids


IGNORED = -100
LOG_EVERY = 100


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a run is made of.

    `loose` is the share of answers taught with a re-split token; the first `spelled` samples make the vocabulary.
    """

    seed: int = 2
    steps: int = 2000
    batch: int = 16
    corpus: int = 32_000
    spelled: int = 4_000
    peak: float = 4e-3
    warmup: int = 60
    loose: float = 0.012
    threads: int = 2


@dataclass(frozen=True, slots=True)
class Example:
    """Prompt and answer as ids."""

    prompt: Ids
    output: Ids

    def __len__(self) -> int:
        return len(self.prompt) + len(self.output)


def build(recipe: Recipe, directory: Path) -> float:
    """Write the whole model directory.

    Returns the last loss, as `fit` gives it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    taught = islice(samples(recipe.seed, Split.TRAIN), recipe.spelled)
    write_vocabulary(train_ranks(text for sample in taught for text in texts(sample)), directory)
    tokenizer = load_tokenizer(directory)
    write_tokenizer_json(tokenizer)
    copy_template(directory)
    model, loss = fit(recipe, load_format("kimi-k2.5", tokenizer))
    disable_progress_bar()
    model.to(torch.bfloat16).save_pretrained(directory)
    run = {"recipe": asdict(recipe), "loss": round(loss, 4), "parameters": model.num_parameters()}
    write_provenance(directory, run)
    return loss


def fit(recipe: Recipe, fmt: Format) -> tuple[LlamaForCausalLM, float]:
    """Return the trained model, and its last loss.

    Float32 holding bfloat16 values; the mean loss of the last hundred steps.
    """
    torch.set_num_threads(recipe.threads)
    torch.use_deterministic_algorithms(mode=True)
    torch.manual_seed(recipe.seed)
    model = new_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.peak, betas=(0.9, 0.95), weight_decay=0.05)
    losses: list[float] = []
    batches = islice(endless_batches(corpus(recipe, fmt), recipe), recipe.steps)
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe)
        losses.append(train_step(model, optimizer, batch))
        report(step, losses)
    return rounded(model), sum(losses[-LOG_EVERY:]) / len(losses[-LOG_EVERY:])


def corpus(recipe: Recipe, fmt: Format) -> list[Example]:
    """Return the training samples as ids."""
    rng = Random(f"loose-{recipe.seed}")
    return [
        Example(fmt.render(sample.prompt), taught_ids(fmt.tokenizer, sample, rng, loose=recipe.loose))
        for sample in islice(samples(recipe.seed, Split.TRAIN), recipe.corpus)
    ]


def endless_batches(examples: Sequence[Example], recipe: Recipe) -> Iterator[list[Example]]:
    """Yield batches of like length in random order.

    Reshuffled each time round.
    """
    rng = Random(f"batches-{recipe.seed}")
    while True:
        order = sorted(examples, key=lambda example: len(example) + rng.random() * 16)
        batches = [order[start : start + recipe.batch] for start in range(0, len(order), recipe.batch)]
        rng.shuffle(batches)
        yield from batches


def learning_rate(step: int, recipe: Recipe) -> float:
    """Return the learning rate of a step.

    Linear warm-up, then a cosine to a hundredth of the peak.
    """
    if step < recipe.warmup:
        return recipe.peak * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


def train_step(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, batch: Sequence[Example]) -> float:
    """Do one update, and return the loss.

    The mean over completion tokens, in nats.
    """
    ids, labels = padded(batch)
    learnt = labels[:, 1:] != IGNORED
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
    loss = cross_entropy(model.lm_head(hidden[learnt]), labels[:, 1:][learnt])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def padded(batch: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and labels, shapes [rows, longest].

    Padded on the right, where causal attention never looks.
    """
    longest = max(map(len, batch))
    ids = torch.zeros((len(batch), longest), dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for row, example in enumerate(batch):
        start, stop = len(example.prompt), len(example)
        ids[row, :stop] = torch.tensor(example.prompt + example.output)
        labels[row, start:stop] = torch.tensor(example.output)
    return ids, labels


def rounded(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return the model at the precision it is stored in.

    What is measured is then what is shipped.
    """
    return model.to(torch.bfloat16).to(torch.float32).eval()


def report(step: int, losses: Sequence[float]) -> None:
    """Write one line to stderr every hundred steps."""
    if (step + 1) % LOG_EVERY == 0:
        recent = sum(losses[-LOG_EVERY:]) / LOG_EVERY
        sys.stderr.write(f"step {step + 1}: loss {recent:.4f}\n")


CONTEXT = 2048


def new_model() -> LlamaForCausalLM:
    """Return an untrained model.

    Its weights follow torch's global seed.
    """
    return LlamaForCausalLM(config())


def config() -> LlamaConfig:
    """Return the model's shape.

    The model stops at `<|im_end|>`, as Kimi's config.json says, and pads with [PAD].
    """
    return LlamaConfig(
        vocab_size=BASE_SIZE + CONTROL_TOKENS,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=BASE_SIZE,
        eos_token_id=BASE_SIZE + 2,
        pad_token_id=BASE_SIZE + 255,
        initializer_range=0.04,
    )
