"""What a drafter is compared with."""

from __future__ import annotations

from math import log

import pytest
import torch

from pipeline.drafter.decoding.drafting import SeedError, TableDrafting, successors_in, untrained, untrained_like
from pipeline.drafter.decoding.trees import ROOT, Offers, Tree
from pipeline.drafter.model.config import DrafterConfig, choose_vocabulary

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


def test_the_same_seed_makes_the_same_drafter_and_leaves_torchs_chance_alone() -> None:
    vocabulary, embedding = choose_vocabulary(torch.zeros(20), 6), torch.zeros(20, 8)
    before = torch.random.get_rng_state()

    one, same, other = (untrained(CONFIG, vocabulary, embedding, seed) for seed in (1, 1, 2))

    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(one.fc.weight, same.fc.weight)
    assert not torch.equal(one.fc.weight, other.fc.weight)
    assert torch.equal(one.fc.weight, untrained_like(other, 1).fc.weight)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, int("9" * 25)])
def test_a_seed_that_torch_does_not_take_is_refused_with_those_that_it_does(seed: int) -> None:
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
