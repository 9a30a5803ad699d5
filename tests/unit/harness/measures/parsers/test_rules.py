"""What the engines' parsers lose, rule by rule, and when a difference is explained."""

from __future__ import annotations

import pytest

from harness.engines.scripted_model import call, section
from harness.fixtures.answers import FORMAT
from harness.measures.parsers.differential import ParserTally, note
from harness.measures.parsers.rules import RULES, explained, reading_of, summary
from harness.strategies.texts import Drawn, drawn_texts, ids_of_text

CALL = ("functions.get_time:0", '{"city": "Oslo"}')


def reasons(
    engine: str, text: str, *theirs: tuple[str, str], content: str = "", reasoning: str = ""
) -> list[str] | None:
    """Why the engine says these calls and texts of an instant answer, or of one that thought."""
    parts = FORMAT.parse(ids_of_text(FORMAT.tokenizer, text), thinking="</think>" in text)
    return explained(reading_of(FORMAT, parts), RULES[engine], (reasoning, content, theirs))


def test_calls_are_read_as_they_were_emitted() -> None:
    """Within the completion that holds them."""
    text = f"So.</think>Wait.{section(call(), call('x', ''))}Done."
    read = reading_of(FORMAT, FORMAT.parse(ids_of_text(FORMAT.tokenizer, text), thinking=True))

    assert ("So.", "Wait.Done.", (CALL, ("x", ""))) == summary(read)
    assert ("Wait.", "Done.") == (read.before, read.after)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_both_drop_text_after_a_section(engine: str) -> None:
    assert ["drops text after the section"] == reasons(engine, f"Wait.{section()}Done.", CALL, content="Wait.")


def test_sglang_numbers_calls_by_their_place() -> None:
    given = section(call("functions.get_time:3"))

    assert ["names a call anew: functions., its name, its place"] == reasons("sglang", given, CALL)
    assert None is reasons("vllm", given, CALL)


@pytest.mark.parametrize("arguments", ["", "[1]", "null", '{"a": 1} x', '{"a": 1'])
def test_sglang_drops_calls_without_braces(arguments: str) -> None:
    assert ["drops a call whose arguments are not in braces"] == reasons("sglang", section(call(arguments=arguments)))


def test_sglang_reads_an_open_brace_on_into_the_next_call() -> None:
    given = section(call(arguments='{"a": 1'), call("functions.f:1", '{"b": 2}'))
    run_on = '{"a": 1<|tool_call_end|><|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>{"b": 2}'

    assert ["reads arguments that end in no brace on into the next call"] == reasons(
        "sglang", given, ("functions.get_time:0", run_on)
    )


def test_vllm_fills_in_what_did_not_come() -> None:
    given = section(call(arguments=""))

    assert ["says {} where no arguments came"] == reasons("vllm", given, ("functions.get_time:0", "{}"))


def test_vllm_strips_the_end_of_the_reasoning() -> None:
    expected = ["strips white space at the end of the reasoning"]

    assert expected == reasons("vllm", "So.\n</think> Yes.\n", reasoning="So.", content=" Yes.\n")
    assert None is reasons("sglang", "So.\n</think> Yes.\n", reasoning="So.", content=" Yes.\n")


def test_a_difference_that_no_rule_makes_is_not_explained() -> None:
    tally = ParserTally()
    note(tally, "sglang", Drawn("Yes.", thinking=False), {"reasoning": "", "content": "No.", "calls": []}, FORMAT)
    note(tally, "sglang", Drawn("Yes.", thinking=False), {"reasoning": "", "content": "Yes.", "calls": []}, FORMAT)

    assert (2, 1, 0, 0, 1) == (tally.texts, tally.equal, tally.refused, tally.explained, len(tally.unexplained))


def test_the_same_number_draws_the_same_texts() -> None:
    """None of them names the end of a turn."""
    drawn = drawn_texts(60)

    assert drawn == drawn_texts(60)
    assert 60 == len(set(drawn))
    assert not [one for one in drawn if "<|im_" in one.text or "[EOS]" in one.text]
