"""The drafter over its cache: against the same layer written densely, and against what training computes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from harness.fixtures.drafters import drawn_drafter, small_llama
from pipeline.drafter.decoding.drafting import DrafterDrafting
from pipeline.drafter.decoding.trees import ROOT, Tree, grow, parse_shape
from pipeline.drafter.model.model import Drafter
from pipeline.drafter.target.hidden_states import Target, load_target
from pipeline.drafter.training.packing import PackedBatch

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
    """One row a call, everything written out: keys seen so far are a list, and who attends what is said by index."""

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
    """Read so many verified rows: row r is token r + 1 with the target's state of token r, at position r."""
    state = torch.empty(0)
    for row in range(rows):
        hidden = drafter.fc.weight @ aux[row]
        state = dense.state(ids[row + 1], hidden, row, list(range(row)))
    return state


def test_the_first_draft_comes_of_the_last_prompt_row_and_the_token_the_target_produced(
    drafter: Drafter, aux: torch.Tensor
) -> None:
    dense, drafting = Dense(drafter), DrafterDrafting(drafter)
    ids = (*PROMPT, FIRST)

    offers = drafting.follow(ids[1:], aux, 3)
    best = dense.scores(dense_rows(dense, drafter, ids, aux, len(PROMPT))).topk(3)

    assert drafter.to_target_ids(best.indices).tolist() == offers.ids[0]
    assert best.values.tolist() == pytest.approx(offers.scores[0], abs=1e-5)


def test_each_node_reads_verified_rows_its_own_path_and_its_parents_state(drafter: Drafter, aux: torch.Tensor) -> None:
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


def test_after_a_round_accepted_tokens_are_read_with_the_targets_states(drafter: Drafter, aux: torch.Tensor) -> None:
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
