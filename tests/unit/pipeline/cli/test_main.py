"""The command line: lazy verbs, plain errors, exit statuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.base.paths import ROOT
from pipeline.cli.main import DEBUG, VERBS, main
from pipeline.generation.ledger import Ledger, LedgerAnswer, Request
from pipeline.records import Route

ODD_BYTES = b'{"a": 1}\r\n\xff\x00 no line end'
PROMPT = '{"id": "a", "messages": [{"role": "user", "content": "hi"}]}\n'


def arguments(tmp_path: Path, **changes: str | None) -> list[str]:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(PROMPT)
    options = {"prompts": str(prompts), "route": "emulator/chutes", "out": str(tmp_path / "out"), "budget-usd": "1"}
    options["base-url"] = "http://127.0.0.1:9/api/v1"
    chosen = {**options, **{name.replace("_", "-"): value for name, value in changes.items()}}
    return ["generate", *(part for name, value in chosen.items() if value for part in (f"--{name}", value))]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test here sees the user's own attestation or ledger."""
    monkeypatch.setenv("DRAFTER_GATE_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("DRAFTER_GATE_TOKENIZERS", raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "state"


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])

    printed = capsys.readouterr().out
    assert left.value.code == 0
    assert all(verb in printed for verb in VERBS)


@pytest.mark.parametrize(
    "verb", ["generate", "probe", "merge", "states", "train", "evaluate", "export speculators", "export rows"]
)
def test_verbs_that_read_manifests_may_take_unsigned(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*verb.split(), "--help"])

    reads = verb != "export speculators"
    assert reads == ("--accept-unsigned" in capsys.readouterr().out)


@pytest.mark.parametrize("command", [[], ["nonsense"], ["ledger", "--nonsense"], ["generate"]], ids=str)
def test_unusable_arguments_are_exit_2(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(command)

    assert left.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes, word",
    [
        ({"prompts": "/nowhere/p.jsonl"}, "/nowhere/p.jsonl: no prompts file there"),
        ({"prompts": "/"}, "/: is a folder. Give a file with --prompts FILE.jsonl"),
        ({"out": "/dev/null"}, "/dev/null is a file: give a folder"),
        (
            {"route": "emulator/foo"},
            "emulator/foo has no fingerprint and no contract here; there are emulator/atlascloud",
        ),
        ({"route": "emulator/Chutes"}, "route names are lower case: use --route emulator/chutes"),
        ({"route": "local", "tools": "structured", "base_url": None}, "use --tools raw"),
        ({"route": "carrier-pigeon"}, "'carrier-pigeon' is no route; there are local, sglang, vllm, emulator"),
        ({"route": "sglang", "base_url": None}, "nox -s engine -- sglang --model DIR"),
        ({"route": "vllm", "base_url": "http://192.0.2.1:8000"}, "not on this machine; an engine elsewhere"),
        ({"route": "vllm", "tools": "structured"}, "the vllm route declares tools in the prompt alone"),
        ({"base_url": None}, "python -m harness emulator"),
        ({"base_url": "https://example.com/api/v1"}, "not on this machine"),
        ({"base_url": "http://127.0.0.1.example.com/api/v1"}, "not on this machine"),
        ({"route": "openrouter/chutes", "base_url": None}, "needs a model"),
        ({"route": "openrouter/chutes", "model": "m/k"}, "--base-url is for the emulator"),
        ({"format": "morse"}, "unknown format 'morse'; there are deepseek-r1"),
        ({"format": "kimi-k2.5"}, "in $DRAFTER_GATE_TOKENIZERS (not set) or the hub's cache"),
        ({"format": "kimi-k2.5", "tokenizer": "/nowhere"}, "/nowhere"),
    ],
)
def test_what_cannot_be_used_is_one_sentence_and_exit_2(
    changes: dict[str, str | None], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(arguments(tmp_path, **changes))

    printed = capsys.readouterr()
    assert (2, "") == (status, printed.out)
    assert printed.err.startswith("error: ")
    assert word in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "option, value",
    [
        *(("budget-usd", value) for value in ("-1", "much", "nan")),
        *(("concurrency", value) for value in ("0", "1.5")),
        ("max-tokens", "0"),
        ("temperature", "3"),
        ("limit", "-5"),
        ("tools", "hammer"),
    ],
)
def test_a_number_that_is_none_is_refused_with_its_option(
    option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([*arguments(tmp_path), f"--{option}={value}"])

    assert left.value.code == 2
    assert f"--{option}" in capsys.readouterr().err


def test_an_error_of_the_program_itself_asks_for_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And shows a traceback only on demand."""

    def broken(_: object) -> int:
        raise ZeroDivisionError("halves of nothing")

    monkeypatch.setattr("pipeline.cli.ledger.run_ledger", broken)
    status = main(["ledger"])
    plain = capsys.readouterr().err
    monkeypatch.setenv(DEBUG, "1")
    main(["ledger"])
    debugged = capsys.readouterr().err

    assert status == 1
    assert "ZeroDivisionError: halves of nothing" in plain
    assert f"{DEBUG}=1" in plain
    assert ("Traceback" in plain, "Traceback" in debugged) == (False, True)


def test_a_missing_package_names_the_environment_that_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bare(_: str) -> None:
        raise ModuleNotFoundError("No module named 'rich'", name="rich.console")

    monkeypatch.setattr("pipeline.cli.main.import_module", bare)

    said = (main(["gate", "status"]), capsys.readouterr().err)

    mend = "Run: . .nox/torch/bin/activate, an environment that `nox -s generate` makes"
    assert (2, f"error: {sys.executable} lacks rich. {mend}\n") == said


@pytest.mark.parametrize("shell", ["{} > /dev/full", "ulimit -f 1; {} > out"])
def test_a_full_disk_under_the_output_is_one_sentence_and_exit_1(shell: str, tmp_path: Path) -> None:
    lines = "".join(json.dumps({**json.loads(PROMPT), "id": str(number)}) + "\n" for number in range(400))
    (tmp_path / "in").write_text(lines)
    command = f"{sys.executable} -m pipeline render --format tiny-kimi < {tmp_path / 'in'}"
    script = shell.format(command).replace("> out", f"> {tmp_path / 'out'}")
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)

    assert 1 == done.returncode
    assert done.stderr.startswith("error: the output cannot be written whole (")
    assert "Make room, or send it elsewhere" in done.stderr
    assert 1 == done.stderr.count("\n")


def test_where_tokenizers_were_looked_for_is_said_with_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRAFTER_GATE_TOKENIZERS", "/nowhere/kept")

    assert 2 == main(arguments(tmp_path, format="kimi-k2.5"))
    assert "$DRAFTER_GATE_TOKENIZERS (/nowhere/kept)" in capsys.readouterr().err


def test_the_module_itself_is_no_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli.main"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (2, "error: this module is no program. Run: python -m pipeline …\n") == (done.returncode, done.stderr)


def test_ctrl_c_is_exit_130_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.cli.ledger.run_ledger", interrupted)

    assert (130, "interrupted\n") == (main(["ledger"]), capsys.readouterr().err)


def test_the_ledger_verb_shows_spend_and_what_is_unsettled(own_state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger(own_state / "ledger.sqlite")
    with ledger.transaction():
        paid, emulated = Route("openrouter", "m/k", "chutes"), Route("emulator", "m/k", "chutes")
        for name, route in (("a", paid), ("b", emulated)):
            ledger.claim(Request(name, "run", route, name, b"{}", 25 * 10**8), lambda: None)
    ledger.close()

    assert 0 == main(["ledger", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert 0 == main(["ledger"])
    table = capsys.readouterr().out

    assert [("emulator/chutes", True), ("openrouter/chutes", False)] == [
        (line["route"], line["emulated"]) for line in document["spend"]
    ]
    assert document["total"] == {
        "settled_usd": "0.0000",
        "unsettled_worst_usd": "0.0025",
        "unsettled_requests": 1,
        "unknown_requests": 0,
    }
    assert "at most $0.0025 more in 1 unsettled requests" in table


def test_a_paid_answer_is_printed_byte_for_byte(own_state: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Of several attempts the newest."""
    ledger = Ledger(own_state / "ledger.sqlite")
    request = Request("abc", "run", Route("openrouter", "m/k", "chutes"), "row", b"{}", 25 * 10**8)
    with ledger.transaction():
        first = ledger.claim(request, lambda: None)
        ledger.answer(first, LedgerAnswer(502, b"bad gateway"))
        ledger.fail_free(first, "turned away")
        again = ledger.claim(request, lambda: None)
        ledger.answer(again, LedgerAnswer(200, ODD_BYTES))
    ledger.close()

    assert (0, ODD_BYTES) == (main(["ledger", "--answer", "abc"]), capfdbinary.readouterr().out)


@pytest.mark.parametrize("exists", [True, False])
def test_an_answer_that_no_ledger_holds_is_exit_2(
    exists: bool, own_state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if exists:
        Ledger(own_state / "ledger.sqlite").close()

    assert 2 == main(["ledger", "--answer", "abc"])
    printed = capsys.readouterr()
    assert ("", 1) == (printed.out, printed.err.count("\n"))
    assert "ledger.sqlite holds no answer to a request 'abc': give the quarantine line's `request`" in printed.err


@pytest.mark.parametrize("flag", ["--reconcile", "--json"])
def test_an_answer_is_printed_as_it_came_or_not_at_all(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["ledger", "--answer", "abc", flag])
    assert "leave out --reconcile and --json" in capsys.readouterr().err


def test_no_ledger_is_an_empty_listing(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["ledger"])
    assert "no request yet" in capsys.readouterr().out


def test_an_unreadable_ledger_is_one_sentence(own_state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_state.mkdir()
    (own_state / "ledger.sqlite").write_bytes(b"garbage" * 1000)

    assert 2 == main(["ledger"])
    assert "no readable ledger" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["ledger", "gate", "render"])
def test_a_verb_that_asks_nobody_imports_no_client(verb: str, tmp_path: Path) -> None:
    code = f"import sys; from pipeline.cli.main import _parser; _parser([{verb!r}]); print('openai' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


def test_generate_imports_no_client_before_the_gate_has_answered(tmp_path: Path) -> None:
    """A shut gate is exit 3 with the command that mends it, nothing imported that could send, nothing written."""
    tokenizer = tmp_path / "tokenizer"
    code = (
        "import sys; from pathlib import Path; import pipeline.cli.generate as verb;"
        "from harness.tiny_target.vocabulary import write_vocabulary;"
        "from pipeline.formats.tokenizer import load_tokenizer;"
        "from pipeline.formats.registry import load_format;"
        f"where = Path({str(tokenizer)!r}); where.mkdir();"
        "write_vocabulary({bytes([value]): value for value in range(256)}, where);"
        "verb.open_format = lambda *_: load_format('kimi-k2.5', load_tokenizer(where));"
        "from pipeline.cli.main import main; status = main(sys.argv[1:]);"
        "print(status, 'openai' in sys.modules, 'httpx2' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *arguments(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)

    assert done.stdout == "3 False False\n"
    assert "refused: " in done.stderr
    assert "Run: " in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    command = f"{sys.executable} -m pipeline ledger --help | true"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ
    )

    assert "Traceback" not in done.stderr
    assert tmp_path.exists()


@pytest.mark.parametrize("place", ["goldens/rows", "pipeline", ".", ".git/rows", "tests/../cassettes/x"])
def test_an_output_inside_the_attested_tree_is_refused(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would shut the gate for the run that writes it."""
    status = main(arguments(tmp_path, out=str(ROOT / place)))

    assert 2 == status
    assert "lies in the tree that the attestation covers" in capsys.readouterr().err
