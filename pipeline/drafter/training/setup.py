"""A training put together: vocabulary, drafter, teacher and rows, from material and a recipe.

Guarantees: the draft vocabulary is that of the tokens which the training rows emitted, every control token in use among
them, and how much of the emitted text it can name is said. Fresh weights follow the recipe's seed alone. The settings
name all that decides the weights, so that a run is gone on with only where nothing of it changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from pipeline.base.json_lines import canonical
from pipeline.drafter.model.config import DrafterConfig, DraftVocabulary, choose_vocabulary, drafter_config
from pipeline.drafter.model.loss import teacher_of
from pipeline.drafter.model.model import Drafter
from pipeline.drafter.target import layers
from pipeline.drafter.target.layers import boundaries
from pipeline.drafter.training.checkpoints import CheckpointError, Snapshot
from pipeline.drafter.training.data import control_ids, frequencies, open_states
from pipeline.drafter.training.sampler import BatchSampler, RowSplit, split_rows
from pipeline.drafter.training.trainer import Training
from pipeline.records import Json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.drafter.training.data import TrainingData
    from pipeline.drafter.training.distributed import Sharing, World
    from pipeline.drafter.training.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Setup:
    """A training that may begin. `settings` are the run's; `told` goes into each checkpoint."""

    training: Training
    sides: RowSplit
    vocabulary: DraftVocabulary
    settings: Mapping[str, Json]
    told: Mapping[str, Json]
    held_out_coverage: float | None


def set_up(
    material: TrainingData, recipe: Recipe, world: World, sharing: Sharing, dtype: torch.dtype | None = None
) -> Setup:
    """Everything loaded and in its place; `dtype` is what the target computes in.

    Raises FeedError, VocabularyError, TargetError, DrafterConfigError and others of the parts, OSError.
    """
    # Before any hour is spent: layers that no engine hands to a drafter.
    layers.written_aux_ids(material.layers, material.facts.num_layers, material.facts.model_type)
    opened = open_states(material, world.device, dtype)
    sides = split_rows(opened.source, recipe, material.wanted)
    size = min(recipe.draft_vocabulary, material.facts.vocab_size)
    emitted = frequencies(opened.source, sides.training, material.facts.vocab_size)
    vocabulary = choose_vocabulary(emitted, size, control_ids(material))
    config = drafter_config(material.facts.config.get_text_config(), draft_vocab_size=size, layers=material.layers)
    torch.manual_seed(recipe.seed)
    drafter = Drafter(config, vocabulary).to(world.device)
    drafter.attach(opened.ends.embedding.to(world.device))
    teacher = teacher_of(opened.ends.head, drafter.d2t, drafter.t2d)
    training = Training(drafter, teacher, BatchSampler(opened.source, sides, recipe), world, sharing)
    settings = settings_of(material, recipe, world, sharing, opened.computed)
    told: dict[str, Json] = {
        "config": asdict(config) | {"aux_layers": [*config.aux_layers]},
        "target_weights_sha256": material.facts.weights_sha256,
        "target_config_sha256": material.facts.config_sha256,
        "draft_vocabulary_coverage": vocabulary.coverage,
        "settings_sha256": hashlib.sha256(canonical(settings)).hexdigest(),
    }
    others = frequencies(opened.source, sides.held_out, material.facts.vocab_size)
    covered = float(others[vocabulary.t2d].sum() / others.sum()) if int(others.sum()) else None
    return Setup(training, sides, vocabulary, settings, told, covered)


def settings_of(
    material: TrainingData, recipe: Recipe, world: World, sharing: Sharing, computed: Mapping[str, str]
) -> dict[str, Json]:
    """What a run is begun with and gone on with."""
    threads: dict[str, Json] = {"threads": torch.get_num_threads()} if world.device.type == "cpu" else {}
    return {
        **recipe.document(),
        "target_weights_sha256": material.facts.weights_sha256,
        "target_config_sha256": material.facts.config_sha256,
        "target_model_type": material.facts.model_type,
        "format": material.format,
        "layers": [*material.layers],
        "layers_as_boundaries": [*boundaries(material.layers)],
        "states": "online" if material.store is None else "store",
        "computed": {**computed, **threads},
        "processes": world.size,
        "sharing": str(sharing) if world.size > 1 else None,
        "rows": material.document,
    }


def drafter_of(snapshot: Snapshot) -> Drafter:
    """The drafter of a checkpoint, on the CPU, without an embedding. Raises CheckpointError."""
    told: Any = snapshot.told.get("config")
    try:
        config = DrafterConfig(**told | {"aux_layers": tuple(told["aux_layers"])})
        drafter = Drafter(config, DraftVocabulary(snapshot.drafter["d2t"], snapshot.drafter["t2d"]))
        drafter.load_state_dict(dict(snapshot.drafter))
    except (TypeError, LookupError, RuntimeError) as error:
        raise CheckpointError(f"the checkpoint after step {snapshot.step} holds no drafter ({error})") from error
    drafter.eval().requires_grad_(requires_grad=False)
    return drafter


def sentences(setup: Setup, material: TrainingData) -> Iterator[str]:
    """What is known before the first step, in words."""
    sides, course = setup.sides, setup.training.feed.course
    for why, number in sorted(material.left_out.items()):
        yield f"{number:,} rows left out: {why}"
    for why, indices in (
        ("longer than a batch", sides.too_long),
        ("no two emitted tokens with one before them", sides.mute),
    ):
        if indices:
            yield f"{len(indices):,} rows left out: {why}"
    yield f"{len(sides.training):,} rows train, {len(sides.held_out):,} validate; {course.steps:,} steps in all"
    vocabulary = setup.vocabulary
    share = f"{100 * vocabulary.coverage:.2f} % of the emitted tokens"
    held_out = setup.held_out_coverage
    also = "" if held_out is None else f", {100 * held_out:.2f} % of those held out"
    yield f"draft vocabulary: {len(vocabulary.d2t):,} of {len(vocabulary.t2d):,} tokens, {share}{also}"
