"""Generate: prompts in, proven rows in shards and refused rows in quarantine out.

Guarantees: nothing is sent without a permit; what was paid for is on disk before it is used; a row that is in the
folder, or answered in the ledger, is not asked again; a stop of any kind (Ctrl-C, budget, disk, provider) lets what is
in flight come in, writes it, and says what is left.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from pipeline.base.money import usd_text
from pipeline.base.paths import ROOT, ledger_path
from pipeline.base.prompts import RefusedLine
from pipeline.base.quoting import quoted
from pipeline.datasets.sources import SourceError
from pipeline.gate.gate import Permit
from pipeline.generation.breaker import Trip
from pipeline.generation.coverage import uncovered
from pipeline.generation.ending import INTERRUPTED, end
from pipeline.generation.ledger_schema import LedgerError
from pipeline.generation.outcome import Fate, Outcome, Row, guarded
from pipeline.generation.paid_client import TRIPPED, TROUBLE, UNUSABLE, StopError
from pipeline.generation.plan import Plan
from pipeline.generation.run import Progress, Run, begin
from pipeline.generation.summary import Summary
from pipeline.generation.watching import seen_of, trip_message
from pipeline.proof.fingerprint import OWN_APIS
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import Completion, Prompt, Refusal, TokenRow
from pipeline.shards import manifest as manifests
from pipeline.shards.manifest import FolderHeldError, ManifestError
from pipeline.shards.shards import Quarantined, ShardError

# A resumed run passes over done rows without waiting for anything; signals are looked at this often.
BREATH = 256
MOST_OF_A_DETAIL = 600


async def run_generation(
    permit: Permit, plan: Plan, *, progress: Progress, root: Path = ROOT, ledger: Path | None = None
) -> Summary:
    """Ask every prompt of the plan that has no row yet, and end with the sum of it.

    Raises StopError, before anything is asked, where the run cannot begin.
    """
    async with AsyncExitStack() as stack:
        try:
            run = await begin(stack, permit, plan, progress, root, ledger or ledger_path())
        except FolderHeldError as error:
            raise StopError(str(error), UNUSABLE) from error
        except (LedgerError, ManifestError, ShardError) as error:
            raise StopError(str(error)) from error
        except OSError as error:
            raise StopError(f"{error.filename or plan.out}: {error.strerror or error}") from error
        with _signals(run):
            await _ask_all(run)
            return end(run, root)


@contextmanager
def _signals(run: Run) -> Iterator[None]:
    """The first Ctrl-C stops asking and lets answers in flight come in; the second breaks them off."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def interrupt() -> None:
        flying = run.budget.reserved.requests
        if run.stop.asked and task is not None:
            if not task.cancelling():  # a third Ctrl-C must not cancel the writing of what the second broke off
                sys.stderr.write(f"breaking off {flying} in flight\n")
                task.cancel()
        elif flying:
            sys.stderr.write(f"finishing {flying} in flight; press again to break off\n")
        run.stop.ask("interrupted: what was in flight has come in and is written", INTERRUPTED)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _ask_all(run: Run) -> None:
    run.stop.then.append(run.engine.close)
    batches = _batches(run)
    try:
        more = await _ask_canaries(run, batches)
        if more is not None:
            _judge_canaries(run)
            await _crew(run, chain([more], batches))
    except asyncio.CancelledError:
        free = run.plan.route.api in OWN_APIS
        paid = "may have been paid for and is unknown in the ledger; only --resend-unknown asks it again"
        run.stop.message = f"broken off: what was in flight {'is asked again by the same command' if free else paid}"
    finally:
        batches.close()


async def _crew(run: Run, batches: Iterator[list[Row]]) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(run.engine.workers):
            group.create_task(_work(run, batches))


async def _ask_canaries(run: Run, batches: Iterator[list[Row]]) -> list[Row] | None:
    """Ask until so many rows were really sent; the batch that comes after them, None where there is none.

    What the ledger has already is no canary: it says nothing of how the provider does now.
    """
    while not run.stop.asked and (left := run.plan.watch.canaries - run.tally.asked) > 0:
        if (more := next(batches, None)) is None:
            return None
        await _crew(run, _first(chain([more], batches), left))
    return None if run.stop.asked else next(batches, None)


def _first(batches: Iterator[list[Row]], rows: int) -> Iterator[list[Row]]:
    """Batches until so many rows are asked."""
    while rows > 0 and (batch := next(batches, None)) is not None:
        rows -= len(batch)
        yield batch


def _judge_canaries(run: Run) -> None:
    trip = run.breaker.judge_canaries()
    run.events.write("canaries", verdict="passed" if trip is None else str(trip.sign))
    _pause(run, trip)


def _pause(run: Run, trip: Trip | None) -> None:
    """Stop asking; what is in flight still comes in."""
    if trip is not None and run.trip is None:
        run.trip = trip
        message = trip_message(trip, emulated=run.plan.route.api != "openrouter")
        run.events.write("tripped", sign=str(trip.sign), sentence=trip.sentence, rows=list(trip.rows))
        run.stop.ask(message, TRIPPED)


async def _work(run: Run, batches: Iterator[list[Row]]) -> None:
    passed = 0
    while not run.stop.asked:
        with _stopping(run):
            rows = next(batches, None)
            if rows is None:
                return
            if rows:
                await _answer(run, rows)
            passed += not rows
            if passed % BREATH == 1:
                await asyncio.sleep(0)


async def _answer(run: Run, rows: list[Row]) -> None:
    if datetime.now(UTC) >= run.permit.expires:
        raise StopError("the attestation expired while the run was on. Run: nox -s contract, then the same command")
    for outcome in await run.engine.complete(rows):
        _take(run, outcome)
    run.progress(run.tally)


@contextmanager
def _stopping(run: Run) -> Iterator[None]:
    """Turn what goes wrong for one row into a stop of the run: the other rows in flight may be paid for."""
    try:
        yield
    except StopError as error:
        run.stop.ask(str(error), error.code)
    except (ShardError, SourceError) as error:
        run.stop.ask(str(error), TROUBLE)
    except OSError as error:
        run.stop.ask(f"{error.filename or run.plan.out}: {error.strerror or error}. Mend that, then go on", TROUBLE)
    except Exception as error:  # noqa: BLE001 - an error of our own must not lose the others' answers either
        run.stop.error = error
        run.stop.ask(f"an error of this program: {type(error).__name__}: {error}. Nothing written is lost", TROUBLE)


def _batches(run: Run) -> Generator[list[Row], None, None]:
    """Rows to ask, so many at a time; an empty list where a line needed no asking."""
    waiting: list[Row] = []
    for line in run.plan.lines():
        row = _row(run, line)
        if row is None:
            yield []
            continue
        waiting.append(row)
        if len(waiting) >= run.engine.batch:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _row(run: Run, line: Prompt | RefusedLine) -> Row | None:
    key = f"line {line.line}" if isinstance(line, RefusedLine) else f"id {line.id}"
    if key in run.folder:
        run.tally.done_before += 1
        return None
    if isinstance(line, RefusedLine):
        _refuse(run, Quarantined(line.id, line.refusal, {"file": line.file, "line": line.line}))
        return None
    found = guarded(lambda: uncovered(line, run.plan) or _askable(run, line))
    if isinstance(found, Row):
        return found
    _refuse(run, Quarantined(line.id, found, dataset=line.dataset))
    return None


def _askable(run: Run, prompt: Prompt) -> Row | Refusal:
    row = Row(prompt, run.plan.fmt.render(prompt))
    return run.engine.refusal(row) or row


def _take(run: Run, outcome: Outcome) -> None:
    prompt, answer, tally = outcome.row.prompt, outcome.answer, run.tally
    tally.asked += outcome.sent
    tally.from_ledger += not outcome.sent and outcome.fate is Fate.ANSWERED
    tally.spent_pico = tally.spent_before + run.budget.used.pico
    row: TokenRow | Refusal | None = None
    if outcome.fate is Fate.UNKNOWN:
        tally.lose(prompt.id)
    elif outcome.fate is Fate.AGAIN:
        tally.again += 1
    elif isinstance(answer, Completion):
        row = _prove(run, outcome, answer)
    elif answer is not None:
        row = answer
        _refuse(run, Quarantined(prompt.id, answer, request=outcome.request, dataset=prompt.dataset))
    _tell(run, outcome, row)


def _tell(run: Run, outcome: Outcome, row: TokenRow | Refusal | None) -> None:
    """The event log's line of a row, and the breaker's look at it."""
    said = {"evidence": str(row.evidence)} if isinstance(row, TokenRow) else {}
    said |= {"reason": str(row.reason)} if isinstance(row, Refusal) else {}
    fate = "accepted" if isinstance(row, TokenRow) else "refused" if row is not None else str(outcome.fate)
    run.events.write("row", id=outcome.row.prompt.id, fate=fate, usd=usd_text(outcome.pico), **said)
    if (seen := seen_of(outcome, row)) is not None:
        _pause(run, run.breaker.see(seen))
    if seen is not None and outcome.cost is not None:
        _pause(run, run.forecast.see(outcome.cost))
    else:
        run.forecast.skip()


def _prove(run: Run, outcome: Outcome, completion: Completion) -> TokenRow | Refusal:
    prompt = outcome.row.prompt
    row = guarded(lambda: _proven(run, prompt, completion))
    if isinstance(row, Refusal):
        ids = completion.token_ids if outcome.request is None else None
        refused = Quarantined(prompt.id, row, request=outcome.request, dataset=prompt.dataset, token_ids=ids)
        _refuse(run, refused)
        return row
    run.folder.accept(row, prompt.dataset)
    run.tally.accepted += 1
    _keep_manifest(run)
    return row


def _proven(run: Run, prompt: Prompt, completion: Completion) -> TokenRow | Refusal:
    fingerprint = run.fingerprint if run.fingerprint and run.fingerprint.is_of(completion) else None
    return reconstruct(prompt, completion, run.plan.fmt, fingerprint, run.engine.asked)


def _refuse(run: Run, refused: Quarantined) -> None:
    """A detail may hold a provider's own words (a model's name, a finish reason): no secret stands in what is kept."""
    detail = quoted(refused.refusal.detail, MOST_OF_A_DETAIL)
    refused = replace(refused, refusal=replace(refused.refusal, detail=detail))
    run.folder.refuse(refused)
    run.tally.refused += 1
    run.tally.first.setdefault(refused.refusal.reason, refused.refusal.detail)


def _keep_manifest(run: Run) -> None:
    if len(run.folder.shards) != len(run.manifest.shards):
        run.manifest = replace(run.manifest, shards=tuple(run.folder.shards))
        manifests.write(run.plan.out, run.manifest)
