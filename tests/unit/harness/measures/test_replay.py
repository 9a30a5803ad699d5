"""Replay: what becomes of each recorded answer is told by name, and a difference is a failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.fixtures.raw_peer import pieces
from harness.measures.replay import Came, RecordedAnswer, main, recorded_in, replay
from pipeline.records import Json

USAGE: Json = {"prompt_tokens": 3, "completion_tokens": 2, "cost": 0.000012}
HEAD: dict[str, Json] = {"id": "gen-1-a", "provider": "P", "model": "m"}


def body(**message: Json) -> str:
    choice: dict[str, Json] = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}
    return "\n         \n" + json.dumps({**HEAD, "choices": [choice], "usage": USAGE})


def stream(*deltas: dict[str, Json], finish: str | None = "stop", last: Json = None) -> str:
    chunks: list[dict[str, Json]] = [{**HEAD, "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({**HEAD, "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": finish}]})
    chunks.append({**HEAD, "choices": [], "usage": USAGE, "error": last})
    events = [f"data: {json.dumps(chunk)}\n\n: OPENROUTER PROCESSING\n\n" for chunk in chunks]
    return "".join([*events, "data: [DONE]\n\n"])


CALL: Json = {"index": 0, "id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
ERROR: Json = {"code": 502, "message": "Provider returned error"}

CASES = {
    "kept alive": (200, body(content="caf\N{LATIN SMALL LETTER E WITH ACUTE}"), Came.EQUAL),
    "calls": (200, body(content=None, reasoning="so", tool_calls=[CALL]), Came.EQUAL),
    "nothing in it": (200, body(content=""), Came.EMPTY),
    "error with status 200": (200, json.dumps({"error": ERROR}), Came.REFUSED),
    "too many": (429, json.dumps({"error": {"code": 429, "message": "try later"}}), Came.TURNED_AWAY),
    "stream": (200, stream({"reasoning": " a"}, {"content": " b"}, {"tool_calls": [CALL]}), Came.EQUAL),
    "stream with an error at its end": (200, stream({"content": "a"}, last=ERROR), Came.REFUSED),
    "stream without a finish": (200, stream({"content": "a"}, finish=None), Came.REFUSED),
}


def line(name: str, status: int, text: str, **headers: str) -> dict[str, Json]:
    return {
        "id": name,
        "fidelity": "verbatim",
        "endpoint": "openrouter.ai/api/v1/chat/completions",
        "provider": "P",
        "model": "m",
        "status": status,
        "stream": text.startswith("data:"),
        "request": {"model": "m", "messages": []},
        "headers": dict[str, Json](headers),
        "body": text,
    }


def written(folder: Path, *lines: dict[str, Json]) -> Path:
    path = folder / "exchanges.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines), "utf-8")
    return path


def test_each_answer_is_told_by_what_became_of_it(tmp_path: Path) -> None:
    path = written(tmp_path, *(line(name, status, text) for name, (status, text, _) in CASES.items()))

    found = replay(list(recorded_in(path)))

    assert {name: came for name, (_, _, came) in CASES.items()} == {one.id: one.came for one in found}


def test_a_compressed_answer_comes_through_as_its_own_bytes(tmp_path: Path) -> None:
    path = written(tmp_path, line("zipped", 200, body(content="text"), **{"content-encoding": "gzip"}))

    (found,) = replay(list(recorded_in(path)))

    assert (Came.EQUAL, "same") == (found.came, found.sdk)


def test_an_answer_that_is_read_otherwise_fails_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two halves of one character in two deltas: joined by us, left apart by whoever joins strings."""
    halves = stream({"content": "\ud83d"}, {"content": "\ude00"})
    path = written(tmp_path, line("halves", 200, halves))

    code = main([str(path)])

    assert (1, "halves: read otherwise: content\n") == (code, capsys.readouterr().err)


def test_other_endpoints_are_passed_over(tmp_path: Path) -> None:
    other = line("models", 200, "{}") | {"endpoint": "openrouter.ai/api/v1/models"}

    assert [] == list(recorded_in(written(tmp_path, other)))


def test_pieces_fall_anywhere_and_lose_nothing() -> None:
    data = bytes(range(256)) * 5

    parts = list(pieces(data))

    assert data == b"".join(parts)
    assert 1 == min(map(len, parts))


def test_a_file_that_is_none_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main([str(tmp_path / "none.jsonl")])
    assert "Traceback" not in capsys.readouterr().err


def test_what_is_recorded_of_other_apis_is_told_apart(tmp_path: Path) -> None:
    other = line("other", 200, body(content="a")) | {"endpoint": "api.example/v1/chat/completions"}
    found: list[RecordedAnswer] = list(recorded_in(written(tmp_path, line("ours", 200, body(content="a")), other)))

    assert [True, False] == [one.is_openrouter for one in found]
