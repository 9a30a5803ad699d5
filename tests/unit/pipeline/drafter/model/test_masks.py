"""Supervised rows, by hand."""

from __future__ import annotations

import pytest
import torch

from pipeline.drafter.model.loss import MaskMode, counts, present, scales, teacher_positions
from pipeline.drafter.training.packing import PackedBatch


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
def test_the_first_token_of_a_row_without_a_prompt_teaches_nothing(mode: MaskMode, expected: list[int]) -> None:
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
