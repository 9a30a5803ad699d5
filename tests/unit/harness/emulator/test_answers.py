"""Answerers: pools, batches, re-splits. No torch, no server."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.emulator.answers import (
    AnswererError,
    Ask,
    BatchAnswerer,
    PoolAnswerer,
    ResegmentAnswerer,
    Sampled,
    load_pool,
)
from harness.tiny_target.vocabulary import write_vocabulary
from pipeline.formats.tokenizer import Tokenizer, load_tokenizer

ASK = Ask((1, 2), max_tokens=8, temperature=1.0, seed=0)
MERGED = [b"wo", b"Tw"]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    tokens = [*(bytes([value]) for value in range(256)), *MERGED]
    write_vocabulary({token: rank for rank, token in enumerate(tokens)}, tmp_path)
    return load_tokenizer(tmp_path)


def test_a_pool_answers_by_sample_then_by_prompt_then_with_any() -> None:
    pool = PoolAnswerer({"row": (1,)}, {(1, 2): (2,)}, [(3,)])
    asks = [replace(ASK, key="row"), replace(ASK, key="other"), replace(ASK, prompt_ids=(9,))]

    assert [(1,), (2,), (3,)] == [asyncio.run(pool.answer(ask)).ids for ask in asks]


def test_a_pool_gives_the_same_question_the_same_answer() -> None:
    pool = PoolAnswerer(common=[(number,) for number in range(50)])
    asks = [replace(ASK, seed=seed) for seed in range(20)]
    first, second = ([asyncio.run(pool.answer(ask)).ids for ask in asks] for _ in range(2))

    assert first == second
    assert len(set(first)) > 1


def test_a_pool_cuts_at_the_limit() -> None:
    pool = PoolAnswerer(common=[(1, 2, 3)])

    assert asyncio.run(pool.answer(replace(ASK, max_tokens=2))).ids == (1, 2)


def test_a_pool_without_the_answer_says_whose() -> None:
    with pytest.raises(KeyError, match="row-7"):
        asyncio.run(PoolAnswerer().answer(replace(ASK, key="row-7")))


def test_a_pool_file_is_read(tmp_path: Path) -> None:
    lines = [{"key": "row", "ids": [1]}, {"prompt_ids": [1, 2], "ids": [2]}, {"ids": [3]}]
    path = tmp_path / "pool.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    assert PoolAnswerer({"row": (1,)}, {(1, 2): (2,)}, [(3,)]) == load_pool(path)


def test_a_missing_pool_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AnswererError, match="absent"):
        load_pool(tmp_path / "absent.jsonl")


def gathered(answerer: BatchAnswerer, count: int) -> list[Sampled | BaseException]:
    async def ask_all() -> list[Sampled | BaseException]:
        asks = [replace(ASK, seed=seed) for seed in range(count)]
        return await asyncio.gather(*(answerer.answer(ask) for ask in asks), return_exceptions=True)

    return asyncio.run(ask_all())


def test_questions_asked_together_are_answered_in_one_batch() -> None:
    """Questions asked together are answered together and each by its own."""
    sizes: list[int] = []

    def generate(asks: Sequence[Ask]) -> list[Sampled]:
        sizes.append(len(asks))
        return [Sampled((ask.seed,)) for ask in asks]

    answers = gathered(BatchAnswerer(generate, most=4), 10)

    assert [Sampled((seed,)) for seed in range(10)] == answers
    assert [4, 4, 2] == sizes


def test_an_engine_that_fails_fails_its_batch_alone() -> None:
    def generate(asks: Sequence[Ask]) -> list[Sampled]:
        if asks[0].seed == 0:
            raise ValueError("no room")
        return [Sampled((ask.seed,)) for ask in asks]

    answers = gathered(BatchAnswerer(generate, most=2), 4)

    assert ["ValueError: no room"] * 2 == [str(answer) for answer in answers[:2]]
    assert [Sampled((2,)), Sampled((3,))] == answers[2:]


def test_an_engine_that_answers_too_few_answers_none() -> None:
    answers = gathered(BatchAnswerer(lambda _: [Sampled((1,))], most=2), 2)

    assert ["ValueError: the engine gave 1 answers to 2 questions"] * 2 == [str(answer) for answer in answers]


def test_a_question_given_up_does_not_hurt_its_batch() -> None:
    async def ask_two() -> Sampled:
        answerer = BatchAnswerer(lambda asks: [Sampled((ask.seed,)) for ask in asks], most=2)
        gone = asyncio.create_task(answerer.answer(ASK))
        kept = asyncio.create_task(answerer.answer(replace(ASK, seed=1)))
        await asyncio.sleep(0)
        gone.cancel()
        return await kept

    assert Sampled((1,)) == asyncio.run(ask_two())


def test_a_resplit_at_the_limit_keeps_its_length(tokenizer: Tokenizer) -> None:
    """Otherwise a cut answer would have more tokens than it was allowed."""
    ids = tuple(tokenizer.encode("Two"))
    answerer = ResegmentAnswerer(PoolAnswerer(common=[ids]), tokenizer, 1.0)
    asks = [replace(ASK, max_tokens=len(ids), seed=seed) for seed in range(20)]
    answers = {asyncio.run(answerer.answer(ask)) for ask in asks}

    assert {Sampled(ids), Sampled((257, ord("o")), None, "same_count")} == answers


def test_half_of_the_resplits_keep_their_length(tokenizer: Tokenizer) -> None:
    """One answer in five has another split of the same length, and each fourth answer is to be re-split."""
    plain, both = tuple(tokenizer.encode("wo")), tuple(tokenizer.encode("Two"))
    pool = PoolAnswerer({str(number): plain if number % 5 else both for number in range(400)})
    answerer = ResegmentAnswerer(pool, tokenizer, 0.25)
    answers = [asyncio.run(answerer.answer(replace(ASK, key=str(number), max_tokens=50))) for number in range(400)]

    made = Counter(answer.resegmented for answer in answers)
    assert 45 <= made["same_count"] <= 51
    assert 45 <= made["other_count"] <= 51


def test_no_answer_is_resplit_at_probability_0(tokenizer: Tokenizer) -> None:
    ids = tuple(tokenizer.encode("Two"))
    answerer = ResegmentAnswerer(PoolAnswerer(common=[ids]), tokenizer, 0.0)

    assert Sampled(ids) == asyncio.run(answerer.answer(ASK))


def test_an_answer_with_no_other_split_stays(tokenizer: Tokenizer) -> None:
    end = tokenizer.id_of("<|im_end|>")
    answerer = ResegmentAnswerer(PoolAnswerer(common=[(end,)]), tokenizer, 1.0)

    assert Sampled((end,)) == asyncio.run(answerer.answer(ASK))


def test_logprobs_do_not_outlive_their_tokens(tokenizer: Tokenizer) -> None:
    class Sure:
        async def answer(self, _: Ask) -> Sampled:
            return Sampled(tuple(tokenizer.encode("Two Two")), (-1.0,) * 5)

        async def close(self) -> None: ...

    answerer = ResegmentAnswerer(Sure(), tokenizer, 1.0)
    answers = [asyncio.run(answerer.answer(replace(ASK, seed=seed, max_tokens=50))) for seed in range(20)]

    for answer in answers:
        assert (answer.logprobs is None) == (answer.resegmented == "other_count")
