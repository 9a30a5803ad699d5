"""A dataset is sent only where contracts cover what its rows use: one without tools may run, one with tools may not.

The route is an emulated one whose tools contract is missing. Rows are in the published schemas, in our own words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.fixtures.trees import CLEAN, NOW, Tree, small_tree
from pipeline.base.prompts import RefusedLine
from pipeline.formats.registry import open_format
from pipeline.gate import gate
from pipeline.generation.coverage import audited, cover_of, lacks, needed, uncovered
from pipeline.generation.plan import Plan
from pipeline.records import Json, Prompt, Reason, Route, Sampling, ToolMode

pytestmark = pytest.mark.contract

ROUTE = Route("emulator", "drafter-gate/tiny-kimi", "chutes")
OFFER = "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
BAKE = '{"name": "bake", "description": "Bakes.", "parameters": {"type": "object", "properties": {}}}\n'
NONE = "SYSTEM: You are a helpful assistant, with no access to external functions.\n\n"
CALL = '<functioncall> {"name": "bake", "arguments": \'{}\'} <|endoftext|>\n\n\nFUNCTION RESPONSE: {"warm": true}\n\n\n'
END = " <|endoftext|>\n\n\n"
B1: list[dict[str, Json]] = [
    {"system": OFFER + BAKE, "chat": f"USER: A song, please.\n\n\nASSISTANT: I cannot sing.{END}"},
    {"system": NONE, "chat": f"USER: What is rye?\n\n\nASSISTANT: A grain.{END}"},
    {"system": OFFER + BAKE, "chat": f"USER: Two loaves.\n\n\nASSISTANT: {CALL}ASSISTANT: It is done.{END}"},
    {"system": OFFER + "{", "chat": f"USER: Broken.\n\n\nASSISTANT: Yes.{END}"},
    {"system": NONE, "chat": f"USER: And wheat?\n\n\nASSISTANT: Another.{END}USER: Which is darker?\n\n\n"},
]
B4: list[dict[str, Json]] = [
    {
        "messages": [{"role": "user", "content": f"What is {n} + {n}?"}, {"role": "assistant", "content": "It is."}],
        "num_tokens": 2,
        "source": "ours",
    }
    for n in range(4)
]


def attest(tree: Tree, *features: str) -> gate.Standing:
    """The tree with contracts on the route that cover these features and no other."""
    tree.attest(contracts=[{"route": ROUTE.name, "features": list[Json](features)}])
    runtime = replace(CLEAN, search_path=(str(tree.root),))
    return gate.examine(tree.root, now=NOW, runtime=runtime, attestation=tree.attestation, keys=tree.keys)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return small_tree(tmp_path)


@pytest.fixture
def toolless(tree: Tree) -> gate.Standing:
    return attest(tree, "system", "multi_turn", "history_reasoning", "thinking")


def plan(folder: Path, dataset: str, rows: Iterable[dict[str, Json]], tools: ToolMode = ToolMode.RAW) -> Plan:
    source = folder / f"{dataset}.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out, fmt = folder / "out", open_format("tiny-kimi")
    return Plan(source, out, ROUTE, Sampling(), tools, fmt, 10**12, dataset=dataset)


def decide(tree: Tree, standing: gate.Standing, features: frozenset[str]) -> gate.Decision:
    return gate.judge(tree.job(route=ROUTE, features=features), standing, now=NOW)


def test_a_dataset_without_tools_may_run(tree: Tree, toolless: gate.Standing, tmp_path: Path) -> None:
    asked = plan(tmp_path, "B4", B4)
    audit = audited(asked)

    assert (4, {}) == (audit.prompts, audit.rejected)
    assert [] == lacks(audit, asked, toolless)
    assert decide(tree, toolless, needed(audit)).allowed


def test_a_dataset_with_tools_is_refused_on_the_same_route(tree: Tree, toolless: gate.Standing, tmp_path: Path) -> None:
    """The refusal names its rows."""
    asked = plan(tmp_path, "B1", B1)
    audit, ids = audited(asked), [line.id for line in asked.lines() if isinstance(line, Prompt)]

    decision, found = decide(tree, toolless, needed(audit)), lacks(audit, asked, toolless)

    (objection,) = decision.objections
    assert decision.permit is None
    assert "no contract on emulator/chutes that passed covers: " in objection.what
    named = {lack.feature: lack.first for lack in found}
    assert {"tools_declared": (ids[0], ids[2]), "tool_transcript": (ids[2],)} == named
    assert [2, 1] == [lack.rows for lack in found]
    assert "@pytest.mark.covers('tools_declared', route='emulator/chutes')" in found[0].contract
    assert "nox -s cassettes, then nox -s contract" == found[0].run


def test_only_covered_rows_are_sent_and_others_set_aside(tree: Tree, toolless: gate.Standing, tmp_path: Path) -> None:
    """Rows in are rows sent, set aside and rejected."""
    asked = plan(tmp_path, "B1", B1)
    cover = cover_of(audited(asked), asked, toolless, only_covered=True)
    within = replace(asked, cover=cover)

    lines = list(within.lines())
    aside = [uncovered(line, within) for line in lines if isinstance(line, Prompt)]

    assert decide(tree, toolless, cover.features).allowed
    assert ("structured_tools", "tool_transcript", "tools_declared", "turn_order") == cover.left_out
    assert [Reason.UNCOVERED, None, Reason.UNCOVERED, None] == [each and each.reason for each in aside]
    assert 1 == sum(isinstance(line, RefusedLine) for line in lines)
    assert 5 == len(lines)


HELLO: dict[str, Json] = {"role": "user", "content": "Hello"}


@pytest.mark.parametrize("role", ["critic", "function", "human", "User", ""])
@pytest.mark.parametrize("dataset", ["messages", ""])
def test_a_row_with_an_unknown_role_is_never_sent(role: str, dataset: str, tmp_path: Path) -> None:
    """As prepared prompts and as a dataset's rows: templates print such a role as the system's."""
    rows: list[dict[str, Json]] = [
        {"id": "a", "messages": [HELLO, {"role": role, "content": "No."}, HELLO]},
        {"id": "b", "messages": [HELLO]},
    ]
    asked = replace(plan(tmp_path, "messages", rows), dataset=dataset)
    refused, sent = asked.lines()

    assert isinstance(refused, RefusedLine)
    assert isinstance(sent, Prompt)
    assert "b" == sent.id


def test_turns_that_do_not_alternate_need_a_contract(toolless: gate.Standing, tree: Tree, tmp_path: Path) -> None:
    asked = plan(tmp_path, "messages", [{"id": "a", "messages": [HELLO, HELLO]}])
    audit = audited(asked)

    assert ["turn_order"] == [lack.feature for lack in lacks(audit, asked, toolless)]
    assert not decide(tree, toolless, needed(audit)).allowed
    assert [] == lacks(audit, asked, attest(tree, "multi_turn", "turn_order"))


def test_a_row_that_came_after_the_audit_is_not_sent(toolless: gate.Standing, tmp_path: Path) -> None:
    asked = plan(tmp_path, "B1", B1[1:2])
    within = replace(asked, cover=cover_of(audited(asked), asked, toolless, only_covered=False))
    plan(tmp_path, "B1", B1[:2])

    aside = [uncovered(line, within) for line in within.lines() if isinstance(line, Prompt)]

    assert [Reason.UNCOVERED, None] == [each and each.reason for each in aside]


@pytest.mark.parametrize(
    "covered, tools, lacking",
    [
        ("tools_declared", ToolMode.RAW, []),
        ("tools_declared", ToolMode.STRUCTURED, ["structured_tools"]),
        ("structured_tools", ToolMode.STRUCTURED, []),
        ("structured_tools", ToolMode.RAW, ["tools_declared"]),
    ],
)
def test_tools_in_prompt_and_in_request_cover_not_each_other(
    covered: str, tools: ToolMode, lacking: list[str], tree: Tree, tmp_path: Path
) -> None:
    standing = attest(tree, "system", covered)

    asked = plan(tmp_path, "B1", B1[:2], tools)
    audit = audited(asked)

    assert lacking == [lack.feature for lack in lacks(audit, asked, standing)]
    assert (not lacking) == decide(tree, standing, needed(audit)).allowed


def test_tool_data_without_a_tool_needs_its_datasets_default(toolless: gate.Standing, tmp_path: Path) -> None:
    """A trajectory cut to its first turn: nothing in the row declares a tool."""
    row: dict[str, Json] = {"id": "B8-smith-tool-1", "messages": [{"role": "user", "content": "Mend it."}]}

    for asked in (plan(tmp_path, "messages", [{**row, "dataset": "B8-smith-tool"}]), plan(tmp_path, "B8", [row])):
        found = lacks(audited(asked), asked, toolless)
        assert ["tools_declared"] == [lack.feature for lack in found]


def test_a_contract_elsewhere_is_said_and_covers_nothing_here(tree: Tree, tmp_path: Path) -> None:
    tree.attest(contracts=[{"route": "local", "features": ["tools_declared"]}])
    runtime = replace(CLEAN, search_path=(str(tree.root),))
    standing = gate.examine(tree.root, now=NOW, runtime=runtime, attestation=tree.attestation, keys=tree.keys)

    asked = plan(tmp_path, "B1", B1[:1])
    (lack,) = lacks(audited(asked), asked, standing)

    assert ("tools_declared", ("local",)) == (lack.feature, lack.elsewhere)


def test_a_paid_routes_contract_covers_its_own_format_alone(tree: Tree, tmp_path: Path) -> None:
    """One provider serves several families, and a tools contract of one says nothing of another."""
    paid = Route("openrouter", "m/k", "siliconflow")
    tree.attest(contracts=[{"route": "openrouter/siliconflow glm-5", "features": ["tools_declared"]}])
    runtime = replace(CLEAN, search_path=(str(tree.root),))
    standing = gate.examine(tree.root, now=NOW, runtime=runtime, attestation=tree.attestation, keys=tree.keys)
    asked = replace(plan(tmp_path, "B1", B1[:1]), route=paid)

    (lack,) = lacks(audited(asked), asked, standing)

    assert "route='openrouter/siliconflow tiny-kimi'" in lack.contract
    assert lack.run.startswith("nox -s cassettes -- --live --route openrouter/siliconflow --model m/k")
    assert {"tools_declared"} == gate.covered(paid, "glm-5", standing)
