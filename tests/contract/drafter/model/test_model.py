"""The drafter beside its definition, token by token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.fixtures.small_drafters import CONFIG, DRAFT, VOCABULARY, WIDTH, drafter, row, teacher, vocabulary
from pipeline.drafter.model.config import choose_vocabulary
from pipeline.drafter.model.loss import MaskMode, counts, scales
from pipeline.drafter.model.model import Drafter, TttResult
from pipeline.drafter.training.packing import PackedBatch, pack

pytestmark = pytest.mark.contract

STEPS = 4


def run(made: Drafter, batch: PackedBatch, mode: MaskMode = MaskMode.ALIGNED, **options: bool) -> TttResult:
    result: TttResult = made(batch, teacher(made), mode, scales(counts(batch, mode, STEPS), mode, 0.8), **options)
    return result


def gradients(made: Drafter, result: TttResult) -> list[torch.Tensor]:
    return list(torch.autograd.grad(result.loss, list(made.parameters())))


def by_definition(made: Drafter, batch: PackedBatch) -> torch.Tensor:
    """Compute the aligned loss of one row, token by token.

    Every row has a cache of its own, nothing is shared.
    """
    ids, mask = batch.ids, batch.mask
    fused = made.fuse(batch.aux)
    taught = teacher(made)
    last = {int(at): batch.last[place] for place, at in enumerate(mask.nonzero()[:, 0])}
    sums = []
    for step_count in range(1, STEPS + 1):
        losses = []
        for at in range(len(ids)):
            position = at + step_count
            if position + 1 >= len(ids) or not (mask[position] and mask[position + 1]):
                continue
            cache = made.new_cache()
            before = torch.arange(at + 1)[None]
            hidden = made.decode(ids[1 : at + 2][None], fused[: at + 1][None], before, cache)[:, -1:]
            for step in range(1, step_count):
                hidden = made.decode(ids[None, at + 1 + step, None], hidden, torch.tensor([[at + step]]), cache)
            target = (taught.draft_rows @ last[position]).softmax(-1)
            losses.append(-(target * made.logits(hidden)[0, 0].log_softmax(-1)).sum())
        sums.append(torch.stack(losses).sum() if losses else torch.zeros(()))
    return torch.stack(sums)


def test_the_loss_is_that_of_decoding_each_row_by_itself() -> None:
    made, batch = drafter(), pack([row(5, 6, 1)])

    torch.testing.assert_close(run(made, batch).sums.float(), by_definition(made, batch), atol=1e-5, rtol=0)


def test_gradients_are_those_of_decoding_each_row_by_itself() -> None:
    made, batch = drafter(), pack([row(5, 6, 1)])
    weights = scales(counts(batch, MaskMode.ALIGNED, STEPS), MaskMode.ALIGNED, 0.8).float()
    expected = torch.autograd.grad((by_definition(made, batch) * weights).sum(), list(made.parameters()))

    for actual, wanted in zip(gradients(made, run(made, batch)), expected, strict=True):
        torch.testing.assert_close(actual, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("mode", list(MaskMode))
def test_a_packed_row_gives_what_it_gives_alone(mode: MaskMode) -> None:
    made, rows = drafter(), [row(5, 6, 1), row(1, 3, 2), row(9, 2, 3)]
    alone = [run(made, pack([one]), mode) for one in rows]

    packed = run(made, pack(rows), mode)

    torch.testing.assert_close(packed.sums, sum(one.sums for one in alone), atol=1e-5, rtol=0)
    assert sum(one.counts for one in alone).tolist() == packed.counts.tolist()


def test_gradients_of_packed_rows_are_the_sum_of_their_own() -> None:
    made, rows = drafter(), [row(5, 6, 1), row(1, 3, 2)]
    ones = torch.ones(STEPS, dtype=torch.float64)
    alone = [gradients(made, made(pack([one]), teacher(made), MaskMode.ALIGNED, ones)) for one in rows]

    packed = gradients(made, made(pack(rows), teacher(made), MaskMode.ALIGNED, ones))

    for found, first, second in zip(packed, *alone, strict=True):
        torch.testing.assert_close(found, first + second, atol=1e-4, rtol=1e-4)


def test_skipping_rows_that_no_loss_reads_changes_nothing() -> None:
    made, batch = drafter(), pack([row(9, 3, 1), row(7, 2, 2)])
    needed = torch.tensor([6, 7, 8, 9, 12 + 5, 12 + 6])

    everything = made.unroll(batch, torch.arange(batch.tokens), STEPS)

    for alone, among_all in zip(made.unroll(batch, needed, STEPS), everything, strict=True):
        torch.testing.assert_close(alone, among_all[needed], atol=1e-5, rtol=0)


def test_only_rows_that_some_loss_reads_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompt 0..8, answer 9 10 11: positions 9 and 10 teach.

    Each needs as many rows before it as there are steps.
    """
    made, asked = drafter(), list[list[int]]()

    def unroll(batch: PackedBatch, rows: torch.Tensor, steps: int) -> list[torch.Tensor]:
        asked.append(rows.tolist())
        return Drafter.unroll(made, batch, rows, steps)

    monkeypatch.setattr(made, "unroll", unroll)
    run(made, pack([row(9, 3, 1)]))

    assert [[5, 6, 7, 8, 9]] == asked


def test_the_whole_vocabulary_maps_each_token_to_itself() -> None:
    everything = choose_vocabulary(torch.ones(VOCABULARY), VOCABULARY)
    torch.manual_seed(0)
    made, batch = Drafter(replace(CONFIG, draft_vocab_size=VOCABULARY), everything), pack([row(5, 6, 1)])
    made.attach(torch.randn(VOCABULARY, WIDTH))

    result = run(made, batch)

    assert [0, 7, 39] == made.to_target_ids(torch.tensor([0, 7, 39])).tolist()
    torch.testing.assert_close(result.sums.float(), by_definition(made, batch), atol=1e-5, rtol=0)
    assert run(made, batch, exact=True).correct.tolist() == result.correct.tolist()


@pytest.mark.parametrize("prompt, answer", [(5, 0), (5, 1), (0, 1), (0, 2)])
def test_a_row_without_two_emitted_tokens_teaches_nothing(prompt: int, answer: int) -> None:
    made = drafter()
    result = run(made, pack([row(prompt, answer, 1)]))

    assert (0.0, [0.0] * STEPS) == (result.loss.item(), result.counts.tolist())
    assert all(not grad.any() for grad in gradients(made, result))


def test_the_forward_pass_counts_what_the_mean_divides_by() -> None:
    made, batch = drafter(), pack([row(2, 6, 1), row(9, 4, 3)])

    assert counts(batch, MaskMode.ALIGNED, STEPS).tolist() == run(made, batch).counts.tolist()


def test_a_token_outside_the_vocabulary_is_wrong_if_exact() -> None:
    made, batch = drafter(), pack([row(2, 30, 1)])
    lenient, exact = run(made, batch), run(made, batch, exact=True)

    assert bool((exact.correct <= lenient.correct).all())
    assert lenient.sums.tolist() == exact.sums.tolist()


def test_the_weights_are_named_as_engines_load_them() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in drafter().state_dict().items()}

    assert {
        "fc.weight": (WIDTH, 36),
        "midlayer.self_attn.q_proj.weight": (32, 2 * WIDTH),
        "midlayer.self_attn.k_proj.weight": (16, 2 * WIDTH),
        "midlayer.self_attn.v_proj.weight": (16, 2 * WIDTH),
        "midlayer.self_attn.o_proj.weight": (WIDTH, 32),
        "midlayer.mlp.gate_proj.weight": (32, WIDTH),
        "midlayer.mlp.up_proj.weight": (32, WIDTH),
        "midlayer.mlp.down_proj.weight": (WIDTH, 32),
        "midlayer.hidden_norm.weight": (WIDTH,),
        "midlayer.input_layernorm.weight": (WIDTH,),
        "midlayer.post_attention_layernorm.weight": (WIDTH,),
        "norm.weight": (WIDTH,),
        "lm_head.weight": (DRAFT, WIDTH),
        "d2t": (DRAFT,),
        "t2d": (VOCABULARY,),
    } == shapes


def test_bfloat16_autocast_trains() -> None:
    made, batch = drafter(), pack([row(5, 12, 1)])
    expected = run(made, batch).loss.item()

    with torch.autocast("cpu", torch.bfloat16):
        result = run(made, batch)
    found = gradients(made, result)

    assert result.loss.item() == pytest.approx(expected, rel=0.05)
    assert {torch.float32} == {grad.dtype for grad in found}


def test_a_tree_mask_hides_siblings() -> None:
    made = drafter()
    prompt = torch.tensor([[3, 4, 5]])
    state = made.fuse(torch.randn(1, 3, 36))
    position = torch.arange(3)[None]
    alone = made.new_cache()
    made.decode(prompt, state, position, alone)
    expected = made.decode(torch.tensor([[7]]), state[:, -1:], torch.tensor([[3]]), alone)

    cache = made.new_cache()
    made.decode(prompt, state, position, cache)
    mask = torch.tensor([[True, True, True, True, False], [True, True, True, False, True]])
    both = made.decode(torch.tensor([[6, 7]]), state[:, [-1, -1]], torch.tensor([[3, 3]]), cache, mask)

    torch.testing.assert_close(both[:, 1:], expected)


def test_a_fresh_drafter_follows_the_seed() -> None:
    torch.manual_seed(7)
    one = Drafter(CONFIG, vocabulary()).state_dict()
    torch.manual_seed(7)

    assert all(torch.equal(one[name], tensor) for name, tensor in Drafter(CONFIG, vocabulary()).state_dict().items())
