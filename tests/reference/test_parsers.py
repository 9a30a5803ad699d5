"""Our parse beside SGLang's and vLLM's Kimi parsers, and our prompts beside those of `renderers`.

What they made of texts was recorded where they run; `parser_differences.json` says, case by case, why we differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.measures.parsers.differential import (
    EXPLAINED,
    Calls,
    ParserVerdict,
    compared,
    formats_of,
    listed_differences,
    our_reading,
    table,
    unexplained,
)
from harness.strategies.texts import ids_of_text
from pipeline.formats.format import Format


@pytest.fixture(scope="module")
def formats(shared: Path) -> Mapping[str, Format]:
    return formats_of(shared)


@pytest.fixture(scope="module")
def verdicts(shared: Path) -> Mapping[str, Mapping[str, ParserVerdict]]:
    return compared(shared)


def test_every_recorded_case_is_compared(verdicts: Mapping[str, Mapping[str, ParserVerdict]]) -> None:
    print("\n" + table(verdicts))  # noqa: T201 — the measure, for `pytest -s`
    expected = {
        "SGLang calls": 69,
        "SGLang reasoning": 71,
        "SGLang whole": 69,
        "vLLM calls": 69,
        "vLLM reasoning": 56,
    }

    assert expected == {oracle: len(of_oracle) for oracle, of_oracle in verdicts.items()}


def test_differences_and_explanations_match_one_to_one(
    verdicts: Mapping[str, Mapping[str, ParserVerdict]],
) -> None:
    assert [] == unexplained(verdicts)


def test_a_new_difference_and_an_old_explanation_are_both_wrong(
    verdicts: Mapping[str, Mapping[str, ParserVerdict]],
) -> None:
    name = next(iter(listed_differences()["vLLM reasoning"]))
    changed = {**verdicts["vLLM reasoning"], name: ParserVerdict.EQUAL, "another": ParserVerdict.DIFFERS}

    assert [
        f"vLLM reasoning: another differs, and {EXPLAINED.name} does not say why",
        f"vLLM reasoning: {name} stands in {EXPLAINED.name} and does not differ",
    ] == unexplained({**verdicts, "vLLM reasoning": changed})


def test_no_case_is_explained_twice() -> None:
    listed = json.loads(EXPLAINED.read_text("utf-8"))
    for reasons in listed.values():
        names = [name for names in reasons.values() for name in names]
        assert len(names) == len(set(names))


def test_enough_of_each_oracle_is_equal(verdicts: Mapping[str, Mapping[str, ParserVerdict]]) -> None:
    """A parse that refused everything would differ nowhere."""
    equal = {oracle: list(of_oracle.values()).count(ParserVerdict.EQUAL) for oracle, of_oracle in verdicts.items()}

    assert {
        "SGLang calls": 26,
        "SGLang reasoning": 34,
        "SGLang whole": 28,
        "vLLM calls": 36,
        "vLLM reasoning": 19,
    } == equal


def test_a_text_with_markers_is_read_part_by_part(formats: Mapping[str, Format]) -> None:
    """The comparison's own reading, on an example written out."""
    text = (
        "So.</think>Let me.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"a": 1}<|tool_call_end|><|tool_calls_section_end|>Done.<|im_end|>'
    )
    fmt = formats["kimi-k2.5"]
    said = our_reading(fmt, ids_of_text(fmt.tokenizer, text), thinking=True, calls=Calls.BY_ID)

    assert ("So.", "Let me.Done.", (("functions.f:0", '{"a": 1}'),)) == (said.reasoning, said.content, said.calls)
    assert "f" == our_reading(fmt, ids_of_text(fmt.tokenizer, text), thinking=True, calls=Calls.BY_NAME).calls[0][0]
