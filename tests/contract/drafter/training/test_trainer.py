"""Optimiser steps: what they minimise, and what stops them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from harness.fixtures.trainings import LENGTHS, DrawnStates, equal, training, weights
from pipeline.drafter.model.loss import MaskMode, counts
from pipeline.drafter.training.packing import pack
from pipeline.drafter.training.recipe import Precision
from pipeline.drafter.training.sampler import BatchSampler
from pipeline.drafter.training.trainer import NotFiniteError, Training, repeatable

pytestmark = pytest.mark.contract


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with repeatable(torch.device("cpu")):
        yield
    torch.set_num_threads(before)


def farthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def steps(found: Training, number: int) -> list[float]:
    return [found.take_step().figures.total for _ in range(number)]


@pytest.mark.parametrize("mode", MaskMode)
def test_a_step_minimises_the_weighted_sum_of_means(mode: MaskMode) -> None:
    found = training(mode=mode)
    batch = pack(DrawnStates().rows(found.sampler.step(0)[0]))
    result = found.drafter(batch, found.teacher, mode, torch.ones(3, dtype=torch.float64))
    means = result.sums / (counts(batch, mode, 3) + (1e-5 if mode is MaskMode.SPECULATORS else 0))

    report = found.take_step()

    assert pytest.approx(means.tolist(), rel=1e-5) == report.figures.loss
    assert pytest.approx(float(means[0] + 0.8 * means[1] + 0.64 * means[2]), rel=1e-5) == report.figures.total
    assert result.counts.tolist() == list(report.figures.rows)


@pytest.mark.parametrize("mode", MaskMode)
def test_batches_that_are_summed_up_give_the_step_of_one_batch(mode: MaskMode) -> None:
    """The denominators are of the whole step: rows of unlike shares of emitted tokens show any mean of means."""
    whole, parts = training(mode=mode), training(mode=mode, tokens_a_batch=20, batches_a_step=9)

    found = whole.take_step(), parts.take_step()

    assert 1 == len(whole.sampler.step(0)) < len(parts.sampler.step(0))
    assert pytest.approx(found[0].figures.total, rel=1e-6) == found[1].figures.total
    assert pytest.approx(found[0].gradient, rel=1e-5) == found[1].gradient
    assert farthest(weights(whole), weights(parts)) < 1e-5


def test_the_loss_falls() -> None:
    losses = steps(training(epochs=30), 30)

    assert losses[-1] < 0.8 * losses[0]


def test_the_gradient_is_told_as_it_was_before_it_is_clipped() -> None:
    tight, loose = training(clip=1e-3), training(clip=1e9)

    assert pytest.approx(tight.take_step().gradient) == loose.take_step().gradient
    assert tight.take_step().gradient > 1e-3


def test_the_first_step_moves_no_weight_farther_than_the_rate() -> None:
    """Adam's first step is the rate times the gradient's sign; with a warm-up of two, that is half its peak."""
    found = training(warmup=0.8)
    before = weights(found)

    report = found.take_step()

    assert 0.005 == report.rate
    assert 0.0049 < farthest(before, weights(found)) < 0.00501


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    runs = [training(seed=seed, epochs=3) for seed in (1, 1, 2)]
    losses = [steps(run, 3) for run in runs]

    assert losses[0] == losses[1] != losses[2]
    assert equal(weights(runs[0]), weights(runs[1]))


@pytest.mark.parametrize("at", [1, 4, 7])
def test_gone_on_with_it_ends_in_the_same_bits(at: int) -> None:
    """Weights, moments, rate and the order of rows: all of it is in the snapshot or follows from the step."""

    def begun() -> Training:
        return training(tokens_a_batch=20, epochs=5, batches_a_step=2)

    whole = begun()
    losses = steps(whole, 10)
    stopped = begun()
    before = steps(stopped, at)
    snapshot = stopped.snapshot({})

    resumed = begun()
    steps(resumed, 2)  # other weights and moments, until they are restored
    resumed.restore(snapshot)
    after = steps(resumed, 10 - at)

    assert losses == before + after
    assert equal(weights(whole), weights(resumed))


def test_a_snapshot_is_in_float32_under_autocast_too() -> None:
    found = training(precision=Precision.BFLOAT16)
    before = steps(found, 1)
    snapshot = found.snapshot({})

    kinds = {value.dtype for value in (*snapshot.drafter.values(), *snapshot.optimizer.values())}
    assert {torch.float32, torch.int64, torch.bool} == kinds
    assert pytest.approx(steps(training(), 1), rel=0.02) == before
    assert steps(training(), 1) != before


def test_a_loss_that_is_not_finite_names_its_rows() -> None:
    """Two batches: the rows of the one without the spoilt row are not named."""
    states = DrawnStates([(5, 5)] * 4, spoilt=[2])
    found = training(states, tokens_a_batch=20, batches_a_step=2)
    before = weights(found)
    batches = found.sampler.step(0)
    guilty = next(rows for rows in batches if 2 in rows)

    with pytest.raises(NotFiniteError, match="the loss of step 1 is not finite, and the step was not taken") as caught:
        found.take_step()

    assert [f"row-{at}" for at in guilty] == list(caught.value.rows)
    assert (0, True) == (found.step, equal(before, weights(found)))
    assert all(parameter.grad is None for parameter in found.drafter.parameters())


def test_a_gradient_that_is_not_finite_names_all_rows() -> None:
    found = training()
    found.drafter.fc.weight.register_hook(lambda grad: grad * torch.nan)
    before = weights(found)

    with pytest.raises(NotFiniteError, match="the gradient of step 1") as caught:
        found.take_step()

    assert sorted(f"row-{at}" for at in range(8)) == sorted(caught.value.rows)
    assert equal(before, weights(found))


def test_validation_reads_what_was_held_out_and_changes_nothing() -> None:
    found = training(held_out=0.5)
    before = weights(found)
    held_out = found.sampler.split.held_out

    figures = found.validate()

    assert figures is not None
    batch = pack(DrawnStates().rows(found.sampler.held_out()[0]))
    assert sorted(f"row-{at}" for at in held_out) == sorted(batch.row_ids)
    assert counts(batch, MaskMode.ALIGNED, 3).tolist() == list(figures.rows)
    assert equal(before, weights(found))
    assert all(parameter.grad is None for parameter in found.drafter.parameters())


def test_without_rows_to_validate_there_are_no_figures() -> None:
    assert None is training().validate()


def test_tokens_are_those_of_all_rows_of_the_step() -> None:
    assert sum(map(sum, LENGTHS)) == training().take_step().tokens


def test_the_embedding_is_neither_trained_nor_kept() -> None:
    found = training()
    before = found.drafter.embedding.clone()

    found.take_step()

    assert torch.equal(before, found.drafter.embedding)
    assert "embedding" not in found.snapshot({}).drafter
    assert isinstance(found.sampler, BatchSampler)
