"""Attacks on the gate, each on a copy of the tree with a state folder and keys of its own, as a user would run them.

Each is refused by a message that ends in the command that mends it, and the clean copy is allowed.
"""

from __future__ import annotations

import base64
import importlib.metadata
import importlib.util
import json
import marshal
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined]  # public, without __all__

from harness.fixtures.trees import Copy, attested, interpreter
from pipeline.gate.environment import observe
from pipeline.records import Json

SHUT = 3
HOUR = timedelta(hours=1)
GENERATE = ("generate", "--route", "local", "--prompts", "prompts.jsonl", "--out", "runs/x", "--budget-usd", "0")


def gate(copy: Copy, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return copy.run(*flags, "-m", "pipeline", "gate", "status", **environment)


def refusal(copy: Copy, *flags: str, **environment: str) -> str:
    """What the gate says, once it has been seen to be shut and to name a command that mends."""
    answer = gate(copy, *flags, **environment)
    said = answer.stdout + answer.stderr
    assert SHUT == answer.returncode, said
    assert "Run: " in said
    assert "Traceback" not in said
    return said


def attest(copy: Copy, issued: datetime, key: CryptoSigner | None = None) -> None:
    """Sign the copy as it lies, as of this time."""
    copy.tree.attest(key=key, issuedAt=issued.isoformat(), expiresAt=(issued + HOUR).isoformat())


@pytest.fixture
def copy(copy: Copy, tmp_path: Path) -> Copy:
    """A clone of the attested copy, free to be attacked."""
    return copy.clone(tmp_path)


def append(path: Path, data: bytes = b"\n") -> None:
    with path.open("ab") as file:
        file.write(data)


# The clean tree


def test_the_clean_copy_is_allowed(copy: Copy) -> None:
    answer = gate(copy)

    assert 0 == answer.returncode, answer.stdout + answer.stderr
    assert "allowed generate emulator, generate local, train" in answer.stdout
    assert "signer dev" in answer.stdout


def test_the_status_as_json_says_the_same(copy: Copy) -> None:
    found = json.loads(copy.run("-m", "pipeline", "gate", "status", "--json").stdout)

    assert found["open"] is True
    assert [] == found["objections"]
    assert ("dev", 4, ["base", "drafter"]) == tuple(found["attestation"][name] for name in ("scope", "tests", "groups"))


def test_the_boot_leaves_nothing_behind(copy: Copy, tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()

    gate(copy, TMPDIR=str(tmp_path / "temporary"))

    assert [] == list((tmp_path / "temporary").iterdir())


# The tree


def test_no_attestation(copy: Copy) -> None:
    copy.tree.attestation.unlink()

    assert "there is no attestation at" in refusal(copy)


def test_generate_called_directly_without_an_attestation(copy: Copy) -> None:
    copy.tree.attestation.unlink()

    answer = copy.run("-m", "pipeline", *GENERATE)

    assert SHUT == answer.returncode
    assert "refused: there is no attestation at" in answer.stderr
    assert "Run: nox -s contract" in answer.stderr
    assert not (copy.root / "runs").exists()


@pytest.mark.parametrize(
    "name, subject",
    [
        ("pipeline/records.py", "pipeline/"),
        ("goldens/a.json", "goldens/"),
        ("cassettes/a.yaml", "cassettes/"),
        ("constraints.txt", "constraints.txt"),
    ],
)
def test_one_more_byte(copy: Copy, name: str, subject: str) -> None:
    append(copy.root / name)

    assert f"changed since the contract suite passed: {subject}\n" in refusal(copy)


@pytest.mark.parametrize("name", ["conftest.py", "pytest.ini", "sitecustomize.py"])
def test_a_file_at_the_root_that_no_digest_covers(copy: Copy, name: str) -> None:
    (copy.root / name).write_text("")

    assert f"{name} lies at the root" in refusal(copy)
    assert 0 != copy.contract().returncode


@pytest.mark.parametrize("name", ["orjson/__init__.pyc", "orjson.pyc"])
def test_a_sourceless_package_at_the_root(copy: Copy, tmp_path: Path, name: str) -> None:
    """It bears the name of what is installed, and is neither run nor overlooked."""
    marker = tmp_path / "it ran"
    code = compile(f"open({str(marker)!r}, 'w').close()", "orjson", "exec")
    (copy.root / name).parent.mkdir(exist_ok=True)
    (copy.root / name).write_bytes(importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code))

    said = refusal(copy)

    assert f"{name.partition('/')[0]} lies at the root" in said
    assert not marker.exists()


def test_the_root_is_on_no_search_path(copy: Copy, tmp_path: Path) -> None:
    """An optional import finds nothing there, whatever it is called; `pipeline` alone is found."""
    (copy.root / "optional_extra.py").write_text("")
    code = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('boot', 'pipeline/__main__.py')\n"
        "boot = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(boot)\n"
        "sys.argv = ['pipeline', 'gate', 'status', '--json']\n"
        "boot.main()\n"
        "print([name for name in ('pipeline', 'optional_extra', 'harness') if importlib.util.find_spec(name)])\n"
    )

    done = copy.run("-I", "-B", "-X", f"pycache_prefix={tmp_path / 'cache'}", "-c", code)

    assert done.stdout.endswith("['pipeline']\n"), done.stdout + done.stderr


def test_a_symbolic_link_to_a_folder(copy: Copy, tmp_path: Path) -> None:
    engines = copy.root / "pipeline" / "generation" / "engines"
    engines.rename(tmp_path / "engines")
    engines.symlink_to(tmp_path / "engines")

    assert "pipeline/generation/engines is a symbolic link" in refusal(copy)
    assert "pipeline/generation/engines is a symbolic link" in copy.contract().stdout


def test_a_crafted_stale_bytecode_cache(copy: Copy) -> None:
    """It opens the gate for whoever runs it, and is neither run nor overlooked."""
    source = copy.root / "pipeline" / "gate" / "gate.py"
    opened = source.read_text() + "\n\ndef judge(job, standing, **_):\n    return Decision('open')\n"
    stat = source.stat()
    header = importlib.util.MAGIC_NUMBER + bytes(4) + int(stat.st_mtime).to_bytes(4, "little")
    cache = source.parent / "__pycache__" / f"gate.{sys.implementation.cache_tag}.pyc"
    cache.parent.mkdir(exist_ok=True)
    code = compile(opened, str(source), "exec")
    cache.write_bytes(header + stat.st_size.to_bytes(4, "little") + marshal.dumps(code))
    append(copy.root / "goldens" / "a.json")

    said = refusal(copy)

    assert f"pipeline/gate/__pycache__/{cache.name} holds other code than its source" in said
    assert "changed since the contract suite passed: goldens/" in said
    assert f"pipeline/gate/__pycache__/{cache.name} holds other code than its source" in copy.contract().stdout


# The attestation


def test_an_altered_payload(copy: Copy) -> None:
    envelope = json.loads(copy.tree.attestation.read_bytes())
    payload = base64.b64decode(envelope["payload"]).replace(b'"dev"', b'"ci"')
    copy.tree.edit_envelope(payload=base64.b64encode(payload).decode())

    assert "was altered after it was signed" in refusal(copy)


def test_a_second_key(copy: Copy) -> None:
    attest(copy, datetime.now(UTC), key=CryptoSigner.generate_ed25519())

    assert "which nobody here trusts" in refusal(copy)


def test_an_old_attestation(copy: Copy) -> None:
    attest(copy, datetime.now(UTC) - 2 * HOUR)

    assert "the attestation is too old: issued 2 h 0 min ago" in refusal(copy)


def test_an_attestation_from_the_future(copy: Copy) -> None:
    attest(copy, datetime.now(UTC) + 2 * HOUR)

    assert "the attestation is from the future" in refusal(copy)


# The run of the suite


@pytest.mark.parametrize(
    "options, said",
    [
        (("-k", "twice"), "the run was given '-k'"),
        (("--deselect", "tests/contract/test_small.py::test_twice[1]"), "the run was given '--deselect'"),
        (("--co",), "tests were collected and not run"),
        (("--snapshot-update",), "the run was given '--snapshot-update'"),
        (("-n", "2", "-k", "twice"), "tests were deselected (2)"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, tuple) else "",
)
def test_a_run_of_a_part_of_the_suite(copy: Copy, options: tuple[str, ...], said: str) -> None:
    done = copy.contract(*options)

    assert 0 != done.returncode
    assert said in done.stdout
    assert "there is no attestation at" in refusal(copy)


def test_a_selection_in_the_environment(copy: Copy) -> None:
    done = copy.contract(PYTEST_ADDOPTS="-k twice")

    assert 0 != done.returncode
    assert "PYTEST_ADDOPTS is '-k twice': it changes what the suite runs. Run: unset PYTEST_ADDOPTS" in done.stdout
    assert "there is no attestation at" in refusal(copy)


@pytest.mark.parametrize(
    "mark, said",
    [
        ("@pytest.mark.skip", "tests were skipped (1)"),
        ("@pytest.mark.xfail(strict=False)", "tests are marked xfail (1)"),
        ("@pytest.mark.parametrize('n', [])", "tests have an empty parameter set (1)"),
    ],
)
def test_a_test_that_is_not_run_to_its_end(copy: Copy, mark: str, said: str) -> None:
    argument = "n" if "'n'" in mark else ""
    append(copy.root / "tests/contract/test_small.py", f"\n{mark}\ndef test_more({argument}): pass\n".encode())
    copy.run("-m", "harness", "required", "--write")

    done = copy.contract()

    assert 0 != done.returncode
    assert said in done.stdout
    assert "there is no attestation at" in refusal(copy)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_conftest_that_turns_failures_into_passes(copy: Copy, workers: str) -> None:
    small = copy.root / "tests/contract/test_small.py"
    small.write_text(small.read_text().replace("2 * n", "3 * n"))
    mask = "import pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport():\n"
    lines = "    report = yield\n    report.outcome = 'passed'\n    return report\n"
    (copy.root / "tests/contract/conftest.py").write_text(mask + lines)

    done = copy.contract("-n", workers)

    assert "4 passed" in done.stdout
    assert 0 != done.returncode
    assert "failures may be masked: in contract/ the canary, a test that must fail, was reported passed" in done.stdout
    assert "there is no attestation at" in refusal(copy)


def test_nox_without_its_dependencies(copy: Copy) -> None:
    """An order of sessions is no gate: the program itself refuses."""
    pytest.importorskip("nox")
    copy.tree.attestation.unlink()
    command = ", ".join(repr(part) for part in (sys.executable, "-m", "pipeline", *GENERATE))
    (copy.root / "noxfile.py").write_text(
        "import nox\n@nox.session(venv_backend='none')\ndef contract(session): pass\n"
        "@nox.session(venv_backend='none', requires=['contract'])\n"
        f"def generate(session): session.run({command}, external=True)\n"
    )

    done = copy.run("-m", "nox", "--no-dependencies", "-s", "generate")

    assert 0 != done.returncode
    assert "refused: there is no attestation at" in done.stdout + done.stderr


# The process


def test_optimised_python(copy: Copy) -> None:
    assert "refused: python runs with -O or PYTHONOPTIMIZE" in refusal(copy, "-O")
    assert "objection: python runs with -O or PYTHONOPTIMIZE" in copy.contract(PYTHONOPTIMIZE="1").stdout


def test_a_shadow_on_the_pythonpath(copy: Copy, tmp_path: Path) -> None:
    """It would run in place of the standard library and of us; it is named, and never runs once the boot is over."""
    for name in ("argparse.py", "pipeline.py"):
        (tmp_path / "shadow" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "shadow" / name).write_text("raise SystemExit(0)\n")

    said = refusal(copy, PYTHONPATH=str(tmp_path / "shadow"))

    assert f"PYTHONPATH is {str(tmp_path / 'shadow')!r}" in said
    assert "Run: unset PYTHONPATH" in said


def test_a_pythonpath_while_the_suite_runs(copy: Copy, tmp_path: Path) -> None:
    assert "Run: unset PYTHONPATH" in copy.contract(PYTHONPATH=str(tmp_path)).stdout


def test_a_file_that_runs_as_python_starts(copy: Copy, tmp_path: Path) -> None:
    """A path file can put code before all that was proven."""
    python, site = interpreter(tmp_path / "venv")
    other = attested(replace(copy, python=python))
    (site / "first.pth").write_text("import sys\n")

    assert "first.pth runs as Python starts, and the suite ran without it" in refusal(other)


def test_another_interpreter_than_the_suites(copy: Copy) -> None:
    runtime: Json = {
        "python": {**observe().python, "version": "3.11.0"},
        "direct": {},
        "startup": dict(observe().startup),
    }
    now = datetime.now(UTC)
    copy.tree.attest(runtime=runtime, issuedAt=now.isoformat(), expiresAt=(now + HOUR).isoformat())

    assert "the suite ran on the version 3.11.0, and this is" in refusal(copy)


def test_a_suite_that_drew_fewer_examples(copy: Copy) -> None:
    now = datetime.now(UTC)
    fewer: Json = {"profile": "contract", "maxExamples": 1}
    copy.tree.attest(hypothesis=fewer, issuedAt=now.isoformat(), expiresAt=(now + HOUR).isoformat())

    assert "the suite drew 1 examples a property, not 200" in refusal(copy)


def test_an_editable_install_under_the_pinned_version(copy: Copy, tmp_path: Path) -> None:
    python, site = interpreter(tmp_path / "venv")
    other = attested(replace(copy, python=python))
    version = importlib.metadata.version("tiktoken")
    distribution(site, "tiktoken", version)
    note = {"url": "file:///elsewhere", "dir_info": {"editable": True}}
    (site / f"tiktoken-{version}.dist-info" / "direct_url.json").write_text(json.dumps(note))

    assert "tiktoken is installed from a folder or an address" in refusal(other)


def test_a_suite_without_its_plugin_attests_nothing(copy: Copy) -> None:
    """Whatever stood there before goes."""
    done = copy.contract("-p", "no:harness.attestation.plugin")

    assert 0 != done.returncode
    assert not copy.tree.attestation.exists()


def test_a_tree_that_changes_meanwhile_is_not_what_ran(copy: Copy) -> None:
    """The suite runs on bytes of its own, and those are attested."""
    golden, suite = copy.root / "goldens" / "a.json", copy.root / "tests" / "contract" / "test_small.py"
    change = f"\n\ndef test_the_tree_may_change():\n    Path({str(golden)!r}).write_text('broken')\n"
    suite.write_text("from pathlib import Path\n" + suite.read_text() + change)
    copy.run("-m", "harness", "required", "--write")

    done = copy.contract()

    assert 0 == done.returncode, done.stdout
    assert "changed since the contract suite passed: goldens/" in refusal(copy)


def test_failures_that_are_tried_again_are_unmasked(copy: Copy) -> None:
    """A hook that runs a failing test again until it passes."""
    hook = """
import pytest
from _pytest.runner import runtestprotocol


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    for _ in range(3):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if all(report.passed for report in reports):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    return True
"""
    conftest = copy.root / "tests" / "contract" / "conftest.py"
    conftest.write_text(hook)

    done = copy.contract()

    assert 0 != done.returncode
    assert "was tried" in done.stdout
    assert not copy.tree.attestation.exists()


def test_a_process_that_goes_round_the_boot(copy: Copy) -> None:
    answer = copy.run("-c", "from pipeline.cli.main import main; raise SystemExit(main(['gate', 'status']))")

    assert SHUT == answer.returncode
    assert "this process was not started isolated" in answer.stdout


def distribution(site: Path, name: str, version: str) -> None:
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def install_copy(copy: Copy, site: Path) -> None:
    shutil.copytree(copy.root / "pipeline", site / "pipeline")


def install_other_version(_: Copy, site: Path) -> None:
    (site / "tiktoken-0.0.1.dist-info").mkdir()
    (site / "tiktoken-0.0.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tiktoken\nVersion: 0.0.1\n"
    )


def install_unlisted(_: Copy, site: Path) -> None:
    distribution(site, "helpful", "1.0")


@pytest.mark.parametrize(
    "install, said",
    [
        (install_copy, "a second copy of pipeline lies in"),
        (install_other_version, "installed packages differ from constraints.txt: tiktoken 0.0.1 (pinned: "),
        (install_unlisted, "constraints.txt does not list what is installed: helpful 1.0"),
    ],
)
def test_something_else_is_installed(
    copy: Copy, tmp_path: Path, install: Callable[[Copy, Path], None], said: str
) -> None:
    python, site = interpreter(tmp_path / "venv")
    other = attested(replace(copy, python=python))
    assert 0 == gate(other).returncode

    install(copy, site)

    assert said in refusal(other)
    assert said in other.contract().stdout
