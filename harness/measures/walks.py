"""Count the units and modules that three typical jobs enter.

    python -m harness walks

Guarantees: entries of real calls are counted, by `sys.setprofile`, when warm: one row through a run against the canned
peer (as a stream), one answer proven as a body on the grade `counted`, one row of a dataset prepared.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from harness.fixtures import answers
from harness.fixtures.canned_peer import canned, load_peer
from harness.fixtures.runs import byte_format, whole_run
from harness.measures.load.sides import a_prompt, load_world, plan_of
from pipeline.base.paths import ROOT
from pipeline.base.screen import say, show
from pipeline.datasets.prepare import Preparation, RowFilter, Selection
from pipeline.datasets.registry import dataset_named
from pipeline.proof.reconstruct import reconstruct

ROW = '{"instruction": "Add one to %d.", "response": "def f(x): return x + 1"}'


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each walk; 0."""
    if arguments:
        say("error: this measure takes no arguments. Run: python -m harness walks")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        for name, work in walks(Path(folder)):
            work()
            entered = modules_entered(work)
            units = sorted({".".join(module.split(".")[:2]).removeprefix("pipeline.") for module in entered})
            show(f"{name:36} {len(entered):3} modules, {len(units)} units: {' '.join(units)}")
    return 0


def walks(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each walk by name; it can be repeated."""
    known, shown = answers.route(), answers.answer()
    yield "answer, body, counted", lambda: reconstruct(answers.PROMPT, shown, answers.FORMAT, known)
    preparation = Preparation(RowFilter(dataset_named("B3")), Selection(None, None, 0), 1)
    source = folder / "rows.jsonl"
    source.write_text(ROW % 1 + "\n")
    made = folder / "prompts.jsonl"
    yield "dataset row through prepare", lambda: preparation.write(str(source), made, folder / "rejects.jsonl")
    (vocabulary := folder / "peer").mkdir()
    said = canned(byte_format(vocabulary), a_prompt(), 200, whole=False)
    with load_peer(said) as url:
        worlds = (load_world(folder / str(number), url, 1) for number in range(2))
        yield "row through generate, stream", lambda: whole_run(world := next(worlds), plan_of(world, 1))


def modules_entered(work: Callable[[], object]) -> set[str]:
    """Modules of `pipeline` in which some function was called."""
    found: set[str] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found.add(frame.f_code.co_filename)

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    inside = (Path(name) for name in found if Path(name).is_relative_to(ROOT / "pipeline"))
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in inside)
    return {name.removesuffix(".__init__") for name in names}
