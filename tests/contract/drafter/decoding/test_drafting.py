"""The drafter over its cache, and the baselines.

Against the same layer written densely, and against what training computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log

import pytest
import torch
from torch.nn import functional

from harness.fixtures.drafters import drawn_drafter, small_llama
from pipeline.drafter.decoding.drafting import (
    DrafterDrafting,
    SeedError,
    TableDrafting,
    successors_in,
    untrained,
    untrained_like,
)
from pipeline.drafter.decoding.trees import ROOT, Offers, Tree, grow, parse_shape
from pipeline.drafter.model.config import DrafterConfig, choose_vocabulary
from pipeline.drafter.model.model import Drafter
from pipeline.drafter.target.hidden_states import Target, load_target
from pipeline.drafter.training.packing import PackedBatch

pytestmark = pytest.mark.contract

PROMPT = (5, 3, 9, 1, 7, 40, 2)
FIRST = 11  # what the target produced after the prompt


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(small_llama(tmp_path_factory.mktemp("small") / "target"))


@pytest.fixture(scope="module")
def drafter(target: Target) -> Drafter:
    return drawn_drafter(target, 20)


@pytest.fixture(scope="module")
def aux(target: Target) -> torch.Tensor:
    return torch.randn(len(PROMPT), 3 * target.facts.hidden_size, generator=torch.Generator().manual_seed(1))


def normed(states: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def rotated(heads: torch.Tensor, position: int, theta: float) -> torch.Tensor:
    """[heads, d], as Llama rotates: halves, not pairs."""
    half = heads.shape[-1] // 2
    angles = position * theta ** (-torch.arange(half) / half)
    low, high = heads[:, :half], heads[:, half:]
    return torch.cat([low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()], -1)


class Dense:
    """One row a call, everything written out.

    Keys seen so far are a list; indices say which row attends which.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.weights = dict(drafter.state_dict())
        self.config, self.embedding = drafter.config, drafter.embedding
        self.keys: list[tuple[torch.Tensor, torch.Tensor]] = []

    def state(self, token: int, hidden: torch.Tensor, position: int, attended: list[int]) -> torch.Tensor:
        weights, size = self.weights, self.config.head_dim
        epsilon, layer = self.config.rms_norm_eps, "midlayer."
        both = torch.cat(
            [
                normed(self.embedding[token], weights[f"{layer}input_layernorm.weight"], epsilon),
                normed(hidden, weights[f"{layer}hidden_norm.weight"], epsilon),
            ]
        )
        query, key, value = (
            (weights[f"{layer}self_attn.{name}_proj.weight"] @ both).view(-1, size) for name in ("q", "k", "v")
        )
        self.keys.append((rotated(key, position, self.config.rope_theta), value))
        query = rotated(query, position, self.config.rope_theta)
        group = self.config.num_attention_heads // self.config.num_key_value_heads
        seen = [self.keys[at] for at in [*attended, len(self.keys) - 1]]
        heads = []
        for head in range(self.config.num_attention_heads):
            scores = torch.stack([query[head] @ keys[head // group] for keys, _ in seen]) / size**0.5
            values = torch.stack([values[head // group] for _, values in seen])
            heads.append(scores.softmax(0) @ values)
        middle = hidden + weights[f"{layer}self_attn.o_proj.weight"] @ torch.cat(heads)
        inner = normed(middle, weights[f"{layer}post_attention_layernorm.weight"], epsilon)
        gate, up, down = (weights[f"{layer}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return middle + down @ (functional.silu(gate @ inner) * (up @ inner))

    def scores(self, state: torch.Tensor) -> torch.Tensor:
        head = self.weights["lm_head.weight"]
        return (head @ normed(state, self.weights["norm.weight"], self.config.rms_norm_eps)).log_softmax(0)


def dense_rows(dense: Dense, drafter: Drafter, ids: tuple[int, ...], aux: torch.Tensor, rows: int) -> torch.Tensor:
    """Read verified rows: row r is token r + 1.

    With the target's state of token r, at position r.
    """
    state = torch.empty(0)
    for row in range(rows):
        hidden = drafter.fc.weight @ aux[row]
        state = dense.state(ids[row + 1], hidden, row, list(range(row)))
    return state


def test_the_first_draft_follows_from_the_last_prompt_row(drafter: Drafter, aux: torch.Tensor) -> None:
    dense, drafting = Dense(drafter), DrafterDrafting(drafter)
    ids = (*PROMPT, FIRST)

    offers = drafting.follow(ids[1:], aux, 3)
    best = dense.scores(dense_rows(dense, drafter, ids, aux, len(PROMPT))).topk(3)

    assert drafter.to_target_ids(best.indices).tolist() == offers.ids[0]
    assert best.values.tolist() == pytest.approx(offers.scores[0], abs=1e-5)


def test_a_node_reads_verified_rows_its_path_and_parent(drafter: Drafter, aux: torch.Tensor) -> None:
    dense, drafting = Dense(drafter), DrafterDrafting(drafter)
    ids, rows = (*PROMPT, FIRST), len(PROMPT)
    tree = Tree((4, 30, 4, 8), (ROOT, ROOT, 0, 1))
    root = dense_rows(dense, drafter, ids, aux, rows)
    # Positions go on from the last verified row's, one a depth; slots are in order of reading.
    first = [dense.state(4, root, rows, list(range(rows))), dense.state(30, root, rows, list(range(rows)))]
    second = [
        dense.state(4, first[0], rows + 1, [*range(rows), rows]),
        dense.state(8, first[1], rows + 1, [*range(rows), rows + 1]),
    ]

    drafting.follow(ids[1:], aux, 2)
    offers = [drafting.expand(tree, [0, 1], 4), drafting.expand(tree, [2, 3], 4)]

    for states, found in zip((first, second), offers, strict=True):
        for state, tokens, scores in zip(states, found.ids, found.scores, strict=True):
            best = dense.scores(state).topk(4)
            assert drafter.to_target_ids(best.indices).tolist() == tokens
            assert best.values.tolist() == pytest.approx(scores, abs=1e-5)


def test_accepted_tokens_are_read_with_the_targets_states(drafter: Drafter, aux: torch.Tensor) -> None:
    """Two tokens more, whatever was drafted in between."""
    dense, drafting = Dense(drafter), DrafterDrafting(drafter)
    ids = (*PROMPT, FIRST, 4)
    first = aux[: len(PROMPT) - 1]

    drafting.follow(ids[1 : len(PROMPT)], first, 2)
    drafting.expand(Tree((1, 2), (ROOT, ROOT)), [0, 1], 2)
    offers = drafting.follow(ids[len(PROMPT) : len(PROMPT) + 1], aux[len(PROMPT) - 1 :], 3)
    best = dense.scores(dense_rows(dense, drafter, ids, aux, len(PROMPT))).topk(3)

    assert drafter.to_target_ids(best.indices).tolist() == offers.ids[0]
    assert best.values.tolist() == pytest.approx(offers.scores[0], abs=1e-5)


def test_a_chain_drafts_what_training_trains(drafter: Drafter, target: Target) -> None:
    """Training-time test at row a - 1, its teacher forced tokens being the drafted ones, scores the very same chain."""
    drafting, steps = DrafterDrafting(drafter), 4
    aux = torch.randn(len(PROMPT), 3 * target.facts.hidden_size, generator=torch.Generator().manual_seed(2))
    tree = grow(parse_shape(f"chain:{steps}"), drafting.follow((*PROMPT[1:], FIRST), aux, 1), drafting.expand)
    ids = torch.tensor([*PROMPT, FIRST, *tree.tokens])
    rest = torch.zeros(len(ids) - len(PROMPT), aux.shape[1])
    mask = torch.arange(len(ids)) >= len(PROMPT)
    batch = PackedBatch(ids, mask, (0, len(ids)), torch.cat([aux, rest]), torch.zeros(int(mask.sum()), 16), ("a",))

    with torch.inference_mode():
        states = drafter.unroll(batch, torch.tensor([len(PROMPT) - 1]), steps)
        drafted = [int(drafter.to_target_ids(drafter.logits(state).argmax(-1))) for state in states]

    assert list(tree.tokens) == drafted


def test_a_drafter_offers_no_more_than_it_can_name(drafter: Drafter, aux: torch.Tensor) -> None:
    offers = DrafterDrafting(drafter).follow((*PROMPT[1:], FIRST), aux, 48)

    assert 20 == len(offers.ids[0])
    assert drafter.t2d.nonzero()[:, 0].tolist() == sorted(offers.ids[0])


def test_beginning_anew_forgets(drafter: Drafter, aux: torch.Tensor) -> None:
    drafting = DrafterDrafting(drafter)
    once = drafting.follow((*PROMPT[1:], FIRST), aux, 3)

    drafting.begin()

    assert once == drafting.follow((*PROMPT[1:], FIRST), aux, 3)


CONFIG = DrafterConfig(
    hidden_size=8,
    intermediate_size=12,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    vocab_size=20,
    draft_vocab_size=6,
    target_hidden_size=8,
    max_position_embeddings=64,
    aux_layers=(1, 3, 4),
)


def test_a_seed_fixes_the_drafter_and_spares_torchs_state() -> None:
    vocabulary, embedding = choose_vocabulary(torch.zeros(20), 6), torch.zeros(20, 8)
    before = torch.random.get_rng_state()

    one, same, other = (untrained(CONFIG, vocabulary, embedding, seed) for seed in (1, 1, 2))

    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(one.fc.weight, same.fc.weight)
    assert not torch.equal(one.fc.weight, other.fc.weight)
    assert torch.equal(one.fc.weight, untrained_like(other, 1).fc.weight)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, int("9" * 25)])
def test_a_seed_beyond_torchs_range_is_refused(seed: int) -> None:
    with pytest.raises(
        SeedError, match=rf"^{seed} is not a seed: .* from -9223372036854775808 to 18446744073709551615$"
    ):
        untrained(CONFIG, choose_vocabulary(torch.zeros(20), 6), torch.zeros(20, 8), seed)


ROWS = [([1, 2, 3, 2, 4], [False, False, True, True, True]), ([2, 3, 2, 3], [False, True, True, True])]


def test_a_table_counts_what_was_emitted_after_each_token() -> None:
    """2 is followed by 3 three times and by 4 once, 3 by 2 twice; 1 by nothing emitted."""
    found = successors_in(ROWS)

    assert {2: [3, 4], 3: [2]} == {token: [next_ for next_, _ in own] for token, own in found.items()}
    assert [log(3 / 4), log(1 / 4)] == pytest.approx([share for _, share in found[2]])


def test_of_equal_counts_the_lower_id_comes_first() -> None:
    assert [4, 9] == [token for token, _ in successors_in([([1, 9, 1, 4], [True] * 4)])[1]]


def test_a_table_drafts_from_the_last_token_alone() -> None:
    table = TableDrafting({2: [(3, -0.1), (4, -2.0)], 3: [(2, 0.0)]})

    assert Offers([[3]], [[-0.1]]) == table.follow((9, 2), torch.zeros(2, 24), 1)
    assert Offers([[2], []], [[0.0], []]) == table.expand(Tree((3, 4), (ROOT, ROOT)), [0, 1], 2)
