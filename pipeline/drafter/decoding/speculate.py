"""Greedy decoding of one prompt, plain and speculative.

Both run the same passes of the same target. Guarantees: speculation yields what the target itself would write next,
token by token; the draft decides only how many tokens a pass yields. A round counts whole even where the answer ends
inside it by its length, and up to the end token where it ends by that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.drafter.decoding.trees import Shape, Tree, accepted, grow
from pipeline.drafter.decoding.verify import Verifier, VerifyError

if TYPE_CHECKING:
    from pipeline.drafter.decoding.drafting import Drafting
    from pipeline.records import Ids


@dataclass(frozen=True, slots=True)
class Limits:
    """When an answer ends.

    At one of `end_ids`, which it includes, or after `max_tokens`.
    """

    max_tokens: int
    end_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class PlainDecoding:
    """Greedy decoding, a token a pass.

    `margins[i]` is by how much the logit of token i exceeds the next best one's.
    """

    ids: Ids
    margins: tuple[float, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Round:
    """One verified draft: accepted tokens, depth, tokens the pass yielded.

    `yielded` is one more than was accepted, unless the last accepted one ends the answer. `offered` is the deepest
    position that could have counted: below an end token nothing can.
    """

    accepted: int
    offered: int
    yielded: int

    @classmethod
    def of(cls, tree: Tree, new: Ids, end_ids: frozenset[int]) -> Round:
        """Return the round that yielded these tokens.

        `new` are the accepted tokens and the target's own.
        """
        deepest = max(tree.depths(), default=0)
        end = next((at for at, token in enumerate(new) if token in end_ids), None)
        if end is None:
            return cls(len(new) - 1, deepest, len(new))
        return cls(min(end + 1, len(new) - 1), min(end + 1, deepest), end + 1)


@dataclass(frozen=True, slots=True)
class SpeculativeDecoding:
    """Speculative decoding.

    The prompt's own pass yields the first token, each round a few more.
    """

    ids: Ids
    rounds: tuple[Round, ...]
    seconds: float


def decode_plainly(verifier: Verifier, prompt: Ids, limits: Limits) -> PlainDecoding:
    """Return the target's own answer. Raises VerifyError without room."""
    _require_room(verifier, prompt, limits, 0)
    began = time.perf_counter()
    logits = verifier.begin(prompt).logits[-1]
    ids: list[int] = []
    margins: list[float] = []
    while True:
        best = logits.topk(2)
        ids.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        if _is_done(ids, limits):
            return PlainDecoding(tuple(ids), tuple(margins), time.perf_counter() - began)
        logits = verifier.check(ids[-1]).logits[-1]
        verifier.keep(())


def speculate(verifier: Verifier, drafting: Drafting, shape: Shape, prompt: Ids, limits: Limits) -> SpeculativeDecoding:
    """Return the same answer by drafts of this shape.

    Raises VerifyError without room.
    """
    _require_room(verifier, prompt, limits, shape.depth)
    began = time.perf_counter()
    drafting.begin()
    found = verifier.begin(prompt)
    ids = [int(found.logits[-1].argmax())]
    rounds: list[Round] = []
    new, aux = (*prompt[1:], ids[0]), found.aux
    while not _is_done(ids, limits):
        tree = grow(shape, drafting.follow(new, aux, shape.widths[0]), drafting.expand)
        found = verifier.check(ids[-1], tree)
        path, bonus = accepted(tree, found.logits.argmax(-1).tolist())
        verifier.keep(path)
        new = (*(tree.tokens[node] for node in path), bonus)
        aux = found.aux[[0, *(1 + node for node in path)]]  # of the checked token and the accepted ones
        rounds.append(Round.of(tree, new, limits.end_ids))
        ids += new
    end = next((at + 1 for at, token in enumerate(ids) if token in limits.end_ids), len(ids))
    return SpeculativeDecoding(tuple(ids[: min(end, limits.max_tokens)]), tuple(rounds), time.perf_counter() - began)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the first index where they differ; None if equal.

    Also where one of them has ended.
    """
    if one == other:
        return None
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _is_done(ids: Sequence[int], limits: Limits) -> bool:
    return len(ids) >= limits.max_tokens or not limits.end_ids.isdisjoint(ids)


def _require_room(verifier: Verifier, prompt: Ids, limits: Limits, depth: int) -> None:
    if not prompt:
        raise VerifyError("a prompt is empty: give at least one token")
    wanted = len(prompt) + limits.max_tokens + depth
    if wanted > verifier.context:
        raise VerifyError(
            f"{len(prompt)} prompt tokens + {limits.max_tokens} of --max-tokens + a draft of {depth} exceed the "
            f"target's context of {verifier.context}. Lower --max-tokens, or leave the prompt out"
        )
