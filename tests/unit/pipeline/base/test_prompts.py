"""Prompts from JSONL: strict line by line, never a crash, constant memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from pipeline.base.json_lines import strict_object
from pipeline.base.prompts import RefusedLine, prompt_of, read_prompts
from pipeline.records import Json, Prompt, Reason, RefusedError

HELLO: dict[str, Json] = {"id": "a", "messages": [{"role": "user", "content": "Hello"}]}


def written(tmp_path: Path, *lines: bytes) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def line_of(**changes: Json) -> bytes:
    return json.dumps({**HELLO, **changes}).encode()


def test_every_key_of_the_schema_arrives_in_the_prompt() -> None:
    tool: dict[str, Json] = {"type": "function", "function": {"name": "f"}}

    prompt = prompt_of({**HELLO, "tools": [tool], "thinking": False, "dataset": "B1"})

    assert Prompt("a", ({"role": "user", "content": "Hello"},), (tool,), thinking=False, dataset="B1") == prompt


def test_what_is_left_out_or_null_has_its_default() -> None:
    expected = Prompt("a", ({"role": "user", "content": "Hello"},), (), thinking=True, dataset="")

    assert expected == prompt_of(HELLO)
    assert expected == prompt_of({**HELLO, "tools": None, "thinking": None, "dataset": None})


@pytest.mark.parametrize(
    "changes, field, word",
    [
        ({"id": 7}, "id", "number"),
        ({"id": True}, "id", "boolean"),
        ({"id": ""}, "id", "empty"),
        ({"id": None}, "id", "null"),
        ({"id": "\ud83d"}, "id", "surrogate"),
        ({"dataset": "\ud83d"}, "dataset", "surrogate"),
        ({"messages": None}, "messages", "null"),
        ({"messages": []}, "messages", "empty"),
        ({"messages": {}}, "messages", "object"),
        ({"messages": ["hi"]}, "messages[0]", "string"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "null"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "content"),
        ({"tools": "none"}, "tools", "string"),
        ({"tools": [1]}, "tools[0]", "number"),
        ({"thinking": 1}, "thinking", "number"),
        ({"thinking": "false"}, "thinking", "string"),
        ({"dataset": 1}, "dataset", "number"),
        ({"thinkng": False}, "thinkng", "unknown key"),
    ],
)
def test_another_type_or_key_is_refused_by_name(changes: dict[str, Json], field: str, word: str) -> None:
    with pytest.raises(RefusedError) as caught:
        prompt_of({**HELLO, **changes})

    assert (Reason.MALFORMED_INPUT, field) == (caught.value.refusal.reason, caught.value.refusal.field)
    assert word in caught.value.refusal.detail


@pytest.mark.parametrize("role", ["critic", "function", "User", "SYSTEM", "", " user", "human", "gpt", "model", "bot"])
def test_a_role_that_no_template_knows_is_refused(role: str, tmp_path: Path) -> None:
    messages: list[Json] = [{"role": "user", "content": "Hi"}, {"role": role, "content": "No."}]
    bad, good = read_prompts(written(tmp_path, line_of(messages=messages), line_of(id="b")))

    assert isinstance(bad, RefusedLine)
    assert isinstance(good, Prompt)
    assert (Reason.MALFORMED_INPUT, "messages[1].role") == (bad.refusal.reason, bad.refusal.field)
    assert bad.refusal.detail == f"unknown role {role!r}: roles are system, developer, user, assistant, tool"


@pytest.mark.parametrize(
    "raw, word",
    [
        (b"nonsense", "not JSON"),
        (b'{"id": "a"', "not JSON"),
        (b"[1]", "a list"),
        (b'{"id": "a", "id": "b"}', "occurs twice"),
        (b'{"x": {"k": 1, "k": 2}}', "occurs twice"),
        (b'{"x": NaN}', "NaN"),
        (b'{"x": -Infinity}', "Infinity"),
        (b'{"x": 1e400}', "1e400 is beyond every number"),
        (b'{"x": "\xff"}', "not UTF-8: byte 0xff at offset 7"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"x": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_what_is_no_strict_json_object_is_refused(raw: bytes, word: str) -> None:
    with pytest.raises(RefusedError, match=word) as caught:
        strict_object(raw)

    assert caught.value.refusal.reason == Reason.MALFORMED_INPUT


def test_a_malformed_line_is_an_entry_and_the_next_is_read(tmp_path: Path) -> None:
    """The entry has the file, the line and the reason."""
    path = written(tmp_path, b"nonsense", b"", line_of())

    bad, good = read_prompts(path)

    assert isinstance(bad, RefusedLine)
    assert (str(path), 1, None, Reason.MALFORMED_INPUT) == (bad.file, bad.line, bad.id, bad.refusal.reason)
    assert "not JSON" in bad.refusal.detail
    assert prompt_of(HELLO) == good


def test_a_line_that_could_not_be_written_again_is_refused(tmp_path: Path) -> None:
    """Writers stop at fewer objects in one another than readers."""
    deep = [b'{"id": "a", "messages": [{"role": "user", "content": "b", "x": ' + b"[" * n for n in (197, 198, 700)]
    lines = [line.replace(b'"a"', b'"%d"' % n) + b"]" * (line.count(b"[") - 1) + b"}]}" for n, line in enumerate(deep)]

    good, *bad = read_prompts(written(tmp_path, *lines))

    assert "0" == good.id
    assert [("1", Reason.MALFORMED_INPUT), ("2", Reason.MALFORMED_INPUT)] == [
        (entry.id, entry.refusal.reason) for entry in bad if isinstance(entry, RefusedLine)
    ]


def test_a_second_row_of_one_id_is_refused_by_its_line(tmp_path: Path) -> None:
    entries = list(read_prompts(written(tmp_path, line_of(), line_of(id="b"), line_of())))

    refused = [(entry.line, entry.id) for entry in entries if isinstance(entry, RefusedLine)]
    assert [(3, "a")] == refused


@pytest.mark.parametrize("odd", ["\u2028", "\u0085", "\r", "\x0b", "\x1c", "\ufeff"])
def test_only_a_line_feed_ends_a_line(odd: str, tmp_path: Path) -> None:
    text = f"before{odd}after"
    message: dict[str, Json] = {"role": "user", "content": text}
    raw = json.dumps({"id": "a", "messages": [message]}, ensure_ascii=False).encode()
    raw = raw if odd != "\r" else json.dumps({"id": "a", "messages": [message]}).encode()

    (prompt,) = read_prompts(written(tmp_path, raw))

    assert isinstance(prompt, Prompt)
    assert text == prompt.messages[0]["content"]


def test_a_last_line_without_line_feed_is_read(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(line_of())

    assert [prompt_of(HELLO)] == list(read_prompts(path))


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Four thousand rows cost less than a tenth of a megabyte of Python objects, where their ids alone are four."""
    path = written(tmp_path, *(line_of(id=f"row-{number}") for number in range(4000)))

    tracemalloc.start()
    count = sum(1 for _ in read_prompts(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert count == 4000
    assert peak < 100_000
