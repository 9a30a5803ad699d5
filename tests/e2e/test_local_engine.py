"""The local engine on the tiny target's committed weights. Needs torch and transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.tiny_target.prompts import PROMPTS
from harness.tiny_target.provenance import WEIGHTS
from pipeline.base.prompts import read_prompts
from pipeline.formats.format import Format
from pipeline.formats.registry import load_format
from pipeline.formats.tokenizer import load_tokenizer
from pipeline.generation.engines.local import EngineError, LocalEngine, load_engine
from pipeline.generation.engines.output import EngineOutput, complete
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import Evidence, Ids, Prompt, Sampling, TokenRow


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return load_engine(WEIGHTS)


@pytest.fixture(scope="module")
def fmt() -> Format:
    return load_format("kimi-k2.5", load_tokenizer(WEIGHTS))


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return [prompt for prompt in read_prompts(PROMPTS) if isinstance(prompt, Prompt)][:24]


@pytest.fixture(scope="module")
def rendered(fmt: Format, prompts: list[Prompt]) -> list[Ids]:
    return [fmt.render(prompt) for prompt in prompts]


def sampled(count: int, *, temperature: float = 1.0, max_tokens: int = 256) -> list[Sampling]:
    return [Sampling(temperature=temperature, max_tokens=max_tokens, seed=row) for row in range(count)]


def ids_of(generations: list[EngineOutput]) -> list[Ids]:
    return [generation.ids for generation in generations]


def test_greedy_is_the_likeliest_token_each_time(engine: LocalEngine, rendered: list[Ids]) -> None:
    """Against the model run over the whole sequence at once, without cache or padding."""
    generation = engine.generate(rendered[:1], sampled(1, temperature=0.0))[0]
    with torch.inference_mode():
        logits = engine.model(input_ids=torch.tensor([rendered[0] + generation.ids])).logits[0].double()
    steps = logits[len(rendered[0]) - 1 : -1].log_softmax(-1)
    assert generation.ids == tuple(steps.argmax(-1).tolist())
    assert pytest.approx(generation.logprobs, abs=1e-4) == steps.max(-1).values.tolist()
    second = steps.topk(2).indices[:, 1].tolist()
    assert [token for token, _ in generation.runner_up] == second


def test_greedy_does_not_depend_on_the_seed(engine: LocalEngine, rendered: list[Ids]) -> None:
    seeds = [Sampling(temperature=0.0, seed=seed) for seed in (1, 2)]
    first, second = engine.generate([rendered[0]] * 2, seeds)
    assert first.ids == second.ids


def test_an_answer_does_not_depend_on_its_batch(engine: LocalEngine, rendered: list[Ids]) -> None:
    settings = sampled(len(rendered))
    together = engine.generate(rendered, settings)
    alone = [engine.generate([ids], [setting])[0] for ids, setting in zip(rendered, settings, strict=True)]
    assert ids_of(alone) == ids_of(together)


def test_the_same_seed_gives_the_same_answers(engine: LocalEngine, rendered: list[Ids]) -> None:
    first, second = (engine.generate(rendered, sampled(len(rendered))) for _ in range(2))
    assert first == second


def test_other_seeds_give_other_answers(engine: LocalEngine, rendered: list[Ids]) -> None:
    answers = engine.generate([rendered[0]] * 16, sampled(16))
    assert len(set(ids_of(answers))) > 1


def test_a_shorter_limit_cuts_the_same_answer(engine: LocalEngine, rendered: list[Ids]) -> None:
    whole = engine.generate(rendered, sampled(len(rendered)))
    cut = engine.generate(rendered, sampled(len(rendered), max_tokens=5))
    assert [ids[:5] for ids in ids_of(whole)] == ids_of(cut)
    assert [len(ids) <= 5 for ids in ids_of(whole)] == [generation.finished for generation in cut]


def test_an_answer_ends_with_its_only_end_token(engine: LocalEngine, fmt: Format, rendered: list[Ids]) -> None:
    for generation in engine.generate(rendered, sampled(len(rendered))):
        assert generation.finished == (generation.ids[-1] == fmt.end_id)
        assert fmt.end_id not in generation.ids[:-1]
        assert len(generation.ids) == len(generation.logprobs) == len(generation.runner_up)


def test_no_prompts_no_answers(engine: LocalEngine) -> None:
    assert engine.generate([], []) == []


@pytest.mark.parametrize("count", [0, 2000])
def test_a_prompt_without_room_is_refused(engine: LocalEngine, count: int) -> None:
    with pytest.raises(EngineError, match="max_tokens"):
        engine.generate([(5,) * count], sampled(1))


def test_a_directory_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"no config\.json"):
        load_engine(tmp_path)


def test_a_completion_proves_its_own_ids(engine: LocalEngine, fmt: Format, prompts: list[Prompt]) -> None:
    """Each answer in the layout is a row by `engine_ids`, to the id."""
    rendered = [fmt.render(prompt) for prompt in prompts]
    rows = 0
    for prompt, ids, generation in zip(
        prompts, rendered, engine.generate(rendered, sampled(len(prompts))), strict=True
    ):
        row = reconstruct(prompt, complete(ids, generation, fmt, thinking=prompt.thinking, model="tiny"), fmt, None)
        if isinstance(row, TokenRow):
            rows += 1
            assert (ids, generation.ids, Evidence.ENGINE_IDS) == (row.prompt_ids, row.output_ids, row.evidence)
    assert rows >= 20
