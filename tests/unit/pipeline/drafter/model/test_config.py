"""The draft vocabulary: its tokens, and how it is written."""

from __future__ import annotations

import pytest
import torch

from pipeline.drafter.model.config import VocabularyError, choose_vocabulary


def test_the_most_frequent_tokens_are_in_as_offsets() -> None:
    found = choose_vocabulary(torch.tensor([5, 0, 7, 1, 9, 2]), 3)

    assert [0, 2, 4] == found.target_ids.tolist()
    assert [0, 1, 2] == found.d2t.tolist()
    assert [True, False, True, False, True, False] == found.t2d.tolist()
    assert found.coverage == pytest.approx(21 / 24)


def test_control_tokens_are_in_however_rare() -> None:
    assert [3, 4] == choose_vocabulary(torch.tensor([5, 0, 7, 0, 9, 2]), 2, always=[3]).target_ids.tolist()


def test_a_short_list_is_filled_with_the_lowest_unused_ids() -> None:
    assert [0, 1, 4] == choose_vocabulary(torch.tensor([0, 0, 0, 0, 9, 0]), 3).target_ids.tolist()


def test_a_whole_vocabulary_maps_each_token_to_itself() -> None:
    found = choose_vocabulary(torch.tensor([1, 2, 3]), 3)

    assert ([0, 0, 0], [True] * 3, 1.0) == (found.d2t.tolist(), found.t2d.tolist(), found.coverage)


@pytest.mark.parametrize("size, always", [(0, []), (4, []), (1, [0, 2]), (2, [3]), (2, [-1])])
def test_what_cannot_be_made_is_refused(size: int, always: list[int]) -> None:
    with pytest.raises(VocabularyError):
        choose_vocabulary(torch.tensor([1, 2, 3]), size, always)
