"""What computes one part of an attention and says its log-sum-exps, so that parts can be put together.

Guarantees: `forward` and `backward` are exact for these queries over these keys; `backward` given the output and the
log-sum-exps of a larger whole gives this part's share of its gradient, as ring attention uses it. A flash kernel is
taken where there is one: the CPU's for float32 and bfloat16; CUDA's for half precisions, after it was compared once
with the plain products on this very device, since its calls are none of torch's stable interface. Elsewhere the plain
products serve, some queries at a time.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Protocol

import torch

CHUNK = 256
"""Query rows at a time where no flash kernel serves."""
TOLERANCE = 0.03
"""Between two kernels in half precision, for numbers around one."""

Out = tuple[torch.Tensor, torch.Tensor]
Saved = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Query, key, value, output and log-sum-exp."""
Grads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Kernel(Protocol):
    """Queries [H, q, d] over keys and values [H, n, d]; `causal`: query i sees keys up to i, and q is n."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool) -> Out:
        """Output [H, q, d] and log-sum-exp [H, q], at least float32."""

    def backward(self, grad: torch.Tensor, saved: Saved, *, causal: bool) -> Grads:
        """Gradients by query, key and value."""


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """At least float32."""
    return tensor if tensor.dtype is torch.float64 else tensor.float()


class Plain:
    """Products and a softmax, `CHUNK` queries at a time."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool) -> Out:
        outs, sums = [], []
        for at in range(0, query.shape[1], CHUNK):
            score = self._scores(query[:, at : at + CHUNK], key, at if causal else None)
            sums.append(score.logsumexp(-1))
            outs.append((score - sums[-1][..., None]).exp() @ wide(value))
        return torch.cat(outs, 1), torch.cat(sums, 1)

    def backward(self, grad: torch.Tensor, saved: Saved, *, causal: bool) -> Grads:
        query, key, value, out, sums = saved
        grads = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
        scale = 1 / math.sqrt(query.shape[-1])
        for at in range(0, query.shape[1], CHUNK):
            rows = slice(at, at + CHUNK)
            asked, towards = wide(query[:, rows]), wide(grad[:, rows])
            weight = (self._scores(asked, key, at if causal else None) - sums[:, rows, None]).exp()
            delta = (towards * wide(out[:, rows])).sum(-1, keepdim=True)
            slope = weight * (towards @ wide(value).transpose(1, 2) - delta) * scale
            grads[0][:, rows] = (slope @ wide(key)).to(query.dtype)
            grads[1].add_((slope.transpose(1, 2) @ asked).to(key.dtype))
            grads[2].add_((weight.transpose(1, 2) @ towards).to(value.dtype))
        return grads

    @staticmethod
    def _scores(query: torch.Tensor, key: torch.Tensor, first: int | None) -> torch.Tensor:
        """[H, q, n]; with `first`, query i sees keys up to first + i."""
        score = wide(query) @ wide(key).transpose(1, 2) / math.sqrt(query.shape[-1])
        if first is not None:
            rows = torch.arange(query.shape[1], device=query.device)[:, None] + first
            score = score.masked_fill(torch.arange(key.shape[1], device=query.device) > rows, -torch.inf)
        return score


class CpuFlash:
    """torch's flash attention for CPUs."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool) -> Out:
        call: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001 - only it gives the sums
        out, sums = call(query[None], key[None], value[None], 0.0, causal)
        return out[0], sums[0]

    def backward(self, grad: torch.Tensor, saved: Saved, *, causal: bool) -> Grads:
        call: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001
        query, key, value, out = (tensor[None] for tensor in saved[:4])
        sums = saved[4].transpose(0, 1).contiguous().transpose(0, 1)  # laid out as the forward kernel gives it
        found = call(grad[None], query, key, value, out, sums[None], 0.0, causal)
        return found[0][0], found[1][0], found[2][0]


class CudaFlash:
    """torch's flash attention for CUDA."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool) -> Out:
        call: Any = torch.ops.aten._scaled_dot_product_flash_attention  # noqa: SLF001 - only it gives the sums
        found = call(query[None], key[None], value[None], 0.0, causal)
        return found[0][0], found[1][0]

    def backward(self, grad: torch.Tensor, saved: Saved, *, causal: bool) -> Grads:
        call: Any = torch.ops.aten._scaled_dot_product_flash_attention_backward  # noqa: SLF001
        query, key, value, out, sums = (tensor[None] for tensor in saved)
        none = torch.zeros((), dtype=torch.int64, device=query.device)  # a seed of no dropout
        lengths = None, None, query.shape[2], key.shape[2]
        found = call(grad[None], query, key, value, out, sums.contiguous(), *lengths, 0.0, causal, none, none)
        return found[0][0], found[1][0], found[2][0]


PLAIN = Plain()


def kernel_for(query: torch.Tensor) -> Kernel:
    """The fastest that is exact for such queries."""
    kind, dtype = query.device.type, query.dtype
    if kind == "cpu" and dtype in (torch.float32, torch.bfloat16):
        return CpuFlash()
    if kind == "cuda" and dtype in (torch.float16, torch.bfloat16):
        return _checked(query.device, dtype, query.shape[-1])
    return PLAIN


@cache
def _checked(device: torch.device, dtype: torch.dtype, width: int) -> Kernel:
    return CudaFlash() if agrees(CudaFlash(), device, dtype, width) else PLAIN


def agrees(kernel: Kernel, device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether a kernel gives what the plain products give: both ways, for a part of a larger whole."""
    drawn = torch.Generator().manual_seed(0)
    query, key, value, grad = (torch.randn(2, 96, width, generator=drawn).to(device, dtype) for _ in range(4))
    for causal in (True, False):
        out, sums = PLAIN.forward(query, key, value, causal=causal)
        # As if other keys took half of the weight: then the sums that come back are not those that this part made.
        saved = query, key, value, (out / 2).to(dtype), sums + math.log(2)
        expected = (out, sums, *PLAIN.backward(grad, saved, causal=causal))
        try:
            actual = *kernel.forward(query, key, value, causal=causal), *kernel.backward(grad, saved, causal=causal)
        except RuntimeError:  # there is none for this device or width
            return False
        if not all(map(_near, actual, expected)):
            return False
    return True


def _near(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool(torch.allclose(actual.float(), expected.float(), atol=TOLERANCE, rtol=TOLERANCE))
