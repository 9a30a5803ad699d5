"""B2, OpenCodeInstruct: one programming task a row."""

from __future__ import annotations

from pipeline.datasets.conversation import identity
from pipeline.datasets.rows import Raw, question_in
from pipeline.records import Prompt

NAME = "B2"
COLUMNS, MORE = frozenset({"input"}), frozenset({"id"})
PAGE = """nvidia/OpenCodeInstruct: 5,000,000 rows, one task each. The owner of the first run named no B2; that it was
this set is our reading, from the other seven and from what preparation scripts for drafters offer beside them.

Schema: `id`, `input`, `output`, `domain`, `generation_algorithm`, `llm_judgement`, `unit_tests`,
`tests_execution_status`, `average_test_score`, all text. The prompt is one user turn, `input`, as it stands.

Dropped: `output`, since the target writes its own answer, and the six columns that judge that output: a task whose
recorded solution failed its tests is a good prompt all the same."""


def adapt(raw: Raw) -> Prompt:
    """Take `input` as the question. Raises RejectedError."""
    question = question_in(raw.value, "input")
    row_id = identity(NAME, raw.value.get("id"), question)
    return Prompt(row_id, ({"role": "user", "content": question},), dataset=NAME)
