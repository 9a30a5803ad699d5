"""Goldens under test: a syrupy extension that compares tokens, and the command that makes and checks them.

Guarantees: two goldens match when prompt ids and emitted ids are equal, whatever their provenance says; a mismatch is
told by `token_diff`. A file whose key and tokens are the same is left as it is, so that a date changes only with what
it dates. `python -m harness goldens` writes, `--check` only compares; both need torch, the extension does not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from harness.goldens.cases import GOLDENS, SMALL
from harness.goldens.golden import (
    REFRESH,
    SUFFIX,
    Golden,
    GoldenError,
    diff_lines,
    dump_golden,
    parse_golden,
    read_golden,
)
from pipeline.base.files import write_whole
from pipeline.base.paths import ROOT
from pipeline.formats.tokenizer import TokenizerError
from pipeline.gate.digests import DigestError

if TYPE_CHECKING:
    from syrupy.location import PyTestLocation

    from harness.goldens.record import Bench

STEM, EXTENSION = SUFFIX.removeprefix(".").split(".")
FOLDER = Path("goldens") / "tiny_target"
WEIGHTS = ROOT / "harness" / "tiny_target" / "weights"


class TokenGolden(SingleFileSnapshotExtension):
    """`golden == snapshot(name=case)` against `goldens/tiny_target/CASE.tokens.json`."""

    _write_mode = WriteMode.TEXT
    file_extension = EXTENSION

    def serialize(self, data: Golden, **_: object) -> str:
        return dump_golden(data)

    def matches(self, *, serialized_data: str, snapshot_data: str) -> bool:
        return same_tokens(parse_golden(serialized_data), parse_golden(snapshot_data))

    def diff_lines(self, serialized_data: str | bytes, snapshot_data: str | bytes) -> Iterator[str]:
        """Syrupy calls it with an empty golden where there is no file."""
        if not snapshot_data:
            yield f"there is no golden. Run: {REFRESH}"
            return
        yield from diff_lines(parse_golden(str(serialized_data)), parse_golden(str(snapshot_data)))
        yield f"If the change is wanted: {REFRESH}"

    @classmethod
    def dirname(cls, *, test_location: PyTestLocation) -> str:
        return str(test_location.item.config.rootpath / FOLDER)

    @classmethod
    def get_snapshot_name(cls, *, test_location: PyTestLocation, index: int | str = 0) -> str:
        """The file's stem, so that syrupy finds goldens that no test uses: the name in `snapshot(name=...)`."""
        return f"{index if isinstance(index, str) else test_location.methodname}.{STEM}"


def same_tokens(first: Golden, second: Golden) -> bool:
    """Whether both are the same tokens after the same prompt."""
    return (first.prompt_ids, first.ids) == (second.prompt_ids, second.ids)


def golden_path(case: str, folder: Path = ROOT / FOLDER) -> Path:
    """Where the case's golden lies."""
    return folder / f"{case}{SUFFIX}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make or check. Exit 0, 1 where a case fails or differs, 2 where nothing can run."""
    options = _options(arguments)
    cases = options.only or (SMALL if options.small else tuple(GOLDENS))
    try:
        from harness.goldens.record import load_bench
        from pipeline.generation.engines.local import EngineError
    except ImportError as error:
        sys.stderr.write(f"goldens are made with torch, which is not here ({error}). Run: {REFRESH}\n")
        return 2
    try:
        bench = load_bench(options.weights)
        failed = [case for case in cases if not _said(case, bench, options)]
    except (EngineError, TokenizerError, DigestError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if not options.check and len(cases) == len(GOLDENS):
        remove_orphans(options.goldens)
    sys.stdout.write(f"{len(cases) - len(failed)} of {len(cases)} goldens {'hold' if options.check else 'stand'}\n")
    return 1 if failed else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness goldens", description=str(__doc__).splitlines()[0])
    parser.add_argument("--check", action="store_true", help="regenerate, compare, write nothing")
    parser.add_argument("--small", action="store_true", help=f"only {', '.join(SMALL)}")
    parser.add_argument("--only", metavar="CASE", action="append", choices=sorted(GOLDENS), help="only this case")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="the model's directory")
    parser.add_argument("--goldens", type=Path, default=ROOT / FOLDER, help="where the goldens lie")
    return parser.parse_args(arguments)


def _said(case: str, bench: Bench, options: argparse.Namespace) -> bool:
    """Make or check one case and say what came of it; whether it stands."""
    try:
        treat = check_case if options.check else make_case
        lines = [*treat(case, bench, options.goldens)]
    except GoldenError as error:
        sys.stderr.write(f"{error}\n")
        return False
    for line in lines:
        sys.stdout.write(f"{case}: {line}\n")
    return not (options.check and lines)


def check_case(case: str, bench: Bench, folder: Path) -> Iterator[str]:
    """Every way in which today's run differs from the golden. Raises GoldenError."""
    from harness.goldens.record import again, other_key

    golden = read_golden(golden_path(case, folder))
    yield from other_key(golden, bench)
    yield from diff_lines(again(golden, bench), golden)


def make_case(case: str, bench: Bench, folder: Path) -> Iterator[str]:
    """Write the case's golden, unless the one that is there has the same key and tokens. Raises GoldenError."""
    from harness.goldens.record import make

    golden, path = make(GOLDENS[case], bench), golden_path(case, folder)
    if same_but_for_date(golden, path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda file: _write(file, dump_golden(golden)))
    yield f"written, {len(golden.tokens)} tokens"


def same_but_for_date(golden: Golden, path: Path) -> bool:
    """Whether the file is this golden, taken earlier."""
    try:
        there = read_golden(path)
    except GoldenError:
        return False
    dated = replace(golden, provenance={**golden.provenance, "recorded_at": there.provenance.get("recorded_at")})
    return dump_golden(there) == dump_golden(dated)


def remove_orphans(folder: Path) -> None:
    """Delete goldens that no case makes."""
    known = {golden_path(case, folder) for case in GOLDENS}
    for path in folder.glob(f"*{SUFFIX}"):
        if path not in known:
            path.unlink()


def _write(file: BinaryIO, text: str) -> None:
    file.write(text.encode("utf-8"))
