"""Small drafters, batches and trials for the tests here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.drafter.decoding.evaluate import Trial, compare
from pipeline.drafter.decoding.prompts import EvaluationPrompt
from pipeline.drafter.decoding.speculate import PlainDecoding, Round, SpeculativeDecoding
from pipeline.drafter.decoding.trees import parse_shape
from pipeline.drafter.model.config import DrafterConfig, DraftVocabulary, choose_vocabulary
from pipeline.drafter.model.loss import Teacher, teacher_of
from pipeline.drafter.model.model import Drafter
from pipeline.drafter.training.packing import RowStates
from pipeline.records import Ids

VOCABULARY, DRAFT, WIDTH, TARGET_WIDTH = 40, 24, 16, 12
CONFIG = DrafterConfig(
    hidden_size=WIDTH,
    intermediate_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    vocab_size=VOCABULARY,
    draft_vocab_size=DRAFT,
    target_hidden_size=TARGET_WIDTH,
    max_position_embeddings=64,
    aux_layers=(1, 3, 4),
)


def vocabulary() -> DraftVocabulary:
    """Return a vocabulary that maps no id to itself.

    Every id that is no multiple of three, without 38.
    """
    return choose_vocabulary(torch.tensor([float(token % 3 > 0) for token in range(VOCABULARY)]), DRAFT, always=[1])


def drafter(seed: int = 0) -> Drafter:
    """Fresh weights, large enough that nothing is near zero."""
    torch.manual_seed(seed)
    made = Drafter(CONFIG, vocabulary())
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    made.attach(torch.randn(VOCABULARY, WIDTH))
    return made


def teacher(made: Drafter, seed: int = 1) -> Teacher:
    """A target's head."""
    generator = torch.Generator().manual_seed(seed)
    return teacher_of(torch.randn(VOCABULARY, TARGET_WIDTH, generator=generator), made.d2t, made.t2d)


def row(prompt: int, answer: int, seed: int) -> RowStates:
    """Return a row with this many tokens and random states."""
    generator = torch.Generator().manual_seed(seed)
    tokens = prompt + answer
    return RowStates(
        id=f"row-{seed}",
        ids=torch.randint(VOCABULARY, (tokens,), generator=generator),
        mask=torch.arange(tokens) >= prompt,
        aux=torch.randn(tokens, 3 * TARGET_WIDTH, generator=generator),
        last=torch.randn(answer, TARGET_WIDTH, generator=generator),
    )


class Largest(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Record the size of the largest tensor made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """What the operation gives."""
        del types
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else [made]:
            if isinstance(one, torch.Tensor):
                self.numbers = max(self.numbers, one.numel())
        return made


def plain(ids: Ids, margin: float = 1.0, seconds: float = 2.0) -> PlainDecoding:
    return PlainDecoding(ids, (margin,) * len(ids), seconds)


def trial(
    name: str, dataset: str, ids: Ids, rounds: tuple[Round, ...], *, margin: float = 1.0, other: Ids | None = None
) -> Trial:
    own, speculated = plain(ids, margin), SpeculativeDecoding(other or ids, rounds, 1.0)
    difference = compare(own, speculated)
    return Trial("drafter", parse_shape("chain:3"), EvaluationPrompt(name, (1,), dataset), own, speculated, difference)
