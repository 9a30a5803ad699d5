"""Mutants: named by a list, or drawn by a tool.

Guarantees: a mutant's text differs from its file's in one place and still compiles. What a type checker alone would see
is not drawn: annotations, aliases of types, decorators, and what only words a message.

Drawn mutants come from cosmic-ray's operators. It changes one node of a file and gives the whole text back; mutmut
would put every function behind a trampoline, which digests, dataclasses and `inspect` see.
"""

from __future__ import annotations

import ast
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from pipeline.base.paths import ROOT
from pipeline.gate import kills
from pipeline.gate.kills import MUTATED

NAMED: Final = ROOT / kills.NAMED
OPERATORS: Final = frozenset(
    {
        *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
        *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "NumberReplacer"),
        *(f"ReplaceComparisonOperator_{pair}" for pair in ("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is")),
        *(f"ReplaceComparisonOperator_{pair}" for pair in ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt")),
        *(f"ReplaceBinaryOperator_{pair}" for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul")),
        *(f"ReplaceBinaryOperator_{pair}" for pair in ("Mod_Mul", "Pow_Mul", "BitAnd_BitOr", "BitOr_BitAnd")),
        *("ReplaceUnaryOperator_USub_UAdd", "ReplaceUnaryOperator_Delete_Not"),
    }
)
"""One neighbour for each operator, as mutmut and PIT choose: `==` between texts made `>=` says nothing of a test."""
Span = tuple[tuple[int, int], tuple[int, int]]


class MutantError(Exception):
    """A named mutant that does not fit the tree."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file.

    `text` is the whole file as changed, `line` the first line that differs; `promise` is empty for a drawn one.
    """

    name: str
    file: str
    line: int
    text: str
    promise: str = ""


def named_mutants(root: Path = ROOT, path: Path = NAMED) -> list[Mutant]:
    """Return the named mutants of the list.

    Raises MutantError where one does not fit: its text is not there once, or what comes of it does not compile.
    """
    found: list[Mutant] = []
    for number, entry in enumerate(tomllib.loads(path.read_text("utf-8"))["mutant"], 1):
        promise, file, old, new = (str(entry[key]) for key in ("promise", "file", "old", "new"))
        source = (root / file).read_text("utf-8")
        if (times := source.count(old)) != 1:
            raise MutantError(f"{path.name}, mutant {number} ({promise}): {old!r} stands {times} times in {file}")
        text = source.replace(old, new)
        _require_compiles(text, f"{path.name}, mutant {number} ({promise})")
        found.append(Mutant(promise, file, source[: source.index(old)].count("\n") + 1, text, promise))
    return found


def drawn_mutants(count: int, seed: int, root: Path = ROOT, mutated: Sequence[str] = MUTATED) -> list[Mutant]:
    """Return `count` mutants, drawn evenly over all that there are."""
    files = sorted(path for name in mutated for path in _sources(root / name))
    every = [(path, name, number) for path in files for name, number in _places(path.read_text("utf-8"))]
    chosen = Random(seed).sample(every, min(count, len(every)))
    return [mutant for path, name, number in chosen if (mutant := _drawn(root, path, name, number)) is not None]


def _sources(path: Path) -> Iterator[Path]:
    yield from path.rglob("*.py") if path.is_dir() else (path,)


def _places(source: str) -> Iterator[tuple[str, int]]:
    """Yield operator and occurrence of every mutant of a file."""
    from cosmic_ray.ast import ast_nodes, get_ast  # type: ignore[import-untyped]
    from cosmic_ray.plugins import get_operator, operator_names  # type: ignore[import-untyped]

    tree, silent = get_ast(source), list(_unseen(source))
    for name in operator_names():
        if name.partition("/")[2] in OPERATORS:
            operator = get_operator(name)()
            positions = (start for node in ast_nodes(tree) for start, _ in operator.mutation_positions(node))
            for occurrence, place in enumerate(positions):
                if not any(begin <= place < end for begin, end in silent):
                    yield name, occurrence


def _unseen(source: str) -> Iterator[Span]:
    """Yield places that no test could notice.

    Annotations and aliases of types; decorators, which say how a class is laid out; the parts of a message.
    """
    for node in ast.walk(ast.parse(source)):
        held: list[ast.expr | None] = []
        if isinstance(node, ast.AnnAssign):
            held = [node.annotation if "TypeAlias" not in ast.dump(node.annotation) else node.value]
        elif isinstance(node, ast.JoinedStr):
            held = [node]
        elif isinstance(node, ast.ClassDef):
            held = [*node.decorator_list]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            held = [*node.decorator_list, node.returns]
            held += [argument.annotation for argument in every if argument is not None]
        for each in held:
            if each is not None:
                end = (each.end_lineno or each.lineno, each.end_col_offset or each.col_offset)
                yield (each.lineno, each.col_offset), end


def _drawn(root: Path, path: Path, operator: str, occurrence: int) -> Mutant | None:
    from cosmic_ray.mutating import mutate_code  # type: ignore[import-untyped]
    from cosmic_ray.plugins import get_operator

    source = path.read_text("utf-8")
    text = mutate_code(source, get_operator(operator)(), occurrence)
    if text is None or text == source:
        return None
    try:
        _require_compiles(text, operator)
    except MutantError:
        return None
    pairs = enumerate(zip(source.splitlines(), text.splitlines(), strict=False), 1)
    line = next((number for number, (before, after) in pairs if before != after), 1)
    file = str(path.relative_to(root))
    return Mutant(f"{file}:{operator.partition('/')[2]}:{occurrence}", file, line, text)


def _require_compiles(text: str, what: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # `is` beside a literal is a mutant as good as others
            compile(text, what, "exec")
    except SyntaxError as error:
        raise MutantError(f"{what}: {error}") from error
