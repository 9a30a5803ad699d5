"""The drafter beside the public trainers: fixed weights and batch, their logits at each step and their losses.

The values were computed by EAGLE, SpecForge 0.2.0 and speculators 0.9.0, which agree to six decimals; `aligned` is the
same forward pass under the mask that serving asks for. `$DRAFTER_GATE_EAGLE_REFERENCE` names other values of the kind.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.drafter.model.config import DrafterConfig, DraftVocabulary
from pipeline.drafter.model.loss import MaskMode, counts, scales, teacher_of
from pipeline.drafter.model.model import Drafter
from pipeline.drafter.training.packing import PackedBatch

TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Reference:
    """The drafter with the fixed weights, the batch, and all values by name."""

    drafter: Drafter
    batch: PackedBatch
    values: dict[str, torch.Tensor]
    losses: dict[str, list[float]]
    steps: int


@pytest.fixture(scope="module")
def reference(request: pytest.FixtureRequest) -> Reference:
    named = os.environ.get("DRAFTER_GATE_EAGLE_REFERENCE")
    stem = Path(named) if named else request.getfixturevalue("shared") / "eagle3" / "reference"
    values = load_file(stem.with_name(f"{stem.name}.safetensors"))
    document = json.loads(stem.with_name(f"{stem.name}.json").read_text("utf-8"))
    drafter = _drafter(document, values)
    batch = PackedBatch(
        ids=values["input_ids"][0],
        mask=values["loss_mask"][0].bool(),
        starts=(0, values["input_ids"].shape[1]),
        aux=values["aux_hidden_states"][0],
        last=values["last_hidden_after_norm"][0],
        row_ids=("reference",),
    )
    return Reference(drafter, batch, values, document["loss_per_step"], document["ttt_length"])


def _drafter(document: dict[str, dict[str, object]], values: dict[str, torch.Tensor]) -> Drafter:
    shape = document["config"]
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    config = DrafterConfig(
        **{name: int(str(shape[name])) for name in names},
        rms_norm_eps=float(str(shape["rms_norm_eps"])),
        rope_theta=float(str(shape.get("rope_theta", 10_000.0))),
        vocab_size=int(str(shape["vocab_size"])),
        draft_vocab_size=len(values["d2t"]),
        target_hidden_size=int(str(shape["hidden_size"])),
        max_position_embeddings=int(str(shape["max_position_embeddings"])),
        aux_layers=(0, 1, 2),
    )
    drafter = Drafter(config, DraftVocabulary(values["d2t"], values["t2d"]))
    own = {name.removeprefix("drafter."): tensor for name, tensor in values.items() if name.startswith("drafter.")}
    drafter.load_state_dict({**own, "d2t": values["d2t"], "t2d": values["t2d"]})
    drafter.attach(values["target.model.embed_tokens.weight"])
    return drafter


@pytest.mark.parametrize("mode", list(MaskMode))
def test_the_loss_of_each_step_is_that_of_the_public_trainers(reference: Reference, mode: MaskMode) -> None:
    values, drafter = reference.values, reference.drafter
    rows = counts(reference.batch, mode, reference.steps)
    teacher = teacher_of(values["target.lm_head.weight"], values["d2t"], values["t2d"])

    means = drafter(reference.batch, teacher, mode, scales(rows, mode, 1.0)).sums * scales(rows, mode, 1.0)

    expected = torch.tensor(reference.losses[str(mode)], dtype=torch.float64)
    torch.testing.assert_close(means, expected, atol=TOLERANCE, rtol=0)


def test_each_steps_logits_are_those_of_the_public_trainers(reference: Reference) -> None:
    """Decoded row by row over a cache; a row is compared while the token that it reads is in the batch."""
    batch, drafter = reference.batch, reference.drafter
    ids, fused = batch.ids, drafter.fuse(batch.aux)
    for row in range(batch.tokens - reference.steps):
        cache = drafter.new_cache()
        before = torch.arange(row + 1)[None]
        state = drafter.decode(ids[None, 1 : row + 2], fused[None, : row + 1], before, cache)[:, -1:]
        for step in range(reference.steps):
            if step:
                state = drafter.decode(ids[None, row + 1 + step, None], state, torch.tensor([[row + step]]), cache)
            expected = reference.values[f"drafter_logits.step{step}"][row]
            torch.testing.assert_close(drafter.logits(state)[0, 0], expected, atol=TOLERANCE, rtol=0)
