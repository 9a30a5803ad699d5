"""A training's folder and its life: begun or gone on with, step by step, until it is done or stopped.

Guarantees: a folder is continued only under the settings it was begun with, by one run at a time, and from a whole
checkpoint. Ctrl-C and SIGTERM let the step end, write a checkpoint and say how to go on; a second Ctrl-C breaks off,
and the last checkpoint stands. Every session is listed with the attestation it ran under.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.base.paths import ROOT
from pipeline.drafter.training import checkpoints
from pipeline.drafter.training.metrics import MetricsFile, Tracker, flat, tracker_named
from pipeline.drafter.training.trainer import NotFiniteError, StepReport, Training
from pipeline.gate.digests import DigestError, tree_digests
from pipeline.records import Json, JsonObject
from pipeline.shards import manifest as manifests
from pipeline.shards.manifest import Session

if TYPE_CHECKING:
    from pipeline.gate.gate import Permit

COMPLETE, STOPPED, INTERRUPTED = 0, 1, 130
OUTCOMES = {COMPLETE: "complete", STOPPED: "stopped", INTERRUPTED: "interrupted"}


@dataclass(frozen=True, slots=True)
class Intervals:
    """How often what is done, in steps; none of it changes a weight. `keep` is how many checkpoints stay."""

    checkpoint_every: int = 500
    validate_every: int = 500
    keep: int = 2
    track: str | None = None


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a session ended: exit status, and one sentence where it did not simply finish."""

    code: int
    message: str = ""


Show = Callable[[StepReport], None]


@dataclass(slots=True)
class TrainingFolder:
    """What the first process writes: manifest, metrics, checkpoints. The others hold none of it."""

    out: Path
    manifest: manifests.Manifest
    metrics: MetricsFile
    tracker: Tracker | None

    def log(self, step: int, kind: str, numbers: Mapping[str, Json]) -> None:
        self.metrics.write(step, kind, numbers)
        if self.tracker is not None:
            self.tracker.log(step, flat(numbers, f"{kind}/"))

    def end(self, ending: SessionEnd, result: Mapping[str, Json]) -> None:
        """Write how it ended."""
        try:
            tree = tree_digests(ROOT)
        except DigestError as error:
            tree = {"error": str(error)}
        whole = replace(self.manifest, result=dict(result))
        outcome = OUTCOMES[ending.code]
        self.manifest = manifests.with_last_session(whole, tree_end=tree, ended=_now(), outcome=outcome)
        manifests.write(self.out, self.manifest)


@contextmanager
def held(out: Path, settings: JsonObject) -> Iterator[manifests.Manifest]:
    """The folder's lock, and its manifest as it stands. Raises ManifestError, OSError."""
    manifests.begin(out, settings)  # a folder that is not ours is left as it is, without a lock file
    with manifests.hold(out):
        yield manifests.begin(out, settings)


@contextmanager
def opened(
    out: Path, manifest: manifests.Manifest, permit: Permit, habits: Intervals, steps_done: int
) -> Iterator[TrainingFolder]:
    """The folder with a session more, its metrics cut to the steps that are done. Raises MetricsError, OSError."""
    session = Session(_now(), permit.attestation_sha256, dict(permit.digests))
    manifest = replace(manifest, sessions=(*manifest.sessions, session))
    tracker = None if habits.track is None else tracker_named(habits.track, out, out.name, manifest.settings)
    manifests.write(out, manifest)
    with ExitStack() as stack:
        if tracker is not None:
            stack.callback(tracker.finish)
        metrics = MetricsFile(out, steps_done=steps_done)
        stack.callback(metrics.close)
        folder = TrainingFolder(out, manifest, metrics, tracker)
        try:
            yield folder
        except Exception:  # whatever it is goes on to who says it; the manifest hears only that the session ended
            with suppress(OSError):
                folder.end(SessionEnd(STOPPED), {"complete": False})
            raise


def train(
    training: Training,
    folder: TrainingFolder | None,
    habits: Intervals,
    out: Path,
    told: Mapping[str, Json],
    show: Show,
    expires: datetime | None = None,
) -> SessionEnd:
    """All steps that are left. `told` goes into each checkpoint; without a folder nothing is written by this process.

    Raises CheckpointError, OSError.
    """
    with signals() as stop:
        while not training.done:
            if (reason := _why_stop(training, stop, expires)) is not None:
                place = _save(training, out, habits, told)
                code = INTERRUPTED if reason == "interrupted" else STOPPED
                return SessionEnd(code, f"{reason} after step {training.step}; {place.name} is written")
            try:
                report = training.take_step()
                _after(training, folder, report, habits, show)
            except NotFiniteError as error:
                return SessionEnd(STOPPED, f"{error}. {_last(out)}")
            if _is_time(training, habits.checkpoint_every):
                if folder is not None:
                    folder.metrics.sync()
                _save(training, out, habits, told)
    return SessionEnd(COMPLETE)


@dataclass(slots=True)
class StopSignal:
    """Whether somebody asked this process to stop."""

    asked: bool = False


@contextmanager
def signals() -> Iterator[StopSignal]:
    """The first signal lets the step end; a second Ctrl-C breaks it off."""
    stop = StopSignal()

    def asked(number: int, _frame: object) -> None:
        if stop.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not stop.asked:
            sys.stderr.write("finishing this step and writing a checkpoint; press again to break off\n")
        stop.asked = True

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, asked) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _why_stop(training: Training, stop: StopSignal, expires: datetime | None) -> str | None:
    """Why all processes stop now; they agree on it."""
    if training.world.any(flag=stop.asked):
        return "interrupted"
    if training.world.any(flag=expires is not None and datetime.now(UTC) >= expires):
        return "the attestation expired (run: nox -s contract)"
    return None


def _after(
    training: Training, folder: TrainingFolder | None, report: StepReport, habits: Intervals, show: Show
) -> None:
    """Log and show a step, and validate where it is time to."""
    if folder is not None:
        folder.log(training.step, "train", report.document())
    show(report)
    if not _is_time(training, habits.validate_every):
        return
    figures = training.validate()
    if folder is not None and figures is not None:
        folder.log(training.step, "validation", figures.document())


def _is_time(training: Training, every: int) -> bool:
    """Whether what is done every so many steps is due; it is at the end."""
    return training.done or training.step % every == 0


def _save(training: Training, out: Path, habits: Intervals, told: Mapping[str, Json]) -> Path:
    snapshot = training.snapshot(told)

    def write() -> Path:
        place = checkpoints.save(out, snapshot)
        checkpoints.prune(out, habits.keep)
        return place

    return training.world.first(write)


def _last(out: Path) -> str:
    place = checkpoints.newest(out)
    return "There is no checkpoint yet" if place is None else f"The last good checkpoint is {place}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
