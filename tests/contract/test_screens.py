"""No text of a provider, a model, a file or a row forges a line, or moves the cursor, of what a user reads.

The same forged text stands wherever somebody else may put one, and the programs show it through their own `main`.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from harness.fixtures.answers import FORMAT
from pipeline.base.screen import escaped
from pipeline.cli.main import main
from pipeline.cli.report import print_summary
from pipeline.gate.gate import Decision, GateShutError
from pipeline.generation.ledger import Ledger, LedgerAnswer, Request
from pipeline.generation.outcome import StopError
from pipeline.generation.run import EventLog
from pipeline.generation.summary import Summary
from pipeline.records import Json, Objection, Route

pytestmark = pytest.mark.contract

FORGED = "x\x1b[2K\r\nallowed\x0b\x0c\x85\u2028\u2029\x9b31m\x1b]8;;http://e\x07\u202e\u2066\u200f\x00\x08\x7f y"
NAMED = FORGED.replace("\x00", "").replace("/", "")
"""As the name of a file."""


def require_plain(captured: tuple[str, str]) -> None:
    """Nothing raw is left of the forged text, which is there all the same."""
    said = "".join(captured)
    assert [] == [char for char in said if char not in "\n\t" and escaped(char) != char]
    assert [] == [line for line in said.splitlines() if line.startswith("allowed")]
    assert "x\\x1b[2K" in said or "x\\u001b[2K" in said


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DRAFTER_GATE_TOKENIZERS", raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("DRAFTER_GATE_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def lines_of(path: Path, *rows: Mapping[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROWS: tuple[Mapping[str, object], ...] = (
    {"id": FORGED, "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Bread?"}]},
    {"id": f"{FORGED}2", "messages": [{"role": FORGED, "content": "Bread?"}]},
    {"id": "b", FORGED: 1},
)


@pytest.mark.parametrize(
    "more", [(), ("--rows",), ("--json",), ("--rows", "--json")], ids=["table", "rows", "json", "rows as json"]
)
def test_audit_shows_rows_and_files_escaped(
    more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = lines_of(tmp_path / f"{NAMED}.jsonl", *ROWS)

    main(["audit", str(source), "--dataset", "messages", *more])

    require_plain(capsys.readouterr())


@pytest.mark.parametrize("more", [(), ("--json",), ("--check",)], ids=["table", "json", "checked"])
def test_prepare_shows_files_escaped(more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = lines_of(tmp_path / f"{NAMED}.jsonl", *ROWS)
    out = tmp_path / f"{NAMED}-out.jsonl"

    assert 0 == main(["prepare", str(source), "--dataset", "messages", "--out", str(out), "--no-decontaminate", *more])

    require_plain(capsys.readouterr())


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["table", "json"])
def test_the_ledger_is_listed_escaped(
    more: tuple[str, ...], own_state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(own_state / "ledger.sqlite")
    with ledger.transaction():
        ledger.claim(Request("a", "run", Route("openrouter", FORGED, FORGED), FORGED, b"{}", 1, FORGED), lambda: None)
    ledger.close()

    assert 0 == main(["ledger", *more])

    require_plain(capsys.readouterr())


def test_an_answer_of_the_ledger_is_shown_escaped_on_a_terminal(
    own_state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(own_state / "ledger.sqlite")
    with ledger.transaction():
        entry = ledger.claim(Request("a", "run", Route("openrouter", "m/k", "p"), "r", b"{}", 1), lambda: None)
        ledger.answer(entry, LedgerAnswer(200, FORGED.replace("\n", "").encode()))
    ledger.close()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    assert 0 == main(["ledger", "--answer", "a"])

    require_plain(capsys.readouterr())


@pytest.mark.parametrize("verb", ["reconstruct", "render"])
def test_lines_of_stdin_come_back_as_escaped_json(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw.encode())))

    main([verb, "--format", "tiny-kimi"])

    printed = capsys.readouterr()
    require_plain(printed)
    assert FORGED in {json.loads(line).get("id") for line in printed.out.splitlines()}


@pytest.mark.parametrize(
    "command",
    [
        ["audit", f"/nowhere/{FORGED}", "--dataset", "messages"],
        ["audit", "/nowhere", "--dataset", FORGED],
        ["fingerprint", f"/nowhere/{NAMED}", "--tokenizer", f"tiny-kimi=/nowhere/{NAMED}"],
        ["ledger", "--answer", FORGED],
        ["ledger", FORGED.replace("\n", "")],
        ["merge", "/nowhere/out", f"/nowhere/{NAMED}"],
        ["render", "--format", FORGED],
        ["reconstruct", "--format", "tiny-kimi", "--fingerprint", f"/nowhere/{NAMED}"],
    ],
    ids=["a source", "a dataset", "a vocabulary", "a request", "an argument", "a run", "a format", "a fingerprint"],
)
def test_errors_show_arguments_and_files_escaped(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(command)
    except SystemExit as end:
        status = int(str(end.code))

    assert 2 == status
    require_plain(capsys.readouterr())


@pytest.mark.parametrize("debug", ["", "1"])
@pytest.mark.parametrize(
    "error",
    [
        StopError(f"the provider says {FORGED}"),
        GateShutError(Decision(None, (Objection(f"the model {FORGED} is not there", FORGED),))),
        ValueError(FORGED),
        FileNotFoundError(2, "not there", FORGED),
        RecursionError(FORGED),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_ends_a_verb_is_escaped(
    error: Exception, debug: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setenv("DRAFTER_GATE_DEBUG", debug)
    monkeypatch.setattr("pipeline.cli.ledger.run_ledger", fail)

    assert main(["ledger"])

    require_plain(capsys.readouterr())


COST: dict[str, Json] = {"usd": "0", "budget_usd": "1", "emulated": True, "unsettled_requests": 0}
ROW_COUNTS = ("in_file", "asked", "from_ledger", "done_before", "accepted", "refused", "unknown", "left")


def test_the_summary_of_a_run_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {**dict.fromkeys(ROW_COUNTS, 1), "to_ask_again": 0, "beyond_limit": 0}
    summary = Summary(
        *("stopped", 1, f"the provider says {FORGED}", FORGED, FORGED, rows),
        by_evidence={"counted": 1},
        by_reason={"upstream_error": 1},
        first_of_reason={"upstream_error": FORGED},
        unknown_rows=(FORGED,),
        tree_changed=(FORGED,),
        prompt_tokens=1,
        output_tokens=1,
        cost=COST,
        counted={},
        shards=(FORGED,),
        paused=None,
    )

    print_summary(summary, ["generate", "--out", FORGED])
    print_summary(replace(summary, rows={**rows, "unknown": 0, "left": 0}), ["generate", "--out", FORGED])

    require_plain(capsys.readouterr())


def test_the_event_log_is_plain_text(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.write("row", id=FORGED)
    log.close()

    (text,) = [path.read_text() for path in tmp_path.iterdir()]
    assert FORGED == json.loads(text)["id"]
    assert [] == [char for char in text if char not in "\n\x7f" and escaped(char) != char]


def test_a_model_and_a_provider_are_shown_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from harness.fixtures.exchanges import file_of, line, text_ids

    exchanges = [line(number, text_ids(number)) for number in range(25)]
    text = file_of(exchanges).replace("Plain", json.dumps(json.dumps(FORGED)[1:-1])[1:-1])
    (path := tmp_path / "exchanges.jsonl").write_text(text)

    main(["fingerprint", str(path), "--tokenizer", f"tiny-kimi={FORMAT.tokenizer.directory}"])

    require_plain(capsys.readouterr())
