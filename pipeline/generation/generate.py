"""Generate: prompts in, proven rows in shards and refused rows in quarantine out.

Guarantees: nothing is sent without a permit; what was paid for is on disk before it is used; a row that is in the
folder, or answered in the ledger, is not asked again; a stop of any kind (Ctrl-C, budget, disk, provider) lets what is
in flight come in, writes it, and says what is left.

The end of a run: what waits is written, the tree is looked at again, the manifest says what came of it all.

Guarantees: a summary comes out whatever stopped the run; what could not be written is said to be so.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from pipeline.base.redaction import redact
from pipeline.datasets.sources import SourceError
from pipeline.gate.digests import DigestError, changed, tree_digests
from pipeline.gate.gate import Permit
from pipeline.generation.breaker import Trip, row_signs_of, trip_message
from pipeline.generation.coverage import uncovered
from pipeline.generation.ledger_schema import LedgerError
from pipeline.generation.outcome import Outcome, Row, Status, refusing_errors
from pipeline.generation.paid_client import BUDGET_SPENT, TRIPPED, TROUBLE, UNUSABLE, StopError
from pipeline.generation.plan import Plan
from pipeline.generation.run import Progress, Run, begin, now_text
from pipeline.generation.summary import Summary, cost_of, counted_risk
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import OWN_APIS, SERVED_APIS, Completion, Json, Prompt, Refusal, TokenRow
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
    found = refusing_errors(lambda: uncovered(line, run.plan) or _askable(run, line))
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
    tally.from_ledger += not outcome.sent and outcome.fate is Status.ANSWERED
    tally.spent_pico = tally.spent_before + run.budget.used.pico
    row: TokenRow | Refusal | None = None
    if outcome.fate is Status.UNKNOWN:
        tally.lose(prompt.id)
    elif outcome.fate is Status.AGAIN:
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
    if (seen := row_signs_of(outcome, row)) is not None:
        _pause(run, run.breaker.see(seen))
    if seen is not None and outcome.cost is not None:
        _pause(run, run.forecast.see(outcome.cost))
    else:
        run.forecast.skip()


def _prove(run: Run, outcome: Outcome, completion: Completion) -> TokenRow | Refusal:
    prompt = outcome.row.prompt
    row = refusing_errors(lambda: _proven(run, prompt, completion))
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
    detail = redact(refused.refusal.detail, MOST_OF_A_DETAIL)
    refused = replace(refused, refusal=replace(refused.refusal, detail=detail))
    run.folder.refuse(refused)
    run.tally.refused += 1
    run.tally.first.setdefault(refused.refusal.reason, refused.refusal.detail)


def _keep_manifest(run: Run) -> None:
    if len(run.folder.shards) != len(run.manifest.shards):
        run.manifest = replace(run.manifest, shards=tuple(run.folder.shards))
        manifests.write(run.plan.out, run.manifest)


INTERRUPTED = 130
COMPLETE, INCOMPLETE, LIMITED = "complete", "incomplete", "complete within --limit"
OUTCOMES = {INTERRUPTED: "interrupted", BUDGET_SPENT: "budget spent", TRIPPED: "paused", TROUBLE: "stopped"}


def end(run: Run, root: Path) -> Summary:
    """Write all that waits and sum the run up. Never raises for a full disk: the summary says it."""
    try:
        run.folder.flush()
    except OSError as error:
        again = "What was answered is in the ledger: mend that and run the same command again"
        run.stop.ask(f"{run.plan.out}: {error.strerror or error}. {again}", TROUBLE)
    tree = _tree(root)
    summary = _summary(run, changed(run.permit.digests, tree))
    manifest = replace(run.manifest, result=summary.result(), shards=tuple(run.folder.shards))
    manifest = manifests.with_last_session(manifest, tree_end=tree, ended=now_text(), outcome=summary.outcome)
    try:
        manifests.write(run.plan.out, manifest)
    except OSError as error:
        message = f"{run.plan.out}: {error.strerror or error}; the manifest is as it was. Run the same command again"
        return replace(summary, outcome="stopped", code=summary.code or TROUBLE, message=summary.message or message)
    _log(run, summary)
    return summary


def _log(run: Run, summary: Summary) -> None:
    """The last line of the event log. It is a courtesy: a full disk has been told of above."""
    with contextlib.suppress(OSError):
        rows: dict[str, Json] = dict(summary.rows)
        run.events.write("ended", outcome=summary.outcome, exit=summary.code, rows=rows, usd=summary.cost["usd"])


def _tree(root: Path) -> dict[str, str]:
    try:
        return tree_digests(root)
    except DigestError as error:
        return {"error": str(error)}


def _summary(run: Run, moved: tuple[str, ...]) -> Summary:
    tally, folder, stop = run.tally, run.folder, run.stop
    with run.ledger.transaction():
        money = run.ledger.tally(run.manifest.run)
        busy = {"engine_seconds": round(run.ledger.engine_seconds(run.manifest.run), 3)} if _is_served(run) else {}
    evidence = folder.evidence()
    prompt_tokens, output_tokens = folder.tokens()
    rows = {"in_file": tally.in_file, "asked": tally.asked, "from_ledger": tally.from_ledger}
    rows |= {"done_before": tally.done_before, "accepted": evidence.total(), "refused": folder.reasons.total()}
    rows |= {"unknown": tally.unknown_count, "to_ask_again": tally.again}
    missing = max(0, tally.in_file - evidence.total() - folder.reasons.total())
    left = min(missing, tally.lines - tally.done_before - tally.accepted - tally.refused)
    beyond = missing - left if tally.lines < tally.in_file else 0
    return Summary(
        outcome=OUTCOMES.get(stop.code, INCOMPLETE if left else LIMITED if beyond else COMPLETE),
        code=stop.code or (TROUBLE if left else 0),
        message=stop.message,
        folder=str(run.plan.out),
        route=run.plan.route.name,
        rows=rows | {"left": left, "beyond_limit": beyond},
        by_evidence=dict(sorted(evidence.items())),
        by_reason=dict(sorted(folder.reasons.items())),
        first_of_reason=dict(tally.first),
        unknown_rows=tuple(tally.unknown),
        tree_changed=moved,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cost=busy | cost_of(money, emulated=run.plan.route.api != "openrouter", budget_pico=run.plan.budget_pico),
        counted=counted_risk(evidence.get("counted", 0), run.fingerprint),
        shards=tuple(str(run.plan.out / shard.file) for shard in folder.shards),
        paused=_paused(run),
    )


def _is_served(run: Run) -> bool:
    return run.plan.route.api in SERVED_APIS


def _paused(run: Run) -> dict[str, Json] | None:
    """What the breaker tripped on, for the report and for the next session; None where the run did not pause."""
    trip = run.trip
    if trip is None or run.stop.code != TRIPPED:
        return None
    numbers: dict[str, Json] = {"value": trip.value, "limit": trip.limit, "window": trip.window}
    shown: dict[str, Json] = {"rows": list(trip.rows), "spent_usd": usd_text(trip.spent_pico)}
    return {"sign": str(trip.sign), "dataset": trip.dataset, "sentence": trip.sentence, **numbers, **shown}
