"""The catalogue of real reports: every one is a case here or a line that says what covers it.

Cases stand in test_faults_answers.py, test_faults_streams.py, test_faults_prompts.py and test_faults_harmony.py, in a
table by report id each.
The rest is covered by tests that need no reference material, or belongs to a part of the pipeline that says so.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.reference

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

TESTED: Mapping[str, str] = {
    "F094": "tests/unit/pipeline/formats/test_family_renderings.py::test_a_prompt_equals_the_models_own_template",
    "F112": "tests/unit/pipeline/generation/engines/test_openrouter.py"
    "::test_an_error_status_is_an_answer_and_is_asked_once",
    "F114": "tests/e2e/test_generate_stops.py::test_a_killed_run_pays_nothing_twice_and_loses_no_answer",
    "F116": "tests/e2e/test_generate_stops.py::test_ctrl_c_lets_answers_in_flight_come_in",
    "F118": "tests/contract/test_cassettes.py::test_cassette_is_scrubbed",
    "F119": "tests/unit/harness/cassettes/test_scrub.py::test_only_listed_headers_are_kept_whatever_their_case",
    "F120": "tests/unit/harness/cassettes/test_replay.py::test_what_must_not_be_saved_is_not",
    "F121": "tests/contract/proof/wire/test_stream.py::test_bytes_cut_anywhere_say_the_same",
    "F122": "tests/unit/harness/cassettes/test_replay.py::test_a_recording_answers_once",
    "F123": "tests/unit/harness/goldens/test_extension.py::test_goldens_without_a_case_are_removed",
    "F124": "tests/unit/harness/goldens/test_extension.py::test_any_golden_writes_itself_again",
    "F125": "tests/unit/harness/attestation/test_plugin.py::test_workers_outcomes_reach_the_controller",
    "F126": "tests/unit/test_repo.py::test_contract_tests_do_not_set_their_own_number_of_examples",
}
"""Reports whose kind a test of ours holds that needs none of their input: other families, harness, money, ends."""

ADAPTERS = "dataset adapters: what a dataset writes becomes the schema there, or the row is refused before it is asked"
TRAINER = "hand-over and trainer: rows leave as ids with spans, and what reads them is checked there"
LATER: Mapping[str, tuple[str, str]] = {
    "F017": (ADAPTERS, "history that calls tools and lacks its reasoning is flagged as not sendable with thinking on"),
    "F037": (ADAPTERS, "arguments of a dataset are read as JSON first, and keep their apostrophes"),
    "F127": (ADAPTERS, "a ShareGPT system turn is kept; the core already names the feature `system`"),
    "F128": (ADAPTERS, "a system turn in the middle is a feature that a contract must cover"),
    "F130": (ADAPTERS, "a conversation that opens with the assistant is skipped and counted"),
    "F131": (ADAPTERS, "all turns of a ShareGPT row and its own system key are read"),
    "F133": (ADAPTERS, "a last user turn is the place to generate at"),
    "F135": (ADAPTERS, "empty user turns and assistant turns that say nothing are refused by name"),
    "F136": (ADAPTERS, "Glaive's single-quoted arguments are parsed strictly or the row is refused"),
    "F140": (ADAPTERS, "nulls that Arrow put into schemas are taken out there and counted"),
    "F142": (ADAPTERS, "calls baked into another model's text are text, and the report says so"),
    "F143": (ADAPTERS, "a call without a result, or a result without a call, is refused with its index"),
    "F144": (ADAPTERS, "foreign call ids are rewritten as a declared step, calls and results together"),
    "F149": (ADAPTERS, "roles outside the schema are refused with row and turn"),
    "F102": (TRAINER, "a mask of nothing, or of all of a row, is an error"),
    "F104": (TRAINER, "the mask's convention is stated and held against the trainer's shift"),
    "F145": (TRAINER, "the trainer's ids equal ours, reasoning among them"),
}
"""Reports that a later part of the pipeline covers: which, and how."""


def cases() -> Iterator[str]:
    """The ids of the reports that are cases, from the tables of the files beside this one."""
    for path in sorted(HERE.glob("test_faults_*.py")):
        table = path.read_text("utf-8").partition("\nCASES:")[2]
        yield from re.findall(r'"(F\d{3})":', table)


def test_every_report_is_a_case_or_says_what_covers_it(reports: Mapping[str, dict[str, Any]]) -> None:
    named = [*cases(), *TESTED, *LATER]

    assert sorted(reports) == sorted(named)
    assert (96, 13, 17) == (len(list(cases())), len(TESTED), len(LATER))


@pytest.mark.parametrize("identity", sorted(TESTED))
def test_what_covers_a_report_exists(identity: str) -> None:
    path, _, name = TESTED[identity].partition("::")
    tree = ast.parse((ROOT / path).read_bytes())

    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
