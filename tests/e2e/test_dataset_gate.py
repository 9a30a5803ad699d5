"""`generate --dataset` past the real gate of an attested copy whose contracts on one emulated route lack the tools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from harness.fixtures.runs import World, emulating, pool
from harness.fixtures.trees import Copy, attested, make_copy
from pipeline.base.json_lines import canonical
from pipeline.formats.registry import open_format

CONTRACT = """
import pytest

pytestmark = pytest.mark.contract

@pytest.mark.covers("system", "multi_turn", route="emulator/chutes")
def test_no_tools():
    assert True
"""
OFFER = "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
BAKE = '{"name": "bake", "description": "Bakes.", "parameters": {"type": "object", "properties": {}}}\n'
NONE = "SYSTEM: You are a helpful assistant, with no access to external functions.\n\n"
END = " <|endoftext|>\n\n\n"
B1 = [
    {"system": OFFER + BAKE, "chat": f"USER: A song, please.\n\n\nASSISTANT: I cannot sing.{END}"},
    {"system": NONE, "chat": f"USER: What is rye?\n\n\nASSISTANT: A grain.{END}"},
    {"system": OFFER + "{", "chat": f"USER: Broken.\n\n\nASSISTANT: Yes.{END}"},
]
B4 = [
    {"messages": [{"role": "user", "content": f"What is {n} + {n}?"}, {"role": "assistant", "content": "It is."}]}
    | {"num_tokens": 2, "source": "ours"}
    for n in range(3)
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    made = make_copy(tmp_path_factory.mktemp("copy"))
    (made.root / "tests" / "contract" / "test_route.py").write_text(CONTRACT)
    made.run("-m", "harness", "required", "--write")
    return attested(made)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, open_format("tiny-kimi"))
    with emulating(world, pool(world.fmt)) as found:
        yield found


def written(folder: Path, rows: Sequence[Mapping[str, object]]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def command(live: World, dataset: str, source: str, *options: str) -> tuple[str, ...]:
    where = ("--prompts", source, "--dataset", dataset, "--out", str(live.out), "--base-url", live.url)
    flags = ("--route", "emulator/chutes", "--budget-usd", "1", "--return-token-ids")
    return ("generate", *where, *flags, *options)


def test_b4_runs_and_its_audit_lies_in_the_manifest(copy: Copy, live: World) -> None:
    done = copy.pipeline(*command(live, "B4", written(live.folder, B4), "--json"))

    assert 0 == done.returncode, done.stderr
    manifest = json.loads((live.out / "manifest.json").read_bytes())
    digest = manifest["sessions"][0]["audit"]
    kept = (live.out / f"audit-{digest[:12]}.json").read_bytes()
    assert ({"engine_ids": 3}, "B4") == (manifest["accepted_by_evidence"], manifest["settings"]["dataset"])
    assert "left_out" not in manifest["settings"]
    assert digest == hashlib.sha256(kept).hexdigest() == hashlib.sha256(canonical(json.loads(kept))).hexdigest()
    assert 3 == json.loads(kept)["prompts"]


def test_b1_is_refused_before_anything_is_sent(copy: Copy, live: World) -> None:
    """Its rows are named."""
    done = copy.pipeline(*command(live, "B1", written(live.folder, B1), "--json"))

    told = json.loads(done.stdout)
    assert (3, "refused", 3) == (done.returncode, told["outcome"], told["exit"])
    (lack,) = told["uncovered"]
    assert ("tools_declared", 1) == (lack["feature"], lack["rows"])
    assert lack["first"][0] in done.stderr
    assert "tools_declared (the first: tools are given): no contract. Rows B1-" in done.stderr
    assert "the same command with --only-covered" in done.stderr
    assert (False, []) == (live.out.exists(), live.entries())


def test_only_covered_sends_the_rest_of_b1(copy: Copy, live: World) -> None:
    """Rows in are rows accepted and rows refused, each with its reason."""
    source = written(live.folder, B1)

    done = copy.pipeline(*command(live, "B1", source, "--only-covered", "--json"))
    again = copy.pipeline(*command(live, "B1", source, "--only-covered", "--json"))

    told = json.loads(done.stdout)
    assert (0, 3, 1, 2, 0) == (
        done.returncode,
        *(told["rows"][name] for name in ("in_file", "accepted", "refused", "left")),
    )
    assert {"no_prompt": 1, "uncovered": 1} == told["refused_by_reason"]
    assert 1 == len(live.entries())
    assert 3 == json.loads(again.stdout)["rows"]["done_before"]
    left_out = json.loads((live.out / "manifest.json").read_bytes())["settings"]["left_out"]
    assert ["history_reasoning", "structured_tools", "tool_transcript", "tools_declared", "turn_order"] == left_out


def test_without_only_covered_the_folder_is_another_run(copy: Copy, live: World) -> None:
    source = written(live.folder, B1[1:2])
    first = copy.pipeline(*command(live, "B1", source, "--only-covered"))

    second = copy.pipeline(*command(live, "B1", source))

    assert (0, 1) == (first.returncode, second.returncode)
    assert "was begun with left_out" in second.stderr


def test_tools_as_tools_are_another_feature(copy: Copy, live: World) -> None:
    done = copy.pipeline(*command(live, "B1", written(live.folder, B1[:1]), "--tools", "structured"))

    assert 3 == done.returncode
    assert "passed covers: structured_tools" in done.stderr
    assert "tools structured: 1 prompts audited" in done.stderr


def test_two_runs_become_one_set(copy: Copy, live: World) -> None:
    one, two, out = (live.folder / name for name in ("one", "two", "set"))
    for dataset, rows, folder in (("B4", B4, one), ("B1", B1, two)):
        done = copy.pipeline(
            *command(live, dataset, written(live.folder, rows), "--only-covered", "--out", str(folder))
        )
        assert 0 == done.returncode, done.stderr

    done = copy.pipeline("merge", str(out), str(one), str(two), "--cap", "B4=2", "--json")

    told = json.loads(done.stdout)
    assert (4, 3, 1, 2) == tuple(told[name] for name in ("rows_in", "rows", "set_aside", "refused"))
    assert {("B1", 1, "emulator/chutes"), ("B4", 2, "emulator/chutes")} == {
        (line["dataset"], line["rows"], line["route"]) for line in told["table"]
    }
    assert all(float(line["usd"]) > 0 for line in told["table"])
