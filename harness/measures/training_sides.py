"""Take optimiser steps of one training implementation.

`python -m harness.measures.training_sides SIDE SEQ PERCENT`, started by `training_speed`.

Guarantees: every side trains the same drafter from the same weights on the same row, states and mask, with the same
optimiser. It reports its loss of each step first, so that no side is timed which computes something else. Memory is
what the step takes on top of what this process held before it. Lines of JSON on stdin and stdout. The peers are
imported here and nowhere else.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pipeline.base.screen import show_json
from pipeline.drafter.model.config import STEP_DECAY, TTT_LENGTH, DrafterConfig, DraftVocabulary, choose_vocabulary
from pipeline.drafter.model.loss import MaskMode, counts, scales, teacher_of
from pipeline.drafter.model.model import Drafter
from pipeline.drafter.training.packing import PackedBatch
from pipeline.drafter.training.trainer import repeatable

THREADS = 2
CLIP, RATE = 0.5, 1e-4
WARM_UP = 64
"""Tokens of the step before all others: it loads kernels and makes the optimiser's state."""
CONFIG = DrafterConfig(
    hidden_size=256,
    intermediate_size=1024,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=32,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    vocab_size=8192,
    draft_vocab_size=2048,
    target_hidden_size=256,
    max_position_embeddings=4096,
    aux_layers=(1, 3, 4),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One row and its states.

    `raw` is the target's last state before its final norm, of all positions.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    aux: torch.Tensor
    raw: torch.Tensor

    @property
    def normed(self) -> torch.Tensor:
        return functional.rms_norm(self.raw, self.raw.shape[-1:], eps=CONFIG.rms_norm_eps)


@dataclass(frozen=True, slots=True)
class TrainingWorld:
    """What all sides share.

    The drafter's first weights, the vocabulary, the target's embedding and head.
    """

    weights: Mapping[str, torch.Tensor]
    vocabulary: DraftVocabulary
    embedding: torch.Tensor
    head: torch.Tensor


Losses = Callable[[Row], "tuple[torch.Tensor, Sequence[float]]"]


@dataclass(frozen=True, slots=True)
class Side:
    """The parameters and the losses of one implementation.

    `losses` gives what is minimised, with its gradient, and the loss of each step of training-time test.
    """

    parameters: Sequence[nn.Parameter]
    losses: Losses


def world() -> TrainingWorld:
    """Return the same world in every process."""
    torch.manual_seed(0)
    vocabulary = choose_vocabulary(torch.rand(CONFIG.vocab_size), CONFIG.draft_vocab_size)
    drafter = Drafter(CONFIG, vocabulary)
    shape = CONFIG.vocab_size, CONFIG.hidden_size
    weights = {name: tensor.clone() for name, tensor in drafter.state_dict().items()}
    return TrainingWorld(weights, vocabulary, torch.randn(shape) * 0.5, torch.randn(shape) * 0.1)


def row(tokens: int, percent: int) -> Row:
    """Return a row of `tokens` tokens, its last ones emitted.

    `percent` of the tokens count as emitted.
    """
    drawn = torch.Generator().manual_seed(tokens)
    width = CONFIG.target_hidden_size
    return Row(
        ids=torch.randint(CONFIG.vocab_size, (tokens,), generator=drawn),
        mask=torch.arange(tokens) >= tokens - max(2, tokens * percent // 100),
        aux=torch.randn(tokens, 3 * width, generator=drawn),
        raw=torch.randn(tokens, width, generator=drawn),
    )


def ours(shared: TrainingWorld, mode: MaskMode = MaskMode.ALIGNED) -> Side:
    """Return this project's drafter, in the default mode of training."""
    drafter = Drafter(CONFIG, shared.vocabulary)
    drafter.load_state_dict(shared.weights)
    drafter.attach(shared.embedding)
    teacher = teacher_of(shared.head, shared.vocabulary.d2t, shared.vocabulary.t2d)

    def losses(given: Row) -> tuple[torch.Tensor, Sequence[float]]:
        batch = PackedBatch(given.ids, given.mask, (0, len(given.ids)), given.aux, given.normed[given.mask], ("row",))
        if mode is MaskMode.SPECFORGE:  # the one mode that reads states of positions that were not emitted
            batch = PackedBatch(given.ids, given.mask, (0, len(given.ids)), given.aux, given.normed, ("row",))
        rows = counts(batch, mode, TTT_LENGTH)
        result = drafter(batch, teacher, mode, scales(rows, mode, STEP_DECAY))
        return result.loss, (result.sums * scales(rows, mode, 1.0)).tolist()

    return Side(list(drafter.parameters()), losses)


def specforge(shared: TrainingWorld, *, compact: bool = False) -> Side:
    """Return SpecForge's model as its strategy calls it.

    `compact` is its option to make no logits of the whole vocabulary. On a CPU its loss kernel cannot run; its own
    reference of that kernel replaces it.
    """
    module = importlib.import_module("specforge.algorithms.eagle3.model")
    loss = importlib.import_module("specforge.core.loss")
    module.LogSoftmaxLoss = type("Reference", (), {"apply": staticmethod(loss._compute_loss)})  # type: ignore[attr-defined]  # noqa: SLF001
    draft = importlib.import_module("specforge.modeling.draft.llama3_eagle").LlamaForCausalLMEagle3(_llama())
    draft.load_state_dict({**shared.weights, "embed_tokens.weight": shared.embedding})
    draft.embed_tokens.weight.requires_grad_(requires_grad=False)
    model = module.OnlineEagle3Model(draft, length=TTT_LENGTH, attention_backend="sdpa")
    padding = importlib.import_module("specforge.utils").padding

    def losses(given: Row) -> tuple[torch.Tensor, Sequence[float]]:
        states = padding(given.normed[None], left=False)
        teacher = {"target_hidden_for_compact": states, "target_head_weight": shared.head} if compact else {}
        plosses, *_ = model(
            input_ids=padding(given.ids[None], left=False),
            attention_mask=torch.ones(1, len(given.ids), dtype=torch.bool),
            loss_mask=given.mask[None, :, None].long(),
            target=None if compact else functional.linear(states, shared.head),
            hidden_states=given.aux[None],
            **teacher,
        )
        return sum(STEP_DECAY**step * one for step, one in enumerate(plosses)), [one.item() for one in plosses]

    return Side([weight for weight in draft.parameters() if weight.requires_grad], losses)


def speculators(shared: TrainingWorld) -> Side:
    """Return speculators' model as its trainer calls it.

    The layout of norms is plain EAGLE-3's, and its head is frozen.
    """
    package = importlib.import_module("speculators.models.eagle3")
    config = package.Eagle3SpeculatorConfig(
        transformer_layer_config=_llama(_attn_implementation="sdpa"),
        draft_vocab_size=CONFIG.draft_vocab_size,
        eagle_aux_hidden_state_layer_ids=[layer + 1 for layer in CONFIG.aux_layers],
    )
    model = package.Eagle3DraftModel(config)
    named = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in shared.weights.items()}
    heads = {"verifier_lm_head.weight": shared.head[shared.vocabulary.target_ids]}
    norm = {"verifier_norm.weight": torch.ones(CONFIG.hidden_size)}
    model.load_state_dict({**named, **heads, **norm, "embed_tokens.weight": shared.embedding})
    loss = importlib.import_module("speculators.losses").resolve_loss_config("kl_div", "eager")

    def losses(given: Row) -> tuple[torch.Tensor, Sequence[float]]:
        _, total, figures = model(
            hidden_states=given.aux[None, :-1],
            input_ids=given.ids[None, 1:],
            document_ids=torch.zeros(1, len(given.ids) - 1, dtype=torch.long),
            loss_mask=given.mask[None, 1:],
            position_ids=torch.arange(1, len(given.ids))[None],
            verifier_last_hidden_states=given.raw[None, 1:],
            ttt_steps=TTT_LENGTH,
            ttt_step_loss_decay=STEP_DECAY,
            loss_config=loss,
        )
        return total, [figures[f"loss_{step}_sum"].item() / STEP_DECAY**step for step in range(TTT_LENGTH)]

    return Side([weight for weight in model.parameters() if weight.requires_grad], losses)


def _llama(**more: object) -> Any:  # noqa: ANN401 - transformers is untyped here
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    more |= {name: getattr(CONFIG, name) for name in (*names, "rms_norm_eps", "max_position_embeddings", "vocab_size")}
    more |= {"draft_vocab_size": CONFIG.draft_vocab_size, "target_hidden_size": CONFIG.target_hidden_size}
    more |= {"rope_theta": CONFIG.rope_theta, "num_hidden_layers": 1, "pad_token_id": 0, "attention_bias": False}
    return importlib.import_module("transformers").LlamaConfig(**more)


SIDES: Mapping[str, Callable[[TrainingWorld], Side]] = {
    "ours": ours,
    "specforge": specforge,
    "specforge-compact": lambda shared: specforge(shared, compact=True),
    "speculators": speculators,
}


def _step(side: Side, optimizer: torch.optim.Optimizer, given: Row) -> None:
    loss, _ = side.losses(given)
    loss.backward()
    nn.utils.clip_grad_norm_(side.parameters, CLIP)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _timed(step: Callable[[], None]) -> dict[str, float]:
    """Return seconds by the clock and of processor time."""
    began, used = time.perf_counter(), time.process_time()
    step()
    return {"wall": time.perf_counter() - began, "cpu": time.process_time() - used}


def _weighed(step: Callable[[], None]) -> dict[str, float]:
    """Return the bytes that a step takes on top.

    On top of what this process holds once it has given back what it does not use.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # the high-water mark starts anew
    held = _status("VmRSS")
    step()
    return {"bytes": _status("VmHWM") - held}


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _say(told: object) -> None:
    show_json(told)


def main(arguments: Sequence[str] | None = None) -> None:
    """Report the losses, then take a step for each line."""
    name, tokens, percent = arguments or sys.argv[1:]
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    shared, given = world(), row(int(tokens), int(percent))
    side = SIDES[name](shared)
    own = [MaskMode.SPECFORGE, MaskMode.SPECULATORS] if name == "ours" else []
    checked = {str(mode): ours(shared, mode) for mode in own} or {name.partition("-")[0]: side}
    with torch.no_grad():
        _say({which: each.losses(given)[1] for which, each in checked.items()})
    optimizer = torch.optim.AdamW(side.parameters, lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    with repeatable(torch.device("cpu" if name == "ours" else "meta")):
        _step(side, optimizer, row(WARM_UP, 50))
        for wanted in sys.stdin:
            measure = _weighed if wanted.strip() == "memory" else _timed
            _say(measure(lambda: _step(side, optimizer, given)))


if __name__ == "__main__":
    main()
