"""B3, Magicoder: one programming task a row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pipeline.datasets.conversation import identity
from pipeline.datasets.rows import Raw, question_in
from pipeline.records import Prompt

OSS, EVOL = "B3-oss", "B3-evol"
OSS_COLUMNS, OSS_MORE = frozenset({"problem"}), frozenset({"raw_index", "index"})
EVOL_COLUMNS, EVOL_MORE = frozenset({"instruction"}), frozenset({"response"})
OSS_PAGE = """ise-uiuc/Magicoder-OSS-Instruct-75K: 75,197 rows in `data-oss_instruct-decontaminated.jsonl`.

Schema: `lang`, `raw_index`, `index`, `seed`, `openai_fingerprint`, `problem`, `solution`. The prompt is one user turn,
`problem`, as it stands.

Dropped: `solution`, since the target writes its own; `seed`, the snippet that the problem was made from, which nobody
who asks would send; the rest says where the row came from. One problem stands in rows of several `lang`; preparation
keeps the first."""
EVOL_PAGE = """ise-uiuc/Magicoder-Evol-Instruct-110K: 111,183 rows in `data-evol_instruct-decontaminated.jsonl`.

Schema: `instruction`, `response`. The prompt is one user turn, `instruction`, as it stands: leftovers of its making
(`#Difficulty Increase#`), garbled text and other languages are kept, since a target meets such text too.

Dropped: `response`. An empty one is no fault: the question is whole."""


def adapt(raw: Raw, *, name: str, column: str, more: Sequence[str]) -> Prompt:
    """Take one column as the question.

    The columns `more` distinguish the ids of rows that ask the same. Raises RejectedError.
    """
    question = question_in(raw.value, column)
    row_id = identity(name, None, question, *map(raw.value.get, more))
    return Prompt(row_id, ({"role": "user", "content": question},), dataset=name)


adapt_oss = partial(adapt, name=OSS, column="problem", more=sorted(OSS_MORE))
adapt_evol = partial(adapt, name=EVOL, column="instruction", more=sorted(EVOL_MORE))
