"""Kernels beside a softmax over everything, and the check that a kernel passes before it is trusted."""

from __future__ import annotations

import math

import pytest
import torch

from pipeline.drafter.model import attention as attention_kernels
from pipeline.drafter.model.attention import PLAIN, CpuFlash, CudaFlash, Grads, Kernel, Out, Saved, agrees, kernel_for

HEADS, QUERIES, DIM = 2, 7, 8


def drawn(keys: int) -> list[torch.Tensor]:
    torch.manual_seed(keys)
    shapes = [(HEADS, QUERIES, DIM), (HEADS, keys, DIM), (HEADS, keys, DIM)]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def by_softmax(given: list[torch.Tensor], *, causal: bool) -> Out:
    score = given[0] @ given[1].transpose(1, 2) / math.sqrt(DIM)
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
    given, grad = drawn(keys), torch.randn(HEADS, QUERIES, DIM, dtype=torch.float64)
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
    """A kernel whose backward pass takes the sums of its own part."""

    def backward(self, grad: torch.Tensor, saved: Saved, *, causal: bool) -> Grads:
        out, sums = self.forward(*saved[:3], causal=causal)
        return super().backward(grad, (*saved[:3], out, sums), causal=causal)


@pytest.mark.parametrize("kernel", [Forgetful(), CudaFlash()])
def test_a_kernel_that_is_wrong_or_not_there_does_not(kernel: Kernel) -> None:
    assert not agrees(kernel, torch.device("cpu"), torch.float32, 32)


def test_double_precision_is_computed_plainly() -> None:
    assert kernel_for(torch.empty(1, 1, 8, dtype=torch.float64)) is PLAIN
    assert isinstance(kernel_for(torch.empty(1, 1, 8)), CpuFlash)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_kernel_of_a_cuda_device_passes_the_check(dtype: torch.dtype) -> None:
    assert agrees(CudaFlash(), torch.device("cuda"), dtype, 128)
