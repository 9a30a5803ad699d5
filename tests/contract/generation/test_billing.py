"""What an answer cost is read off its bytes, exactly, however the answer ended."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.generation.billing import Bill, Verdict, bill_of, completion_of, error_text, verdict_of
from pipeline.generation.ledger import LedgerAnswer
from pipeline.records import Reason, RefusedError

pytestmark = pytest.mark.contract

USAGE = b'{"prompt_tokens":12,"completion_tokens":34,"cost":0.0004970133333333333}'
PAID = Bill(497_013_334, 12, 34)
DELTA = b'data: {"id":"gen-1","choices":[{"index":0,"delta":{"content":"\\"usage\\": none"}}]}\n\n'
FINISH = b'data: {"id":"gen-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":' + USAGE + b"}\n\n"
OWN_CHUNK = b'data: {"id":"gen-1","choices":[],"usage":' + USAGE + b"}\n\n"


@pytest.mark.parametrize(
    "raw",
    [
        b'\n         \n\n{"id":"gen-1","choices":[],"usage":' + USAGE + b"}",
        b": OPENROUTER PROCESSING\n\n" + DELTA + FINISH + b"data: [DONE]\n\n",
        DELTA + OWN_CHUNK + b"data: [DONE]\n\n",
        DELTA + OWN_CHUNK,
        b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n' + OWN_CHUNK + DELTA,
        b'data: {"error":{"code":400,"message":"Token limit reached"},"choices":[],"usage":' + USAGE + b"}\n\n",
    ],
    ids=["body", "in the finish chunk", "own chunk", "cut after usage", "early usage without cost", "beside an error"],
)
def test_the_cost_is_found_in_every_form(raw: bytes) -> None:
    assert bill_of(raw) == PAID


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"<html>",
        b"{",
        b'{"usage":null}',
        b'{"usage":{"cost":null}}',
        b'{"usage":{"cost":true}}',
        b'{"usage":{"cost":"0.1"}}',
        b'{"usage":{"cost":-1}}',
        b'{"usage":{"cost":1e300,"prompt_tokens":-1,"completion_tokens":1e3}}',
        b'{"usage":{"cost":1e999999}}',
        b'{"usage":{"cost":1e9999999999999999999}}',
        b'data: {"usage":{"cost":1e9999999999999999999}}\n\n',
        b'{"usage":{"cost":20000,"prompt_tokens":99999999999999999999}}',
        DELTA,
        OWN_CHUNK[:-20],
    ],
)
def test_what_names_no_believable_cost_has_none(raw: bytes) -> None:
    assert bill_of(raw).cost_pico is None


def test_an_error_body_is_told_by_status_and_message() -> None:
    answer = LedgerAnswer(429, b'{"error":{"message":"Provider returned error","code":429},"user_id":"u"}')

    assert error_text(answer) == "429: Provider returned error"
    with pytest.raises(RefusedError, match="429: Provider returned error") as caught:
        completion_of(answer, stream=True)
    assert caught.value.refusal.reason == Reason.UPSTREAM_ERROR


@pytest.mark.parametrize(
    "raw, complete, stream, reason",
    [
        (b'{"choices":[]}', True, False, Reason.EMPTY_ANSWER),
        (b'{"error":{"code":502,"message":"lost"}}', True, True, Reason.UPSTREAM_ERROR),
        (b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}', True, True, Reason.STREAM_INCONSISTENT),
        (b'{"choices":[{"mess', False, False, Reason.STREAM_CUT),
        (DELTA, False, True, Reason.STREAM_CUT),
        (b'data: {"x": "\xff"}\n\n', True, True, Reason.STREAM_INCONSISTENT),
    ],
    ids=["no choice", "error for a stream", "body for a stream", "cut body", "cut stream", "no UTF-8"],
)
def test_an_answer_that_is_no_completion_is_refused(raw: bytes, complete: bool, stream: bool, reason: Reason) -> None:
    with pytest.raises(RefusedError) as caught:
        completion_of(LedgerAnswer(200, raw, {"complete": complete}), stream=stream)

    assert reason == caught.value.refusal.reason


def test_half_a_surrogate_pair_in_an_error_is_readable_text() -> None:
    assert error_text(LedgerAnswer(400, b'{"error":{"message":"\\ud83d no"}}')) == "400: \\ud83d no"


def error(status: int, more: bytes = b"") -> LedgerAnswer:
    return LedgerAnswer(status, b'{"error":{"code":1,"message":"no"}' + more + b"}")


@pytest.mark.parametrize(
    "status, verdict",
    [
        (200, Verdict.KEPT),
        *((status, Verdict.REFUSED) for status in (400, 403, 413, 422)),
        *((status, Verdict.HOPELESS) for status in (401, 402, 404)),
        *((status, Verdict.LATER) for status in (409, 425, 429, 503)),
        *((status, Verdict.DOUBT) for status in (202, 307, 408, 499, 500, 502, 504, 524, 529)),
    ],
)
def test_an_error_is_free_only_where_nothing_was_generated(status: int, verdict: Verdict) -> None:
    assert verdict == verdict_of(error(status))


@pytest.mark.parametrize(
    "status, usage, verdict",
    [
        (502, b'"cost":0', Verdict.LATER),
        (408, b'"cost":0.0', Verdict.LATER),
        (429, b'"cost":0.001', Verdict.KEPT),
        (429, b'"completion_tokens":3', Verdict.DOUBT),
        (400, b'"completion_tokens":3', Verdict.DOUBT),
        (429, b'"completion_tokens":0', Verdict.LATER),
        (429, b'"cost":"0.001"', Verdict.DOUBT),
        (400, b'"cost":-1', Verdict.DOUBT),
    ],
)
def test_a_usage_beside_an_error_says_what_it_cost(status: int, usage: bytes, verdict: Verdict) -> None:
    assert verdict == verdict_of(error(status, b',"usage":{' + usage + b"}"))


LINES = st.lists(
    st.sampled_from(
        [
            *(b'data: {"usage":{"cost":0.5,"prompt_tokens":1}}', b'data:{"usage":{"completion_tokens":2}}'),
            *(
                b'data: {"error":{"message":"no"},"usage":null}',
                b': "usage"',
                b'"usage"',
                b"",
                b"data: [DONE]",
                b"\xff",
            ),
        ]
    )
)


@given(LINES, st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n"]), st.binary(max_size=20))
def test_the_usage_is_found_as_by_reading_every_line(lines: list[bytes], end: bytes, tail: bytes) -> None:
    raw = b"data: x" + end + end.join(lines) + tail
    usages = [
        value["usage"]
        for line in raw.splitlines()
        if line.startswith(b"data:") and (value := object_in(line[5:])) and isinstance(value.get("usage"), dict)
    ]
    costed = [usage for usage in usages if "cost" in usage] or usages

    expected = costed[-1] if costed else {}
    bill = bill_of(raw)
    assert (expected.get("prompt_tokens"), expected.get("completion_tokens")) == (
        *(bill.prompt_tokens, bill.completion_tokens),
    )


def object_in(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def test_usage_in_every_chunk_is_read_in_linear_time() -> None:
    """A stream of many chunks that all name their usage."""
    chunk = b'data: {"usage":{"completion_tokens":1,"cost":0.1}}\n\n'

    def seconds(chunks: int) -> float:
        started = time.process_time()
        bill_of(chunk * chunks)
        return time.process_time() - started

    # The best of three: a collection of the whole process's garbage may fall into one.
    few, many = (min(seconds(chunks) for _ in range(3)) for chunks in (1000, 10_000))

    assert many < 50 * max(few, 0.01)
