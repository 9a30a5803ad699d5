"""Training-time attention beside a dense softmax, and its kernels."""

from __future__ import annotations

import math

import pytest
import torch

from harness.fixtures.small_drafters import Largest
from pipeline.drafter.model import attention as attention_kernels
from pipeline.drafter.model.attention import (
    PLAIN,
    CpuFlash,
    CudaFlash,
    Grads,
    Kernel,
    Out,
    Saved,
    Segment,
    agrees,
    attend,
    kernel_for,
    segments,
)

pytestmark = pytest.mark.contract

HEADS, TOKENS, DIM = 2, 23, 8
STARTS = (0, 9, 23)
ROWS = torch.tensor([3, 4, 5, 8, 9, 15, 16, 17, 18, 22])


def naive(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, own: list[tuple[torch.Tensor, torch.Tensor]]
) -> torch.Tensor:
    """Compute one softmax over a dense mask and own-row columns."""
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
    """Dense masks or growing score columns would be larger.

    They would hold 1024 x 1024 numbers a head and step.
    """
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


KERNEL_HEADS, QUERIES, KERNEL_DIM = 2, 7, 8


def drawn_kernel_inputs(keys: int) -> list[torch.Tensor]:
    torch.manual_seed(keys)
    shapes = [(KERNEL_HEADS, QUERIES, KERNEL_DIM), (KERNEL_HEADS, keys, KERNEL_DIM), (KERNEL_HEADS, keys, KERNEL_DIM)]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def by_softmax(given: list[torch.Tensor], *, causal: bool) -> Out:
    score = given[0] @ given[1].transpose(1, 2) / math.sqrt(KERNEL_DIM)
    if causal:
        score = score.masked_fill(torch.ones(QUERIES, QUERIES).triu(1).bool(), -torch.inf)
    return score.softmax(-1) @ given[2], score.logsumexp(-1)


@pytest.mark.parametrize("chunk", [2, 256])
@pytest.mark.parametrize("kernel", [PLAIN, CpuFlash()])
@pytest.mark.parametrize("causal, keys", [(True, QUERIES), (False, 5), (False, 1)])
def test_a_kernel_is_a_softmax(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, chunk: int, keys: int, *, causal: bool
) -> None:
    monkeypatch.setattr(attention_kernels, "CHUNK", chunk)
    given, grad = drawn_kernel_inputs(keys), torch.randn(KERNEL_HEADS, QUERIES, KERNEL_DIM, dtype=torch.float64)
    out, sums = by_softmax(given, causal=causal)
    expected = (out, sums, *torch.autograd.grad(out, given, grad))
    query, key, value = (tensor.detach() for tensor in given)

    forward = kernel.forward(query, key, value, causal=causal)
    actual = (*forward, *kernel.backward(grad, (query, key, value, *forward), causal=causal))

    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_of_a_cpu_passes_the_check(dtype: torch.dtype) -> None:
    assert agrees(CpuFlash(), torch.device("cpu"), dtype, 32)


class Forgetful(CpuFlash):
    """A kernel whose backward uses the sums of its part."""

    def backward(self, grad: torch.Tensor, saved: Saved, *, causal: bool) -> Grads:
        out, sums = self.forward(*saved[:3], causal=causal)
        return super().backward(grad, (*saved[:3], out, sums), causal=causal)


@pytest.mark.parametrize("kernel", [Forgetful(), CudaFlash()])
def test_a_kernel_that_is_wrong_or_not_there_does_not(kernel: Kernel) -> None:
    assert not agrees(kernel, torch.device("cpu"), torch.float32, 32)


def test_double_precision_is_computed_plainly() -> None:
    assert kernel_for(torch.empty(1, 1, 8, dtype=torch.float64)) is PLAIN
    assert isinstance(kernel_for(torch.empty(1, 1, 8)), CpuFlash)
