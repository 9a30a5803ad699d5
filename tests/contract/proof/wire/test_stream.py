"""Streams: whatever the framing, the cuts and the way of sending, the same Completion, or a refusal."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.strategies.completions import texts
from pipeline.proof.wire.completion import completion_of_sse
from pipeline.proof.wire.sse import sse_data
from pipeline.records import Completion, Delta, Reason, RefusedError, ToolCall, Usage

pytestmark = pytest.mark.contract

DONE = "data: [DONE]\n\n"


def event(**chunk: Any) -> str:  # noqa: ANN401 — any JSON
    return f"data: {json.dumps({'id': 'gen-1', 'provider': 'P', 'model': 'm', **chunk}, ensure_ascii=False)}\n\n"


def sent(delta: dict[str, Any], **choice: Any) -> str:  # noqa: ANN401 — any JSON
    return event(choices=[{"index": 0, "delta": delta, **choice}])


FINISH = sent({"content": ""}, finish_reason="stop")
USAGE = event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 5})


def told(*deltas: dict[str, Any], end: str = FINISH) -> Completion:
    return completion_of_sse("".join(sent(delta) for delta in deltas) + end + DONE)


def refusal(raw: str) -> Reason:
    with pytest.raises(RefusedError) as refused:
        completion_of_sse(raw)
    return refused.value.refusal.reason


# Framing


def framed(raw: str, line_end: str, *, comments: bool, spread: bool, mark: bool) -> str:
    """The same events in another frame: line ends, comments, JSON over several data lines, a byte-order mark."""
    events = []
    for one in raw.split("\n\n")[:-1]:
        data = one.removeprefix("data: ")
        if spread and data.startswith("{"):
            data = json.dumps(json.loads(data), indent=1, ensure_ascii=False).replace("\n", f"{line_end}data: ")
        noise = f": waiting{line_end}{line_end}data: : PROCESSING{line_end}{line_end}" if comments else ""
        events.append(f"{noise}event: message{line_end}data: {data}{line_end}id: 7{line_end}{line_end}")
    return ("\ufeff" if mark else "") + "".join(events)


@given(
    reasoning=st.lists(texts(min_size=1), max_size=4),
    content=st.lists(texts(min_size=1), max_size=4),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_a_stream_says_the_same_in_every_frame(
    reasoning: list[str], content: list[str], line_end: str, flags: tuple[bool, bool, bool]
) -> None:
    raw = "".join(sent({"reasoning": text}) for text in reasoning)
    raw += "".join(sent({"content": text}) for text in content) + FINISH + USAGE + DONE
    comments, spread, mark = flags

    try:
        plain: Completion | None = completion_of_sse(raw)
    except RefusedError:
        plain = None
    if plain is None:
        return
    assert "".join(reasoning) == (plain.reasoning or "")
    assert "".join(content) == (plain.content or "")
    assert plain == completion_of_sse(framed(raw, line_end, comments=comments, spread=spread, mark=mark))


@given(text=texts(min_size=1), cuts=st.lists(st.integers(0, 60), max_size=8))
def test_text_cut_into_any_deltas_is_the_same_text(text: str, cuts: list[int]) -> None:
    """Also inside a character that UTF-16 writes as a pair, where its halves are sent as escapes of their own."""
    units = text.encode("utf-16-le", "surrogatepass")
    places = sorted({0, len(units), *(min(2 * cut, len(units)) for cut in cuts)})
    pieces = [units[a:b].decode("utf-16-le", "surrogatepass") for a, b in pairwise(places)]
    raw = "".join(event(choices=[{"delta": {"content": piece}}]) for piece in pieces) + FINISH + DONE
    completion = completion_of_sse(raw)

    assert text == completion.content
    assert text == "".join(delta.text for delta in completion.deltas or ())


@given(text=texts(min_size=1), cuts=st.lists(st.integers(0, 400), max_size=6))
def test_bytes_cut_anywhere_say_the_same(text: str, cuts: list[int]) -> None:
    """Network chunks know nothing of characters or events; what is kept is their bytes, joined."""
    raw = (sent({"content": text}) + FINISH + DONE).encode()
    places = sorted({0, len(raw), *(min(cut, len(raw)) for cut in cuts)})
    pieces = [raw[a:b] for a, b in pairwise(places)]

    assert text == completion_of_sse(b"".join(pieces).decode()).content


@given(cut=st.integers(0, 2000))
def test_a_stream_that_ends_anywhere_before_its_end_is_refused(cut: int) -> None:
    raw = ": waiting\n\n" + sent({"content": "Yes"}) + sent({"content": ", \xe9."}) + FINISH + USAGE + DONE
    whole = raw.encode()
    part = whole[: min(cut, len(whole) - 3)].decode("utf-8", errors="ignore")

    assert Reason.STREAM_CUT is refusal(part)


@pytest.mark.parametrize("data", ["data:", "data: ", "data: : PROCESSING", "data::", ": x", "event: ping"])
def test_an_event_without_data_says_nothing(data: str) -> None:
    assert [] == list(sse_data(f"{data}\n\n"))


def test_an_event_that_is_called_error_is_one() -> None:
    raw = sent({"content": "a"}) + 'event: error\ndata: {"message": "overloaded"}\n\n' + FINISH + DONE

    assert Reason.UPSTREAM_ERROR is refusal(raw)


# Halves of characters


def test_halves_of_a_pair_in_two_deltas_are_one_character() -> None:
    completion = told({"content": "x\ud83d"}, {"content": "\ude00y"})

    assert (Delta("content", "x"), Delta("content", "\U0001f600y")) == completion.deltas


@pytest.mark.parametrize(
    "deltas",
    [
        ({"content": "x\ud83d"}, {"content": "y"}),
        ({"content": "x\ud83d"},),
        ({"content": "\ude00y"},),
        ({"reasoning": "x\ud83d"}, {"content": "\ude00y"}),
    ],
    ids=["other text", "the end", "the second alone", "another field"],
)
def test_a_half_that_stays_alone_stays_half(deltas: tuple[dict[str, str], ...]) -> None:
    """It has no UTF-8, so that whatever encodes it refuses it by name."""
    completion = told(*deltas)
    whole = (completion.reasoning or "") + (completion.content or "")

    assert "".join(text for delta in deltas for text in delta.values()) == whole
    with pytest.raises(UnicodeEncodeError):
        whole.encode()


# Usage and the end


@pytest.mark.parametrize("counts", [(1, 2), (None, 2), (2, None)], ids=str)
def test_the_last_usage_counts(counts: tuple[int | None, int | None]) -> None:
    """The last usage counts and its chunk is read like any other."""
    chunks = [
        event(choices=[{"delta": {"content": text}}], usage=None if n is None else {"completion_tokens": n})
        for text, n in zip("AB", counts, strict=True)
    ]
    completion = completion_of_sse("".join(chunks) + FINISH + DONE)

    assert ("AB", Usage(None, 2)) == (completion.content, completion.usage)


def test_a_count_that_falls_is_refused() -> None:
    falling = event(choices=[], usage={"completion_tokens": 4})

    assert Reason.STREAM_INCONSISTENT is refusal(sent({"content": "a"}) + FINISH + USAGE + falling + DONE)


@pytest.mark.parametrize("extra", [{"choices": None}, {"choices": []}, {}], ids=["null", "empty", "absent"])
def test_a_chunk_without_choices_says_nothing(extra: dict[str, Any]) -> None:
    raw = sent({"content": "a"}) + event(**extra) + FINISH + DONE

    assert "a" == completion_of_sse(raw).content


def test_a_whole_message_at_the_end_must_say_the_same() -> None:
    """A whole message at the end adds nothing and must say the same."""

    def ending(message: dict[str, Any] | None) -> str:
        last = event(choices=[{"delta": {}, "finish_reason": "stop", "message": message}])
        return sent({"reasoning": "r"}) + sent({"content": "a"}) + sent({"content": "b"}) + last + DONE

    whole: dict[str, Any] = {"reasoning": "r", "content": "ab"}
    same: list[dict[str, Any] | None] = [None, whole, {"reasoning_content": "r", "content": "ab"}]
    for message in (*same, {"content": "ab"}, {"content": ""}):
        assert "ab" == completion_of_sse(ending(message)).content
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    for message in ({**whole, "content": "a"}, {**whole, "content": "abc"}, {"reasoning": "s"}, {"tool_calls": calls}):
        assert Reason.STREAM_INCONSISTENT is refusal(ending(message))


@pytest.mark.parametrize("name", ["reasoning", "content"])
def test_the_whole_text_again_at_the_finish_is_refused(name: str) -> None:
    """The whole text again with the finish or after it is refused."""
    first = sent({"reasoning": "r1"}) + sent({"reasoning": "r2"}) + sent({"content": "a"}) + sent({"content": "b"})
    again = {"reasoning": "r1r2"} if name == "reasoning" else {"content": "ab"}

    assert Reason.STREAM_INCONSISTENT is refusal(first + sent(again, finish_reason="stop") + DONE)
    assert Reason.STREAM_INCONSISTENT is refusal(first + FINISH + sent(again) + DONE)


def test_one_delta_like_the_one_before_it_is_left_to_the_count() -> None:
    assert (
        "aa" == completion_of_sse(sent({"content": "a"}) + sent({"content": "a"}, finish_reason="stop") + DONE).content
    )


# Calls


def fragment(index: int | None, arguments: str, identity: str | None = None, name: str | None = None) -> dict[str, Any]:
    call = {"index": index, "id": identity, "function": {"name": name, "arguments": arguments}}
    return {"tool_calls": [{key: value for key, value in call.items() if value is not None}]}


CALLING = FINISH.replace("stop", "tool_calls")


def test_a_new_id_under_an_index_in_use_is_another_call() -> None:
    deltas = (fragment(0, '{"p"', "A", "r"), fragment(0, ":1}"), fragment(0, '{"p"', "B", "r"), fragment(0, ":2}"))
    calls = told(*deltas, end=CALLING).tool_calls

    assert (ToolCall("A", "r", '{"p":1}'), ToolCall("B", "r", '{"p":2}')) == calls


def test_an_id_that_comes_with_each_fragment_is_one_call() -> None:
    deltas = (fragment(0, "{", "A", "r"), fragment(0, "}", "A", "r"))

    assert (ToolCall("A", "r", "{}"),) == told(*deltas, end=CALLING).tool_calls


def test_two_fragments_of_one_index_in_one_chunk_are_one_call() -> None:
    both = {"tool_calls": [*fragment(0, "", "A", "r")["tool_calls"], *fragment(0, "{}")["tool_calls"]]}

    assert (ToolCall("A", "r", "{}"),) == told(both, end=CALLING).tool_calls


@pytest.mark.parametrize(
    "deltas",
    [
        (fragment(0, "{", "A", "r"), fragment(1, "}")),
        (fragment(0, "{}"),),
        (fragment(0, "{", "A", "r"), fragment(0, "}", None, "other")),
    ],
    ids=["under another index", "before its id", "under another name"],
)
def test_a_fragment_that_belongs_to_no_call_is_refused(deltas: tuple[dict[str, Any], ...]) -> None:
    raw = "".join(sent(delta) for delta in deltas) + CALLING + DONE

    assert Reason.STREAM_INCONSISTENT is refusal(raw)


def test_an_index_that_is_absent_is_the_place_in_the_chunk() -> None:
    assert (ToolCall("A", "r", "{}"),) == told(fragment(None, "{}", "A", "r"), end=CALLING).tool_calls
