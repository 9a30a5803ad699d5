"""Speculation yields what the target itself would write.

On small targets, with drafters that know much or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM

from harness.fixtures.drafters import KnowingDrafting, drawn_drafter, small_llama
from harness.tiny_target.provenance import WEIGHTS
from pipeline.base.prompts import RefusedLine, read_prompts
from pipeline.drafter.decoding.drafting import DrafterDrafting, Drafting, TableDrafting
from pipeline.drafter.decoding.speculate import Limits, Round, decode_plainly, first_difference, speculate
from pipeline.drafter.decoding.trees import ROOT, Tree, parse_shape
from pipeline.drafter.decoding.verify import Verifier, VerifyError
from pipeline.drafter.target.hidden_states import Target, load_target
from pipeline.formats.registry import open_format
from pipeline.records import Ids

pytestmark = pytest.mark.contract

SHAPES = ("chain:1", "chain:4", "tree:4,2,1", "tree:3,3", "dynamic:4,3,8")
PROMPTS: tuple[Ids, ...] = ((5, 3, 9, 1, 7), (8,), (11, 6, 30, 30, 4, 1, 0, 3), (40, 41, 42))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(small_llama(tmp_path_factory.mktemp("small") / "target"))


@pytest.fixture(scope="module")
def tiny() -> Target:
    return load_target(WEIGHTS)


def tiny_prompts(number: int) -> list[Ids]:
    fmt = open_format("tiny-kimi")
    lines = list(read_prompts(WEIGHTS.parent / "prompts.jsonl"))[:number]
    return [fmt.render(line) for line in lines if not isinstance(line, RefusedLine)]


LIMITS = Limits(24, frozenset({2}))


def test_plain_decoding_is_transformers_own_greedy_answer(small: Target) -> None:
    model = AutoModelForCausalLM.from_pretrained(small.facts.directory, dtype=torch.float32)

    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        settings = {"do_sample": False, "max_new_tokens": 24, "eos_token_id": 2, "pad_token_id": 0}
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, len(prompt) :].tolist()

        assert expected == list(decode_plainly(Verifier(small), prompt, LIMITS).ids)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("errs", [0.0, 0.3, 1.0])
def test_whatever_is_drafted_the_answer_is_the_targets(small: Target, shape: str, errs: float) -> None:
    verifier = Verifier(small)
    for seed, prompt in enumerate(PROMPTS):
        plain = decode_plainly(verifier, prompt, LIMITS)
        drafting = KnowingDrafting(prompt, plain.ids, 48, errs=errs, seed=seed)

        assert plain.ids == speculate(verifier, drafting, parse_shape(shape), prompt, LIMITS).ids


@pytest.mark.parametrize("shape", ["chain:4", "tree:4,2,2", "dynamic:4,4,12"])
def test_a_drawn_drafter_is_lossless_on_the_tiny_target(tiny: Target, shape: str) -> None:
    """A table of what follows what drafts as well, so that much is accepted, too."""
    verifier, limits = Verifier(tiny), Limits(40, frozenset({770}))
    draftings: tuple[Drafting, ...] = (DrafterDrafting(drawn_drafter(tiny, 512)),)
    for prompt in tiny_prompts(4):
        plain = decode_plainly(verifier, prompt, limits)
        knowing = KnowingDrafting(prompt, plain.ids, 1024, errs=0.3)
        for drafting in (*draftings, knowing):
            answer = speculate(verifier, drafting, parse_shape(shape), prompt, limits)
            at = first_difference(plain.ids, answer.ids)

            assert at is None or plain.margins[at] <= 1e-4


def test_who_knows_everything_is_accepted_whole(small: Target) -> None:
    verifier, limits = Verifier(small), Limits(21, frozenset())
    plain = decode_plainly(verifier, PROMPTS[0], limits)

    answer = speculate(
        verifier, KnowingDrafting(PROMPTS[0], plain.ids, 48, errs=0.0), parse_shape("chain:4"), PROMPTS[0], limits
    )

    assert (Round(4, 4, 5),) * 4 == answer.rounds
    assert 4 == verifier.passes


def test_who_drafts_nothing_leaves_a_token_a_round(small: Target) -> None:
    verifier, limits = Verifier(small), Limits(5, frozenset())
    plain = decode_plainly(verifier, PROMPTS[0], limits)

    answer = speculate(verifier, TableDrafting({}), parse_shape("tree:4,2"), PROMPTS[0], limits)

    assert plain.ids == answer.ids
    assert (Round(0, 0, 1),) * 4 == answer.rounds


def test_a_drafted_end_token_ends_the_round_as_accepted(small: Target) -> None:
    """The end is made of whatever token the target writes sixth: one of the first pass, five of a chain of eight."""
    verifier = Verifier(small)
    plain = decode_plainly(verifier, PROMPTS[2], Limits(12, frozenset()))
    limits = Limits(12, frozenset({plain.ids[5]}))
    assert plain.ids[5] not in plain.ids[:5]

    drafting = KnowingDrafting(PROMPTS[2], plain.ids, 48, errs=0.0)
    answer = speculate(verifier, drafting, parse_shape("chain:8"), PROMPTS[2], limits)

    assert plain.ids[:6] == answer.ids
    assert (Round(5, 5, 5),) == answer.rounds


def test_the_last_round_counts_whole_though_the_answer_is_cut(small: Target) -> None:
    verifier, limits = Verifier(small), Limits(3, frozenset())
    plain = decode_plainly(verifier, PROMPTS[0], Limits(12, frozenset()))

    answer = speculate(
        verifier, KnowingDrafting(PROMPTS[0], plain.ids, 48, errs=0.0), parse_shape("chain:4"), PROMPTS[0], limits
    )

    assert plain.ids[:3] == answer.ids
    assert (Round(4, 4, 5),) == answer.rounds


def test_margins_are_of_the_two_best_tokens(small: Target) -> None:
    model = AutoModelForCausalLM.from_pretrained(small.facts.directory, dtype=torch.float32)
    with torch.no_grad():
        best = model(torch.tensor([PROMPTS[0]])).logits[0, -1].topk(2)

    plain = decode_plainly(Verifier(small), PROMPTS[0], LIMITS)

    assert float(best.values[0] - best.values[1]) == pytest.approx(plain.margins[0], abs=1e-4)
    assert len(plain.ids) == len(plain.margins)


def test_a_tree_is_verified_as_each_of_its_paths_alone(small: Target) -> None:
    """Logits and states of every node equal those of its path written out behind the prompt."""
    tree = Tree((7, 9, 7, 30, 9, 1), (ROOT, ROOT, 0, 0, 1, 4))
    verifier, alone = Verifier(small), Verifier(small)
    verifier.begin(PROMPTS[0])

    seen = verifier.check(12, tree)

    for node in range(len(tree.tokens)):
        path = tuple(tree.tokens[one] for one in tree.path(node))
        whole = alone.begin((*PROMPTS[0], 12, *path))
        assert torch.allclose(whole.logits[-1], seen.logits[1 + node], atol=1e-4)
        assert torch.allclose(whole.aux[-1], seen.aux[1 + node], atol=1e-4)


def test_what_was_kept_is_as_if_it_had_been_the_prompt(small: Target) -> None:
    tree = Tree((7, 9, 7, 30, 9, 1), (ROOT, ROOT, 0, 0, 1, 4))
    verifier, alone = Verifier(small), Verifier(small)
    verifier.begin(PROMPTS[0])
    verifier.check(12, tree)

    verifier.keep((1, 4))
    seen = verifier.check(33)

    assert torch.allclose(alone.begin((*PROMPTS[0], 12, 9, 9, 33)).logits[-1], seen.logits[0], atol=1e-4)


def test_an_answer_without_room_is_refused(small: Target) -> None:
    with pytest.raises(
        VerifyError, match=r"5 prompt tokens \+ 120 of --max-tokens \+ a draft of 4 exceed the target's"
    ):
        speculate(Verifier(small), TableDrafting({}), parse_shape("chain:4"), PROMPTS[0], Limits(120, frozenset()))


def test_an_empty_prompt_is_refused(small: Target) -> None:
    with pytest.raises(VerifyError, match="a prompt is empty"):
        decode_plainly(Verifier(small), (), LIMITS)


def test_a_target_with_a_sliding_window_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    folder = tmp_path_factory.mktemp("sliding") / "target"
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = MistralConfig(vocab_size=48, num_hidden_layers=8, sliding_window=8, **sizes)
    MistralForCausalLM(config).save_pretrained(folder)

    with pytest.raises(VerifyError, match="the target keeps DynamicSlidingWindowLayer"):
        Verifier(load_target(folder))


@pytest.mark.parametrize(
    "one, other, at",
    [((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1, 2), (1, 2, 3), 2), ((), (1,), 0), ((), (), None)],
)
def test_the_first_difference_of_two_answers(one: Ids, other: Ids, at: int | None) -> None:
    assert at == first_difference(one, other)
