"""What each profile shows of the same ids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.views.view import PROFILES, Seam, Shown, view
from pipeline.base.binomial import clopper_pearson_upper
from pipeline.formats.format import Parts
from pipeline.formats.registry import open_format
from pipeline.records import Ids, ToolCall

FORMAT = open_format("tiny-kimi")
MARKERS = FORMAT.tool_markers()
BEGIN, END, CALL, ARGUMENT, STOP = MARKERS.values()
SPACED = FORMAT.assemble(Parts(" So. ", think_closed=True, body=("\nYes. ",), ended=True)).ids
CALLING = FORMAT.assemble(
    Parts(
        "", think_closed=True, body=("Look.", BEGIN, CALL, "functions.f:0", ARGUMENT, '{"a": 1}', STOP, END), ended=True
    )
).ids
SILICONFLOW, CHUTES, ATLASCLOUD = (PROFILES[slug] for slug in ("siliconflow", "chutes", "atlascloud"))


def shown(ids: Ids, slug: str, *, tools: bool = False, stream: bool = False) -> Shown:
    return view(ids, PROFILES[slug], FORMAT, thinking=True, tools_sent=tools, stream=stream)


@pytest.mark.parametrize(
    "slug, expected",
    [("siliconflow", (" So. ", "\nYes. ")), ("chutes", (" So. ", "\nYes. ")), ("atlascloud", ("So.", "Yes."))],
)
def test_white_space_at_the_seams_is_kept_or_stripped(slug: str, expected: tuple[str, str]) -> None:
    answer = shown(SPACED, slug)

    assert expected == (answer.reasoning, answer.content)


def test_a_detokenizer_may_add_spaces_round_control_tokens() -> None:
    spaced = replace(CHUTES, seam=Seam.ADDED)
    answer = view(SPACED, spaced, FORMAT, thinking=True, tools_sent=False, stream=False)

    assert (" So.  ", " \nYes. ") == (answer.reasoning, answer.content)


@pytest.mark.parametrize("slug, counted", [("siliconflow", -1), ("chutes", 0), ("atlascloud", 0)])
def test_the_end_token_is_counted_or_not(slug: str, counted: int) -> None:
    assert len(SPACED) + counted == shown(SPACED, slug).completion_tokens


def test_markers_come_raw_where_tools_are_not_sent() -> None:
    content = shown(CALLING, "chutes").content

    assert content is not None
    assert content.startswith("Look.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument")
    assert "stop" == shown(CALLING, "chutes").finish_reason


@pytest.mark.parametrize(
    "slug, expected",
    [
        ("siliconflow", ToolCall("functions.f:0", "f", '{"a":1}')),
        ("chutes", ToolCall("functions.f:0", "f", '{"a": 1}')),
        ("atlascloud", ToolCall("f:0", "f", '{"a": 1}')),
    ],
)
def test_calls_come_parsed_where_tools_are_sent(slug: str, expected: ToolCall) -> None:
    answer = shown(CALLING, slug, tools=True)

    assert ((expected,), "Look.", "tool_calls") == (answer.tool_calls, answer.content, answer.finish_reason)


def test_control_tokens_that_decoding_skips_are_never_shown() -> None:
    odd = (*FORMAT.tokenizer.encode("a"), FORMAT.tokenizer.id_of("[EOS]"), *SPACED)

    assert "a So. " == shown(odd, "chutes").reasoning


def test_deltas_are_tokens_or_batches_of_them() -> None:
    ids = FORMAT.assemble(Parts("one two three four five", think_closed=True, body=("x",), ended=True)).ids
    tokens = shown(ids, "siliconflow", stream=True).deltas
    batches = shown(ids, "chutes", stream=True).deltas

    assert len(ids) - 2 == len(tokens)
    assert len(batches) < len(tokens)
    assert "".join(delta.text for delta in tokens) == "".join(delta.text for delta in batches)


def test_half_characters_are_held_back_or_shown_as_replacement() -> None:
    """A stream holds half characters back and a body shows them as replacement."""
    half = FORMAT.tokenizer.id_of_bytes(b"\xf0")
    assert half is not None
    cut = (*FORMAT.tokenizer.encode("ok"), half)

    assert ("ok\ufffd", "ok") == (shown(cut, "chutes").reasoning, shown(cut, "chutes", stream=True).reasoning)


def test_a_recounting_gateway_hides_another_split() -> None:
    """A gateway that counts the text again hides another split."""
    odd = tuple(FORMAT.tokenizer.id_of_bytes(bytes([byte])) or 0 for byte in b"user")
    ids = (*odd, FORMAT.think_close_id, *FORMAT.tokenizer.encode("x"), FORMAT.end_id)
    recounted = shown(ids, "atlascloud", stream=True)

    assert len(FORMAT.tokenizer.encode("user")) + 3 == recounted.completion_tokens
    assert len(ids) == shown(ids, "atlascloud").completion_tokens


# Bounds


@pytest.mark.parametrize(
    "wrong, n, expected",
    [(0, 59, 0.0495), (0, 299, 0.00997), (1, 100, 0.0466), (5, 100, 0.1023), (3, 3, 1.0), (0, 0, 1.0)],
)
def test_upper_bounds_are_clopper_and_pearsons(wrong: int, n: int, expected: float) -> None:
    """Published one-sided 95 % values; for none in n it is 1 - 0.05 ** (1 / n)."""
    assert expected == pytest.approx(clopper_pearson_upper(wrong, n), abs=2e-4)
