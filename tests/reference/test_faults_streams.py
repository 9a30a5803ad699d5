"""The catalogue of real reports, part two: streams, errors inside them, and ids where engines return them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from harness.fixtures.answers import PROMPT, answer, reason, route, told
from pipeline.formats.format import Format
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.oracle import judged
from pipeline.proof.reconstruct import Expected, reconstruct
from pipeline.proof.wire.completion import completion_of_body, completion_of_sse
from pipeline.records import Completion, Delta, Reason, Refusal, RefusedError, TokenLogprob, TokenRow, Usage

pytestmark = pytest.mark.reference

Case = Callable[[Format, dict[str, Any]], None]
DONE = "data: [DONE]\n\n"


def event(**chunk: Any) -> str:  # noqa: ANN401 — any JSON
    return f"data: {json.dumps({'id': 'gen-1', 'provider': 'P', 'model': 'm', **chunk})}\n\n"


def sent(delta: dict[str, Any], **choice: Any) -> str:  # noqa: ANN401 — any JSON
    return event(choices=[{"index": 0, "delta": delta, **choice}])


FINISH = sent({"content": ""}, finish_reason="stop")


def stream(*deltas: dict[str, Any], finish: str = FINISH, usage: int | None = None) -> Completion:
    counted = event(choices=[], usage={"prompt_tokens": 1, "completion_tokens": usage})
    return completion_of_sse("".join(sent(delta) for delta in deltas) + finish + counted + DONE)


def refused(raw: str | dict[str, Any]) -> Reason:
    with pytest.raises(RefusedError) as error:
        completion_of_sse(raw) if isinstance(raw, str) else completion_of_body(raw)
    return error.value.refusal.reason


def body(message: dict[str, Any], **choice: Any) -> dict[str, Any]:  # noqa: ANN401 — any JSON
    return {"provider": "P", "model": "m", "choices": [{"message": message, "finish_reason": "stop", **choice}]}


def streamed(fmt: Format, texts: list[str], tokens: int, deltas: str = "tokens") -> TokenRow | Refusal:
    """An answer whose reasoning is one token and whose content came as these deltas, `tokens` counted in all."""
    pieces = (Delta("reasoning", "r"), *(Delta("content", text) for text in texts))
    known = route({TraitName.DELTAS: deltas}, stream=True)
    return told(fmt, ("r", "".join(texts)), tokens, known, deltas=pieces)


# Fields


def a_renamed_field(fmt: Format, given: dict[str, Any]) -> None:
    message = given["message"]
    old = {"content": message["content"], "reasoning_content": message["reasoning"]}
    details = {"content": "4", "reasoning_details": [{"type": "reasoning.text", "text": message["reasoning"]}]}

    assert [message["reasoning"]] * 3 == [completion_of_body(body(one)).reasoning for one in (message, old, details)]
    assert Reason.STREAM_INCONSISTENT is refused(body({**message, "reasoning_content": "another"}))
    emitted = given["usage"]["completion_tokens"]
    assert reason(told(fmt, (None, message["content"]), emitted)) in {Reason.COUNT_MISMATCH, Reason.AMBIGUOUS_LAYOUT}


def an_unknown_count(fmt: Format, given: dict[str, Any]) -> None:
    completion = completion_of_body({**body({"content": "x", "reasoning": "r"}), "usage": given["usage"]})

    assert completion.usage == Usage(None, None)
    assert Reason.USAGE_MISSING is reason(reconstruct(PROMPT, completion, fmt, route()))


# Errors in an answer of status 200


def markup_in_an_error(_fmt: Format, given: dict[str, Any]) -> None:
    assert Reason.UPSTREAM_ERROR is refused(given["sse"] + "\n\n" + FINISH + DONE)


def an_error_beside_no_choice(_fmt: Format, given: dict[str, Any]) -> None:
    assert Reason.UPSTREAM_ERROR is refused("\n\n".join(given["sse"]) + "\n\n")


def an_error_after_text(_fmt: Format, given: dict[str, Any]) -> None:
    assert Reason.UPSTREAM_ERROR is refused("\n\n".join(given["sse"]) + "\n\n" + DONE)


def no_finish(_fmt: Format, given: dict[str, Any]) -> None:
    assert Reason.STREAM_CUT is refused(given["sse"][0] + "\n\n")
    assert Reason.STREAM_CUT is refused(given["sse"][0] + "\n\n" + DONE)
    assert Reason.STREAM_CUT is refused(given["sse"][0])


def comments_as_data(_fmt: Format, given: dict[str, Any]) -> None:
    assert "ok" == completion_of_sse("\n\n".join(given["sse"]) + "\n\n" + DONE).content


def null_choices(_fmt: Format, given: dict[str, Any]) -> None:
    null = f"data: {json.dumps(given['chunk'])}\n\n"

    assert Reason.STREAM_CUT is refused(null + DONE)
    whole = sent({"content": "a"}).replace("gen-1", "x") + null + FINISH.replace("gen-1", "x") + DONE
    assert "a" == completion_of_sse(whole).content


# Deltas


def usage_in_every_chunk(_fmt: Format, given: dict[str, Any]) -> None:
    chunks = [event(choices=[{"index": 0, "delta": one["delta"]}], usage=one["usage"]) for one in given["chunks"]]
    completion = completion_of_sse("".join(chunks) + FINISH + DONE)

    assert ("AB", 2) == (completion.content, completion.usage.completion_tokens if completion.usage else None)


def the_text_so_far(fmt: Format, given: dict[str, Any]) -> None:
    """Refused by the count of the true text, and by that of one token a delta; never joined."""
    true = fmt.tokenizer.encode(given["deltas"][-1])

    for tokens in (len(true), len(given["deltas"])):
        assert isinstance(streamed(fmt, given["deltas"], 1 + 1 + tokens + 1), Refusal)
        assert isinstance(streamed(fmt, given["deltas"], 1 + 1 + tokens + 1, "rechunked"), Refusal)


def a_legitimate_repetition(fmt: Format, given: dict[str, Any]) -> None:
    first, second, last = (fmt.tokenizer.encode(text) for text in given["deltas"])
    row = streamed(fmt, given["deltas"], 1 + 1 + 3 + 1)

    assert isinstance(row, TokenRow)
    assert (*first, *second, *last) == row.output_ids[2:-1]
    assert isinstance(streamed(fmt, given["deltas"], 1 + 1 + given["usage_text_tokens"] + 1), Refusal)


def a_lost_syllable(fmt: Format, given: dict[str, Any]) -> None:
    emitted = 2 + given["usage"]["completion_tokens"] + 1

    assert [9618] == fmt.tokenizer.encode("\ufffd")
    assert Reason.REPLACEMENT_CHAR is reason(streamed(fmt, given["deltas"], emitted))


def halves_of_a_pair(fmt: Format, given: dict[str, Any]) -> None:
    halves = [text.encode().decode("unicode_escape") for text in given["deltas"]]

    assert "x\U0001f600y" == stream(*({"content": half} for half in halves)).content
    alone = stream({"content": halves[0]}, {"reasoning": "r"}, {"content": "y"})
    assert Reason.LONE_SURROGATE is reason(told(fmt, ("r", alone.content), 6, deltas=None))


# Calls


def calls_of(given: dict[str, Any], key: str = "chunks") -> list[tuple[str, str]]:
    completion = stream(*given[key], finish=FINISH.replace("stop", "tool_calls"))
    return [(call.id, call.arguments) for call in completion.tool_calls]


def one_index_twice_in_a_chunk(_fmt: Format, given: dict[str, Any]) -> None:
    assert [("functions.f:0", '{"a": 1}')] == calls_of(given)


def one_index_for_every_call(_fmt: Format, given: dict[str, Any]) -> None:
    assert [("A", '{"p":1}'), ("B", '{"p":2}')] == calls_of(given)


def an_orphan_fragment(_fmt: Format, given: dict[str, Any]) -> None:
    with pytest.raises(RefusedError) as error:
        calls_of(given)
    assert Reason.STREAM_INCONSISTENT is error.value.refusal.reason


def a_marker_before_the_call(fmt: Format, given: dict[str, Any]) -> None:
    completion = stream(*given["deltas"], finish=FINISH.replace("stop", "tool_calls"))
    shown = (completion.reasoning, completion.content)
    calls: dict[str, Any] = {
        "tool_calls": completion.tool_calls,
        "finish_reason": "tool_calls",
        "native_finish_reason": None,
    }
    section = 2 + 3 + len(fmt.tokenizer.encode("functions.f:0")) + len(fmt.tokenizer.encode("{}"))
    emitted = len(fmt.tokenizer.encode("Look it up ")) + 1 + section + 1

    assert isinstance(told(fmt, shown, emitted, deltas=completion.deltas, **calls), Refusal)


def arguments_stay_as_they_came(_fmt: Format, given: dict[str, Any]) -> None:
    call = {"index": 0, "id": "functions.f:0", "function": {"name": "f", "arguments": given["arguments"]}}

    assert [("functions.f:0", given["arguments"])] == calls_of({"chunks": [{"tool_calls": [call]}]})
    told_whole = body({"content": None, "tool_calls": [call]})
    assert given["arguments"] == completion_of_body(told_whole).tool_calls[0].arguments


# Ids


def ids_with_a_hole(fmt: Format, given: dict[str, Any]) -> None:
    chunks = [sent({"content": "x"}, token_ids=chunk["token_ids"]) for chunk in given["chunks"]]
    counted = event(choices=[], usage=given["usage"])
    completion = completion_of_sse("".join(chunks) + FINISH + counted + DONE)
    ids = (81, fmt.think_close_id, 87, fmt.end_id)

    assert (1, 2, 9) == completion.token_ids
    assert Reason.IDS_CONTRADICT is reason(told(fmt, ("r", "x"), given["usage"]["completion_tokens"], token_ids=ids))


def ids_of_a_stream(_fmt: Format, given: dict[str, Any]) -> None:
    first, second = given["chunks"]
    chunks = event(**first) + event(**second)
    completion = completion_of_sse(chunks + FINISH + DONE)

    assert ((1, 2), (3, 4)) == (completion.prompt_ids, completion.token_ids)


def ids_as_oracle(fmt: Format, given: dict[str, Any]) -> None:
    choice = {**body({"content": "x"})["choices"][0], **given["response"]["choices"][0]}
    read = completion_of_body({**given["response"], "choices": [choice]})
    assert ((1,), (2, 163586)) == (read.prompt_ids, read.token_ids)

    canonical = (*fmt.tokenizer.encode("r"), fmt.think_close_id, *fmt.tokenizer.encode("HAVING"), fmt.end_id)
    split = (*canonical[:2], 39, 8858, 2798, fmt.end_id)
    verdicts = [verdict_on(fmt, ids) for ids in (canonical, split)]
    assert ["equal:counted", "refused:count_mismatch"] == verdicts


def verdict_on(fmt: Format, ids: tuple[int, ...]) -> str:
    prompt_ids = fmt.render(PROMPT)
    completion = answer(reasoning="r", content="HAVING", token_ids=ids, usage=Usage(len(prompt_ids), len(ids)))
    row = reconstruct(PROMPT, completion, fmt, None)
    assert isinstance(row, TokenRow)
    return judged(row, PROMPT, completion, fmt, [route()], Expected())


def logprobs_without_bytes(fmt: Format, given: dict[str, Any]) -> None:
    entries = tuple(TokenLogprob(one["token"], bytes(one["bytes"])) for one in given["logprobs"]["content"])
    read = completion_of_body(body({"content": given["content"]}, logprobs=given["logprobs"]))

    assert entries == read.logprobs
    assert Reason.LOGPROBS_HOLE is reason(told(fmt, ("r", given["content"]), 6, logprobs=entries))


def ids_beside_logprobs(fmt: Format, given: dict[str, Any]) -> None:
    together = body({"content": "1", "reasoning": ""}, **given["choices"][0])
    ids = tuple(given["choices"][0]["logprobs"]["token_ids"])
    entries = [{"token": "", "token_id": token, "bytes": None} for token in ids]
    dynamo = body({"content": "1", "reasoning": ""}, logprobs={"content": entries})
    read = [completion_of_body(one) for one in (together, dynamo)]

    assert [ids, ids] == [one.token_ids for one in read]
    assert [("logprobs.token_ids",), ("logprobs.content[].token_id",)] == [one.ids_from for one in read]
    row = told(fmt, ("", "1"), 3, token_ids=ids)
    assert isinstance(row, TokenRow)
    assert ids == row.output_ids


CASES: Mapping[str, Case] = {
    "F014": a_renamed_field, "F021": markup_in_an_error, "F028": a_marker_before_the_call,
    "F039": arguments_stay_as_they_came, "F041": one_index_twice_in_a_chunk, "F042": one_index_for_every_call,
    "F043": an_orphan_fragment, "F044": the_text_so_far, "F045": a_legitimate_repetition,
    "F047": usage_in_every_chunk, "F049": an_error_beside_no_choice, "F050": an_error_after_text, "F051": no_finish,
    "F052": no_finish, "F054": comments_as_data, "F055": null_choices, "F060": a_lost_syllable,
    "F063": halves_of_a_pair, "F105": ids_with_a_hole, "F106": ids_of_a_stream, "F108": ids_as_oracle,
    "F170": logprobs_without_bytes, "F171": ids_beside_logprobs, "F176": an_unknown_count,
}  # fmt: skip


@pytest.mark.parametrize("identity", sorted(CASES))
def test_report(identity: str, kimi_format: Format, reports: Mapping[str, dict[str, Any]]) -> None:
    CASES[identity](kimi_format, reports[identity]["minimal_input"])
