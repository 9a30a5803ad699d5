"""The catalogue of real reports, part three: prompts, vocabularies, and how rows of prompts are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from harness.fixtures.answers import PROMPT, reason, route, told
from pipeline.base.prompts import prompt_of
from pipeline.formats.chat_template import load_template
from pipeline.formats.format import Format
from pipeline.formats.registry import family_of, fetch, open_format
from pipeline.formats.tokenizer import KIMI_SHA256, TokenizerError, prompt_pieces
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.locations import special_text
from pipeline.records import Prompt, Reason, RefusedError, TokenRow, Usage

pytestmark = pytest.mark.reference

Case = Callable[[Format, dict[str, Any]], None]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
}


def asking(*messages: dict[str, Any], **changes: Any) -> Prompt:  # noqa: ANN401 — fields of Prompt
    return replace(Prompt("r", messages), **changes)


def holds(whole: tuple[int, ...], part: list[int]) -> bool:
    return any(list(whole[at : at + len(part)]) == part for at in range(len(whole) - len(part) + 1))


def refused(fmt: Format, prompt: Prompt) -> Reason:
    with pytest.raises(RefusedError) as error:
        fmt.render(prompt)
    return error.value.refusal.reason


# Vocabulary


def half_a_pair_as_text(fmt: Format, given: dict[str, Any]) -> None:
    text = given["text"].encode().decode("unicode_escape")
    with pytest.raises(RefusedError) as error:
        fmt.tokenizer.encode(text)

    assert (Reason.LONE_SURROGATE, 1) == (error.value.refusal.reason, error.value.refusal.char_offset)
    assert Reason.LONE_SURROGATE is reason(told(fmt, ("r", text), 6))


def half_a_pair_in_a_prompt(fmt: Format, given: dict[str, Any]) -> None:
    content = given["messages"][0]["content"].encode().decode("unicode_escape")

    assert Reason.LONE_SURROGATE is refused(fmt, asking({"role": "user", "content": content}))


def a_cut_at_400_000(fmt: Format, _given: dict[str, Any]) -> None:
    text = "x " * 199_998 + "<|im_end|> tail"

    assert [400_000, len(text) - 400_000] == [len(piece) for piece in prompt_pieces(text)]
    assert 163586 not in fmt.tokenizer.encode_prompt(text)
    found = special_text(fmt, asking({"role": "user", "content": text}))
    assert found is not None
    assert Reason.SPECIAL_TEXT is found.reason


def a_run_of_25_001(fmt: Format, _given: dict[str, Any]) -> None:
    text = " " * 25_001

    assert (100, 99) == (len(fmt.tokenizer.encode_prompt(text)), len(fmt.tokenizer.encode(text)))
    prompt = asking({"role": "user", "content": "a" + text + "b"})
    assert tuple(fmt.tokenizer.encode_prompt(spelled(prompt), whole=True)) == fmt.render(prompt)
    assert "cut a prompt of" in str(fmt.ambiguity(prompt))


def spelled(prompt: Prompt) -> str:
    content = prompt.messages[0]["content"]
    head = "<|im_user|>user<|im_middle|>"
    return f"{head}{content}<|im_end|><|im_assistant|>assistant<|im_middle|><think>"


def a_hub_without_a_revision(_fmt: Format, given: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError, match="names no revision"):
        fetch(f"hub:{given['model']}")


def a_vocabulary_of_another_hash(fmt: Format, given: dict[str, Any]) -> None:
    """A test double, or another family whose vocabulary keeps the old markers: the hash decides, no marker does."""
    assert given
    assert KIMI_SHA256 == family_of("kimi-k2.5").sha256 == fmt.tokenizer.sha256
    assert (163586, 163601) == (fmt.tokenizer.id_of("<|im_end|>"), fmt.tokenizer.id_of("<|im_middle|>"))
    tiny = family_of("tiny-kimi").embedded
    with pytest.raises(TokenizerError, match=KIMI_SHA256):
        open_format("kimi-k2.5", str(tiny))


def nothing_is_cut_off(fmt: Format, given: dict[str, Any]) -> None:
    text = " word" * (4 * given["text_tokens"])

    assert 4 * given["text_tokens"] == len(fmt.tokenizer.encode(text))
    assert text.encode() == fmt.tokenizer.decode_bytes(fmt.tokenizer.encode(text))


def many_threads(fmt: Format, given: dict[str, Any]) -> None:
    text = "HAVING \U0001f600 ok " * 50
    with ThreadPoolExecutor(given["threads"]) as pool:
        found = list(pool.map(fmt.tokenizer.encode, [text] * 64))

    assert [fmt.tokenizer.encode(text)] * 64 == found


# Spelled markers


def a_quoted_end_of_turn(fmt: Format, given: dict[str, Any]) -> None:
    prompt = asking({"role": "user", "content": given["content"]})
    ids = fmt.render(prompt)

    assert 1 == ids.count(163586)
    row = told(fmt, ("r", given["content"]), 3 + len(fmt.tokenizer.encode(given["content"])))
    assert isinstance(row, TokenRow)
    assert (1, len(row.output_ids) - 1) == (row.output_ids.count(163586), row.spans[-1].start)


def a_mentioned_image(fmt: Format, given: dict[str, Any]) -> None:
    assert 163605 not in fmt.render(asking({"role": "user", "content": given["content"]}))


def a_prompt_that_quotes_the_thinking(fmt: Format, given: dict[str, Any]) -> None:
    messages = [{**one, "content": one["content"].replace("mm:", "")} for one in given["messages"]]
    prompt = asking(*messages)
    content = given["content"].replace("mm:", "")

    assert Reason.SPECIAL_TEXT is reason(told(fmt, ("r", content), 10, prompt=prompt))
    emitted = len(fmt.tokenizer.encode("let me see")) + 1 + len(fmt.tokenizer.encode("Hi")) + 1
    assert reason(told(fmt, (None, content), emitted)) in {Reason.COUNT_MISMATCH, Reason.AMBIGUOUS_LAYOUT}


# The prompt as served


def one_prompt_many_ways(fmt: Format, given: dict[str, Any]) -> None:
    """A text that is rendered and encoded again must give the ids, or nothing is asked at all."""
    directory = fmt.tokenizer.directory
    template = load_template(directory)
    prompt = asking(*given["messages"], tools=(TOOL,))
    ids = fmt.render(prompt)

    assert 163595 not in ids
    assert template is None
    mangled = Usage(len(ids) + 3, 4)
    assert Reason.PROMPT_MISMATCH is reason(told(fmt, ("r", "x"), 4, prompt=prompt, usage=mangled))


def a_second_bos(fmt: Format, given: dict[str, Any]) -> None:
    ids = fmt.render(PROMPT)

    assert given["rendered"]
    assert fmt.tokenizer.id_of("[BOS]") not in ids
    assert Reason.PROMPT_MISMATCH is reason(told(fmt, ("r", "x"), 4, usage=Usage(len(ids) + 1, 4)))


def a_seam_inside_a_token(fmt: Format, given: dict[str, Any]) -> None:
    """Prompt and answer are encoded apart, so no token can straddle the place where one ends."""
    row = told(fmt, (given["completion_head"], "x"), 1 + len(fmt.tokenizer.encode("\nSure")) + 2)

    assert isinstance(row, TokenRow)
    assert fmt.render(PROMPT) == row.prompt_ids
    assert tuple(fmt.tokenizer.encode("\nSure")) == row.output_ids[: row.spans[0].stop]


def a_flat_list_of_ids(fmt: Format, _given: dict[str, Any]) -> None:
    ids = fmt.render(PROMPT)

    assert isinstance(ids, tuple)
    assert {int} == {type(token) for token in ids}


def a_missing_generation_prompt(fmt: Format, given: dict[str, Any]) -> None:
    prompt = asking(*given["messages"])
    ids = fmt.render(prompt)
    opener = [163588, *fmt.tokenizer.encode("assistant"), 163601, 163606]

    assert (4, opener) == (len(opener), list(ids[-4:]))
    bare = Usage(len(ids) - 4, 4)
    assert Reason.PROMPT_MISMATCH is reason(told(fmt, ("r", "x"), 4, prompt=prompt, usage=bare))


def a_finished_conversation(fmt: Format, given: dict[str, Any]) -> None:
    """A row is the prompt as served and the ids as emitted; rendered again, the reasoning would be gone."""
    asked, said = given["messages"]
    prompt = asking(asked)
    row = told(fmt, (said["reasoning_content"], said["content"]), 4, prompt=prompt)
    again = fmt.render(asking(*given["messages"], {"role": "user", "content": "next"}))

    assert isinstance(row, TokenRow)
    assert fmt.render(prompt) == row.prompt_ids
    assert tuple(fmt.tokenizer.encode("R")) == row.output_ids[:1]
    assert holds(again, [163606, 163607, *fmt.tokenizer.encode("ans")])


def thinking_of_a_running_cycle(fmt: Format, given: dict[str, Any]) -> None:
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "reasoning_content": "call it", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "functions.f:0", "content": "4"}
    ids = fmt.render(asking({"role": "user", "content": "q"}, turn, result))

    assert 4 == len(given["messages"])
    assert holds(ids, [163606, *fmt.tokenizer.encode("call it"), 163607])


def arguments_in_the_history(fmt: Format, given: dict[str, Any]) -> None:
    arguments = given["history"]["tool_calls"][0]["function"]["arguments"]
    call = {"id": "functions.w:0", "type": "function", "function": {"name": "w", "arguments": arguments}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    prompt = asking({"role": "user", "content": "q"}, turn)
    ids = fmt.render(prompt)

    assert holds(ids, [163598, *fmt.tokenizer.encode(arguments), 163599])
    quoted = len(fmt.tokenizer.encode(json.dumps(arguments))) - len(fmt.tokenizer.encode(arguments))
    served = Usage(len(ids) + quoted, 4)
    assert quoted > 0
    assert Reason.PROMPT_MISMATCH is reason(told(fmt, ("r", "x"), 4, prompt=prompt, usage=served))


def parsed_arguments_in_the_history(fmt: Format, given: dict[str, Any]) -> None:
    """Arguments that are no text would have to be written anew, in one of many ways."""
    call = {"id": "functions.w:0", "type": "function", "function": {"name": "w", "arguments": {"dry": False}}}

    assert "False" in given["history_rendered"]
    assert Reason.PROMPT_UNSUPPORTED is refused(fmt, asking({"role": "assistant", "content": "", "tool_calls": [call]}))


def a_schema_without_typescript(fmt: Format, given: dict[str, Any]) -> None:
    """The engine falls back to JSON, and so does the rendering; another rendering has another count."""
    prompt = asking({"role": "user", "content": "q"}, tools=tuple(given["tools"]))
    ids = fmt.render(prompt)

    assert fmt.declare_tools(given["tools"]).startswith("[{")
    assert fmt.declare_tools([TOOL]).startswith("# Tools")
    assert Reason.PROMPT_MISMATCH is reason(told(fmt, ("r", "x"), 4, prompt=prompt, usage=Usage(len(ids) - 5, 4)))


def an_image(fmt: Format, given: dict[str, Any]) -> None:
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]

    assert given["image"]
    assert Reason.PROMPT_UNSUPPORTED is refused(fmt, asking({"role": "user", "content": content}))


def an_offset_that_varies(fmt: Format, given: dict[str, Any]) -> None:
    """A proven prefix is a constant; a count that nearly fits does not fit."""
    off = given["reported"] - given["local_prompt_tokens"]
    ids = fmt.render(PROMPT)
    before = route({TraitName.PROMPT_PREFIX: ["[BOS]"]})

    assert isinstance(told(fmt, ("r", "x"), 4, before, usage=Usage(len(ids) + 1, 4)), TokenRow)
    for served in (len(ids) + off, len(ids), len(ids) + 2):
        assert Reason.PROMPT_MISMATCH is reason(told(fmt, ("r", "x"), 4, before, usage=Usage(served, 4)))


def a_boundary_by_length(fmt: Format, given: dict[str, Any]) -> None:
    """Two turns that look alike: the row's own prompt ends where it was recorded to end."""
    prompt = asking(*given["messages"][:-1])
    said = given["messages"][-1]["content"]
    row = told(fmt, ("r", said), 3 + len(fmt.tokenizer.encode(said)), prompt=prompt)

    assert isinstance(row, TokenRow)
    assert fmt.render(prompt) == row.prompt_ids
    assert 2 == (row.prompt_ids + row.output_ids).count(fmt.tokenizer.encode(said)[0])


# Rows of prompts


def tools_of_each_row(fmt: Format, given: dict[str, Any]) -> None:
    user = {"role": "user", "content": "q"}
    first, second = (asking(user, tools=(TOOL,) if row["tools"] else ()) for row in given["rows"])
    declared = fmt.tokenizer.encode("tool_declare")

    assert (True, False) == (holds(fmt.render(first), declared), holds(fmt.render(second), declared))


def messages_as_a_string(_fmt: Format, given: dict[str, Any]) -> None:
    with pytest.raises(RefusedError) as error:
        prompt_of({"id": "r", "messages": given["messages"]})

    assert (Reason.MALFORMED_INPUT, "messages") == (error.value.refusal.reason, error.value.refusal.field)


def tools_as_a_string(_fmt: Format, given: dict[str, Any]) -> None:
    """The core reader takes the schema alone, and says so by line; what an exporter wrote is its adapter's work."""
    prompt = prompt_of({"id": "r", "messages": [{"role": "user", "content": "hi"}], "tools": given["tools"]})
    with pytest.raises(RefusedError) as error:
        prompt_of({"id": "r", "messages": [{"role": "user", "content": "hi"}], "tools": given["tools_alt"]})

    assert tuple(given["tools"]) == prompt.tools
    assert (Reason.MALFORMED_INPUT, "tools") == (error.value.refusal.reason, error.value.refusal.field)


CASES: Mapping[str, Case] = {
    "F032": arguments_in_the_history, "F033": parsed_arguments_in_the_history, "F064": half_a_pair_as_text,
    "F065": half_a_pair_in_a_prompt, "F070": a_cut_at_400_000, "F071": a_run_of_25_001,
    "F072": a_hub_without_a_revision, "F075": a_quoted_end_of_turn, "F078": one_prompt_many_ways,
    "F079": a_second_bos, "F081": a_seam_inside_a_token, "F083": a_flat_list_of_ids, "F084": nothing_is_cut_off,
    "F085": many_threads, "F087": a_missing_generation_prompt, "F088": a_finished_conversation,
    "F090": a_schema_without_typescript, "F107": an_image, "F109": an_offset_that_varies,
    "F138": tools_as_a_string, "F139": tools_of_each_row, "F141": messages_as_a_string,
    "F148": thinking_of_a_running_cycle, "F151": a_vocabulary_of_another_hash, "F152": a_mentioned_image,
    "F153": a_vocabulary_of_another_hash, "F154": a_boundary_by_length, "F161": a_prompt_that_quotes_the_thinking,
}  # fmt: skip


@pytest.mark.parametrize("identity", sorted(CASES))
def test_report(identity: str, kimi_format: Format, reports: Mapping[str, dict[str, Any]]) -> None:
    CASES[identity](kimi_format, reports[identity]["minimal_input"])
