"""Print a tree's shape: units, imports, sizes, names, prose.

`python -m harness layout [--tree CHECKOUT] [--list]`

Guarantees: each figure is counted in the same way on every tree, from the syntax alone; nothing is imported. A unit is
a module at the top of `pipeline` or `harness`, or a package there with all its files. `--list` names what stands out.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from pipeline.base.paths import ROOT
from pipeline.base.screen import show

FIRST_LINE_WORDS, TEST_NAME, FUNCTION_LINES = 10, 60, 30


@dataclass(frozen=True, slots=True)
class Module:
    """One file: its dotted name, its text, and its syntax."""

    name: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))

    def imports(self) -> Iterator[str]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def used_once(self) -> Iterator[str]:
        """Yield private functions named once beside their definition."""
        words = Counter(re.findall(r"\w+", self.text))
        names = [function.name for function in self.functions()]
        yield from (name for name in names if is_private(name) and words[name] - names.count(name) == 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures of one tree."""
    parser = argparse.ArgumentParser(prog="python -m harness layout", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tree", type=Path, default=ROOT, metavar="CHECKOUT", help="the tree to count (default: this)")
    parser.add_argument("--list", action="store_true", help="name what stands out, a line each")
    parser.add_argument("--below", default="", metavar="FOLDER", help="list only what lies below this folder")
    options = parser.parse_args(arguments)
    for top in ("pipeline", "harness"):
        modules = modules_of(options.tree, top)
        for what, figure in {**imports_of(top, modules), **sizes_of(modules)}.items():
            show(f"{top:9} {what:48} {figure}")
    tests = modules_of(options.tree, "tests")
    readme = len((options.tree / "README.md").read_text("utf-8").splitlines())
    show(f"tests     lines {sum(module.lines for module in tests)}, modules {len(tests)}", f"README    lines {readme}")
    if options.list:
        below = [module for top in ("pipeline", "harness", "tests") for module in modules_of(options.tree, top)]
        wanted = options.below.strip("/").replace("/", ".")
        show(*(line for module in below if module.name.startswith(wanted) for line in odd(module)))
    return 0


def modules_of(tree: Path, top: str) -> list[Module]:
    """Return every module below a top folder."""
    paths = sorted((tree / top).rglob("*.py"))
    return [
        Module(".".join(path.relative_to(tree).with_suffix("").parts).removesuffix(".__init__"), text, ast.parse(text))
        for path in paths
        for text in [path.read_text("utf-8")]
    ]


def imports_of(top: str, modules: Sequence[Module]) -> dict[str, object]:
    """Return units, layers, arrows and circles of one tree."""
    names = {module.name for module in modules}
    files = {
        (module.name, found) for module in modules for named in module.imports() if (found := within(named, names))
    }
    units = {unit_of(name) for name in names} - {top}
    arrows = {(unit_of(one), unit_of(other)) for one, other in files if unit_of(one) != unit_of(other)}
    graph = {unit: {other for one, other in arrows if one == unit} for unit in units}
    return {
        "units": len(units),
        "arrows between units": len(arrows),
        "arrows between files": len({(one, other) for one, other in files if one != other}),
        "layers of units": layers(graph),
        "circles of units": circles(graph),
    }


def within(named: str, names: set[str]) -> str | None:
    """Return the module that an import of this name reaches."""
    while named and named not in names:
        named = named.rpartition(".")[0]
    return named or None


def unit_of(name: str) -> str:
    return ".".join(name.split(".")[:2])


def layers(graph: Mapping[str, set[str]]) -> object:
    """Return the number of layers, or why none exist."""
    sorter = TopologicalSorter(graph)
    try:
        sorter.prepare()
    except CycleError:
        return "none: units import each other in a circle"
    count = 0
    while sorter.is_active():
        sorter.done(*sorter.get_ready())
        count += 1
    return count


def circles(graph: Mapping[str, set[str]]) -> int:
    """Count pairs of units that import each other."""
    return sum(one < other and one in graph.get(other, set()) for one, others in graph.items() for other in others)


def sizes_of(modules: Sequence[Module]) -> dict[str, object]:
    """Return lines, functions, names and prose of one tree."""
    functions = [function for module in modules for function in module.functions()]
    private = [function for function in functions if is_private(function.name)]
    once = sum(len(list(module.used_once())) for module in modules)
    classes = Counter(node.name for module in modules for node in module.tree.body if isinstance(node, ast.ClassDef))
    first = [len(line.split()) for module in modules for _, line in first_lines(module)]
    share = f"{once} of {len(functions)} functions, {once / max(len(functions), 1):.0%}"
    return {
        "files, lines": f"{len(modules)}, {sum(module.lines for module in modules)}",
        "module lines: median, p90, maximum": spread([module.lines for module in modules if module.lines > 1]),
        "function lines: median, p90, maximum": spread([length(function) for function in functions]),
        "private functions": f"{len(private)} of {len(functions)}, {len(private) / max(len(functions), 1):.0%}",
        "private functions used once": share,
        "class names that stand twice": sum(count > 1 for name, count in classes.items() if not is_private(name)),
        "docstring first line, words: median, p90, maximum": spread(first),
    }


def spread(numbers: Sequence[int]) -> str:
    ordered = sorted(numbers)
    return f"{statistics.median(ordered):.0f}, {ordered[int(len(ordered) * 0.9)]}, {ordered[-1]}"


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def first_lines(module: Module) -> Iterator[tuple[int, str]]:
    """Yield line number and first line of each docstring."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text.splitlines()[0]


def odd(module: Module) -> Iterator[str]:
    """Yield what stands out in a module, as `file:line: what`."""
    place = module.name.replace(".", "/")
    if not module.name.startswith("tests"):
        for line, text in first_lines(module):
            if len(text.split()) > FIRST_LINE_WORDS:
                yield f"{place}:{line}: first line has {len(text.split())} words: {text}"
        yield from (f"{place}: used once: {name}" for name in module.used_once())
    for function in module.functions():
        if length(function) > FUNCTION_LINES:
            yield f"{place}:{function.lineno}: {function.name} has {length(function)} lines"
        if function.name.startswith("test_") and len(function.name) > TEST_NAME:
            yield f"{place}:{function.lineno}: {function.name} has {len(function.name)} characters"
