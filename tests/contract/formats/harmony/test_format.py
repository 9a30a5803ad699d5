"""Answers in harmony: what they are made of, what is rebuilt from text, and what only ids can tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.fixtures.harmony_bytes import (
    ANALYSIS,
    BYTES,
    CALL,
    FINAL,
    FORMAT,
    LEGAL,
    NAMES,
    PROMPT,
    TURN,
    ids_of,
    text_of,
    told,
    verdict,
)
from harness.views.harmony import harmony_texts
from pipeline.formats.format import HeadedFormat, Parts
from pipeline.formats.harmony.format import DAY
from pipeline.generation.engines.output import EngineOutput, complete
from pipeline.records import Evidence, Ids, Prompt, Reason, Refusal, RefusedError, TokenRow, ToolCall

pytestmark = pytest.mark.contract

# Parts


@pytest.mark.parametrize(
    "text, expected",
    [
        (f"{ANALYSIS}r{TURN}{FINAL}c<|return|>", Parts("r", think_closed=True, body=("c",), ended=True)),
        (f"{ANALYSIS}r{TURN}{FINAL}c", Parts("r", think_closed=True, body=("c",), ended=False)),
        (f"{ANALYSIS}r{TURN}{FINAL}", Parts("r", think_closed=True, body=(), ended=False)),
        (f"{ANALYSIS}{TURN}{FINAL}<|return|>", Parts("", think_closed=True, body=(), ended=True)),
        (f"{ANALYSIS}r", Parts("r", think_closed=False, body=(), ended=False)),
        (f"{FINAL}c<|return|>", Parts(None, think_closed=False, body=("c",), ended=True)),
        (f"{FINAL}<|return|>", Parts(None, think_closed=False, body=(), ended=True)),
        ("", Parts(None, think_closed=False, body=(), ended=False)),
    ],
)
def test_the_one_form_of_text_has_parts_without_headers(text: str, expected: Parts) -> None:
    assert expected == FORMAT.parse(ids_of(text), thinking=True)
    assert ids_of(text) == FORMAT.assemble(expected).ids


def test_every_other_answer_has_its_headers_in_its_body() -> None:
    one = BYTES.id_of
    parts = FORMAT.parse(ids_of(f"{ANALYSIS}r{TURN}{CALL}<|call|>"), thinking=True)
    header = ("<|end|>", "<|start|>", "assistant", "<|channel|>", "commentary to=functions.f ", "<|constrain|>", "json")
    body = tuple(one(piece) if piece in NAMES else piece for piece in (*header, "<|message|>", "{}"))

    assert Parts("r", think_closed=False, body=body, ended=True) == parts


@pytest.mark.parametrize(
    "parts",
    [
        Parts("r", think_closed=False, body=("c",), ended=True),
        Parts("r", think_closed=False, body=(), ended=True),
        Parts(None, think_closed=True, body=("c",), ended=True),
        Parts("r", think_closed=True, body=("c", "d"), ended=True),
        Parts("r", think_closed=True, body=("",), ended=True),
        Parts("r", think_closed=True, body=(BYTES.id_of("<|end|>"),), ended=False),
        Parts(None, think_closed=False, body=(*ids_of("<|channel|>"), "final", *ids_of("<|message|>")), ended=True),
        Parts(None, think_closed=False, body=(BYTES.id_of("<|return|>"),), ended=False),
    ],
)  # fmt: skip
def test_parts_that_no_answer_has_are_refused(parts: Parts) -> None:
    with pytest.raises(RefusedError) as error:
        FORMAT.assemble(parts)

    assert Reason.LAYOUT_INVALID is error.value.refusal.reason


def test_the_headers_are_what_the_general_code_counts() -> None:
    whole, cut = (
        Parts("r", think_closed=True, body=("c",), ended=True),
        Parts("r", think_closed=False, body=(), ended=False),
    )
    opener = FORMAT.opener(thinking=True)

    assert (ANALYSIS, TURN + FINAL) == (text_of(FORMAT.opening_ids), text_of(FORMAT.closing_ids))
    assert (len(FORMAT.opening_ids) + len(FORMAT.closing_ids), len(FORMAT.opening_ids)) == (
        FORMAT.hidden_count(opener, whole),
        FORMAT.hidden_count(opener, cut),
    )
    assert isinstance(FORMAT, HeadedFormat)


# Proofs


FULL = ids_of(f"{ANALYSIS}r{TURN}{FINAL}c<|return|>")
LENGTH = {"finish_reason": "length", "native_finish_reason": "length"}


def test_text_is_rebuilt_where_the_count_closes() -> None:
    row = told("r", "c", len(FULL))

    assert isinstance(row, TokenRow)
    assert FULL == row.output_ids


@pytest.mark.parametrize(
    "text, shown",
    [
        (f"{FINAL}c<|return|>", (None, "c")),
        (f"{ANALYSIS}{TURN}{FINAL}c<|return|>", (None, "c")),
        (f"{ANALYSIS}r{TURN}{FINAL}<|return|>", ("r", None)),
        (f"{ANALYSIS}r{TURN}<|channel|>commentary<|message|>{TURN}{FINAL}c<|return|>", ("r", "c")),
        (f"{ANALYSIS}r{TURN}<|channel|>commentary<|message|>b{TURN}{FINAL}c<|return|>", ("r", "bc")),
        (f"{ANALYSIS}r{TURN}{ANALYSIS}q{TURN}{FINAL}c<|return|>", ("r\nq", "c")),
        (f"{ANALYSIS}r{TURN}<|channel|>final <|constrain|>json<|message|>c<|return|>", ("r", "c")),
    ],
)
def test_what_text_cannot_tell_is_refused_and_proven_by_ids(text: str, shown: tuple[str | None, str | None]) -> None:
    ids = ids_of(text)
    proven = told(*shown, len(ids), token_ids=ids, prompt_ids=FORMAT.render(PROMPT))

    assert isinstance(told(*shown, len(ids)), Refusal)
    assert isinstance(proven, TokenRow)
    assert ids == proven.output_ids


@pytest.mark.parametrize("text", LEGAL)
def test_the_loss_of_any_one_token_is_never_unseen(text: str) -> None:
    ids = ids_of(text)
    reasoning, content = ("".join(texts) for texts in FORMAT.texts_in(ids))
    calls = tuple(
        ToolCall("c", call.identity.removeprefix("functions."), call.arguments) for call in FORMAT.calls_in(ids)
    )
    finish = {"finish_reason": "tool_calls" if calls else "stop", "tool_calls": calls, "native_finish_reason": None}
    for at in range(len(ids)):
        lost = (*ids[:at], *ids[at + 1 :])
        row = told(reasoning, content, len(ids), token_ids=lost, prompt_ids=FORMAT.render(PROMPT), **finish)
        assert isinstance(row, Refusal)
    whole = told(reasoning, content, len(ids), token_ids=ids, prompt_ids=FORMAT.render(PROMPT), **finish)
    assert Evidence.ENGINE_IDS is verdict(whole)


@pytest.mark.parametrize("text", [f"{ANALYSIS}r", f"{ANALYSIS}r{TURN}{FINAL}c"])
def test_a_cut_answer_is_rebuilt_where_its_last_text_shows(text: str) -> None:
    content = "c" if text.endswith("c") else None
    row = told("r", content, len(ids_of(text)), **LENGTH)

    assert isinstance(row, TokenRow)
    assert ids_of(text) == row.output_ids


def test_an_answer_cut_inside_a_header_is_refused() -> None:
    header = ids_of(TURN + FINAL)
    rows = [told("r", None, len(ids_of(f"{ANALYSIS}r")) + more, **LENGTH) for more in range(1, len(header) + 1)]

    assert {Reason.COUNT_MISMATCH, Reason.AMBIGUOUS_LAYOUT} == {verdict(row) for row in rows}


@pytest.mark.parametrize("name", NAMES)
def test_a_header_spelled_in_a_text_is_a_leak(name: str) -> None:
    """A header that a text spells is a leak whatever the count."""
    for reasoning, content in ((f"r{name}", "c"), ("r", f"c{name}")):
        tokens = len(ids_of(f"{ANALYSIS}{TURN}{FINAL}<|return|>")) + len(reasoning) + len(content)
        assert Reason.LEAKED_CONTROL is verdict(told(reasoning, content, tokens))


def test_a_call_that_came_parsed_must_be_the_one_in_the_ids() -> None:
    ids = ids_of(f"{ANALYSIS}r{TURN}{CALL}<|call|>")
    called = {"token_ids": ids, "prompt_ids": FORMAT.render(PROMPT), "finish_reason": "tool_calls"}
    rows = [
        told("r", None, len(ids), **called, tool_calls=(ToolCall("c", name, arguments),))
        for name, arguments in (("f", "{ }"), ("g", "{}"), ("f", '{"a": 1}'))
    ]

    assert [Evidence.ENGINE_IDS, Reason.IDS_CONTRADICT, Reason.IDS_CONTRADICT] == [verdict(row) for row in rows]


def test_prompt_ids_show_another_day_or_effort() -> None:
    """A prompt served on another day or with another effort is told by its ids."""
    prompts = [replace(FORMAT, day="2030-12-31").render(PROMPT), replace(FORMAT, effort="high").render(PROMPT)]
    rows = [told("r", "c", len(FULL), token_ids=FULL, prompt_ids=prompt) for prompt in prompts]

    assert [Evidence.ENGINE_IDS, Reason.PROMPT_MISMATCH] == [verdict(row) for row in rows]
    assert isinstance(rows[0], TokenRow)
    assert prompts[0] == rows[0].prompt_ids


@pytest.mark.parametrize("served", [(), ids_of("<|start|>user<|message|>Current date: 2030-12-31<|end|>")])
def test_served_ids_without_a_day_are_another_prompt(served: Ids) -> None:
    row = told("r", "c", len(FULL), token_ids=FULL, prompt_ids=served)

    assert Reason.PROMPT_MISMATCH is verdict(row)


def test_a_day_that_the_question_names_is_not_the_prompts() -> None:
    told_day = "x\nCurrent date: 1999-01-01\n"
    prompt = Prompt("r", ({"role": "user", "content": told_day},))
    served = FORMAT.as_served(FORMAT.render(prompt))

    assert DAY == served.day


# Where texts are shown


def test_a_local_answer_shows_its_texts_without_headers() -> None:
    shown = [
        complete((), EngineOutput(ids, (0.0,) * len(ids), (), finished=True), FORMAT, thinking=True, model="m")
        for ids in (FULL, ids_of(f"{CALL}<|call|>"), ids_of("Yes."))
    ]

    assert [("r", "c"), (None, ""), (None, "Yes.")] == [(one.reasoning, one.content) for one in shown]


def test_the_views_parser_reads_any_ids() -> None:
    """The views parser joins messages and finds calls and takes any ids."""
    text = f"{ANALYSIS}a{TURN}{ANALYSIS}b{TURN}<|channel|>commentary<|message|>c{TURN}{FINAL}d{TURN}{CALL}<|call|>"
    body, stream = (harmony_texts(ids_of(text), FORMAT, stream=stream) for stream in (False, True))

    assert (b"a\nb", b"c\nd") == (b"".join(body.reasoning), b"".join(body.content))
    assert (b"ab", b"cd") == (b"".join(stream.reasoning), b"".join(stream.content))
    assert (ToolCall("call_00000000", "f", "{}"),) == body.calls
    assert ((), ()) == (
        harmony_texts(ids_of("x<|end|>y<|return|>"), FORMAT, stream=False).content,
        harmony_texts((), FORMAT, stream=False).content,
    )
