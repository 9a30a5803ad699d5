"""Shapes of drafts, their growth, and the accepted path."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipeline.drafter.decoding.trees import ROOT, Offers, Shape, ShapeError, Tree, accepted, grow, parse_shape

pytestmark = pytest.mark.contract


def test_a_chain_has_one_child_a_node() -> None:
    assert Shape("chain:4", (1, 1, 1, 1)) == parse_shape("chain:4")


def test_a_tree_names_its_children_depth_by_depth() -> None:
    assert Shape("tree:4,2,1", (4, 2, 1)) == parse_shape("tree:4,2,1")


def test_a_dynamic_tree_has_a_beam_and_a_number_of_nodes() -> None:
    assert Shape("dynamic:5,8,60", (8,) * 5, beam=8, keep=60) == parse_shape("dynamic:5,8,60")


@pytest.mark.parametrize(
    "text", ["", "chain", "chain:", "chain:0", "chain:-1", "chain:2,2", "tree:", "tree:2,0", "dynamic:2,2", "ring:3"]
)
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(ShapeError, match=r"is no shape. Give chain:4, tree:4,2,1"):
        parse_shape(text)


@pytest.mark.parametrize(
    "text",
    [
        "tree:10,10,10",
        "chain:1025",
        "chain:10000000000",
        f"chain:{'9' * 5000}",
        f"tree:{','.join('9' * 60_000)}",
        f"tree:{','.join('1' * 1025)}",
        "dynamic:1025,1,1",
        "dynamic:1,33,1",
        "dynamic:1,1,1025",
        f"dynamic:{'9' * 5000},1,1",
    ],
    ids=lambda text: text[:20],
)
def test_a_shape_of_too_many_nodes_is_refused_before_it_is_made(text: str) -> None:
    with pytest.raises(ShapeError, match=r"^'.{1,41}' drafts more than 1024 tokens a round\. Give a smaller --shape$"):
        parse_shape(text)


@pytest.mark.parametrize("text", ["chain:1024", "tree:1024", "tree:1,1023", "dynamic:1024,1,1024", "dynamic:1,32,1"])
def test_as_many_nodes_as_there_may_be_are_a_shape(text: str) -> None:
    assert text == parse_shape(text).name


def test_a_long_text_that_is_no_shape_is_not_quoted_whole() -> None:
    with pytest.raises(ShapeError, match=r"^'x{40}…' is no shape"):
        parse_shape("x" * 5000)


def offers(number: int, nodes: int) -> Offers:
    """Offer every node the tokens 10, 11, … with halving probability."""
    scores = [-0.5 * (place + 1) for place in range(number)]
    return Offers([[10 + place for place in range(number)]] * nodes, [scores] * nodes)


def expand(_tree: Tree, nodes: Sequence[int], number: int) -> Offers:
    return offers(number, len(nodes))


def test_a_static_tree_grows_every_node() -> None:
    tree = grow(parse_shape("tree:2,2,1"), offers(2, 1), expand)

    assert (ROOT, ROOT, 0, 0, 1, 1, 2, 3, 4, 5) == tree.parents
    assert (10, 11, 10, 11, 10, 11, 10, 10, 10, 10) == tree.tokens
    assert (1, 1, 2, 2, 2, 2, 3, 3, 3, 3) == tree.depths()


def test_a_chain_knows_that_it_is_one() -> None:
    assert grow(parse_shape("chain:3"), offers(1, 1), expand).is_chain
    assert not grow(parse_shape("tree:2,1"), offers(2, 1), expand).is_chain


def test_a_path_is_the_nodes_from_the_root() -> None:
    tree = grow(parse_shape("tree:2,2,1"), offers(2, 1), expand)

    assert (1, 4, 8) == tree.path(8)


def test_a_dynamic_tree_grows_and_keeps_the_best_nodes() -> None:
    """By hand: a -.5, b -1; aa -1, ab -1.5, ba -1.5, bb -2; of aa and ab: aaa -1.5, aab -2, aba -2, abb -2.5.

    The best six of all ten are a, b, aa, then of the three at -1.5 all (ab, ba, aaa).
    """
    tree = grow(parse_shape("dynamic:3,2,6"), offers(2, 1), expand)

    assert (ROOT, ROOT, 0, 0, 1, 2) == tree.parents
    assert (10, 11, 10, 11, 10, 10) == tree.tokens


def test_of_equal_scores_the_parent_stays() -> None:
    certain = Offers([[5]], [[0.0]])

    tree = grow(parse_shape("dynamic:3,1,2"), certain, lambda _tree, _nodes, _number: certain)

    assert Tree((5, 5), (ROOT, 0)) == tree


def test_a_node_may_be_offered_less_than_was_asked_for() -> None:
    tree = grow(parse_shape("tree:2,2"), Offers([[7]], [[-1.0]]), lambda *_: Offers([[]], [[]]))

    assert Tree((7,), (ROOT,)) == tree


def test_nothing_offered_is_no_tree() -> None:
    assert Tree((), ()) == grow(parse_shape("chain:4"), Offers([[]], [[]]), expand)


TREE = Tree((10, 11, 10, 11, 12), (ROOT, ROOT, 0, 0, 3))


def test_the_path_that_the_target_would_write_is_accepted() -> None:
    """After the root it writes 10, then 11, then 12, then 99: nodes 0, 3 and 4, and 99 is its own."""
    assert ((0, 3, 4), 99) == accepted(TREE, [10, 11, 0, 0, 12, 99])


def test_nothing_is_accepted_below_a_rejected_token() -> None:
    assert ((), 12) == accepted(TREE, [12, 10, 10, 12, 12, 12])


def test_a_wish_of_another_branch_does_not_count() -> None:
    """Node 1 has no child 10, though node 0 has one."""
    assert ((1,), 10) == accepted(TREE, [11, 0, 10, 0, 0, 0])
