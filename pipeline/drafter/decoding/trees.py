"""Shapes of drafts: chains and trees, grown and accepted.

A shape is `chain:4`, `tree:4,2,1` (children of each node, by depth) or `dynamic:DEPTH,TOP,TOKENS` (as in EAGLE-2: at
each depth the best TOP of all offers grow on, and of all nodes the best TOKENS are sent to the target). Guarantees:
parents come before their children, siblings differ, and no node is deeper than the shape says. Of a tree the target
keeps the one path that it would have written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

ROOT = -1
"""The parent of a first draft: the token that the target produced last."""
MOST_NODES = 1024
MOST_QUOTED = 40


class ShapeError(Exception):
    """A shape that cannot be read, or is too large."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many children each node has, by depth.

    A node at depth d has `widths[d]` children; the root's depth is 0. With a `beam` only that many nodes of a depth
    have children, those with the best scores; with `keep` only that many nodes remain at the end.
    """

    name: str
    widths: tuple[int, ...]
    beam: int | None = None
    keep: int | None = None

    @property
    def depth(self) -> int:
        """The most tokens that a round drafts one after another."""
        return len(self.widths)


@dataclass(frozen=True, slots=True)
class Offers:
    """Candidate successors of each requested node, best first.

    Target ids and their log-probabilities, [nodes][offers of that node]. A node may get fewer than requested, and then
    has fewer children.
    """

    ids: Sequence[Sequence[int]]
    scores: Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Tree:
    """Drafted tokens: node i is `tokens[i]` after `parents[i]`.

    A parent is smaller than i, or `ROOT`.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(ROOT, len(self.parents) - 1))

    def path(self, node: int) -> tuple[int, ...]:
        """Return the path from below the root to this node."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    def depths(self) -> tuple[int, ...]:
        """Return each node's depth, 1 right below the root."""
        found: list[int] = []
        for parent in self.parents:
            found.append(1 if parent == ROOT else found[parent] + 1)
        return tuple(found)


Expand: TypeAlias = Callable[[Tree, Sequence[int], int], Offers]
"""From the tree so far, some of its nodes and a number: that many offers for each of these nodes."""


def parse_shape(text: str) -> Shape:
    """Parse `chain:N`, `tree:N,N,…` or `dynamic:DEPTH,TOP,TOKENS`.

    Raises ShapeError.

    >>> parse_shape("tree:4,2,1").widths
    (4, 2, 1)
    """
    kind, _, given = text.partition(":")
    digits = [part.lstrip("0") for part in given.split(",")]
    if not all(part.isascii() and part.isdigit() for part in digits):
        raise ShapeError(_unreadable(text))
    # However long a number is, one that is too large for any shape reads as just too large.
    numbers = tuple(int(part) if len(part) <= len(str(MOST_NODES)) else MOST_NODES + 1 for part in digits)
    if kind == "chain" and len(numbers) == 1:
        _require_small(text, numbers[0])
        return Shape(text, (1,) * numbers[0])
    if kind == "tree":
        nodes, width = 0, 1
        for number in numbers:
            width *= number
            nodes += width
            _require_small(text, nodes)
        return Shape(text, numbers)
    if kind == "dynamic" and len(numbers) == 3:  # noqa: PLR2004 - as the message says
        depth, top, keep = numbers
        _require_small(text, max(keep, top * top * depth))
        return Shape(text, (top,) * depth, beam=top, keep=keep)
    raise ShapeError(_unreadable(text))


def grow(shape: Shape, first: Offers, expand: Expand) -> Tree:
    """Grow the tree of this shape.

    `first` is offered below the root; `expand` is called once for each further depth.
    """
    tokens: list[int] = []
    parents: list[int] = []
    scores = {ROOT: 0.0}
    frontier, offers = [ROOT], first
    for depth, width in enumerate(shape.widths):
        if depth:
            offers = expand(Tree(tuple(tokens), tuple(parents)), frontier, width)
        born = len(tokens)
        for node, ids, own in zip(frontier, offers.ids, offers.scores, strict=True):
            for token, score in zip(ids[:width], own[:width], strict=True):
                scores[len(tokens)] = scores[node] + float(score)
                tokens.append(int(token))
                parents.append(node)
        frontier = _best(range(born, len(tokens)), scores, shape.beam)
        if not frontier:
            break
    nodes = _best(range(len(tokens)), scores, shape.keep)
    place = {ROOT: ROOT} | {node: at for at, node in enumerate(nodes)}
    return Tree(tuple(tokens[node] for node in nodes), tuple(place[parents[node]] for node in nodes))


def accepted(tree: Tree, wanted: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Return the accepted path, and the token after it.

    `wanted` [1 + nodes] is the target's own next token after the root and after each node, in this order.
    """
    children = {
        (parent, token): node for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True))
    }
    node, path = ROOT, []
    while (child := children.get((node, wanted[node + 1]))) is not None:
        path.append(child)
        node = child
    return tuple(path), wanted[node + 1]


def _best(nodes: Sequence[int], scores: Mapping[int, float], number: int | None) -> list[int]:
    """Return the best nodes by score, in their own order.

    Ties go to the earlier node, so that no child outlives its parent.
    """
    if number is None:
        return [*nodes]
    return sorted(sorted(nodes, key=lambda node: (-scores[node], node))[:number])


def _require_small(text: str, nodes: int) -> None:
    """Raise ShapeError before anything too large is made."""
    if nodes > MOST_NODES:
        raise ShapeError(f"{_short(text)} drafts more than {MOST_NODES} tokens a round. Give a smaller --shape")


def _unreadable(text: str) -> str:
    return f"{_short(text)} is no shape. Give chain:4, tree:4,2,1 (children a node) or dynamic:DEPTH,TOP,TOKENS"


def _short(text: str) -> str:
    return repr(text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}…")
