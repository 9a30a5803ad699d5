"""The catalogue of real reports, part four: harmony, on gpt-oss's own vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from harness.fixtures.answers import reason, route, told
from pipeline.formats.harmony.format import HarmonyFormat
from pipeline.formats.registry import find_tokenizer, open_format
from pipeline.proof.fingerprint import TraitName
from pipeline.records import Prompt, Reason, TokenRow, ToolCall, Usage

pytestmark = pytest.mark.reference

Case = Callable[[HarmonyFormat, dict[str, Any]], None]
KNOWN = route(
    {
        TraitName.TURN_END: "by_role",
        TraitName.THINK_LEAD: "written",
        TraitName.LINE_ENDS: "kept",
        TraitName.PROMPT_SETTINGS: {"date": "2026-11-30", "effort": "medium"},
    }
)


@pytest.fixture(scope="module")
def fmt() -> HarmonyFormat:
    if find_tokenizer("gpt-oss") is None:
        pytest.skip("no gpt-oss in $DRAFTER_GATE_TOKENIZERS; python -m harness vocabularies unpacks it")
    found = open_format("gpt-oss")
    assert isinstance(found, HarmonyFormat)
    return found


def one_system_message(fmt: HarmonyFormat, given: dict[str, Any]) -> None:
    prompt = Prompt("r", tuple(given["messages"]))
    text = fmt.tokenizer.decode_text(fmt.render(prompt))
    system = text.partition("<|end|>")[0] + "<|end|>"
    twice = fmt.tokenizer.encode_prompt(system + text)
    tokens = len(fmt.marks.thinks) + len(fmt.marks.turns) + 3

    assert (1, 1) == (text.count("<|start|>system<|message|>"), text.count("# Instructions\n\nS<|end|>"))
    assert isinstance(told(fmt, ("r", "c"), tokens, KNOWN, prompt), TokenRow)
    served = Usage(len(twice), tokens)
    assert Reason.PROMPT_MISMATCH is reason(told(fmt, ("r", "c"), tokens, KNOWN, prompt, usage=served))


def a_recipient_before_the_channel_or_behind(fmt: HarmonyFormat, given: dict[str, Any]) -> None:
    """Both are legal and the API shows one answer of both: ids prove either, and without them neither is taken."""
    prompt = Prompt("r", ({"role": "user", "content": "hi"},))
    called = {"finish_reason": "tool_calls", "tool_calls": (ToolCall("c", "f", "{}"),)}
    for form in ("form_1", "form_2"):
        emitted = given[form].removeprefix("<|start|>assistant")
        ids = tuple(fmt.tokenizer.encode_prompt(emitted))
        proven = {"token_ids": ids, "prompt_ids": fmt.render(prompt)}
        row = told(fmt, (None, None), len(ids), KNOWN, prompt, **called, **proven)

        assert isinstance(row, TokenRow)
        assert ids == row.output_ids
        assert Reason.STRUCTURED_CALLS is reason(told(fmt, (None, None), len(ids), KNOWN, prompt, **called))


def markers_in_the_content(fmt: HarmonyFormat, given: dict[str, Any]) -> None:
    prompt = Prompt("r", ({"role": "user", "content": "hi"},))
    as_control = len(fmt.tokenizer.encode_prompt(given["content"]))
    as_text = len(fmt.tokenizer.encode(given["content"])) + len(fmt.marks.thinks) + len(fmt.marks.turns) + 2
    rows = [told(fmt, ("r", given["content"]), count, KNOWN, prompt) for count in (as_control, as_text)]

    assert [Reason.LEAKED_CONTROL, Reason.LEAKED_CONTROL] == [reason(row) for row in rows]


CASES: Mapping[str, Case] = {
    "F098": one_system_message, "F167": a_recipient_before_the_channel_or_behind, "F168": markers_in_the_content,
}  # fmt: skip


@pytest.mark.parametrize("identity", sorted(CASES))
def test_report(identity: str, fmt: HarmonyFormat, reports: Mapping[str, dict[str, Any]]) -> None:
    CASES[identity](fmt, reports[identity]["minimal_input"])
