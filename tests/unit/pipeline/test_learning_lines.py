"""Lines of a file of exchanges: what is one, what its copy testifies to, and the account of those that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.own_words import FORMATS, line, text_ids
from harness.recorded import file_of
from pipeline.learning.exchanges import Aspect, BadLine, ExchangesError, exchange_of, read_exchanges
from pipeline.learning.harvest import harvest, harvest_of_file

KEYS = "id, fidelity, endpoint, provider, model, status, stream, request, body"


def whole(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 — any JSON
    return {**line(1, text_ids(1)), **changes}


@pytest.mark.parametrize(
    "raw, why",
    [
        ("{", "not JSON"),
        ("[]", "must be a JSON object, is a list"),
        ('{"id": "a", "id": "b"}', "key 'id' occurs twice"),
        ("{}", f"the key 'id' is absent; an exchange has {KEYS}"),
        (json.dumps({key: value for key, value in whole().items() if key != "body"}), "the key 'body' is absent"),
        (json.dumps(whole(body={})), "body is dict, not str"),
        (json.dumps(whole(stream="yes")), "stream is str, not bool"),
        (json.dumps(whole(status=True)), "status is bool, not int"),
        (json.dumps(whole(request=[])), "request is list, not dict or null"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
        ("\xff", "not JSON"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_bad_line_is_told_by_its_number_and_loses_no_other(tmp_path: Path, raw: str, why: str) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(file_of([whole()]) + "\n" + raw + "\n" + file_of([whole(id="b")]), encoding="utf-8")
    first, bad, last = read_exchanges(path)

    assert isinstance(bad, BadLine)
    assert 3 == bad.line
    assert why in bad.why
    assert not isinstance(first, BadLine)
    assert not isinstance(last, BadLine)
    assert "b" == last.id


def test_what_is_no_utf8_is_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(b'{"id": "\xff"}\n' + file_of([whole()]).encode())

    assert [True, False] == [isinstance(one, BadLine) for one in read_exchanges(path)]


@pytest.mark.parametrize("text", ["", "\n\n", "no json\n", "{}\n"])
def test_a_file_without_an_exchange_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(text)

    with pytest.raises(ExchangesError, match="holds no exchange"):
        harvest_of_file(path, FORMATS)


@pytest.mark.parametrize(
    "fidelity, stream, carried",
    [
        ("verbatim", False, set(Aspect)),
        ("verbatim", True, set(Aspect)),
        ("verbatim streams, JSON re-keyed", True, set(Aspect)),
        ("verbatim streams, JSON re-keyed", False, {Aspect.TEXT, Aspect.CALL_IDS}),
        ("JSON re-serialised, SSE verbatim", True, set(Aspect)),
        ("JSON re-serialised, SSE verbatim", False, {Aspect.TEXT, Aspect.CALL_IDS}),
        ("keys sorted, ids redacted", False, {Aspect.TEXT}),
        ("keys sorted, ids redacted", True, {Aspect.TEXT, Aspect.DELTAS}),
        ("values edited", True, set()),
        ("partly hand-written", False, set()),
        ("as good as new", False, set()),
    ],
)
def test_a_copy_testifies_to_what_its_fidelity_carries(fidelity: str, stream: bool, carried: set[Aspect]) -> None:
    assert carried == exchange_of(whole(fidelity=fidelity, stream=stream)).carries


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
def test_an_exchange_that_teaches_nothing_is_counted_with_its_reason(changes: dict[str, Any], said: str) -> None:
    found = harvest([exchange_of(whole(**changes)), exchange_of(line(2, text_ids(2)))], FORMATS)

    assert "2 lines: 1 answers learned from, 0 no exchange" == next(found.said())
    assert said in "\n".join(found.said())


def test_a_copy_of_an_exchange_is_counted_as_one() -> None:
    found = harvest([exchange_of(whole()), exchange_of(whole(id="other", fidelity="values edited"))], FORMATS)

    assert (1, 1, 2) == (len(found.answers), found.copies, found.lines)
