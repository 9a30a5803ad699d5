"""The fused loss beside whole tensors; supervised rows by hand."""

from __future__ import annotations

import pytest
import torch

from harness.fixtures.small_drafters import Largest
from pipeline.drafter.model import loss as losses
from pipeline.drafter.model.loss import (
    MaskMode,
    Scored,
    Teacher,
    counts,
    present,
    scales,
    score,
    teacher_of,
    teacher_positions,
)
from pipeline.drafter.training.packing import PackedBatch

pytestmark = pytest.mark.contract

STEPS, ROWS, WIDTH, TARGET_WIDTH, VOCABULARY, DRAFT = 3, 11, 8, 6, 20, 9
SCALES = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64)


def drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Teacher, torch.Tensor]:
    torch.manual_seed(0)
    states = torch.randn(STEPS, ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    head = torch.randn(DRAFT, WIDTH, dtype=torch.float64, requires_grad=True)
    last = torch.randn(ROWS, TARGET_WIDTH, dtype=torch.float64)
    t2d = torch.arange(VOCABULARY) % 2 == 0
    t2d[0] = False
    ids = t2d.nonzero()[:, 0]
    teacher = teacher_of(torch.randn(VOCABULARY, TARGET_WIDTH, dtype=torch.float64), ids - torch.arange(DRAFT), t2d)
    present = torch.rand(STEPS, ROWS) < 0.7
    return states, head, last, teacher, present


def plain(*, kl: bool, named_only: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute loss and sums by torch's functions on whole tensors."""
    states, head, last, teacher, present = drawn()
    logits = last @ teacher.head.T
    target = logits[:, teacher.target_ids].softmax(-1)
    each = -(target * (states @ head.T).log_softmax(-1)).sum(-1)
    if kl:
        each = each + (target * target.log()).sum(-1)
    kept = present & teacher.t2d[logits.argmax(-1)] if named_only else present
    sums = (each * kept).sum(1)
    loss = (sums * SCALES).sum()
    return sums, torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, [states, head])])


def fused(*, kl: bool = False, named_only: bool = False, exact: bool = False) -> tuple[Scored, torch.Tensor]:
    states, head, last, teacher, present = drawn()
    found = score(states, head, last, teacher, present, SCALES, kl=kl, named_only=named_only, exact=exact)
    return found, torch.cat([grad.flatten() for grad in torch.autograd.grad(found.loss, [states, head])])


@pytest.mark.parametrize("kl", [False, True])
@pytest.mark.parametrize("named_only", [False, True])
@pytest.mark.parametrize("positions", [1, 4, ROWS])
def test_loss_and_gradients_are_those_of_whole_tensors(
    monkeypatch: pytest.MonkeyPatch, positions: int, *, kl: bool, named_only: bool
) -> None:
    monkeypatch.setattr(losses, "CHUNK_BYTES", {"cpu": 4 * DRAFT * STEPS * positions})
    monkeypatch.setattr(losses, "LEAST_POSITIONS", 1)
    sums, gradient = plain(kl=kl, named_only=named_only)

    found, slope = fused(kl=kl, named_only=named_only)

    torch.testing.assert_close(found.sums, sums, atol=1e-12, rtol=0)
    torch.testing.assert_close(slope, gradient, atol=1e-12, rtol=0)
    assert found.loss.item() == pytest.approx((sums * SCALES).sum().item(), abs=1e-12)


def test_a_row_is_right_by_draft_tokens_or_exactly() -> None:
    states, head, last, teacher, present = drawn()
    logits = last @ teacher.head.T
    agree = (states @ head.T).argmax(-1) == logits[:, teacher.target_ids].argmax(-1)

    assert (agree & present).sum(1).tolist() == fused()[0].correct.tolist()
    assert (agree & present & teacher.t2d[logits.argmax(-1)]).sum(1).tolist() == fused(exact=True)[0].correct.tolist()


def test_no_rows_make_a_loss_of_zero_without_a_slope() -> None:
    states, head, last, teacher, present = drawn()
    none = states[:, :0].detach().requires_grad_()

    found = score(none, head, last[:0], teacher, present[:, :0], SCALES)
    slope = torch.autograd.grad(found.loss, [head])[0]

    assert (0.0, [0.0] * STEPS, False) == (found.loss.item(), found.counted.tolist(), bool(slope.any()))


@pytest.mark.parametrize("rows", [512, 4096])
def test_no_logits_outlive_a_chunk_however_many_rows_there_are(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(losses, "CHUNK_BYTES", {"cpu": 4 * 64 * STEPS * 256})
    head, target = torch.randn(256, WIDTH, requires_grad=True), torch.randn(256, TARGET_WIDTH)
    teacher = teacher_of(target, torch.zeros(256, dtype=torch.int64), torch.ones(256, dtype=torch.bool))
    states = torch.randn(STEPS, rows, WIDTH, requires_grad=True)
    present = torch.ones(STEPS, rows, dtype=torch.bool)

    with Largest() as largest:
        score(states, head, torch.randn(rows, TARGET_WIDTH), teacher, present, SCALES).loss.backward()

    # The states and their gradient grow with the rows; of logits there are 64 positions' at a time.
    assert max(64 * STEPS * 256, rows * STEPS * WIDTH) == largest.numbers


def test_a_gradient_is_given_once() -> None:
    """It is made in the forward pass, scaled in place."""
    states, head, last, teacher, present = drawn()
    found = score(states, head, last, teacher, present, SCALES)
    torch.autograd.grad(found.loss, [head], retain_graph=True)

    with pytest.raises(RuntimeError, match="inplace operation"):
        torch.autograd.grad(found.loss, [head])


def test_a_teacher_has_the_heads_rows_of_the_draft_ids() -> None:
    ids = torch.tensor([2, 3, 7])
    head = torch.arange(20.0).view(10, 2)

    teacher = teacher_of(head, ids - torch.arange(3), torch.isin(torch.arange(10), ids))

    assert [2, 3, 7] == teacher.target_ids.tolist()
    assert [[4.0, 5.0], [6.0, 7.0], [14.0, 15.0]] == teacher.draft_rows.tolist()


def test_a_whole_vocabulary_shares_the_targets_head() -> None:
    head = torch.randn(5, 4)

    teacher = teacher_of(head, torch.zeros(5, dtype=torch.int64), torch.ones(5, dtype=torch.bool))

    assert (True, head.data_ptr()) == (teacher.is_whole, teacher.draft_rows.data_ptr())


def batch(*masks: str) -> PackedBatch:
    """Documents of prompt tokens `.` and emitted tokens `x`."""
    mask = torch.tensor([sign == "x" for sign in "".join(masks)])
    starts = [0]
    for one in masks:
        starts.append(starts[-1] + len(one))
    nothing = torch.empty(len(mask), 0)
    return PackedBatch(torch.zeros(len(mask), dtype=torch.int64), mask, tuple(starts), nothing, nothing, ())


@pytest.mark.parametrize(
    "mode, expected",
    [
        # Of the prompt 0 1 2 and the answer 3 4 5 6 (the end token): at step 0 row 2 reads token 3 and predicts 4.
        (MaskMode.ALIGNED, [3, 4, 5]),
        # Row a - 1 = 2 is missed, and row 5 predicts what would follow the end token.
        (MaskMode.SPECFORGE, [4, 5, 6]),
        (MaskMode.SPECULATORS, [3, 4, 5, 6]),
    ],
)
def test_teacher_positions_of_one_answer(mode: MaskMode, expected: list[int]) -> None:
    assert expected == teacher_positions(batch("...xxxx"), mode).tolist()


@pytest.mark.parametrize(
    "mode, expected", [(MaskMode.ALIGNED, [1]), (MaskMode.SPECFORGE, [1, 2]), (MaskMode.SPECULATORS, [1, 2])]
)
def test_the_first_token_without_a_prompt_teaches_nothing(mode: MaskMode, expected: list[int]) -> None:
    assert expected == teacher_positions(batch("xxx"), mode).tolist()


@pytest.mark.parametrize("mode", list(MaskMode))
def test_no_teacher_is_taken_from_the_document_beside(mode: MaskMode) -> None:
    alone = [teacher_positions(batch(one), mode) for one in ("..xx", "xxx", "..xx")]

    packed = teacher_positions(batch("..xx", "xxx", "..xx"), mode)

    assert torch.cat([alone[0], alone[1] + 4, alone[2] + 7]).tolist() == packed.tolist()


def test_a_step_has_only_rows_of_its_own_document() -> None:
    """Position 4's rows are 3, 2 and 1; the document begins at 2."""
    two = batch("..", "..xx")

    assert [[True], [True], [False]] == present(two, teacher_positions(two, MaskMode.ALIGNED), 3).tolist()


def test_counts_are_supervised_rows_and_for_specforge_all_rows() -> None:
    two = batch("..xxxx", "xxx")

    assert [4, 3, 2] == counts(two, MaskMode.ALIGNED, 3).tolist()
    assert [9, 9, 9] == counts(two, MaskMode.SPECFORGE, 3).tolist()
    assert [6, 5, 3] == counts(two, MaskMode.SPECULATORS, 3).tolist()


def test_a_step_without_rows_weighs_nothing() -> None:
    found = scales(torch.tensor([4.0, 2.0, 0.0]), MaskMode.ALIGNED, 0.8)

    torch.testing.assert_close(found, torch.tensor([0.25, 0.4, 0.0], dtype=torch.float64))
