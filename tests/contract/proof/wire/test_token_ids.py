"""Ids where each engine puts them, whole and streamed, and what is no such list."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.fixtures.answers import FORMAT, PROMPT, PROMPT_IDS, WHOLE
from pipeline.proof.reconstruct import reconstruct
from pipeline.proof.wire.completion import completion_of_body, completion_of_sse
from pipeline.records import Completion, Evidence, Reason, RefusedError, TokenRow

pytestmark = pytest.mark.contract

IDS, ASKED = list(WHOLE), list(PROMPT_IDS)
USAGE = {"prompt_tokens": len(ASKED), "completion_tokens": len(IDS)}
MESSAGE = {"role": "assistant", "reasoning": "So it is.", "content": " Yes."}
ENTRIES = [{"token": "x", "logprob": -0.1, "bytes": None, "token_id": token} for token in IDS]
SPELLED = [{"token": f"token_id:{token}", "logprob": -0.1, "bytes": None} for token in IDS]
SGLANG_META = [[-0.1, token, None] for token in IDS]


def body(top: dict[str, Any] | None = None, **choice: Any) -> dict[str, Any]:  # noqa: ANN401 — any JSON
    whole = {"index": 0, "finish_reason": "stop", "message": MESSAGE, **choice}
    return {"provider": "P", "model": "m", "choices": [whole], "usage": USAGE, **(top or {})}


WHOLES: dict[str, tuple[dict[str, Any], bool, str]] = {
    "vllm": (body({"prompt_token_ids": ASKED}, token_ids=IDS), True, "choices[].token_ids"),
    "fireworks": (body(token_ids=IDS, prompt_token_ids=ASKED), True, "choices[].token_ids"),
    "fireworks raw": (
        body(raw_output={"completion": "x", "prompt_token_ids": ASKED, "completion_token_ids": IDS}),
        True,
        "raw_output.completion_token_ids",
    ),
    "sglang": (body(response_token_ids=IDS, prompt_token_ids=ASKED), True, "choices[].response_token_ids"),
    "sglang extension": (body({"sglext": {"input_ids": ASKED, "output_ids": [IDS]}}), True, "sglext.output_ids"),
    "sglang meta": (
        body(meta_info={"id": "x", "output_token_logprobs": SGLANG_META}),
        False,
        "meta_info.output_token_logprobs",
    ),
    "sglang meta ids": (body(meta_info={"output_ids": IDS}), False, "meta_info.output_ids"),
    "together": (
        body(logprobs={"token_ids": IDS, "tokens": ["x"] * len(IDS), "token_logprobs": [-0.1] * len(IDS)}),
        False,
        "logprobs.token_ids",
    ),
    "dynamo": (body(logprobs={"content": ENTRIES}), False, "logprobs.content[].token_id"),
    "vllm spelled": (body(logprobs={"content": SPELLED}), False, "logprobs.content[].token"),
}


def row_of(completion: Completion) -> TokenRow:
    row = reconstruct(PROMPT, completion, FORMAT, None)
    assert isinstance(row, TokenRow)
    return row


@pytest.mark.parametrize("name", WHOLES)
def test_ids_of_a_body_are_found_where_the_engine_puts_them(name: str) -> None:
    raw, prompts, place = WHOLES[name]
    completion = completion_of_body(raw)
    row = row_of(completion)

    assert (WHOLE, PROMPT_IDS if prompts else None) == (completion.token_ids, completion.prompt_ids)
    assert (Evidence.ENGINE_IDS, WHOLE, place) == (row.evidence, row.output_ids, row.detail)


# Streams


def event(**chunk: Any) -> str:  # noqa: ANN401 — any JSON
    return f"data: {json.dumps({'id': 'g', 'provider': 'P', 'model': 'm', **chunk})}\n\n"


def piece(number: int) -> dict[str, Any]:
    """The delta that the `number`-th token shows: nothing for control tokens."""
    token = IDS[number]
    if FORMAT.tokenizer.is_control(token):
        return {"content": ""}
    name = "reasoning" if number < IDS.index(FORMAT.think_close_id) else "content"
    return {name: FORMAT.tokenizer.decode_text([token])}


def streamed(last: dict[str, Any] | None = None, **pieces: list[Any]) -> Completion:
    """A chunk a token, with the `number`-th of each list of `pieces` in its choice; `last` before the usage."""
    raw = ""
    for number in range(len(IDS)):
        choice = {"index": 0, "delta": piece(number), **{key: values[number] for key, values in pieces.items()}}
        raw += event(choices=[choice], **({"prompt_token_ids": ASKED} if number == 0 and "token_ids" in pieces else {}))
    raw += event(choices=[{"delta": {}, "finish_reason": "stop"}])
    raw += event(**last) if last else ""
    return completion_of_sse(raw + event(choices=[], usage=USAGE) + "data: [DONE]\n\n")


def choices(**choice: Any) -> dict[str, Any]:  # noqa: ANN401 — any JSON
    return {"choices": [{"index": 0, "delta": {}, **choice}]}


STREAMS: dict[str, Completion] = {
    "vllm": streamed(token_ids=[[token] for token in IDS]),
    "dynamo": streamed(logprobs=[{"content": [entry]} for entry in ENTRIES]),
    "together": streamed(logprobs=[{"token_ids": [token]} for token in IDS]),
    "together delta": streamed(delta=[{**piece(number), "token_id": token} for number, token in enumerate(IDS)]),
    "sglang": streamed({"choices": [], "sglext": {"input_ids": ASKED, "output_ids": [IDS]}}),
    "fireworks raw": streamed(choices(raw_output={"completion_token_ids": IDS, "prompt_token_ids": ASKED})),
    "all at the end": streamed(choices(token_ids=IDS)),
}


@pytest.mark.parametrize("name", STREAMS)
def test_ids_of_a_stream_are_put_together(name: str) -> None:
    assert (Evidence.ENGINE_IDS, WHOLE) == (row_of(STREAMS[name]).evidence, row_of(STREAMS[name]).output_ids)


# Places that disagree, holes, and what is no list of ids


def refusal(raw: dict[str, Any]) -> Reason:
    with pytest.raises(RefusedError) as refused:
        completion_of_body(raw)
    return refused.value.refusal.reason


def test_places_that_agree_are_one() -> None:
    completion = completion_of_body(body(token_ids=IDS, logprobs={"content": ENTRIES}))

    assert ("choices[].token_ids", "logprobs.content[].token_id") == completion.ids_from
    assert WHOLE == row_of(completion).output_ids


@pytest.mark.parametrize(
    "raw, expected",
    [
        (body(token_ids=IDS[:-1], logprobs={"content": ENTRIES}), Reason.IDS_CONTRADICT),
        (body(token_ids=IDS, raw_output={"completion_token_ids": [*IDS, 1]}), Reason.IDS_CONTRADICT),
        (body({"prompt_token_ids": ASKED}, prompt_token_ids=ASKED[1:]), Reason.IDS_CONTRADICT),
        (body(logprobs={"content": [*ENTRIES[:-1], {"token": "x"}]}), Reason.LOGPROBS_HOLE),
        (body(logprobs={"content": [*SPELLED[:-1], {"token": "x"}]}), Reason.LOGPROBS_HOLE),
        (body(logprobs={"token_ids": IDS, "tokens": ["x"]}), Reason.LOGPROBS_HOLE),
        (body(meta_info={"output_token_logprobs": [[-0.1]]}), Reason.MALFORMED_INPUT),
        (body({"sglext": {"output_ids": [IDS, IDS]}}), Reason.MALFORMED_INPUT),
        (body(token_ids="1 2"), Reason.MALFORMED_INPUT),
        (body(token_ids=[1.0]), Reason.MALFORMED_INPUT),
        (body(token_ids=[True]), Reason.MALFORMED_INPUT),
        (body({"sglext": 7}), Reason.MALFORMED_INPUT),
    ],
    ids=[
        "shorter", "longer", "other prompt", "hole", "spelled hole", "tokens apart", "no id", "two choices", "text",
        "floats", "booleans", "no object",
    ],
)  # fmt: skip
def test_ids_that_cannot_be_believed_are_refused(raw: dict[str, Any], expected: Reason) -> None:
    assert expected is refusal(raw)


@pytest.mark.parametrize(
    "junk", [{"token_ids": None}, {"token_ids": []}, {"raw_output": None}, {"meta_info": 3}], ids=str
)
def test_what_providers_send_unasked_is_no_id(junk: dict[str, Any]) -> None:
    completion = completion_of_body(body(**junk))

    assert (None, ()) == (completion.token_ids, completion.ids_from)


def test_whole_ids_sent_twice_must_be_the_same() -> None:
    """Ids that a stream sends whole and twice must be the same."""
    twice = choices(raw_output={"completion_token_ids": IDS[:-1]})
    with pytest.raises(RefusedError) as refused:
        completion_of_sse(
            event(**choices(raw_output={"completion_token_ids": IDS})) + event(**twice) + "data: [DONE]\n\n"
        )

    assert Reason.STREAM_INCONSISTENT is refused.value.refusal.reason
