"""Attention of training-time test beside one dense softmax."""

from __future__ import annotations

import math

import pytest
import torch

from pipeline.drafter.model.attention import Segment, attend, segments
from tests.unit.pipeline.drafter.drafters import Largest

HEADS, TOKENS, DIM = 2, 23, 8
STARTS = (0, 9, 23)
ROWS = torch.tensor([3, 4, 5, 8, 9, 15, 16, 17, 18, 22])


def naive(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, own: list[tuple[torch.Tensor, torch.Tensor]]
) -> torch.Tensor:
    """One softmax over a dense mask and the own-row columns, as the definition says."""
    columns = torch.arange(TOKENS)
    first = torch.tensor([0] * 9 + [9] * 14)[ROWS]
    seen = (columns <= ROWS[:, None]) & (columns >= first[:, None])
    scores = [(query @ key.transpose(1, 2)).masked_fill(~seen, -torch.inf)]
    scores += [(query * own_key).sum(-1, keepdim=True) for own_key, _ in own]
    weights = (torch.cat(scores, -1) / math.sqrt(DIM)).softmax(-1)
    out = weights[..., :TOKENS] @ value
    for place, (_, own_value) in enumerate(own):
        out = out + weights[..., TOKENS + place, None] * own_value
    return out


def drawn(steps: int, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(steps)
    shapes = [(HEADS, len(ROWS), DIM), (HEADS, TOKENS, DIM), (HEADS, TOKENS, DIM)]
    shapes += [(HEADS, len(ROWS), DIM)] * (2 * steps)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("steps", [0, 1, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_output_and_gradients_are_those_of_one_dense_softmax(steps: int, dtype: torch.dtype) -> None:
    """float32 takes the flash kernel, float64 the plain one."""
    given = drawn(steps, dtype)
    own = list(zip(given[3::2], given[4::2], strict=True))
    cotangent = torch.randn(HEADS, len(ROWS), DIM, dtype=dtype)

    expected = naive(given[0], given[1], given[2], own)
    actual = attend(given[0], given[1], given[2], own, segments(ROWS, STARTS))
    wanted = torch.autograd.grad(expected, given, cotangent)
    found = torch.autograd.grad(actual, given, cotangent)

    tolerance = 2e-6 if dtype is torch.float32 else 1e-12
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=4 * tolerance, rtol=0)


def test_no_tensor_grows_with_the_square_of_the_rows() -> None:
    """What dense masks and growing score columns would be: 1024 x 1024 numbers a head and step."""
    rows, steps = 1024, 4
    given = [torch.randn(HEADS, rows, DIM, requires_grad=True) for _ in range(3 + 2 * steps)]
    own = list(zip(given[3::2], given[4::2], strict=True))
    parts = segments(torch.arange(rows), (0, rows))

    with Largest() as largest:
        attend(given[0], given[1], given[2], own, parts).sum().backward()

    assert HEADS * rows * DIM == largest.numbers


def test_rows_are_cut_at_gaps_and_at_documents() -> None:
    expected = [
        Segment(0, 3, 0, 3),
        Segment(0, 8, 3, 1),
        Segment(9, 9, 4, 1),
        Segment(9, 15, 5, 4),
        Segment(9, 22, 9, 1),
    ]

    assert expected == segments(ROWS, STARTS)


def test_no_rows_have_no_segments() -> None:
    assert segments(torch.tensor([], dtype=torch.int64), STARTS) == []
