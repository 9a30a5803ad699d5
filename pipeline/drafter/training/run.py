"""A training run: its folder, its sessions, its end.

Guarantees: a folder is continued only under the settings it was begun with, by one run at a time, and from a whole
checkpoint. Ctrl-C and SIGTERM let the step end, write a checkpoint and say how to continue; a second Ctrl-C aborts, and
the last checkpoint stands. Every session is listed with the attestation it ran under.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.base.paths import ROOT
from pipeline.base.screen import say
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
    """How often to checkpoint and validate, in steps.

    None of it changes a weight. `keep` is how many checkpoints stay.
    """

    checkpoint_every: int = 500
    validate_every: int = 500
    keep: int = 2
    track: str | None = None


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a session ended.

    Exit status, and one sentence where it did not simply finish.
    """

    code: int
    message: str = ""


Show = Callable[[StepReport], None]


@dataclass(slots=True)
class TrainingFolder:
    """What the first process writes: manifest, metrics, checkpoints.

    The other processes have none.
    """

    out: Path
    manifest: manifests.Manifest
    metrics: MetricsFile
    tracker: Tracker | None

    def log(self, step: int, kind: str, numbers: Mapping[str, Json]) -> None:
        self.metrics.write(step, kind, numbers)
        if self.tracker is not None:
            self.tracker.log(step, flat(numbers, f"{kind}/"))

    def end(self, ending: SessionEnd, result: Mapping[str, Json]) -> None:
        """Record how the session ended."""
        try:
            tree = tree_digests(ROOT)
        except DigestError as error:
            tree = {"error": str(error)}
        whole = replace(self.manifest, result=dict(result))
        outcome = OUTCOMES[ending.code]
        self.manifest = manifests.with_last_session(whole, tree_end=tree, ended=_now(), outcome=outcome)
        manifests.write(self.out, self.manifest)


@contextmanager
def held(out: Path, settings: JsonObject, *, accept_unsigned: bool = False) -> Iterator[manifests.Manifest]:
    """Lock the folder and yield its manifest. Raises ManifestError, OSError."""
    manifests.begin(out, settings, accept_unsigned=accept_unsigned)  # one that is not ours gets no lock file
    with manifests.hold(out):
        yield manifests.begin(out, settings, accept_unsigned=accept_unsigned)


@contextmanager
def opened(
    out: Path, manifest: manifests.Manifest, permit: Permit, intervals: Intervals, steps_done: int
) -> Iterator[TrainingFolder]:
    """Add a session, with metrics cut to the steps done.

    Raises MetricsError, OSError.
    """
    session = Session(_now(), permit.attestation_sha256, dict(permit.digests))
    manifest = replace(manifest, sessions=(*manifest.sessions, session))
    tracker = None if intervals.track is None else tracker_named(intervals.track, out, out.name, manifest.settings)
    manifests.write(out, manifest)
    with ExitStack() as stack:
        if tracker is not None:
            stack.callback(tracker.finish)
        metrics = MetricsFile(out, steps_done=steps_done)
        stack.callback(metrics.close)
        folder = TrainingFolder(out, manifest, metrics, tracker)
        try:
            yield folder
        except Exception:  # the caller reports it; the manifest records only that the session ended
            with suppress(OSError, manifests.ManifestError):
                folder.end(SessionEnd(STOPPED), {"complete": False})
            raise


def train(
    training: Training,
    folder: TrainingFolder | None,
    intervals: Intervals,
    out: Path,
    description: Mapping[str, Json],
    show: Show,
    expires: datetime | None = None,
) -> SessionEnd:
    """Take all remaining steps.

    `description` goes into each checkpoint; without a folder this process writes nothing. Raises CheckpointError,
    OSError.
    """
    with signals() as stop:
        while not training.done:
            if (reason := _why_stop(training, stop, expires)) is not None:
                saved = _save(training, out, intervals, description)
                code = INTERRUPTED if reason == "interrupted" else STOPPED
                return SessionEnd(code, f"{reason} after step {training.step}; {saved.name} is written")
            try:
                report = training.take_step()
                _after(training, folder, report, intervals, show)
            except NotFiniteError as error:
                place = checkpoints.newest(out)
                last = "There is no checkpoint yet" if place is None else f"The last good checkpoint is {place}"
                return SessionEnd(STOPPED, f"{error}. {last}")
            if _is_time(training, intervals.checkpoint_every):
                if folder is not None:
                    folder.metrics.sync()
                _save(training, out, intervals, description)
    return SessionEnd(COMPLETE)


@dataclass(slots=True)
class StopSignal:
    """Whether somebody asked this process to stop."""

    requested: bool = False


@contextmanager
def signals() -> Iterator[StopSignal]:
    """Let the step end on the first signal.

    A second Ctrl-C aborts it.
    """
    stop = StopSignal()

    def handle(number: int, _frame: object) -> None:
        if stop.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not stop.requested:
            say("finishing this step and writing a checkpoint; press again to break off")
        stop.requested = True

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, handle) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _why_stop(training: Training, stop: StopSignal, expires: datetime | None) -> str | None:
    """Return why all processes stop now, agreed by all."""
    if training.world.any(flag=stop.requested):
        return "interrupted"
    if training.world.any(flag=expires is not None and datetime.now(UTC) >= expires):
        return "the attestation expired (run: nox -s contract)"
    return None


def _after(
    training: Training, folder: TrainingFolder | None, report: StepReport, intervals: Intervals, show: Show
) -> None:
    """Log and show a step, and validate when due."""
    if folder is not None:
        folder.log(training.step, "train", report.document())
    show(report)
    if not _is_time(training, intervals.validate_every):
        return
    figures = training.validate()
    if folder is not None and figures is not None:
        folder.log(training.step, "validation", figures.document())


def _is_time(training: Training, every: int) -> bool:
    """Whether a periodic task is due; always at the end."""
    return training.done or training.step % every == 0


def _save(training: Training, out: Path, intervals: Intervals, description: Mapping[str, Json]) -> Path:
    """Write a checkpoint and remove old ones."""
    snapshot = training.snapshot(description)

    def write() -> Path:
        place = checkpoints.save(out, snapshot)
        checkpoints.prune(out, intervals.keep)
        return place

    return training.world.first(write)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
