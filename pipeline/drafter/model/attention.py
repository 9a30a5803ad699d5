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

from pipeline.drafter.model.attention_kernels import kernel_for, wide

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


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
    """Queries, keys, and whether causal: the keys before the segment, then those within it."""
    queries = slice(segment.query, segment.query + segment.length)
    if segment.first > segment.start:
        yield queries, slice(segment.start, segment.first), False
    yield queries, slice(segment.first, segment.first + segment.length), True


def _forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, parts: Sequence[Segment]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [H, A, d] over the step-0 keys, and log-sum-exp [H, A]; at least float32."""
    kernel = kernel_for(query)
    out = torch.empty_like(query, dtype=wide(query[:0]).dtype)
    sums = torch.empty_like(out[..., 0])
    for segment in parts:
        seen: tuple[torch.Tensor, torch.Tensor] | None = None
        for queries, keys, causal in _views(segment):
            one = kernel.forward(query[:, queries], key[:, keys], value[:, keys], causal=causal)
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
    return wide(one[0]) * shares[0] + wide(other[0]) * shares[1], sums


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
