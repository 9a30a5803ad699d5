"""The drafter's decoder layer: Llama's, over [embedding, state].

Its attention input is 2h wide. Guarantees: names, order and sizes are those that SGLang and vLLM load (`midlayer.*`;
embedding first; the residual is the state before its norm). A layer of another kind is another class with `unroll` and
`decode`. In training, a product with the embedding's half of the weights is made once for each token and shared by all
steps that read it, since its input is the same in all; `attention.py` bounds what attention sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from pipeline.drafter.model.attention import attend, segments
from pipeline.drafter.model.config import DrafterConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

Heads = tuple[torch.Tensor, torch.Tensor]
"""Keys and values, [.., heads, n, head_dim] each."""


class DraftCache:
    """Keys and values of decoded tokens.

    Each is [B, kv heads, n, head_dim].
    """

    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.keys is None else int(self.keys.shape[2])

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> Heads:
        """Append these and return all keys and values."""
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], 2)
        self.values = values if self.values is None else torch.cat([self.values, values], 2)
        return self.keys, self.values

    def crop(self, length: int) -> None:
        """Keep the first `length` alone."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]

    def select(self, slots: torch.Tensor) -> None:
        """Keep these slots alone, in this order."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[:, :, slots], self.values[:, :, slots]


class _RmsNorm(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """Root mean square norm for CPUs.

    torch's own keeps three copies of its input there and takes twice the time.
    """

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:  # noqa: ANN401
        size = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
        scale = size.square_().div_(states.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(states, weight, scale)
        return (states * scale).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        states, weight, scale = ctx.saved_tensors
        normed = states * scale
        product = grad * normed
        width = len(weight)
        towards = product.view(-1, width).sum(0)
        along = (product @ weight).div_(-width)[..., None]
        return torch.mul(grad, weight, out=product).addcmul_(normed, along).mul_(scale), towards, None


class Norm(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Root mean square norm, never in autocast's precision.

    In the precision of its weights.
    """

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Map [.., h] to [.., h]."""
        wide = states.to(self.weight.dtype)
        if wide.device.type == "cpu":
            normed: torch.Tensor = _RmsNorm.apply(wide, self.weight, self.epsilon)
            return normed
        return functional.rms_norm(wide, self.weight.shape, self.weight, self.epsilon)


class Mlp(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """SwiGLU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Map [.., h] to [.., h]."""
        down: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(states)) * self.up_proj(states))
        return down


class Attention(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Projections of [embedding, state] to rotated heads, and back."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim, self.theta = config.head_dim, config.rope_theta
        width = 2 * config.hidden_size
        self.q_proj = nn.Linear(width, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)

    def halves(self) -> tuple[Heads, Heads]:
        """Split projection weights into the embedding's and the state's halves.

        Of queries, and of keys and values together; each half is [m, h].
        """
        joined = torch.cat([self.k_proj.weight, self.v_proj.weight])
        return self.q_proj.weight.chunk(2, 1), joined.chunk(2, 1)

    def query(self, projected: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Split into rotated queries.

        [.., n, heads * head_dim] to [.., heads, n, head_dim].
        """
        return self._rotate(self._split(projected), positions)

    def key_value(self, projected: torch.Tensor, positions: torch.Tensor) -> Heads:
        """Split into rotated keys and values.

        [.., n, 2 * kv heads * head_dim] to [.., kv heads, n, head_dim] each.
        """
        key, value = projected.chunk(2, -1)
        return self._rotate(self._split(key), positions), self._split(value)

    def widen(self, pair: Heads) -> Heads:
        """Repeat keys and values to one head a query head."""
        groups = self.heads // self.kv_heads
        return pair if groups == 1 else (pair[0].repeat_interleave(groups, -3), pair[1].repeat_interleave(groups, -3))

    def out(self, heads: torch.Tensor) -> torch.Tensor:
        """Map [.., heads, n, head_dim] to [.., n, h]."""
        projected: torch.Tensor = self.o_proj(heads.transpose(-3, -2).flatten(-2))
        return projected

    def _split(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(-3, -2)

    def _rotate(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        half = self.head_dim // 2
        powers = torch.arange(half, device=heads.device, dtype=torch.float32) / half
        angles = positions[..., None, :, None].float() * self.theta**-powers
        cosine, sine = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
        low, high = heads[..., :half], heads[..., half:]
        return torch.cat([low * cosine - high * sine, high * cosine + low * sine], -1)


class LlamaLayer(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Attention over [embedding, state], then the MLP."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.hidden_norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)

    def unroll(
        self,
        embedded: torch.Tensor,
        fused: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        starts: Sequence[int],
        steps: int,
    ) -> list[torch.Tensor]:
        """Run training-time test; return states by step.

        States [A, h] are those of `rows` [A], which ascend. `embedded` and `fused` [N, h] are of all tokens,
        `positions` [N] within their documents, which begin at `starts`. Row r reads token r + 1 + k at step k; past the
        last token it reads the last token again.
        """
        attention, parts, tokens = self.self_attn, segments(rows, starts), len(embedded)
        (query_token, query_state), (pair_token, pair_state) = attention.halves()
        normed, states = self.input_layernorm(embedded), self.hidden_norm(fused)
        read = _next(rows, steps, tokens)
        near, places = read.unique(return_inverse=True)
        query_embedded = functional.linear(normed[near], query_token)
        pair_embedded = functional.linear(normed, pair_token)
        following = _next(torch.arange(tokens, device=rows.device), 1, tokens)[0]
        first = functional.linear(states, pair_state) + pair_embedded[following]
        key, value = attention.widen(attention.key_value(first, positions))
        hidden, states = fused[rows], states[rows]
        own: list[Heads] = []
        found: list[torch.Tensor] = []
        for step in range(steps):
            at = positions[rows] + step
            if step:
                states = self.hidden_norm(hidden)
                pair = torch.addmm(pair_embedded[read[step]], states, pair_state.T)
                own.append(attention.widen(attention.key_value(pair, at)))
            query = attention.query(torch.addmm(query_embedded[places[step]], states, query_state.T), at)
            hidden = self._finish(hidden, attend(query, key, value, own, parts))
            found.append(hidden)
        return found

    def decode(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        cache: DraftCache,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return states [B, n, h] of tokens, as `Drafter.decode` says."""
        attention = self.self_attn
        inputs = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], -1)
        query = attention.query(attention.q_proj(inputs), positions)
        pair = torch.cat([attention.k_proj(inputs), attention.v_proj(inputs)], -1)
        key, value = cache.append(*attention.key_value(pair, positions))
        if mask is None:
            new, total = query.shape[-2], key.shape[-2]
            mask = torch.ones(new, total, dtype=torch.bool, device=query.device).tril(total - new)
        key, value = attention.widen((key, value))
        return self._finish(hidden, functional.scaled_dot_product_attention(query, key, value, attn_mask=mask))

    def _finish(self, hidden: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
        """Return the layer's output.

        From its un-normed input state and the attention output of its heads.
        """
        hidden = hidden + self.self_attn.out(heads)
        output: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


def _next(rows: torch.Tensor, steps: int, tokens: int) -> torch.Tensor:
    """Return the token that each row reads, by step.

    Int64 [steps, A]. No supervised row reads past the last token.
    """
    ahead = torch.arange(1, steps + 1, device=rows.device)[:, None]
    return (rows[None] + ahead).clamp(max=tokens - 1)
