"""Load everything that a training needs: vocabulary, drafter, teacher, sampler.

Guarantees: the draft vocabulary is made of the tokens that the training rows emitted, with every control token in use,
and its share of the emitted text is reported. Fresh weights follow from the recipe's seed alone. The settings name
everything that decides the weights, so that a run continues only if none of it changed.
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
from pipeline.drafter.target.layers import boundaries, written_aux_ids
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
    """A training that is ready to begin.

    `settings` are the run's; `description` goes into each checkpoint.
    """

    training: Training
    split: RowSplit
    vocabulary: DraftVocabulary
    settings: Mapping[str, Json]
    description: Mapping[str, Json]
    held_out_coverage: float | None


def set_up(
    data: TrainingData, recipe: Recipe, world: World, sharing: Sharing, dtype: torch.dtype | None = None
) -> Setup:
    """Load data, drafter and teacher; the target computes in `dtype`.

    Raises SamplerError, VocabularyError, TargetError, DrafterConfigError and others of the parts, OSError.

    Example:
        data = read_training_data([Path("rows")], Path("target"), RowPolicy())
        with joined(torch.device("cpu")) as world:
            setup = set_up(data, Recipe(epochs=1), world, Sharing.DDP)
            ending = train(setup.training, None, Intervals(), out, setup.description, show)
    """
    # Before any time is spent, refuse layers that no engine hands to a drafter.
    written_aux_ids(data.layers, data.facts.num_layers, data.facts.model_type)
    opened = open_states(data, world.device, dtype)
    split = split_rows(opened.source, recipe, data.indices)
    size = min(recipe.draft_vocabulary, data.facts.vocab_size)
    emitted = frequencies(opened.source, split.training, data.facts.vocab_size)
    vocabulary = choose_vocabulary(emitted, size, control_ids(data))
    config = drafter_config(data.facts.config.get_text_config(), draft_vocab_size=size, layers=data.layers)
    torch.manual_seed(recipe.seed)
    drafter = Drafter(config, vocabulary).to(world.device)
    drafter.attach(opened.weights.embedding.to(world.device))
    teacher = teacher_of(opened.weights.head, drafter.d2t, drafter.t2d)
    training = Training(drafter, teacher, BatchSampler(opened.source, split, recipe), world, sharing)
    settings = settings_of(data, recipe, world, sharing, opened.computed)
    description: dict[str, Json] = {
        "config": asdict(config) | {"aux_layers": [*config.aux_layers]},
        "target_weights_sha256": data.facts.weights_sha256,
        "target_config_sha256": data.facts.config_sha256,
        "draft_vocabulary_coverage": vocabulary.coverage,
        "settings_sha256": hashlib.sha256(canonical(settings)).hexdigest(),
    }
    others = frequencies(opened.source, split.held_out, data.facts.vocab_size)
    covered = float(others[vocabulary.t2d].sum() / others.sum()) if int(others.sum()) else None
    return Setup(training, split, vocabulary, settings, description, covered)


def settings_of(
    data: TrainingData, recipe: Recipe, world: World, sharing: Sharing, computed: Mapping[str, str]
) -> dict[str, Json]:
    """Return the settings that a run must keep."""
    threads: dict[str, Json] = {"threads": torch.get_num_threads()} if world.device.type == "cpu" else {}
    return {
        **recipe.document(),
        "target_weights_sha256": data.facts.weights_sha256,
        "target_config_sha256": data.facts.config_sha256,
        "target_model_type": data.facts.model_type,
        "format": data.format,
        "layers": [*data.layers],
        "layers_as_boundaries": [*boundaries(data.layers)],
        "states": "online" if data.store is None else "store",
        "computed": {**computed, **threads},
        "processes": world.size,
        "sharing": str(sharing) if world.size > 1 else None,
        "rows": data.document,
    }


def drafter_of(snapshot: Snapshot) -> Drafter:
    """Return the drafter of a checkpoint.

    On the CPU, without an embedding. Raises CheckpointError.
    """
    saved: Any = snapshot.description.get("config")
    try:
        config = DrafterConfig(**saved | {"aux_layers": tuple(saved["aux_layers"])})
        drafter = Drafter(config, DraftVocabulary(snapshot.drafter["d2t"], snapshot.drafter["t2d"]))
        drafter.load_state_dict(dict(snapshot.drafter))
    except (TypeError, LookupError, RuntimeError) as error:
        raise CheckpointError(f"the checkpoint after step {snapshot.step} holds no drafter ({error})") from error
    drafter.eval().requires_grad_(requires_grad=False)
    return drafter


def sentences(setup: Setup, data: TrainingData) -> Iterator[str]:
    """Describe the training before its first step."""
    split, course = setup.split, setup.training.sampler.course
    for why, number in sorted(data.left_out.items()):
        yield f"{number:,} rows left out: {why}"
    for why, indices in (
        ("longer than a batch", split.too_long),
        ("no two emitted tokens with one before them", split.mute),
    ):
        if indices:
            yield f"{len(indices):,} rows left out: {why}"
    yield f"{len(split.training):,} rows train, {len(split.held_out):,} validate; {course.steps:,} steps in all"
    vocabulary = setup.vocabulary
    share = f"{100 * vocabulary.coverage:.2f} % of the emitted tokens"
    held_out = setup.held_out_coverage
    also = "" if held_out is None else f", {100 * held_out:.2f} % of those held out"
    yield f"draft vocabulary: {len(vocabulary.d2t):,} of {len(vocabulary.t2d):,} tokens, {share}{also}"
