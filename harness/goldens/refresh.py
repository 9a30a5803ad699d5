"""Write or check the tiny target's goldens.

    python -m harness goldens [--check] [--small] [--only CASE]

Guarantees: a file whose key and tokens are the same is left as it is, so that a date changes only with what it dates.
`--check` compares and writes nothing. Needs torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from harness.goldens.cases import GOLDENS, SMALL
from harness.goldens.extension import FOLDER, golden_path
from harness.goldens.golden import REFRESH, SUFFIX, Golden, GoldenError, diff_lines, dump_golden, read_golden
from pipeline.base.files import write_whole
from pipeline.base.paths import ROOT
from pipeline.base.screen import say, show
from pipeline.formats.tokenizer import TokenizerError
from pipeline.gate.digests import DigestError

if TYPE_CHECKING:
    from harness.goldens.record import Bench

WEIGHTS = ROOT / "harness" / "tiny_target" / "weights"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check.

    Exit 0, 1 where a case fails or differs, 2 where nothing can run.
    """
    options = parser().parse_args(arguments)
    cases = options.only or (SMALL if options.small else tuple(GOLDENS))
    try:
        from harness.goldens.record import load_bench
        from pipeline.generation.engines.local import EngineError
    except ImportError as error:
        say(f"goldens are made with torch, which is not here ({error}). Run: {REFRESH}")
        return 2
    try:
        bench = load_bench(options.weights)
        failed = [case for case in cases if not _stands(case, bench, options)]
    except (EngineError, TokenizerError, DigestError, OSError) as error:
        say(str(error))
        return 2
    if not options.check and len(cases) == len(GOLDENS):
        remove_orphans(options.goldens)
    show(f"{len(cases) - len(failed)} of {len(cases)} goldens {'hold' if options.check else 'stand'}")
    return 1 if failed else 0


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = argparse.ArgumentParser(prog="python -m harness goldens", description=(__doc__ or "").splitlines()[0])
    top.add_argument("--check", action="store_true", help="regenerate, compare, write nothing")
    top.add_argument("--small", action="store_true", help=f"only {', '.join(SMALL)}")
    top.add_argument("--only", metavar="CASE", action="append", choices=sorted(GOLDENS), help="only this case")
    top.add_argument("--weights", type=Path, default=WEIGHTS, help="the model's directory")
    top.add_argument("--goldens", type=Path, default=ROOT / FOLDER, help="where the goldens lie")
    return top


def _stands(case: str, bench: Bench, options: argparse.Namespace) -> bool:
    """Write or check one case, and print the result.

    Returns whether its golden stands.
    """
    try:
        treat = check_case if options.check else make_case
        lines = [*treat(case, bench, options.goldens)]
    except GoldenError as error:
        say(str(error))
        return False
    for line in lines:
        show(f"{case}: {line}")
    return not (options.check and lines)


def check_case(case: str, bench: Bench, folder: Path) -> Iterator[str]:
    """Yield how today's run differs from the golden.

    Raises GoldenError.
    """
    from harness.goldens.record import again, other_key

    golden = read_golden(golden_path(case, folder))
    yield from other_key(golden, bench)
    yield from diff_lines(again(golden, bench), golden)


def make_case(case: str, bench: Bench, folder: Path) -> Iterator[str]:
    """Write the case's golden, where it is another than before.

    Raises GoldenError.
    """
    from harness.goldens.record import make

    golden, path = make(GOLDENS[case], bench), golden_path(case, folder)
    if same_but_for_date(golden, path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)

    def write(file: BinaryIO) -> None:
        file.write(dump_golden(golden).encode("utf-8"))

    write_whole(path, write)
    yield f"written, {len(golden.tokens)} tokens"


def same_but_for_date(golden: Golden, path: Path) -> bool:
    """Return whether the file is this golden, taken earlier."""
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
