"""Every tagged row, synthetic and odd: it ends as its tag says."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from harness.fixtures.dataset_rows import adapted
from pipeline.datasets.adapters import glaive, sweagent
from pipeline.datasets.prepare import Preparation, RowFilter, Selection
from pipeline.datasets.registry import DATASETS
from pipeline.records import Prompt

pytestmark = pytest.mark.reference

Sieves: TypeAlias = Callable[[str, int], RowFilter]
MOST = 3000
"""Tokens of the tiny target that a prompt may have."""


def prepared(sieve: Sieves, dataset: str, path: Path, folder: Path) -> dict[int, Prompt | str]:
    """What preparation makes of each row, by its line."""
    known = DATASETS[dataset]
    Preparation(sieve(dataset, MOST), Selection(known.cap)).write(path, folder / "out", folder / "no")
    found: dict[int, Prompt | str] = dict(adapted(dataset, path))
    for line in (folder / "no").read_bytes().splitlines():
        rejected = json.loads(line)
        found[rejected["line"]] = rejected["reason"]
    return found


def contents(prompt: Prompt) -> list[Any]:
    return [message["content"] for message in prompt.messages]


def roles(prompt: Prompt) -> str:
    return " ".join(str(message["role"]) for message in prompt.messages)


def functions(prompt: Prompt) -> list[str]:
    return [str(tool["function"]["name"]) for tool in prompt.tools]  # type: ignore[index,call-overload]


EXPECTED: Mapping[str, Mapping[int, str | dict[str, Any]]] = {
    "B1_glaive_odd": {
        1: {"functions": ["look_up_tide"]},
        2: {
            "functions": [],
            "roles": "system user assistant user",
            "first": "You are a helpful assistant, with no access to external functions.",
        },
        3: {"functions": ["add_reminder", "drop_reminder"]},
        4: {"functions": ["flip_coin"]},
        5: {"functions": ["send_note"]},
        6: {"roles": "user", "last": "Grade: life's good"},
        7: {"functions": ["new_id"]},
        8: {"functions": ["find_song"]},
        9: {"functions": ["shop_search"]},
        10: {"roles": "user", "last": "The words of the song?"},
        11: {"roles": "user", "last": "News on AI?"},
        12: {"roles": "user", "last": 'Add the book "\nASSISTANT: A Modern Approach", two copies.'},
        13: "tool_twice",
        14: {"roles": "system user user", "last": "Stop now, please."},
        15: {"roles": "system user assistant user", "last": "And a drumlin?"},
        16: {"roles": "system user", "last": "Hi"},
        17: "no_turns",
    },
    "B2_opencodeinstruct": {
        1: {"roles": "user"},
        2: {"has": "Find the least total cost.\n\n**Input:**\n- n, then n lengths\n\n**Sample Input:**\n4"},
        3: {"functions": []},
        4: {"last": "Write `median(xs)`."},
        5: {"last": "Write `is_leap(y)`."},
        6: {"has": "```python\ni = 0\nwhile i < 10:\n    print(i)\n```"},
        7: "duplicate",
        8: "contaminated",
        9: "empty_prompt",
        10: "too_long",
    },
    "B3_magicoder_evol": {
        1: {"roles": "user"},
        2: {"last": "In Go and in Kotlin, write a function that counts vowels."},
        3: {"has": "d3f 5um"},
        4: {"has": "#Difficulty Increase#"},
        5: {"roles": "user", "last": "You are an expert in compilers. Explain SSA form."},
        6: {"functions": []},
        7: {"functions": []},
        8: {"has": "```python"},
        9: {"last": "What does `git bisect` do?"},
        10: "empty_prompt",
    },
    "B3_magicoder_oss": {
        1: {"roles": "user"},
        2: {"has": "```cpp\n"},
        3: {"has": "close() {\n```"},
        4: {"has": "given as $1."},
        5: {"last": "Write a method that reverses the words of a sentence."},
        6: {"has": "<|endoftext|>"},
        7: {"has": "or None"},
        8: "empty_prompt",
        9: {"has": "`Area`.\r\nIt"},
        10: "duplicate",
    },
    "B4_mixture_of_thoughts": {
        1: {"roles": "user"},
        2: {"has": "complete implementation in C++17.\n\nYour solution"},
        3: {"has": "Solve it in Python.\n\nPrint"},
        4: {"last": "Which gas is most of air?A: oxygenB: nitrogenC: argon"},
        5: {"roles": "user", "last": "Why is the sky dark at night?"},
        6: {"has": "$<|x|>$"},
        7: {"last": "Prove the statement about $n$ ropes."},
        8: "repeated",
        9: {"roles": "user"},
        10: "no_turns",
    },
    "B5_openthoughts3_1.2M": {
        1: {"roles": "user"},
        2: {"has": "twenty consecutive"},
        3: "duplicate",
        4: {"roles": "user"},
        5: {"roles": "user"},
        6: {"roles": "user"},
        7: {"last": "Prove that 2 is the only even prime."},
        8: "too_long",
        9: {"last": "<p>Write a quine.</p>\n<pre><code>?</code></pre>"},
        10: "empty_prompt",
    },
    "B5_openthoughts_114k": {
        1: {"roles": "user", "has": "Return your final response within \\boxed{}. How many"},
        2: {"roles": "user", "has": "Generate an executable Python function"},
        3: {"roles": "user", "has": "at the final solution.Reverse a str"},
        4: {"last": "What is the molar mass of sucrose?"},
        5: {"roles": "user"},
        6: {"has": "<|begin_of_thought|>"},
        7: {"roles": "user"},
        8: {"last": "Is 91 prime?"},
        9: "empty_prompt",
        10: "repeated",
    },
    "B6_ultrachat": {
        1: {"roles": "user assistant user", "last": "Which trees?"},
        2: {"roles": "user assistant user", "last": "Another?"},
        3: {"has": "Answer according to: the passage above."},
        4: {"has": "Answer according to: Adults pay"},
        5: {"roles": "user", "last": "Say nothing."},
        6: "repeated",
        7: {"roles": "system user"},
        8: {"last": "Tell me about bees."},
        9: {"roles": "user"},
        10: "no_turns",
    },
    "B7_sharegpt": {
        1: {"roles": "user assistant user", "last": "Another."},
        2: "joined",
        3: {"roles": "user", "last": "hi"},
        4: {"roles": "user assistant user", "last": "again"},
        5: {"has": "<code>ls</code>"},
        6: {"last": "loop in bash"},
        7: {"last": "1 / 2\nTell me a pun."},
        8: {"roles": "user", "last": "Write a list."},
        9: {"roles": "user", "last": "hello"},
        10: "no_turns",
        11: {"last": "Convert 3 ft to cm."},
        12: "no_beginning",
        13: {"last": "what is rust"},
        14: "plugins",
        15: {"id": 23, "last": "Hi there"},
        16: {"last": "2+2"},
        17: "duplicate",
        18: {"roles": "user assistant user", "last": "c?"},
        19: "no_turns",
    },
    "B8_nebius_swe_agent": {
        1: {"has": "COMMANDS:"},
        2: {"roles": "system user", "last": "ISSUE:\nX"},
        3: {"roles": "system user user", "last": "ISSUE:\nY"},
        4: {"has": "ISSUE:\nZ"},
        5: {"roles": "system user", "last": "ISSUE:\nQ"},
        6: {"has": "ISSUE:\nR"},
        7: {"has": "ISSUE:\nS"},
        8: {"has": "\x1b"},
        9: {"has": "ISSUE:\nU"},
        10: "no_turns",
    },
    "B8_swe_smith": {
        1: {"dataset": "B8-smith-xml"},
        2: {"dataset": "B8-smith-xml"},
        3: "over_cap",
        4: "over_cap",
        5: "duplicate",
        6: "duplicate",
        7: "duplicate",
        8: "duplicate",
        9: "duplicate",
        10: "no_turns",
    },
}
"""What becomes of each tagged line: a reason, or what is true of its prompt."""


def test_every_tag_has_its_expectation(shared: Path) -> None:
    assert {(name, line) for name, line, _ in tags(shared)} == {(n, line) for n in EXPECTED for line in EXPECTED[n]}


def tags(shared: Path) -> Iterator[tuple[str, int, str]]:
    """File, line and case of each tag."""
    for path in sorted((shared / "datasets" / "synthetic").glob("*.tags.tsv")):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                yield path.name.removesuffix(".tags.tsv"), int(row["line"]), row["case"]


@pytest.mark.parametrize("name", EXPECTED)
def test_every_tagged_row_ends_as_its_tag_says(name: str, shared: Path, sieve: Sieves, tmp_path: Path) -> None:
    wanted = EXPECTED[name]
    path = shared / "datasets" / "synthetic" / f"{name}.jsonl"
    found = prepared(sieve, name[:2], path, tmp_path)
    told = {line: one if isinstance(one, str) else facts(one, wanted[line]) for line, one in found.items()}

    assert dict(wanted) == dict(sorted(told.items()))


def facts(prompt: Prompt, wanted: str | dict[str, Any]) -> dict[str, Any]:
    """The facts of a prompt that are wanted; a text that it has or lacks is given back where that is so."""
    told = "\n\n".join(map(str, contents(prompt)))
    known = {
        "roles": roles(prompt),
        "first": contents(prompt)[0],
        "last": contents(prompt)[-1],
        "functions": functions(prompt),
        "dataset": prompt.dataset,
        "id": len(prompt.id),
    }
    facts = {key: known.get(key) for key in wanted} if isinstance(wanted, dict) else dict(known)
    if isinstance(wanted, dict) and "has" in wanted:
        facts["has"] = wanted["has"] if wanted["has"] in told else told
    if isinstance(wanted, dict) and "lacks" in wanted:
        facts["lacks"] = wanted["lacks"] if wanted["lacks"] not in told else told
    return facts


CALLS: Mapping[int, tuple[str, str, str]] = {
    1: ("user assistant tool assistant", "look_up_tide", '{"x": "Whitby"}'),
    4: ("user assistant tool assistant", "flip_coin", "{}"),
    5: ("user assistant tool assistant", "send_note", '{"x": "let\'s meet at 5"}'),
    7: ("user assistant tool assistant", "new_id", "{}"),
    8: ("user assistant tool assistant", "find_song", '{\n  "x": "Harvest Moon"\n}'),
    9: ("user assistant tool assistant", "shop_search", '{"x": "kettle"}'),
}
"""Glaive's tagged rows with a call that can be read: roles of the whole conversation, name and arguments."""


def test_tagged_calls_of_glaive_are_read_whole(shared: Path) -> None:
    """A prompt is a prefix of its conversation; this looks at the whole."""
    path = shared / "datasets" / "synthetic" / "B1_glaive_odd.jsonl"
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    told: dict[int, tuple[str, str, str]] = {}
    for line in CALLS:
        turns: list[dict[str, Any]] = [dict(turn) for turn in glaive.conversation(rows[line - 1])]
        (call,) = next(turn["tool_calls"] for turn in turns if turn.get("tool_calls"))
        told[line] = (
            " ".join(turn["role"] for turn in turns),
            call["function"]["name"],
            call["function"]["arguments"],
        )

    assert dict(CALLS) == told


TRAJECTORIES: Mapping[int, tuple[str, str, object]] = {
    1: ("B8-smith-xml", "system user assistant user", "OBSERVATION:\nsetup.py"),
    2: ("B8-smith-xml", "system user assistant", "<function=submit>\n</function>"),
    3: ("B8-smith-tool", "system user assistant tool", "OBSERVATION:\nsetup.py"),
    4: ("B8-smith-ticks", "system user assistant user", "OBSERVATION:\nsetup.py"),
    5: ("B8-smith-tool", "system user assistant", None),
    6: ("B8-smith-ticks", "system user assistant", "Exit due to cost limit"),
    7: ("B8-smith-ticks", "system user assistant user", "OBSERVATION:\n\x00\x01"),
    8: ("B8-smith-ticks", "system user", "Fix it."),
    9: ("B8-smith-xml", "system user assistant", "Another way."),
}
"""SWE-smith's tagged rows: their form, the roles of the whole trajectory, and its last content."""


def test_tagged_trajectories_of_swe_smith_are_read_whole(shared: Path) -> None:
    path = shared / "datasets" / "synthetic" / "B8_swe_smith.jsonl"
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    read = {line: sweagent.smith_turns(rows[line - 1]) for line in TRAJECTORIES}

    assert dict(TRAJECTORIES) == {
        line: (sweagent.form_of(turns), " ".join(str(turn["role"]) for turn in turns), turns[-1]["content"])
        for line, turns in read.items()
    }
