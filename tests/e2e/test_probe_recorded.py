"""What a probe brought back: cassettes, their contract, drift; and the command past the real gate. Needs no torch."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.cassettes.cassette import read_cassette
from harness.fixtures.runs import MODEL
from harness.fixtures.trees import Copy, attested, make_copy
from harness.live.live import main as live
from harness.live.rehearsal import COMMITTED, PAID, Shop, opened
from harness.live.suite import read_table, rebuilt
from pipeline.base.paths import ROOT
from pipeline.gate.attestation import AttestationError, read_attestation, trusted_keys
from pipeline.gate.gate import PROBES
from pipeline.generation.engines.openrouter import KEY_VARIABLE

KEY = "sk-or-v1-" + "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with fingerprints as perfect as can be, where a handful of probes of a paid route is recorded."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY_VARIABLE, KEY)
        with opened(folder) as shop:
            shop.probe(shop.wanted(route=PAID, few=True, repeats=1))
    assert 0 == live(["record", str(shop.world.out), "--root", str(shop.world.root)])
    return shop.world.root


# Cassettes and their contract


FOLDER = "live/siliconflow--drafter-gate--tiny-kimi"


def test_there_is_a_dated_cassette_a_probe_and_form(recorded: Path) -> None:
    found = {path.stem: read_cassette(path).provenance for path in (recorded / "cassettes" / FOLDER).iterdir()}

    assert {f"{probe.id}.{form}" for probe in COMMITTED.chosen(few=True) for form in ("json", "stream")} == set(found)
    assert {("live", "openrouter/siliconflow", MODEL)} == {(p.source, p.route, p.model) for p in found.values()}
    today = datetime.now(UTC)
    assert all(today - timedelta(hours=1) < provenance.recorded <= today for provenance in found.values())


def test_recorded_answers_are_rebuilt_as_the_table_says(recorded: Path) -> None:
    table = read_table(recorded / "tests" / "contract" / "live" / "openrouter--siliconflow")

    rows = {name.rpartition("/")[2]: entry.rows for name, entry in table.entries.items()}
    assert ("stream_deltas",) == rows["think_sum.stream"] == rebuilt(table, f"{FOLDER}/think_sum.stream", recorded)
    assert ("counted",) == rows["system.json"] == rebuilt(table, f"{FOLDER}/system.json", recorded)
    assert ("structured_calls",) == rows["tools_structured.json"]
    assert ("instant", "system") == table.entries[f"{FOLDER}/system.json"].features


def test_the_fingerprint_is_written_only_when_that_is_asked_for(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in (recorded / "goldens" / "fingerprints").iterdir()}
    shutil.copytree(recorded, tmp_path / "tree")

    live(["record", str(recorded.parent / "out"), "--root", str(tmp_path / "tree"), "--write"])

    said = capsys.readouterr().out.splitlines()
    after = {path.name: path.read_bytes() for path in (tmp_path / "tree" / "goldens" / "fingerprints").iterdir()}
    mine = {name for name in before if name.startswith("siliconflow")}
    assert mine == {name for name in before if before[name] != after[name]}
    assert {"live"} == {json.loads(line)["source"] for name in mine for line in after[name].splitlines()}
    assert "  lost     end_token_counted          false (n=1000) -> false (n=3, not proven)" in said


def test_an_emulators_answers_do_not_enter_the_tree(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.probe(shop.wanted(few=True, repeats=1))

    assert 2 == live(["record", str(shop.world.out)])
    assert "these answers are an emulator's, and this tree keeps live ones" in capsys.readouterr().err


# Drift


def test_a_few_probes_tell_a_moved_route_from_one_that_stayed(
    recorded: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    where, other = str(recorded.parent / "out"), tmp_path / "goldens" / "fingerprints"
    shutil.copytree(recorded / "goldens" / "fingerprints", other)
    for path in other.glob("siliconflow--*"):
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        lines = [{**line, "value": True} if line["trait"] == "end_token_counted" else line for line in lines]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")

    stayed = live(["drift", where, "--root", str(recorded)])
    same = capsys.readouterr().out.splitlines()
    moved = live(["drift", where, "--root", str(tmp_path)])
    changed = capsys.readouterr().out.splitlines()
    unknown = live(["drift", where, "--root", str(tmp_path / "none")])

    assert (0, 1, 2) == (stayed, moved, unknown)
    assert "no trait changed" == same[-1]
    assert "  changed  end_token_counted          true (n=1000) -> false (n=3, not proven)" in changed
    assert "2 traits changed" == changed[-1]
    assert "no committed fingerprint is of these answers" in capsys.readouterr().err


# Through the real gate


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory, recorded: Path) -> Copy:
    """A copy of the tree with the live cassettes, their contract in REQUIRED, attested."""
    made = make_copy(tmp_path_factory.mktemp("copy"))
    for name in ("cassettes/live", "tests/contract/live", "goldens/fingerprints"):
        shutil.copytree(recorded / name, made.root / name, dirs_exist_ok=True)
    shutil.copy2(ROOT / PROBES, made.root / PROBES)
    made.run("-m", "harness", "required", "--write")
    return attested(made)


def test_the_attestation_names_the_live_route(copy: Copy) -> None:
    """With its age and what it covers."""
    path = copy.root / ".drafter-gate" / "attestation.json"
    try:
        found = read_attestation(path, trusted_keys(copy.root, copy.keys), datetime.now(UTC))
    except AttestationError as error:
        pytest.fail(str(error))

    assert {"base", "drafter", "live:openrouter/siliconflow"} == found.groups
    assert [f"openrouter/siliconflow {MODEL}"] == list(found.live)
    covered = {feature for way, feature in found.contracts if way == "openrouter/siliconflow tiny-kimi"}
    assert {"instant", "thinking", "system", "length_cut"} == covered


def probing(copy: Copy, shop: Shop, *options: str) -> tuple[int, str, str]:
    where = ("--out", str(shop.world.out), "--base-url", shop.trial.url, "--route", "emulator/siliconflow")
    what = ("--model", MODEL, "--budget-usd", "1", "--few", "--repeats", "1")
    done = copy.pipeline("probe", *where, *what, *options)
    return done.returncode, done.stdout, done.stderr


def test_the_command_shows_the_estimate_and_lists_what_came(copy: Copy, shop: Shop) -> None:
    """It asks the gate first."""
    code, out, err = probing(copy, shop)

    few = len(COMMITTED.chosen(few=True))
    assert (0, 2 * few) == (code, len(shop.trial.entries())), err
    assert err.startswith(f"emulator/siliconflow {MODEL}: {2 * few} requests; ")
    assert "echo_line_ends/stream            1 of 1 as known" in out.splitlines()
    assert out.splitlines()[-1].startswith(f"{2 * few} answered; $0.00")


def test_the_command_without_an_attestation_sends_nothing(copy: Copy, shop: Shop, tmp_path: Path) -> None:
    done = copy.pipeline(
        *("probe", "--out", str(shop.world.out), "--base-url", shop.trial.url),
        *("--route", "emulator/siliconflow", "--model", MODEL, "--budget-usd", "1"),
        DRAFTER_GATE_STATE=str(tmp_path / "elsewhere"),
    )

    assert (3, "") == (done.returncode, done.stdout)
    assert "Run: nox -s contract" in done.stderr
    assert [] == shop.trial.entries()


def test_a_budget_that_does_not_suffice_is_exit_4(copy: Copy, shop: Shop) -> None:
    code, out, err = probing(copy, shop, "--budget-usd", "0.0001")

    assert (4, "") == (code, out)
    assert "error: nothing was sent" in err
    assert [] == shop.trial.entries()
