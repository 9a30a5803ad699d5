"""What is drafted in one round: a chain, or a tree of which the target keeps the one path that it would have written.

Guarantees: parents come before their children, siblings differ, and no node is deeper than the shape says. A shape is
`chain:4`, `tree:4,2,1` (so many children of each node, depth by depth) or `dynamic:DEPTH,TOP,TOKENS` (as in EAGLE-2: at
each depth the best TOP of all that is offered grow on, and of all nodes the best TOKENS are sent to the target).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """Each node at depth d, the root being at 0, has `widths[d]` children.

    With a `beam` only so many nodes of a depth have any, those with the best scores; with `keep` only so many nodes
    stand at the end.
    """

    name: str
    widths: tuple[int, ...]
    beam: int | None = None
    keep: int | None = None

    @property
    def depth(self) -> int:
        """How many tokens a round drafts at most, one after another."""
        return len(self.widths)


@dataclass(frozen=True, slots=True)
class Offers:
    """What may come next: of each node that was asked for, ids of the target and their log-probabilities, best first.

    Shapes: [nodes][offers of that node]; a node may have fewer than it was asked for, and then has fewer children.
    """

    ids: Sequence[Sequence[int]]
    scores: Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Tree:
    """Drafted tokens: node i is `tokens[i]` after `parents[i]`, which is smaller than i or `ROOT`."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(ROOT, len(self.parents) - 1))

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from below the root to this one, itself included."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    def depths(self) -> tuple[int, ...]:
        """1 for what stands right below the root."""
        found: list[int] = []
        for parent in self.parents:
            found.append(1 if parent == ROOT else found[parent] + 1)
        return tuple(found)


Expand: TypeAlias = Callable[[Tree, Sequence[int], int], Offers]
"""Given the tree so far, some of its nodes and a number: that many offers for each of these nodes."""


def parse_shape(text: str) -> Shape:
    """`chain:N`, `tree:N,N,…` or `dynamic:DEPTH,TOP,TOKENS`. Raises ShapeError."""
    kind, _, given = text.partition(":")
    parts = given.split(",")
    if not all(part.isascii() and part.isdigit() and part.strip("0") for part in parts):
        raise ShapeError(_unreadable(text))
    numbers = tuple(map(_bounded, parts))
    if kind == "chain" and len(numbers) == 1:
        _require_small(text, numbers[0])
        return Shape(text, (1,) * numbers[0])
    if kind == "tree":
        _require_small(text, _nodes(numbers))
        return Shape(text, numbers)
    if kind == "dynamic" and len(numbers) == 3:  # noqa: PLR2004 - as the message says
        depth, top, keep = numbers
        _require_small(text, max(keep, top * top * depth))
        return Shape(text, (top,) * depth, beam=top, keep=keep)
    raise ShapeError(_unreadable(text))


def grow(shape: Shape, first: Offers, expand: Expand) -> Tree:
    """The tree of this shape: `first` is offered below the root, and `expand` is asked depth by depth."""
    tree, scores = Tree((), ()), [0.0]  # the last score is the root's, at index ROOT
    frontier, offers = [ROOT], first
    for depth, width in enumerate(shape.widths):
        if depth:
            offers = expand(tree, frontier, width)
        born = len(tree.tokens)
        tree, scores = _with_children(tree, scores, frontier, offers, width)
        frontier = _best(range(born, len(tree.tokens)), scores, shape.beam)
        if not frontier:
            break
    return _kept(tree, scores, shape.keep)


def accepted(tree: Tree, wanted: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """The path that the target would have written itself, and the token that it writes after that.

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


def _with_children(
    tree: Tree, scores: list[float], frontier: Sequence[int], offers: Offers, width: int
) -> tuple[Tree, list[float]]:
    tokens, parents, grown = [*tree.tokens], [*tree.parents], scores[:-1]
    for node, ids, own in zip(frontier, offers.ids, offers.scores, strict=True):
        for token, score in zip(ids[:width], own[:width], strict=True):
            tokens.append(int(token))
            parents.append(node)
            grown.append(scores[node] + float(score))
    return Tree(tuple(tokens), tuple(parents)), [*grown, 0.0]


def _best(nodes: Sequence[int], scores: Sequence[float], number: int | None) -> list[int]:
    """So many of them by score, in their own order; of equal ones the earlier: no child outlives its parent."""
    if number is None:
        return [*nodes]
    return sorted(sorted(nodes, key=lambda node: (-scores[node], node))[:number])


def _kept(tree: Tree, scores: Sequence[float], number: int | None) -> Tree:
    nodes = _best(range(len(tree.tokens)), scores, number)
    place = {ROOT: ROOT} | {node: at for at, node in enumerate(nodes)}
    return Tree(tuple(tree.tokens[node] for node in nodes), tuple(place[tree.parents[node]] for node in nodes))


def _bounded(part: str) -> int:
    """The number that these digits are; of one that is too large in any shape, however long, just such a one."""
    digits = part.lstrip("0")
    return int(digits) if len(digits) <= len(str(MOST_NODES)) else MOST_NODES + 1


def _nodes(widths: Sequence[int]) -> int:
    """How many nodes so many children of each make, depth by depth; counted until there are too many."""
    total, width = 0, 1
    for number in widths:
        width *= number
        total += width
        if total > MOST_NODES:
            break
    return total


def _require_small(text: str, nodes: int) -> None:
    """Raises ShapeError; asked before anything of that size is made."""
    if nodes > MOST_NODES:
        raise ShapeError(f"{_short(text)} drafts more than {MOST_NODES} tokens a round. Give a smaller --shape")


def _unreadable(text: str) -> str:
    return f"{_short(text)} is no shape. Give chain:4, tree:4,2,1 (children a node) or dynamic:DEPTH,TOP,TOKENS"


def _short(text: str) -> str:
    return repr(text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}…")
