"""Attention of training-time test: each row sees the step-0 keys up to its own, and its own keys of later steps.

Guarantees: no [rows, rows] tensor and no growing list of score columns is made or kept; nothing crosses a document;
the gradient is exact. The softmax over all of it is put together from flash attention over the keys before a segment,
causal flash attention within it, and a few elementwise columns, by their log-sum-exps. A flash kernel's backward needs
only the output and log-sum-exp of the whole row (as in ring attention), so each part is given the merged ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CHUNK = 256
"""Query rows at a time where no flash kernel serves."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Queries [query, query + length) are rows [first, first + length) of a document that begins at `start`."""

    start: int
    first: int
    query: int
    length: int


def segments(rows: torch.Tensor, starts: Sequence[int]) -> list[Segment]:
    """Ascending rows, int64 [A], cut where they are no neighbours or where a document begins."""
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
    """Attention output [H, A, d] of queries [H, A, d].

    `key` and `value` [H, N, d] are of step 0, for all rows; `own` holds keys and values [H, A, d] of each later step,
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
        for own_key, own_value in zip(own[::2], own[1::2], strict=True):
            score = _scores(query, own_key)
            merged = torch.logaddexp(sums, score)
            out = out * (sums - merged).exp()[..., None] + _wide(own_value) * (score - merged).exp()[..., None]
            sums = merged
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, sums, *own)
        ctx.parts = parts
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        query, key, value, out, sums, *own = ctx.saved_tensors
        grad = grad.to(query.dtype)
        grad_query, grad_key, grad_value = _backward(grad, (query, key, value, out, sums), ctx.parts)
        delta = (_wide(grad) * _wide(out)).sum(-1)
        scale = 1 / math.sqrt(query.shape[-1])
        own_grads: list[torch.Tensor] = []
        for own_key, own_value in zip(own[::2], own[1::2], strict=True):
            weight = (_scores(query, own_key) - sums).exp()
            towards = weight * ((_wide(grad) * _wide(own_value)).sum(-1) - delta) * scale
            grad_query += (towards[..., None] * own_key).to(grad_query.dtype)
            own_grads += [
                (towards[..., None] * query).to(own_key.dtype),
                (weight[..., None] * grad).to(own_value.dtype),
            ]
        return grad_query, grad_key, grad_value, None, *own_grads


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """At least float32."""
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return (_wide(query) * _wide(key)).sum(-1) / math.sqrt(query.shape[-1])


def _views(segment: Segment) -> Iterator[tuple[slice, slice, bool]]:
    """Queries, keys, and whether causal: the keys before the segment, then those within it."""
    queries = slice(segment.query, segment.query + segment.length)
    if segment.first > segment.start:
        yield queries, slice(segment.start, segment.first), False
    yield queries, slice(segment.first, segment.first + segment.length), True


def _forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, parts: Sequence[Segment]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output float32 [H, A, d] over the step-0 keys, and log-sum-exp float32 [H, A]."""
    out = torch.empty(query.shape, dtype=_wide(query[:0]).dtype, device=query.device)
    sums = torch.empty(query.shape[:-1], dtype=_wide(query[:0]).dtype, device=query.device)
    for segment in parts:
        seen: tuple[torch.Tensor, torch.Tensor] | None = None
        for queries, keys, causal in _views(segment):
            one = _kernel(query[:, queries], key[:, keys], value[:, keys], causal)
            seen = one if seen is None else _merged(seen, one)
        if seen is not None:
            out[:, segment.query : segment.query + segment.length] = seen[0]
            sums[:, segment.query : segment.query + segment.length] = seen[1]
    return out, sums


def _merged(
    one: tuple[torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    sums = torch.logaddexp(one[1], other[1])
    shares = (one[1] - sums).exp()[..., None], (other[1] - sums).exp()[..., None]
    return _wide(one[0]) * shares[0] + _wide(other[0]) * shares[1], sums


def _backward(
    grad: torch.Tensor, saved: tuple[torch.Tensor, ...], parts: Sequence[Segment]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    query, key, value, out, sums = saved
    grads = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    for segment in parts:
        for queries, keys, causal in _views(segment):
            given = query[:, queries], key[:, keys], value[:, keys], out[:, queries], sums[:, queries]
            found = _kernel_backward(grad[:, queries], given, causal)
            grads[0][:, queries] += found[0]
            grads[1][:, keys] += found[1]
            grads[2][:, keys] += found[2]
    return grads


def _has_flash(query: torch.Tensor) -> bool:
    return query.device.type == "cpu" and query.dtype in (torch.float32, torch.bfloat16)


def _kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    causal: bool,  # noqa: FBT001 - as the kernels take it
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [H, q, d] and log-sum-exp float32 [H, q] over these keys alone."""
    if _has_flash(query):
        out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001 - the kernel gives the sums
            query[None], key[None], value[None], 0.0, causal
        )
        return out[0], sums[0]
    pieces = [
        _plain(query[:, at : at + CHUNK], key, value, at if causal else None) for at in range(0, query.shape[1], CHUNK)
    ]
    return torch.cat([piece[0] for piece in pieces], 1), torch.cat([piece[1] for piece in pieces], 1)


def _plain(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, first: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    score = _plain_scores(query, key, first)
    sums = score.logsumexp(-1)
    return (score - sums[..., None]).exp() @ _wide(value), sums


def _plain_scores(query: torch.Tensor, key: torch.Tensor, first: int | None) -> torch.Tensor:
    """Scores float32 [H, q, n]; with `first`, query i sees keys up to first + i."""
    score = _wide(query) @ _wide(key).transpose(1, 2) / math.sqrt(query.shape[-1])
    if first is not None:
        rows = torch.arange(query.shape[1], device=query.device)[:, None] + first
        score = score.masked_fill(torch.arange(key.shape[1], device=query.device) > rows, -torch.inf)
    return score


def _kernel_backward(
    grad: torch.Tensor,
    saved: tuple[torch.Tensor, ...],
    causal: bool,  # noqa: FBT001 - as the kernels take it
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    query, key, value, out, sums = saved
    if _has_flash(query):
        rows = sums.transpose(0, 1).contiguous().transpose(0, 1)  # the layout that the forward kernel gives
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(  # noqa: SLF001
            grad[None], query[None], key[None], value[None], out[None], rows[None], 0.0, causal
        )
        return found[0][0], found[1][0], found[2][0]
    grads = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    for at in range(0, query.shape[1], CHUNK):
        rows = slice(at, at + CHUNK)
        given = query[:, rows], key, value, out[:, rows], sums[:, rows]
        piece = _plain_backward(grad[:, rows], given, at if causal else None)
        grads[0][:, rows] = piece[0]
        grads[1].add_(piece[1])
        grads[2].add_(piece[2])
    return grads


def _plain_backward(
    grad: torch.Tensor, saved: tuple[torch.Tensor, ...], first: int | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    query, key, value, out, sums = saved
    weight = (_plain_scores(query, key, first) - sums[..., None]).exp()
    delta = (_wide(grad) * _wide(out)).sum(-1, keepdim=True)
    towards = weight * (_wide(grad) @ _wide(value).transpose(1, 2) - delta) / math.sqrt(query.shape[-1])
    return (
        (towards @ _wide(key)).to(query.dtype),
        (towards.transpose(1, 2) @ _wide(query)).to(key.dtype),
        (weight.transpose(1, 2) @ _wide(grad)).to(value.dtype),
    )
