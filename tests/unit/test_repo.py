"""Rules of the repository that no linter knows: who imports whom, how long things are, what may lie where."""

from __future__ import annotations

import ast
import doctest
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from harness.__main__ import PROGRAMS, Program

ROOT = Path(__file__).parents[2]
IGNORED = {line.strip("/\n") for line in (ROOT / ".gitignore").read_text("utf-8").splitlines()} | {".git"}
TEXT = {"", ".cfg", ".jinja", ".json", ".jsonl", ".md", ".py", ".toml", ".txt", ".yaml", ".yml"}
MODULE_LINES = 500
FUNCTION_LINES = 45


def files_below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in IGNORED:
            continue
        if path.is_dir():
            yield from files_below(path)
        else:
            yield path


FILES = tuple(files_below(ROOT))
MODULES = tuple(path for path in FILES if path.suffix == ".py")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported_by(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


# Who imports whom


def test_pipeline_imports_neither_harness_nor_tests() -> None:
    wrong = [
        f"{name_of(path)}: {module}"
        for path in MODULES
        if path.is_relative_to(ROOT / "pipeline")
        for module in imported_by(path)
        if module.partition(".")[0] in {"harness", "tests"}
    ]

    assert [] == wrong


ORDER: Mapping[str, str] = {
    "pipeline.records": "",
    "pipeline.base": "records",
    "pipeline.formats": "records base",
    "pipeline.proof": "records base formats",
    "pipeline.fingerprints": "records base formats proof",
    "pipeline.datasets": "records base formats",
    "pipeline.gate": "records base",
    "pipeline.shards": "records base",
    "pipeline.generation": "records base formats proof fingerprints datasets gate shards",
    "pipeline.drafter": "records base formats datasets gate shards",
    "pipeline.cli": "records base formats proof fingerprints datasets gate shards generation drafter",
    "harness.views": "",
    "harness.attestation": "",
    "harness.emulator": "views",
    "harness.strategies": "views",
    "harness.tiny_target": "views",
    "harness.cassettes": "views emulator tiny_target",
    "harness.fixtures": "views attestation emulator tiny_target",
    "harness.engines": "views emulator strategies tiny_target cassettes",
    "harness.live": "views attestation emulator cassettes fixtures",
    "harness.goldens": "views emulator tiny_target cassettes engines",
    "harness.measures": "views emulator strategies tiny_target fixtures cassettes engines live goldens",
}
"""What each package may import of its own tree, beside itself. `harness` may import all of `pipeline`."""


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_those_before_it(package: str) -> None:
    tree = package.partition(".")[0]
    allowed = {package, *(f"{tree}.{name}" for name in ORDER[package].split())}
    place = ROOT.joinpath(*package.split("."))
    paths = [path for path in MODULES if path.is_relative_to(place) or path == place.with_suffix(".py")]
    wrong = [
        f"{name_of(path)}: {module}"
        for path in paths
        for module in imported_by(path)
        if module.startswith(f"{tree}.") and ".".join(module.split(".")[:2]) not in allowed
    ]

    assert paths
    assert [] == wrong


@pytest.mark.parametrize("tree", ["pipeline", "harness"])
def test_every_package_stands_in_the_order(tree: str) -> None:
    units = [path for path in (ROOT / tree).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]

    named = {name.partition(".")[2] for name in ORDER if name.startswith(f"{tree}.")}
    assert named == {path.stem for path in units} - {"__init__", "__main__"}


def test_no_modules_import_each_other_in_a_circle() -> None:
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}
    graph = {name: {module for module in imported_by(path) if module in names} - {name} for name, path in names.items()}

    TopologicalSorter(graph).prepare()  # raises CycleError, whose message names the circle


def test_adapters_know_no_model_family() -> None:
    """An adapter is the same for every target; preparation is handed one, and knows no more than what a format is."""
    wrong = [
        f"{name_of(path)}: {module}"
        for path in MODULES
        if path.is_relative_to(ROOT / "pipeline" / "datasets" / "adapters")
        for module in imported_by(path)
        if module.startswith("pipeline.formats") and not module.startswith("pipeline.formats.format")
    ]

    assert [] == wrong


def test_the_contract_suite_imports_no_measure() -> None:
    """Nor does what it imports: a benchmark must not be able to change what is proved."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}
    seen: set[Path] = set()
    waiting = [path for path in MODULES if path.is_relative_to(ROOT / "tests" / "contract")]
    while waiting:
        path = waiting.pop()
        seen.add(path)
        waiting += [names[module] for module in imported_by(path) if module in names and names[module] not in seen]

    assert [] == sorted(name_of(path) for path in seen if path.is_relative_to(ROOT / "harness" / "measures"))


def test_the_lean_environment_suffices() -> None:
    """All but the torch engine, the drafter, the trainer and the server imports without torch and servers."""
    code = """
import importlib, sys
for name in ("torch", "transformers", "starlette", "uvicorn"):
    sys.modules[name] = None
for name in sys.argv[1:]:
    importlib.import_module(name)
"""
    engines = r"engines\.local|pipeline\.drafter\.|emulator\.(app|server)"
    engines += r"|measures\.(training_sides|engines\.(states|gpu_check))"
    engines += r"|tiny_target\.(conversion|train)|fixtures\.(small_drafters|trainings)"
    heavy = re.compile(rf"__main__|{engines}")
    paths = [path for path in MODULES if path.relative_to(ROOT).parts[0] in {"pipeline", "harness"}]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    lean = [name for name in names if not heavy.search(name)]
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, *lean], cwd=ROOT, check=False, capture_output=True, text=True
    )

    assert (0, "") == (done.returncode, done.stderr)


# How long things are


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_and_its_functions_are_short(path: Path) -> None:
    lines = len(path.read_text("utf-8").splitlines())
    long = [
        f"{f.name}: {f.end_lineno - f.lineno + 1}"
        for f in functions_of(path)
        if f.end_lineno is not None and f.end_lineno - f.lineno >= FUNCTION_LINES
    ]

    assert lines <= MODULE_LINES
    assert [] == long


# How things read


FIRST_LINE_WORDS = 10
TEST_NAME_CHARACTERS = 60


def test_the_first_line_of_a_docstring_has_at_most_ten_words() -> None:
    named = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    wrong = [
        f"{name_of(path)}: {text.splitlines()[0]}"
        for path in MODULES
        if path.relative_to(ROOT).parts[0] in {"pipeline", "harness"}
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, named) and (text := ast.get_docstring(node))
        if len(text.splitlines()[0].split()) > FIRST_LINE_WORDS
    ]

    assert [] == wrong


def test_names_of_tests_have_at_most_sixty_characters() -> None:
    wrong = [
        f"{name_of(path)}: {function.name}"
        for path in MODULES
        if path.is_relative_to(ROOT / "tests")
        for function in functions_of(path)
        if function.name.startswith("test_") and len(function.name) > TEST_NAME_CHARACTERS
    ]

    assert [] == wrong


def test_no_class_name_stands_twice_in_pipeline() -> None:
    names = Counter(
        node.name
        for path in MODULES
        if path.is_relative_to(ROOT / "pipeline")
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )

    assert [] == [name for name, count in names.items() if count > 1]


EXAMPLES = tuple(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in MODULES
    if path.relative_to(ROOT).parts[0] in {"pipeline", "harness"} and "    >>> " in path.read_text("utf-8")
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_a_module_are_true(name: str) -> None:
    failed, tried = doctest.testmod(import_module(name))

    assert tried
    assert 0 == failed


# What may lie where


def test_nothing_at_the_root_can_change_a_run() -> None:
    """Both pytest and Python pick these up by themselves, and none is a subject of the attestation."""
    names = {"conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg"}
    names |= {"sitecustomize.py", "usercustomize.py"}

    assert [] == sorted(path.name for path in ROOT.iterdir() if path.name in names)


def test_no_symlinks() -> None:
    assert [] == [name_of(path) for path in FILES if path.is_symlink()]


def test_a_child_of_the_suite_heeds_ctrl_c() -> None:
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"

    assert b"True\n" == subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout


def test_the_suite_heeds_ctrl_c_though_its_parent_does_not() -> None:
    """nohup, a background job and some runners of CI ignore it."""
    ignore = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    test = f"{__file__}::{test_a_child_of_the_suite_heeds_ctrl_c.__name__}"
    command = [sys.executable, "-c", ignore, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]

    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)

    assert 0 == done.returncode, done.stdout


def test_contract_tests_do_not_set_their_own_number_of_examples() -> None:
    """A local @settings beats every profile, so one test could prove less than the attestation says."""
    wrong = [
        name_of(path)
        for path in MODULES
        if path.is_relative_to(ROOT / "tests" / "contract") and "settings" in names_of_hypothesis(path)
    ]

    assert [] == wrong


def names_of_hypothesis(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "hypothesis":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "hypothesis":
            yield node.attr


def test_no_text_file_names_a_machine() -> None:
    places = "|".join(("root", "work", "opt", "Users"))
    machine = rf"(?<![\w.}})\]/-])/(?:{places})/\w"
    wrong = [
        f"{name_of(path)}: {found.group()[:24]}"
        for path in FILES
        if path.suffix in TEXT
        for found in re.finditer(machine, path.read_text("utf-8", errors="replace"))
    ]

    assert [] == wrong


# Dependencies


def requirement_lines() -> list[str]:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    return re.findall(r'^ {4}"[a-z][^"]*?(?:>=|==)[^"]*",.*$', text, re.MULTILINE)


def requirements(*groups: str) -> set[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    lines = [*project["project"]["dependencies"]]
    lines += [line for group in groups for line in project["dependency-groups"][group]]
    return {Requirement(line) for line in lines}


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def test_every_dependency_has_its_reason() -> None:
    assert len(requirement_lines()) >= len(requirements("contract", "emulator", "torch", "automation", "lint"))
    assert [] == [line for line in requirement_lines() if not re.search(r'", +# \w', line)]


def test_constraints_pin_every_dependency_within_its_range() -> None:
    wanted = requirements("contract", "emulator", "torch", "automation", "lint")

    assert [] == sorted(str(r) for r in wanted if pins().get(canonicalize_name(r.name), "") not in r.specifier)


# What the documents promise


def commands_of_readme() -> list[str]:
    return [line for line in (ROOT / "README.md").read_text("utf-8").splitlines() if line.startswith("python3 -m venv")]


def test_readme_has_two_commands_whose_sessions_exist() -> None:
    sessions = {f.name for f in functions_of(ROOT / "noxfile.py") if f.decorator_list}
    named = [command.rpartition("nox -s ")[2].split() for command in commands_of_readme()]

    assert [["contract", "generate"], ["tests"]] == named
    assert {"contract", "generate", "tests"} <= sessions


@pytest.mark.parametrize("path", [".ci/run", ".github/workflows/ci.yml"])
def test_ci_calls_exactly_the_test_command_of_the_readme(path: str) -> None:
    assert commands_of_readme()[1] in (ROOT / path).read_text("utf-8")


DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/usage.md")
RULE_FILES = (
    ".ci/run",
    ".gitattributes",
    ".github/CODEOWNERS",
    ".github/workflows/ci.yml",
    "noxfile.py",
    "pyproject.toml",
)
OURS = r"(?:pipeline|harness|tests|goldens|cassettes)"


@pytest.mark.parametrize("path", DOCUMENTS)
def test_paths_that_a_document_names_exist(path: str) -> None:
    text = (ROOT / path).read_text("utf-8")
    named = re.findall(rf"`({OURS}/[\w./-]*|[a-z-]+\.(?:toml|txt|py))`", text)

    assert [] == [name for name in named if not (ROOT / name).exists()]


@pytest.mark.parametrize("path", RULE_FILES)
def test_paths_that_a_rule_file_names_match_something(path: str) -> None:
    """A pattern that matches nothing fails open: an owner who is never asked, a golden with its line ends changed."""
    text = (ROOT / path).read_text("utf-8")
    named = {*re.findall(rf"(?<![\w.-])({OURS}/[\w./*-]+)", text), *re.findall(r"^/([\w./-]+)", text, re.MULTILINE)}
    absent = {"tests/contract/live/**"}  # live cassettes are recorded with an owner's key; none is committed yet

    assert [] == sorted(name for name in named - absent if not any(ROOT.glob(name.removesuffix("/"))))


def test_paths_that_code_names_exist() -> None:
    made = {"trees.py", "copies.py"}  # they write small trees of their own, for tests of the gate
    later = {"tests/contract/live", "goldens/tiny_target/CASE.tokens.json"}  # not recorded yet; a pattern
    wrong = [
        f"{name_of(path)}: {node.value}"
        for path in MODULES
        if path.relative_to(ROOT).parts[0] in {"pipeline", "harness"} and path.name not in made
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for named in re.findall(rf"(?<![\w.*/-])({OURS}/[\w./-]*\w)(?![\w*{{<])", node.value)
        if not (ROOT / named).exists() and named not in later
    ]

    assert [] == wrong


def test_the_architecture_names_every_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    packages = [path.parent for path in MODULES if path.name == "__init__.py"]

    assert [] == [name_of(path) for path in packages if f"{path.name}/" not in text]


def test_noxfile_runs_programs_that_exist() -> None:
    named = re.findall(r'"-m", "harness", "([\w-]+)"', (ROOT / "noxfile.py").read_text("utf-8"))

    assert len(named) > 10
    assert [] == sorted({*named} - PROGRAMS.keys())


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_every_program_of_the_door_has_a_main(program: Program) -> None:
    place = ROOT.joinpath(*program.module.split(".")).with_suffix(".py")

    assert "main" in {function.name for function in functions_of(place)}


def test_what_can_spend_is_tagged_and_no_default() -> None:
    source = (ROOT / "noxfile.py").read_text("utf-8")
    defaults = re.search(r"^nox\.options\.sessions = (.*)$", source, re.MULTILINE)

    assert defaults is not None
    assert "paid" not in defaults[1]
    assert '@nox.session(default=False, tags=["paid"])\ndef generate_paid(' in source
