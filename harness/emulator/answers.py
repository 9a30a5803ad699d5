"""Who answers: a pool of answers, or the local engine.

Guarantees: what an answerer returns are the true ids of the answer, cut at `max_tokens`. The same question with the
same seed and key has the same answer from a pool. Questions are batched as they come. Torch is imported only for the
local engine.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal, Protocol, TypeAlias

from harness.views.resplit import resplit
from pipeline.formats.tokenizer import Tokenizer
from pipeline.records import Ids, Sampling


@dataclass(frozen=True, slots=True)
class Ask:
    """One question: prompt ids as served, and how to sample.

    `key` is the request's own sample id.
    """

    prompt_ids: Ids
    max_tokens: int
    temperature: float
    seed: int
    key: str | None = None

    def digest(self) -> str:
        """Return a digest that is equal for equal questions."""
        text = json.dumps([self.prompt_ids, self.max_tokens, self.temperature, self.seed, self.key])
        return hashlib.sha256(text.encode()).hexdigest()


Split: TypeAlias = Literal["same_count", "other_count"]


@dataclass(frozen=True, slots=True)
class Sampled:
    """The emitted ids, at most `max_tokens`.

    `logprobs` has one value a token, where the engine knows them.
    """

    ids: Ids
    logprobs: tuple[float, ...] | None = None
    resegmented: Split | None = None


class Answerer(Protocol):
    """Answer one question; `close` ends background work."""

    async def answer(self, ask: Ask) -> Sampled: ...
    async def close(self) -> None: ...


class AnswererError(Exception):
    """A pool file or a model directory that is unusable."""


@dataclass(slots=True)
class PoolAnswerer:
    """Prepared answers.

    Found by sample id, else by prompt ids, else any one of those tied to neither.
    """

    by_key: dict[str, Ids] = field(default_factory=dict)
    by_prompt: dict[Ids, Ids] = field(default_factory=dict)
    common: list[Ids] = field(default_factory=list)

    async def answer(self, ask: Ask) -> Sampled:
        """Return the prepared ids.

        Raises KeyError when the pool has none for this question.
        """
        found = self.by_key.get(ask.key or "") or self.by_prompt.get(ask.prompt_ids)
        if found is None and self.common:
            found = self.common[int(ask.digest()[:12], 16) % len(self.common)]
        if found is None:
            raise KeyError(f"the pool has no answer for sample {ask.key!r}")
        return Sampled(found[: ask.max_tokens])

    async def close(self) -> None:
        """Do nothing; nothing runs in the background."""


def load_pool(path: Path) -> PoolAnswerer:
    """Read a pool from JSONL.

    Lines are `{"ids", "key"? or "prompt_ids"?}`. Raises AnswererError, naming the line.
    """
    pool = PoolAnswerer()
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, 1):
                _add(pool, json.loads(line), f"{path}, line {number}")
    except OSError as error:
        raise AnswererError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise AnswererError(f"{path}: not JSONL ({error})") from None
    return pool


def _add(pool: PoolAnswerer, entry: object, where: str) -> None:
    ids = _ids(entry.get("ids")) if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not ids:
        raise AnswererError(f'{where}: an answer is {{"ids": [..], "key"? or "prompt_ids"?}}')
    prompt_ids = _ids(entry.get("prompt_ids"))
    if "key" in entry:
        pool.by_key[str(entry["key"])] = ids
    elif prompt_ids:
        pool.by_prompt[prompt_ids] = ids
    else:
        pool.common.append(ids)


def _ids(value: object) -> Ids | None:
    if not isinstance(value, list) or not all(isinstance(token, int) for token in value):
        return None
    return tuple(value)


Generate: TypeAlias = Callable[[Sequence[Ask]], Iterable[Sampled]]
"""One answer a question, in order; called in a thread."""


class BatchAnswerer:
    """Answer questions in batches, in a thread.

    A batch is what comes within `window` seconds, at most `most` questions.
    """

    def __init__(self, generate: Generate, *, most: int, window: float = 0.01) -> None:
        self._generate = generate
        self._most = most
        self._window = window
        self._waiting: list[tuple[Ask, asyncio.Future[Sampled]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def answer(self, ask: Ask) -> Sampled:
        """Return the answer, once its batch is done.

        Raises RuntimeError with the engine's own error.
        """
        future: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        self._waiting.append((ask, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    async def close(self) -> None:
        """Stop collecting.

        A batch already in the thread runs to its end.
        """
        if self._worker is not None:
            self._worker.cancel()

    async def _work(self) -> None:
        while self._waiting:
            if len(self._waiting) < self._most:
                await asyncio.sleep(self._window)
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            try:
                answers = await asyncio.to_thread(self._answers, [ask for ask, _ in batch])
            except Exception as error:  # noqa: BLE001  # whatever the engine raises belongs to those who asked
                for _, future in batch:
                    if not future.done():  # a question is given up when its client goes away
                        future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
                continue
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    def _answers(self, asks: Sequence[Ask]) -> list[Sampled]:
        answers = list(self._generate(asks))
        if len(answers) != len(asks):
            raise ValueError(f"the engine gave {len(answers)} answers to {len(asks)} questions")
        return answers


@dataclass(slots=True)
class ResegmentAnswerer:
    """Answer a `share` of the questions with another tokenisation.

    Half of these have the same length, half another. What is returned then *is* what was sampled, as far as anyone can
    know. Few answers have another split of the same length, so a half that is behind catches up on the next answers
    that have; an answer at its token limit gets no longer.
    """

    inner: Answerer
    tokenizer: Tokenizer
    share: float
    answers: int = 0
    made: Counter[Split] = field(default_factory=Counter)

    async def answer(self, ask: Ask) -> Sampled:
        """Return the inner answer, re-split or not.

        Which depends on the question and on how many came before it.
        """
        sampled = await self.inner.answer(ask)
        self.answers += 1
        rng = Random(ask.digest())
        for split in ("same_count", "other_count"):
            # What is missing is the chance: a half's share at first, certainty once one or more are missing.
            due = rng.random() < self.share / 2 * self.answers - self.made[split]
            if due and (found := self._resplit(sampled, ask, rng, split)) is not None:
                self.made[split] += 1
                return found
        return sampled

    def _resplit(self, sampled: Sampled, ask: Ask, rng: Random, split: Split) -> Sampled | None:
        same = split == "same_count"
        if not same and len(sampled.ids) >= ask.max_tokens:
            return None
        ids = resplit(self.tokenizer, sampled.ids, rng, same_count=same)
        return None if ids is None else Sampled(ids, sampled.logprobs if same else None, split)

    async def close(self) -> None:
        """Close the inner answerer."""
        await self.inner.close()


def local_answerer(directory: Path, *, most: int, threads: int | None = None) -> tuple[BatchAnswerer, int]:
    """Return the model of `directory` as answerer, and its context.

    The context is in tokens. Raises AnswererError, and ImportError where there is no torch.
    """
    from pipeline.generation.engines.local import EngineError, load_engine

    try:
        engine = load_engine(directory, threads=threads)
    except EngineError as error:
        raise AnswererError(str(error)) from None

    def generate(asks: Sequence[Ask]) -> Iterator[Sampled]:
        sampling = [Sampling(temperature=ask.temperature, max_tokens=ask.max_tokens, seed=ask.seed) for ask in asks]
        for generation in engine.generate([ask.prompt_ids for ask in asks], sampling):
            yield Sampled(generation.ids, generation.logprobs)

    return BatchAnswerer(generate, most=most), engine.context
