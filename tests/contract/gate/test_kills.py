"""The kill table: read whole, held to the tree, and needed beyond a developer's dollar."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.fixtures.trees import NOW, Tree, kill_table, small_tree
from pipeline.gate import gate
from pipeline.gate.attestation import Scope
from pipeline.gate.digests import file_sha256
from pipeline.gate.kills import KILLS, MUTATED, KillTableError, changed_files, mutated_files, read_kills
from pipeline.records import Json, Route

pytestmark = pytest.mark.contract

PAID = Route("openrouter", "moonshotai/kimi-k2.5", "siliconflow")
MEND = "nox -s teeth -- --write, commit tests/contract/KILLS, and use the attestation that CI signs for it"
HEAD: dict[str, Any] = {
    "measured": "2026-11-29",
    "named": {"killed": 1, "of": 2, "equivalent": 0},
    "drawn": {"killed": 1, "of": 2, "equivalent": 1},
    "files": {"pipeline/gate/gate.py": "ab" * 32},
}
LINES: list[dict[str, Any]] = [
    HEAD,
    {"promise": "held", "file": "pipeline/gate/gate.py", "killer": "tests/contract/test_a.py::test_a"},
    {"promise": "open", "file": "pipeline/gate/gate.py", "killer": None},
    {"survivor": "pipeline/gate/gate.py:AddNot:1", "line": 3},
    {"survivor": "pipeline/gate/gate.py:AddNot:2", "line": 4, "equivalent": "both are the same set"},
]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return small_tree(tmp_path)


def written(root: Path, lines: list[Any]) -> Path:
    path = root / KILLS
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


# Reading


def test_a_table_is_read_with_its_killers(tmp_path: Path) -> None:
    found = read_kills(written(tmp_path, LINES))

    assert found is not None
    assert {"held": "tests/contract/test_a.py::test_a"} == dict(found.killers)
    assert (1, 2, 1) == (found.shares["named"].killed, found.shares["drawn"].of, found.shares["drawn"].equivalent)
    assert ("2026-11-29", HEAD["files"]) == (found.measured.isoformat(), found.files)


def test_a_tree_may_have_no_table(tmp_path: Path) -> None:
    assert read_kills(tmp_path) is None


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [[]],
        [{}, *LINES[1:]],
        [{**HEAD, "measured": "soon"}, *LINES[1:]],
        [{**HEAD, "named": {"killed": 2, "of": 2, "equivalent": 0}}, *LINES[1:]],
        [{**HEAD, "drawn": {"killed": 2, "of": 2, "equivalent": 1}}, *LINES[1:]],
        [{**HEAD, "drawn": {"killed": 1, "of": 2, "equivalent": 0}}, *LINES[1:]],
        [*LINES, LINES[1]],
        LINES[:-3],
        [*LINES[:3], "x"],
    ],
    ids=["empty", "a list", "no head", "no date", "more killed", "fewer left", "fewer alike", "twice", "cut", "text"],
)
def test_a_table_that_contradicts_itself_is_refused(lines: list[Any], tmp_path: Path) -> None:
    with pytest.raises(KillTableError, match=r"is no whole kill table .* Run: nox -s teeth -- --write"):
        read_kills(written(tmp_path, lines))


def test_every_place_that_is_broken_is_there() -> None:
    root = Path(gate.__file__).parents[2]
    files = mutated_files(root)

    assert [] == [place for place in MUTATED if not any(name.startswith(place) for name in files)]


# The gate


def attest(tree: Tree, scope: Scope = Scope.CI, kills: Json = None) -> None:
    key = tree.new_ci_key() if scope is Scope.CI else None
    live: dict[str, Json] = {"openrouter/siliconflow moonshotai/kimi-k2.5": NOW.isoformat()}
    tree.attest(key=key, scope=scope, groups=["base", "live:openrouter/siliconflow"], liveCassettes=live, kills=kills)


def whats(tree: Tree, **changes: object) -> list[str]:
    found = tree.decide(tree.job(**{"route": PAID, "budget_usd": 0.5, **changes})).objections

    assert {MEND} >= {objection.mend for objection in found}
    return [objection.what for objection in found]


def test_ci_unlocks_money_only_with_a_kill_table(tree: Tree) -> None:
    attest(tree)

    assert ["no kill table shows that the contract suite notices a broken promise"] == whats(tree)


def test_a_table_that_is_just_good_enough_unlocks_money(tree: Tree) -> None:
    attest(tree, kills=kill_table(tree.root).document())

    assert [] == whats(tree)


@pytest.mark.parametrize(
    "sort, share, said",
    [
        ("named", (118, 125, 3), "the contract suite noticed 118 of 125 named faults, at least 95% are needed"),
        ("drawn", (179, 200, 6), "the contract suite noticed 179 of 200 drawn faults, at least 90% are needed"),
        ("named", (119, 119, 3), "119 named faults were tried, at least 120 are needed"),
        ("drawn", (199, 199, 0), "199 drawn faults were tried, at least 200 are needed"),
        ("drawn", (200, 200, 7), "7 of 207 drawn faults are declared to change nothing"),
        ("named", (119, 125, 4), "4 of 129 named faults are declared to change nothing"),
    ],
)
def test_a_weak_table_unlocks_nothing(sort: str, share: tuple[int, int, int], said: str, tree: Tree) -> None:
    attest(tree, kills=kill_table(tree.root, **{sort: share}).document())

    assert [f"the kill table of 2026-11-29: {said}"] == whats(tree)


def edited(root: Path) -> str:
    (root / "pipeline/gate/gate.py").write_text("shut = False\n")
    return "pipeline/gate/gate.py"


def added(root: Path) -> str:
    (root / "pipeline/proof").mkdir()
    (root / "pipeline/proof/new.py").write_text("")
    return "pipeline/proof/new.py"


def gone(root: Path) -> str:
    (root / "pipeline/gate/gate.py").unlink()
    return "pipeline/gate/gate.py"


@pytest.mark.parametrize("change", [edited, added, gone])
def test_a_table_of_other_files_unlocks_nothing(change: Callable[[Path], str], tree: Tree) -> None:
    table = kill_table(tree.root)
    name = change(tree.root)
    attest(tree, kills=table.document())

    assert (name,) == changed_files(table, tree.root)
    assert [f"the kill table of 2026-11-29 broke other files: {name}"] == whats(tree)


def test_a_change_of_the_drafter_takes_no_paid_route_its_table(tree: Tree) -> None:
    table = kill_table(tree.root)
    (tree.root / "pipeline/drafter").mkdir()
    (tree.root / "pipeline/drafter/rows.py").write_text("")
    attest(tree, kills=table.document())

    assert ("pipeline/drafter/rows.py",) == changed_files(table, tree.root)
    assert [] == whats(tree)


@pytest.mark.parametrize("scope", list(Scope))
def test_what_spends_little_or_nothing_needs_no_table(scope: Scope, tree: Tree) -> None:
    attest(tree, scope)
    prompts = file_sha256(tree.root / gate.PROBES)
    probe = tree.job(kind=gate.Kind.PROBE, route=PAID, budget_usd=0.5, prompts_sha256=prompts)

    assert tree.decide().allowed
    assert tree.decide(probe).allowed


def test_a_developers_dollar_needs_no_table(tree: Tree) -> None:
    attest(tree, Scope.DEV)

    assert [] == whats(tree)


@pytest.mark.parametrize("kills", [{}, [], "x", {"sha256": "a"}, 7])
def test_an_attested_table_of_another_shape_shuts_the_gate(kills: Json, tree: Tree) -> None:
    attest(tree, kills=kills)

    (objection,) = tree.decide().objections

    assert "no test result of this project" in objection.what
