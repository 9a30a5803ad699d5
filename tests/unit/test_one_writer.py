"""What is not ours reaches the terminal through `pipeline/base/screen.py`, which escapes it, and no other way."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[2]

WRITERS: Final[Mapping[str, str]] = {
    "pipeline/base/screen.py": "the one writer",
    "pipeline/__main__.py": "says that python does not run isolated, before anything may be imported",
    "harness/measures/parsers/oracle.py": "answers in JSON, in an engine's environment, which has no pipeline",
    "harness/tiny_target/train.py": "writes a step and its loss; the weights' provenance holds its bytes",
    "harness/fixtures/forks.py": "a child of a test, whose own stderr is closed",
}

WAYS: Final = re.compile(
    r"print|(?:\w+\.)*(?:__)?std(?:out|err)(?:__)?\.(?:write|writelines|buffer)|click\.\w+|warnings\.warn"
    r"|(?:logging|log|logger)\.(?:debug|info|warning|error|exception|critical|log)|traceback\.print_\w+"
)
"""Names that write, called or not."""


def ways_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each way to the terminal past the one writer, and its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and WAYS.fullmatch(name := ast.unparse(node)):
            yield node.lineno, name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            yield from ((node.lineno, name) for name in names if name.partition(".")[0] in {"rich", "click"})
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"sys.exit", "SystemExit"}:
            said = [each for each in node.args if isinstance(each, ast.JoinedStr) or isinstance(_value(each), str)]
            yield from ((node.lineno, "an exit that prints") for _ in said)


def _value(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def test_one_module_writes_to_the_terminal() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {way}"
        for tree in ("pipeline", "harness")
        for path in sorted((ROOT / tree).rglob("*.py"))
        if path.relative_to(ROOT).as_posix() not in WRITERS
        for line, way in ways_in(ast.parse(path.read_bytes()))
    ]

    assert [] == wrong


@pytest.mark.parametrize(
    "code",
    [
        "print(1)",
        "show = print",
        "sys.stdout.write('')",
        "out = sys.stderr.write",
        "sys.stdout.buffer.write(b'')",
        "sys.__stderr__.writelines([])",
        "import rich.console",
        "from rich.table import Table",
        "click.echo(1)",
        "traceback.print_exc()",
        "logging.warning('')",
        "warnings.warn('')",
        "sys.exit(f'{1}')",
        "raise SystemExit('no')",
    ],
)
def test_the_rule_sees_every_way_to_write(code: str) -> None:
    assert [] != [*ways_in(ast.parse(code))]
