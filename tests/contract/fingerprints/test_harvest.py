"""The account of a file of exchanges, and answers that cannot be learned from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.fixtures.exchanges import (
    FORMAT,
    FORMATS,
    Told,
    edited,
    line,
    shown,
    text_ids,
    thought_ids,
    words,
)
from pipeline.fingerprints.exchanges import ExchangesError, exchange_of
from pipeline.fingerprints.harvest import harvest, harvest_of_file
from pipeline.fingerprints.learn import learn
from pipeline.proof.fingerprint import TraitName
from pipeline.records import Json

pytestmark = pytest.mark.contract

LOST = "1 not learned from: its text or its request has no reading ({} 1)"


def whole(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 — any JSON
    return {**line(1, text_ids(1)), **changes}


@pytest.mark.parametrize("text", ["", "\n\n", "no json\n", "{}\n"])
def test_a_file_without_an_exchange_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(text)

    with pytest.raises(ExchangesError, match="holds no exchange"):
        harvest_of_file(path, FORMATS)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"status": 429}, "1 not learned from: the answer is an error (status 429 1)"),
        ({"fidelity": "values edited"}, "1 not learned from: the copy testifies to nothing (values edited 1)"),
        ({"request": None}, "1 not learned from: no chat completion was asked for (openrouter.ai/"),
        ({"body": '{"error": {"code": 502}}'}, "1 not learned from: no answer can be read (upstream_error 1)"),
        ({"body": "\ud800"}, "1 not learned from: no answer can be read (half a surrogate pair 1)"),
        (
            {"body": whole()["body"].replace("drafter-gate/tiny-kimi", "x-ai/grok-4")},
            "the model has no format here (x-ai",
        ),
        (
            {"body": whole()["body"].replace("drafter-gate/tiny-kimi", "moonshotai/kimi-k2.5")},
            "no tokenizer of the model's format was given (moonshotai/kimi-k2.5 needs kimi-k2.5 1)",
        ),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_skipped_exchange_is_counted_with_its_reason(changes: dict[str, Any], said: str) -> None:
    found = harvest([exchange_of(whole(**changes)), exchange_of(line(2, text_ids(2)))], FORMATS)

    assert "2 lines: 1 answers learned from, 0 no exchange" == next(found.said())
    assert said in "\n".join(found.said())


def test_a_copy_of_an_exchange_is_counted_as_one() -> None:
    found = harvest([exchange_of(whole()), exchange_of(whole(id="other", fidelity="values edited"))], FORMATS)

    assert (1, 1, 2) == (len(found.answers), found.copies, found.lines)


# An answer that cannot be learned from


def cut_with(content: str) -> dict[str, Any]:
    """An answer that was to think, and was cut with this content alone."""
    ids = tuple(FORMAT.tokenizer.encode("Rain drums on slate."))
    one = line(1, ids, thinking=True, told=Told(max_tokens=len(ids)))
    return edited(one, content=content, reasoning=None, reasoning_details=None)


@pytest.mark.parametrize("content", ["a\ud800b", "Rain."])
def test_a_cut_content_that_has_no_tokens_loses_no_other_answer(content: str) -> None:
    found = harvest(map(exchange_of, [cut_with(content), *(line(n, text_ids(n)) for n in range(2, 22))]), FORMATS)
    (only,) = learn(found)

    assert 21 == only.answers
    assert (True, 20, True) == shown(only.traits[TraitName.END_COUNTED])


def test_a_request_nested_too_deeply_is_counted() -> None:
    deep: Json = []
    for _ in range(100_000):
        deep = [deep]
    request: Any = whole()["request"]
    lines = [exchange_of(whole(request={**request, "metadata": deep})), exchange_of(line(2, text_ids(2)))]
    found = harvest(lines, FORMATS)

    assert ["2 lines: 1 answers learned from, 0 no exchange", LOST.format("RecursionError")] == [*found.said()]


def test_an_answer_that_breaks_its_route_is_counted() -> None:
    found = harvest((exchange_of(line(n, thought_ids(words(n), words(n)), thinking=True)) for n in range(25)), FORMATS)
    odd = found.answers[7]
    found.answers[7] = replace(odd, completion=replace(odd.completion, reasoning="a\ud800b"))
    (only,) = learn(found)

    assert (24, 24) == (only.answers, len(found.answers))
    assert ["25 lines: 24 answers learned from, 0 no exchange", LOST.format("lone_surrogate")] == [*found.said()]


def test_a_route_whose_every_answer_breaks_has_no_fingerprint() -> None:
    found = harvest([exchange_of(line(1, thought_ids(words(1), words(2)), thinking=True))], FORMATS)
    odd = found.answers[0]
    found.answers[0] = replace(odd, completion=replace(odd.completion, reasoning="a\ud800b"))

    assert [] == learn(found)
