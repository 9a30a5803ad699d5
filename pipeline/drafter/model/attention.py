"""Attention of training-time test, over flash kernels.

Each row sees the step-0 keys up to its own, and its own keys of later steps. The softmax over all of them is merged by
log-sum-exps from flash attention over the keys before a segment, causal flash attention within it, and a few
elementwise columns. A flash kernel's backward needs only the output and log-sum-exp of the whole row (as in ring
attention), so each part receives the merged ones.

Guarantees: no [rows, rows] tensor and no growing list of score columns is made or kept; nothing crosses a document; the
gradient is exact. Kernels: the CPU's flash for float32 and bfloat16; CUDA's for half precisions, after one comparison
with the plain products on the device, since its calls are not part of torch's stable interface. Elsewhere plain
products, some queries at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


CHUNK = 256
"""Query rows at a time where no flash kernel serves."""
TOLERANCE = 0.03
"""Between two kernels in half precision, for numbers around one."""

Out = tuple[torch.Tensor, torch.Tensor]
Saved = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Query, key, value, output and log-sum-exp."""
Grads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Segment:
    """Queries of neighbouring rows of a document.

    Queries [query, query + length) are rows [first, first + length); the document begins at `start`.
    """

    start: int
    first: int
    query: int
    length: int


def segments(rows: torch.Tensor, starts: Sequence[int]) -> list[Segment]:
    """Cut ascending rows, int64 [A], into segments.

    A cut is where rows are no neighbours or a document begins.
    """
    found: list[Segment] = []
    document = 0
    for query, row in enumerate(rows.tolist()):
        while row >= starts[document + 1]:
            document += 1
        last = found[-1] if found else None
        if last is not None and last.start == starts[document] and row == last.first + last.length:
            found[-1] = Segment(last.start, last.first, last.query, last.length + 1)
        else:
            found.append(Segment(starts[document], row, query, 1))
    return found


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    own: Sequence[tuple[torch.Tensor, torch.Tensor]],
    parts: Sequence[Segment],
) -> torch.Tensor:
    """Return the attention output of the queries, [H, A, d].

    `key` and `value` [H, N, d] are of step 0, for all rows. `own` holds keys and values [H, A, d] of each later step,
    of the query's own row. Scores are divided by the root of d.
    """
    flat = [tensor for pair in own for tensor in pair]
    out: torch.Tensor = _Attend.apply(query, key, value, tuple(parts), *flat)
    return out


class _Attend(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context is untyped
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        parts: tuple[Segment, ...],
        *own: torch.Tensor,
    ) -> torch.Tensor:
        out, sums = _forward(query, key, value, parts)
        weights = sums.new_empty(0)
        if own:
            scores = torch.stack([_scores(query, own_key) for own_key in own[::2]])
            merged = torch.logaddexp(sums, scores.logsumexp(0))
            weights = (scores - merged).exp_()
            out = out * (sums - merged).exp_()[..., None]
            for weight, own_value in zip(weights, own[1::2], strict=True):
                out.addcmul_(weight[..., None], wide(own_value))
            sums = merged
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, sums, weights, *own)
        ctx.parts = parts
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        query, key, value, out, sums, weights, *own = ctx.saved_tensors
        grad = grad.to(query.dtype)
        grad_query, grad_key, grad_value = _backward(grad, (query, key, value, out, sums), ctx.parts)
        towards, delta = wide(grad), (wide(grad) * wide(out)).sum(-1)
        scale = 1 / math.sqrt(query.shape[-1])
        own_grads: list[torch.Tensor] = []
        for weight, own_key, own_value in zip(weights, own[::2], own[1::2], strict=True):
            slope = (towards * wide(own_value)).sum(-1).sub_(delta).mul_(weight).mul_(scale)[..., None]
            grad_query += slope * own_key
            own_grads += [(slope * query).to(own_key.dtype), (weight[..., None] * towards).to(own_value.dtype)]
        return grad_query, grad_key, grad_value, None, *own_grads


def _scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return (wide(query) * wide(key)).sum(-1) / math.sqrt(query.shape[-1])


def _views(segment: Segment) -> Iterator[tuple[slice, slice, bool]]:
    """Yield queries, keys, and whether causal.

    First the keys before the segment, then those within it.
    """
    queries = slice(segment.query, segment.query + segment.length)
    if segment.first > segment.start:
        yield queries, slice(segment.start, segment.first), False
    yield queries, slice(segment.first, segment.first + segment.length), True


def _forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, parts: Sequence[Segment]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output and log-sum-exp over the step-0 keys.

    [H, A, d] and [H, A], at least float32.
    """
    kernel = kernel_for(query)
    out = torch.empty_like(query, dtype=wide(query[:0]).dtype)
    sums = torch.empty_like(out[..., 0])
    for segment in parts:
        merged: Out | None = None
        for queries, keys, causal in _views(segment):
            found = kernel.forward(query[:, queries], key[:, keys], value[:, keys], causal=causal)
            if merged is None:
                merged = found
                continue
            total = torch.logaddexp(merged[1], found[1])
            shares = (merged[1] - total).exp()[..., None], (found[1] - total).exp()[..., None]
            merged = wide(merged[0]) * shares[0] + wide(found[0]) * shares[1], total
        if merged is not None:
            out[:, segment.query : segment.query + segment.length] = merged[0]
            sums[:, segment.query : segment.query + segment.length] = merged[1]
    return out, sums


def _backward(
    grad: torch.Tensor, saved: tuple[torch.Tensor, ...], parts: Sequence[Segment]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    query, key, value, out, sums = saved
    kernel = kernel_for(query)
    grads = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    for segment in parts:
        for queries, keys, causal in _views(segment):
            given = query[:, queries], key[:, keys], value[:, keys], out[:, queries], sums[:, queries]
            found = kernel.backward(grad[:, queries], given, causal=causal)
            grads[0][:, queries] += found[0]
            grads[1][:, keys] += found[1]
            grads[2][:, keys] += found[2]
    return grads


class Kernel(Protocol):
    """One part of an attention, with its log-sum-exps.

    Queries [H, q, d] attend to keys and values [H, n, d]; if `causal`, query i sees keys up to i, and q is n.
    `backward`, given output and log-sum-exps of a larger whole, returns this part's share of its gradient.
    """

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool) -> Out:
        """Return output [H, q, d] and log-sum-exp [H, q].

        Both are at least float32.
        """

    def backward(self, grad: torch.Tensor, saved: Saved, *, causal: bool) -> Grads:
        """Return gradients of query, key and value."""


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in float32; float64 stays."""
    return tensor if tensor.dtype is torch.float64 else tensor.float()


class PlainKernel:
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
            chunk, towards = wide(query[:, rows]), wide(grad[:, rows])
            weight = (self._scores(chunk, key, at if causal else None) - sums[:, rows, None]).exp()
            delta = (towards * wide(out[:, rows])).sum(-1, keepdim=True)
            slope = weight * (towards @ wide(value).transpose(1, 2) - delta) * scale
            grads[0][:, rows] = (slope @ wide(key)).to(query.dtype)
            grads[1].add_((slope.transpose(1, 2) @ chunk).to(key.dtype))
            grads[2].add_((weight.transpose(1, 2) @ towards).to(value.dtype))
        return grads

    @staticmethod
    def _scores(query: torch.Tensor, key: torch.Tensor, first: int | None) -> torch.Tensor:
        """Return scores, [H, q, n].

        With `first`, query i sees keys up to first + i.
        """
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


PLAIN = PlainKernel()


def kernel_for(query: torch.Tensor) -> Kernel:
    """Return the fastest kernel that is exact for such queries."""
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
    """Whether a kernel gives what the plain products give.

    Both ways, for a part of a larger whole.
    """
    generator = torch.Generator().manual_seed(0)
    query, key, value, grad = (torch.randn(2, 96, width, generator=generator).to(device, dtype) for _ in range(4))
    for causal in (True, False):
        out, sums = PLAIN.forward(query, key, value, causal=causal)
        # As if other keys took half of the weight: then these sums are not those of this part alone.
        saved = query, key, value, (out / 2).to(dtype), sums + math.log(2)
        expected = (out, sums, *PLAIN.backward(grad, saved, causal=causal))
        try:
            actual = *kernel.forward(query, key, value, causal=causal), *kernel.backward(grad, saved, causal=causal)
        except RuntimeError:  # there is none for this device or width
            return False
        for one, other in zip(actual, expected, strict=True):
            if not torch.allclose(one.float(), other.float(), atol=TOLERANCE, rtol=TOLERANCE):
                return False
    return True
