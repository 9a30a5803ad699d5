"""The verbs for people who already have answers: JSON lines in, JSON lines out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.views.roundtrip import RoundTrip, raw_of, true_fingerprint
from harness.views.view import PROFILES
from pipeline.base.json_lines import line_of, object_of, strict_object
from pipeline.cli.reconstruct import dumped, rebuilt, rendered
from pipeline.formats.format import Parts
from pipeline.formats.registry import ROOT, open_format
from pipeline.records import Prompt, RefusedError

FORMAT = open_format("tiny-kimi")
PROMPT = Prompt("r", ({"role": "user", "content": "hi"},))
IDS = FORMAT.assemble(Parts("So.", think_closed=True, body=("Yes.",), ended=True)).ids
KNOWN = [true_fingerprint(PROFILES["siliconflow"], stream=stream) for stream in (False, True)]


def response(*, stream: bool = False) -> bytes:
    trip = RoundTrip(PROFILES["siliconflow"], stream, tools_sent=False)
    return raw_of(IDS, PROMPT, FORMAT.render(PROMPT), trip, FORMAT)


def line(**changes: Any) -> bytes:  # noqa: ANN401 — any JSON
    whole = {"id": "r", "prompt": {"messages": list(PROMPT.messages)}, "response": json.loads(response())}
    return json.dumps({key: value for key, value in {**whole, **changes}.items() if value != "absent"}).encode() + b"\n"


def answers(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    return [json.loads(result) for result in dumped(rebuilt(lines, FORMAT, KNOWN))]


def test_an_accepted_line_holds_ids_and_spans() -> None:
    (result,) = answers([line()])

    assert ["id", "status", "evidence", "prompt_evidence", "prompt_ids", "output_ids", "spans"] == list(result)
    assert ("r", "accepted", "counted") == (result["id"], result["status"], result["evidence"])
    assert (list(FORMAT.render(PROMPT)), list(IDS)) == (result["prompt_ids"], result["output_ids"])
    assert {"kind": "end", "start": len(IDS) - 1, "stop": len(IDS)} == result["spans"][-1]


def test_a_streams_raw_text_gives_the_stronger_evidence() -> None:
    (result,) = answers([line(response="absent", sse=response(stream=True).decode())])

    assert ("stream_deltas", list(IDS)) == (result["evidence"], result["output_ids"])


def test_nulls_stand_for_absent_tools_and_thinking() -> None:
    prompt = {"messages": list(PROMPT.messages), "tools": None, "thinking": None}

    assert "accepted" == answers([line(prompt=prompt)])[0]["status"]


@pytest.mark.parametrize(
    "raw",
    [
        b"not json\n",
        b"[]\n",
        b"\xff\xfe\n",
        line(prompt="absent"),
        line(prompt={"messages": []}),
        line(prompt={"messages": [{"content": "no role"}]}),
        line(response="absent"),
        line(sse="data: [DONE]\n\n"),
        line(response="absent", sse=7),
        line(max_tokens=0),
        line(surprise=1),
        line(id=7),
        b'{"id": "r", "id": "s"}\n',
        b"[" * 100_000 + b"\n",
        b'{"id":"x","prompt":{"messages":[{"role":"user"}]},"response":' + b"[" * 700 + b"]" * 700 + b"}\n",
        b'{"id":' + b"[" * 700 + b"]" * 700 + b"}\n",
    ],
    ids=[
        "text", "list", "bytes", "no prompt", "no messages", "no role", "no response", "both", "sse number", "limit",
        "unknown key", "id number", "key twice", "deep", "deep response", "deep id",
    ],
)  # fmt: skip
def test_a_malformed_line_is_a_refused_line_among_the_others(raw: bytes) -> None:
    before, refused, after = answers([line(id="a"), raw, line(id="z")])

    assert ("accepted", "accepted") == (before["status"], after["status"])
    assert ("refused", "malformed_input") == (refused["status"], refused["reason"])
    assert (None, None, 2) == (refused["prompt_ids"], refused["output_ids"], refused["line"])


def test_a_refusal_says_where() -> None:
    body = json.loads(response())
    body["choices"][0]["message"]["content"] = "Ye\ufffds."
    (result,) = answers([line(response=body)])

    assert ("replacement_char", {"field": "content", "char_offset": 2}) == (result["reason"], result["where"])


def test_a_route_without_a_fingerprint_is_unproven() -> None:
    body = {**json.loads(response()), "provider": "Nobody"}

    assert "route_unproven" == answers([line(response=body)])[0]["reason"]


def test_returned_ids_need_no_fingerprint() -> None:
    body = {**json.loads(response()), "provider": "Nobody"}
    body["choices"][0]["token_ids"] = list(IDS)
    body["usage"]["completion_tokens"] = len(IDS)

    assert "engine_ids" == answers([line(response=body)])[0]["evidence"]


def test_prompts_are_rendered_line_by_line() -> None:
    lines = [b'{"id": "a", "messages": [{"role": "user", "content": "hi"}]}\n', b"{}\n"]
    first, second = (json.loads(result) for result in dumped(rendered(lines, FORMAT)))

    assert {"id": "a", "prompt_ids": list(FORMAT.render(PROMPT))} == first
    assert "refused" == second["status"]


# Lines


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 1}}',
        b'{"a": NaN}',
        b'{"a" : 1, "a": 2}',
        b'{"a"\t: 1, "a": 2}',
        b'{"a\\\\": 1, "a\\\\": 2}',
        b'{"sse": "x", "sse": "y"}',
        b'{"sse": "x", "a": 1, "a": 2}',
        b'{"a": 1, "a": 2, "sse": "x\\":y"}',
        b'{"sse": "x" "y"}',
        b'{"sse": "\xff"}',
        b'{"a\\\\": 1, "b": "\\":", "b": 2}',
        b'{"a": "x\\":y", "a": ":"}',
        b'{"sse": "data: [DONE]", "a": 1, "sse": "data: [DONE]"}',
    ],
    ids=[
        "top", "deep", "nan", "space", "tab", "backslash", "stream twice", "after a stream", "before a stream",
        "two texts", "no utf-8", "a backslash and a quotation", "a quotation", "whole streams",
    ],
)  # fmt: skip
def test_json_that_two_readers_might_read_differently_is_refused(raw: bytes) -> None:
    with pytest.raises(RefusedError):
        object_of(raw)


@pytest.mark.parametrize(
    "raw, expected",
    [
        (b'{"a":"x\\":y"}', {"a": 'x":y'}),
        (b'{"a" : 1}', {"a": 1}),
        (b'{"a": "\\ud83d"}', {"a": "\ud83d"}),
        (b'{"a": [{"b": {}}, []]}', {"a": [{"b": {}}, []]}),
        (b'{"sse":"data: {\\"a\\":1}\\n\\n"}', {"sse": 'data: {"a":1}\n\n'}),
        (b'{"id": "r", "sse": ": x \\u00e9", "max_tokens": 5}\r\n', {"id": "r", "sse": ": x é", "max_tokens": 5}),
        (b'{"prompt": {"sse": "in"}, "sse": "out"}', {"prompt": {"sse": "in"}, "sse": "out"}),
        (b'{"prompt": {"sse": "in"}, "id": "r"}', {"prompt": {"sse": "in"}, "id": "r"}),
        (b'{"a": "\\"sse\\": x", "sse": null}', {"a": '"sse": x', "sse": None}),
        (b'{"x\\"sse":"in","y":"}"}', {'x"sse': "in", "y": "}"}),
        (b'{"sse": "\\ud83d"}', {"sse": "\ud83d"}),
        (b'{"sse": "", "b": "\\"sse\\":"}', {"sse": "", "b": '"sse":'}),
        (b'{"a": "\\"b\\":1, c: \\"d\\":2", "e:": ":"}', {"a": '"b":1, c: "d":2', "e:": ":"}),
        (b'{"sse": "data: {\\"a\\":1}\\n\\ndata: [DONE]"}', {"sse": 'data: {"a":1}\n\ndata: [DONE]'}),
    ],
    ids=[
        "colon in text", "space", "half a pair", "nested", "stream", "stream before a key", "stream twice",
        "stream inside", "no stream", "a key that ends so", "half a pair in a stream", "empty stream",
        "JSON in text", "whole stream",
    ],
)  # fmt: skip
def test_json_of_every_style_is_read(raw: bytes, expected: dict[str, Any]) -> None:
    assert expected == object_of(raw)


WORDS = st.sampled_from(["a", "b\\", 'c"', ":", '":', '\\":', "sse", "data: [DONE]", "\ud83d", '"sse":"'])


def written_object(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """An object as somebody may write it, a key twice or not."""
    member = st.tuples(WORDS.map(json.dumps), st.sampled_from([":", ":", ":", ": ", " :", "\t: "]), values).map("".join)
    return st.lists(member, max_size=4).map(lambda members: "{" + ", ".join(members) + "}")


VALUES = st.recursive(
    WORDS.map(json.dumps) | st.sampled_from(["1", "1.5", "18446744073709551616", "-1e300", "null", "[]"]),
    lambda inner: written_object(inner) | st.lists(inner, max_size=3).map(lambda items: "[" + ",".join(items) + "]"),
    max_leaves=6,
)


@given(written_object(VALUES))
def test_the_fast_reader_reads_what_the_strict_one_reads(text: str) -> None:
    assert outcome(strict_object, text.encode()) == outcome(object_of, text.encode())


def outcome(read: Callable[[bytes], dict[str, Any]], raw: bytes) -> dict[str, Any] | None:
    try:
        return read(raw)
    except RefusedError:
        return None


def test_half_a_surrogate_pair_in_an_id_is_written_as_an_escape() -> None:
    assert b'{"id":"\\ud83d"}\n' == line_of({"id": "\ud83d"})


# The command line


def run(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "pipeline", *args]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DRAFTER_GATE")}
    return subprocess.run(command, input=stdin, capture_output=True, cwd=ROOT, env=environment, check=False)


def test_every_answered_line_is_exit_status_0(tmp_path: Path) -> None:
    route = tmp_path / "route.jsonl"
    known = KNOWN[0]
    traits = (
        {"provider": known.provider, "model": known.model, "stream": False, "trait": name, "value": trait.value}
        | {"n": trait.n, "proven": trait.proven, "counterexamples": []}
        for name, trait in known.traits.items()
    )
    route.write_text("".join(json.dumps(trait) + "\n" for trait in traits))
    done = run("reconstruct", "--format", "tiny-kimi", "--fingerprint", str(route), stdin=line() + b"no\n")

    assert (0, b"") == (done.returncode, done.stderr)
    assert ["accepted", "refused"] == [json.loads(result)["status"] for result in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "args",
    [
        ("render", "--format", "nothing"),
        ("render", "--format", "tiny-kimi", "--tokenizer", "nowhere"),
        ("reconstruct", "--format", "kimi-k2.5", "--tokenizer", "harness/tiny_target/weights"),
        ("reconstruct", "--format", "tiny-kimi", "--fingerprint", "nowhere.jsonl"),
        ("reconstruct",),
        ("nothing",),
    ],
    ids=["format", "no tokenizer", "other tokenizer", "no fingerprint", "no format", "verb"],
)
def test_unusable_arguments_are_exit_status_2_and_no_traceback(args: tuple[str, ...]) -> None:
    done = run(*args)

    assert 2 == done.returncode
    assert b"Traceback" not in done.stderr
    assert done.stderr.strip()


def test_a_wrong_tokenizer_is_named_by_both_hashes() -> None:
    done = run("render", "--format", "kimi-k2.5", "--tokenizer", "harness/tiny_target/weights")

    assert b"b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103" in done.stderr
    assert FORMAT.tokenizer.sha256.encode() in done.stderr


def nameless() -> dict[str, Any]:
    """The response of a host that does not say who it is."""
    return {key: value for key, value in json.loads(response()).items() if key != "provider"}


def test_the_caller_may_say_who_gave_a_nameless_answer() -> None:
    """By the line, or for all lines; the row says that it was stated."""
    name = PROFILES["siliconflow"].name
    ways = [
        list(rebuilt([line(response=nameless(), provider=name)], FORMAT, KNOWN)),
        list(rebuilt([line(response=nameless())], FORMAT, KNOWN, provider=name)),
    ]

    assert [[("accepted", name)]] * 2 == [[(row["status"], row["stated_provider"]) for row in rows] for rows in ways]
    assert "route_unproven" == answers([line(response=nameless())])[0]["reason"]


@pytest.mark.parametrize(
    "stated, expected", [("Other", "wrong_provider"), (7, "malformed_input"), ("", "malformed_input")]
)
def test_a_stated_provider_may_not_contradict_the_answer(stated: object, expected: str) -> None:
    assert expected == answers([line(provider=stated)])[0]["reason"]
