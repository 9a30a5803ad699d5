"""Lines of a file of exchanges: what is one, and what its copy shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.fixtures.exchanges import (
    file_of,
    line,
    text_ids,
)
from pipeline.fingerprints.exchanges import BadLine, Fidelity, exchange_of, read_exchanges

pytestmark = pytest.mark.contract

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


@pytest.mark.parametrize(
    "fidelity, stream, carried",
    [
        ("verbatim", False, set(Fidelity)),
        ("verbatim", True, set(Fidelity)),
        ("verbatim streams, JSON re-keyed", True, set(Fidelity)),
        ("verbatim streams, JSON re-keyed", False, {Fidelity.TEXT, Fidelity.CALL_IDS}),
        ("JSON re-serialised, SSE verbatim", True, set(Fidelity)),
        ("JSON re-serialised, SSE verbatim", False, {Fidelity.TEXT, Fidelity.CALL_IDS}),
        ("keys sorted, ids redacted", False, {Fidelity.TEXT}),
        ("keys sorted, ids redacted", True, {Fidelity.TEXT, Fidelity.DELTAS}),
        ("values edited", True, set()),
        ("partly hand-written", False, set()),
        ("as good as new", False, set()),
    ],
)
def test_a_copy_testifies_to_what_its_fidelity_carries(fidelity: str, stream: bool, carried: set[Fidelity]) -> None:
    assert carried == exchange_of(whole(fidelity=fidelity, stream=stream)).carries
