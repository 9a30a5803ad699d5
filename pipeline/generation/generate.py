"""Generate rows: prompts in, shards and quarantine out.

Guarantees: nothing is sent without a permit. What was paid for is on disk before it is used. A row that is in the
folder, or answered in the ledger, is not asked again. A stop of any kind (Ctrl-C, budget, disk, provider) lets what is
in flight come in, writes it, and says what is left. A summary comes out whatever stopped the run.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from pipeline.base.screen import say
from pipeline.datasets.sources import SourceError
from pipeline.gate.digests import changed
from pipeline.gate.gate import SHUT, GateShutError, Permit, require_same_tree
from pipeline.generation.breaker import Trip, row_signs_of, trip_message
from pipeline.generation.coverage import uncovered
from pipeline.generation.ledger_schema import LedgerError
from pipeline.generation.outcome import (
    BUDGET_SPENT,
    INTERRUPTED,
    TRIPPED,
    TROUBLE,
    UNUSABLE,
    Outcome,
    Row,
    Status,
    StopError,
    refusing_errors,
)
from pipeline.generation.plan import Plan
from pipeline.generation.run import LONGEST_STOP, Progress, Run, begin, digests_at_end, now_text, on_interrupt
from pipeline.generation.summary import Summary, cost_of, counted_risk
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import OWN_APIS, SERVED_APIS, Completion, Json, Prompt, Refusal, TokenRow
from pipeline.shards import manifest as manifests
from pipeline.shards.manifest import FolderHeldError, ManifestError
from pipeline.shards.shards import Quarantined, ShardError

# A resumed run passes over done rows without waiting for anything; signals are looked at this often.
ROWS_BETWEEN_SIGNALS = 256
MOST_OF_A_DETAIL = 600
COMPLETE, INCOMPLETE, LIMITED = "complete", "incomplete", "complete within --limit"
OUTCOMES = {INTERRUPTED: "interrupted", BUDGET_SPENT: "budget spent", TRIPPED: "paused", TROUBLE: "stopped"}


async def run_generation(
    permit: Permit, plan: Plan, *, progress: Progress, root: Path = ROOT, ledger: Path | None = None
) -> Summary:
    """Ask every prompt that has no row yet.

    Raises StopError, before anything is asked, where the run cannot begin. Example:

        permit = require(job_of(plan))  # the gate's word that this job may run
        summary = asyncio.run(run_generation(permit, plan, progress=lambda tally: None))
        summary.rows["accepted"], summary.cost["usd"], summary.code

    What happens to one row, by function:

    1. `_batches`, `_row`: the prompt is read, held against `plan.cover`, and rendered to ids.
    2. `_work`: one of `backend.workers` tasks passes it to `backend.complete`. On a paid route `HostedBackend` makes
       the request's bytes, its identity in the ledger, and its worst case.
    3. `RetryingClient.ask` waits for a slot. `PaidClient.ask` looks the identity up in the ledger, reserves the worst
       case in budget and ledger, sends, writes the answer down, and settles its price.
    4. `_take`: the answer becomes a Completion, and `reconstruct` proves it. A TokenRow goes to a shard, a Refusal to
       quarantine. The event log, the breaker and the forecast get the outcome.
    5. `end`: what is buffered is written, and the manifest says how the session ended.
    """
    async with AsyncExitStack() as stack:
        try:
            run = await begin(stack, permit, plan, progress, root, ledger or ledger_path())
            require_same_tree(permit, root)
        except GateShutError as error:
            raise StopError(str(error), SHUT) from error
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
    """Stop asking at a Ctrl-C, break off at the second.

    After the first, answers in flight may come in.
    """

    def interrupt() -> bool:
        in_flight, again = run.budget.reserved.requests, run.stop.asked
        if in_flight and not again:
            say(f"finishing {in_flight} in flight, for {LONGEST_STOP:g} s; press again to break off")
        run.stop.ask("interrupted: what was in flight has come in and is written", INTERRUPTED)
        return again

    with on_interrupt(interrupt):
        yield


async def _ask_all(run: Run) -> None:
    """Ask the canaries, judge them, then ask the rest."""
    run.stop.then.append(run.backend.close)
    batches = _batches(run)
    try:
        following = await _ask_canaries(run, batches)
        if following is not None:
            trip = run.breaker.judge_canaries()
            run.events.write("canaries", verdict="passed" if trip is None else str(trip.sign))
            _pause(run, trip)
            await _ask(run, chain([following], batches))
    except asyncio.CancelledError:
        free = run.plan.route.api in OWN_APIS
        paid = "may have been paid for and is unknown in the ledger; only --resend-unknown asks it again"
        run.stop.message = f"broken off: what was in flight {'is asked again by the same command' if free else paid}"
    finally:
        batches.close()


async def _ask_canaries(run: Run, batches: Iterator[list[Row]]) -> list[Row] | None:
    """Ask until enough rows were really sent.

    Returns the batch that comes next, None where there is none. A row that the ledger already has is no canary: it says
    nothing about the provider's present state.
    """

    def first(rows: int) -> Iterator[list[Row]]:
        while rows > 0 and (batch := next(batches, None)) is not None:
            rows -= len(batch)
            yield batch

    while not run.stop.asked and (left := run.plan.watch.canaries - run.tally.asked) > 0:
        if (following := next(batches, None)) is None:
            return None
        rest = left - len(following)
        await _ask(run, chain([following], first(rest)))
    return None if run.stop.asked else next(batches, None)


async def _ask(run: Run, batches: Iterator[list[Row]]) -> None:
    """Ask all batches, in the backend's number of tasks."""
    async with asyncio.TaskGroup() as group:
        for _ in range(run.backend.workers):
            group.create_task(_work(run, batches))


async def _work(run: Run, batches: Iterator[list[Row]]) -> None:
    passed = 0
    while not run.stop.asked:
        with _stopping(run):
            rows = next(batches, None)
            if rows is None:
                return
            if rows:
                if datetime.now(UTC) >= run.permit.expires:
                    mend = "Run: nox -s contract, then the same command"
                    raise StopError(f"the attestation expired while the run was on. {mend}")
                for outcome in await run.backend.complete(rows):
                    _take(run, outcome)
                run.progress(run.tally)
            passed += not rows
            if passed % ROWS_BETWEEN_SIGNALS == 1:
                await asyncio.sleep(0)


@contextmanager
def _stopping(run: Run) -> Iterator[None]:
    """Turn an error into a stop of the run.

    The other rows in flight may be paid for and must come in.
    """
    try:
        yield
    except StopError as error:
        run.stop.ask(str(error), error.code)
    except (ManifestError, ShardError, SourceError) as error:
        run.stop.ask(str(error), TROUBLE)
    except OSError as error:
        run.stop.ask(f"{error.filename or run.plan.out}: {error.strerror or error}. Mend that, then go on", TROUBLE)
    except Exception as error:  # noqa: BLE001 - an error of our own must not lose the others' answers either
        run.stop.error = error
        run.stop.ask(
            f"an error of this program: {type(error).__name__}: {redact(str(error), 200)}. Nothing written is lost",
            TROUBLE,
        )


def _pause(run: Run, trip: Trip | None) -> None:
    """Stop asking at a trip.

    What is in flight still comes in.
    """
    if trip is not None and run.trip is None:
        run.trip = trip
        message = trip_message(trip, emulated=run.plan.route.api != "openrouter")
        run.events.write("tripped", sign=str(trip.sign), sentence=trip.sentence, rows=list(trip.rows))
        run.stop.ask(message, TRIPPED)


def _batches(run: Run) -> Generator[list[Row], None, None]:
    """Yield batches of rows to ask.

    An empty list stands for a line that needs no asking.
    """
    waiting: list[Row] = []
    for line in run.plan.lines():
        row = _row(run, line)
        if row is None:
            yield []
            continue
        waiting.append(row)
        if len(waiting) >= run.backend.batch:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _row(run: Run, line: Prompt | RefusedLine) -> Row | None:
    """Return a line's row, refuse it, or pass over."""
    key = f"line {line.line}" if isinstance(line, RefusedLine) else f"id {line.id}"
    if key in run.folder:
        run.tally.done_before += 1
        return None
    if isinstance(line, RefusedLine):
        _refuse(run, Quarantined(line.id, line.refusal, {"file": line.file, "line": line.line}))
        return None

    def rendered() -> Row | Refusal:
        if (refusal := uncovered(line, run.plan)) is not None:
            return refusal
        row = Row(line, run.plan.fmt.render(line))
        return run.backend.refusal(row) or row

    found = refusing_errors(rendered)
    if isinstance(found, Row):
        return found
    _refuse(run, Quarantined(line.id, found, dataset=line.dataset))
    return None


def _take(run: Run, outcome: Outcome) -> None:
    """Write, count, log and judge an outcome."""
    prompt, answer, tally = outcome.row.prompt, outcome.answer, run.tally
    tally.asked += outcome.sent
    tally.from_ledger += not outcome.sent and outcome.status is Status.ANSWERED and outcome.request is not None
    tally.spent_pico = tally.spent_before + run.budget.used.pico
    row: TokenRow | Refusal | None = None
    if outcome.status is Status.UNKNOWN:
        tally.lose(prompt.id)
    elif outcome.status is Status.AGAIN:
        tally.again += 1
    elif isinstance(answer, Completion):
        row = _prove(run, outcome, answer)
    elif answer is not None:
        row = answer
        _refuse(run, Quarantined(prompt.id, answer, request=outcome.request, dataset=prompt.dataset))
    fields: dict[str, Json] = {}
    if isinstance(row, TokenRow):
        fields = {"evidence": str(row.evidence), "prompt_evidence": str(row.prompt_evidence), "cut": row.is_cut}
    fields |= {"reason": str(row.reason)} if isinstance(row, Refusal) else {}
    fate = "accepted" if isinstance(row, TokenRow) else "refused" if row is not None else str(outcome.status)
    run.events.write("row", id=prompt.id, fate=fate, usd=usd_text(outcome.pico), **fields)
    if (signs := row_signs_of(outcome, row)) is not None:
        _pause(run, run.breaker.see(signs))
    if signs is not None and outcome.cost is not None:
        _pause(run, run.forecast.see(outcome.cost))
    else:
        run.forecast.skip()


def _prove(run: Run, outcome: Outcome, completion: Completion) -> TokenRow | Refusal:
    """Prove a completion, and write the row or the refusal."""
    prompt = outcome.row.prompt

    def proven() -> TokenRow | Refusal:
        fingerprint = run.fingerprint if run.fingerprint and run.fingerprint.is_of(completion) else None
        return reconstruct(prompt, completion, run.plan.fmt, fingerprint, run.backend.expected)

    row = refusing_errors(proven)
    if isinstance(row, Refusal):
        ids = completion.token_ids if outcome.request is None else None
        _refuse(run, Quarantined(prompt.id, row, request=outcome.request, dataset=prompt.dataset, token_ids=ids))
        return row
    run.folder.accept(row, prompt.dataset)
    run.tally.accepted += 1
    _name_files(run)
    return row


def _name_files(run: Run) -> None:
    """Write the manifest where it lacks a file's bytes."""
    folder, manifest = run.folder, run.manifest
    if (len(folder.shards), folder.quarantine.bytes) != (len(manifest.shards), manifest.quarantine.bytes):
        run.manifest = manifests.naming(manifest, folder)
        manifests.write(run.plan.out, run.manifest)


def _refuse(run: Run, refused: Quarantined) -> None:
    """Write a refusal, its detail redacted.

    A detail may hold a provider's own words (a model's name, a finish reason).
    """
    detail = redact(refused.refusal.detail, MOST_OF_A_DETAIL)
    refused = replace(refused, refusal=replace(refused.refusal, detail=detail))
    run.folder.refuse(refused)
    run.tally.refused += 1
    run.tally.first.setdefault(refused.refusal.reason, refused.refusal.detail)
    _name_files(run)


def end(run: Run, root: Path) -> Summary:
    """Write all that is buffered, and sum the run up.

    The digests of the tree are taken again. Never raises for a full disk: the summary says what could not be written.
    """
    try:
        run.folder.flush()
    except OSError as error:
        again = "What was answered is in the ledger: mend that and run the same command again"
        run.stop.ask(f"{run.plan.out}: {error.strerror or error}. {again}", TROUBLE)
    tree = digests_at_end(root)
    summary = _summary(run, changed(run.permit.digests, tree))
    manifest = replace(manifests.naming(run.manifest, run.folder), result=summary.result())
    manifest = manifests.with_last_session(manifest, tree_end=tree, ended=now_text(), outcome=summary.outcome)
    try:
        manifests.write(run.plan.out, manifest)
    except (OSError, ManifestError) as error:
        why = getattr(error, "strerror", None) or error
        message = f"{run.plan.out}: {why}; the manifest is as it was. Run the same command again"
        return replace(summary, outcome="stopped", code=summary.code or TROUBLE, message=summary.message or message)
    with contextlib.suppress(OSError):  # the last line of the event log is a courtesy: a full disk is reported above
        rows: dict[str, Json] = dict(summary.rows)
        run.events.write("ended", outcome=summary.outcome, exit=summary.code, rows=rows, usd=summary.cost["usd"])
    return summary


def _summary(run: Run, tree_changed: tuple[str, ...]) -> Summary:
    plan, tally, folder, stop = run.plan, run.tally, run.folder, run.stop
    evidence, refused = folder.evidence(), folder.reasons
    prompt_tokens, output_tokens = folder.tokens()
    missing = max(0, tally.in_file - evidence.total() - refused.total())
    left = min(missing, tally.lines - tally.done_before - tally.accepted - tally.refused)
    beyond = missing - left if tally.lines < tally.in_file else 0
    rows = {"in_file": tally.in_file, "asked": tally.asked, "from_ledger": tally.from_ledger}
    rows |= {"done_before": tally.done_before, "accepted": evidence.total(), "refused": refused.total()}
    rows |= {"unknown": tally.unknown_count, "to_ask_again": tally.again, "left": left, "beyond_limit": beyond}
    return Summary(
        outcome=OUTCOMES.get(stop.code, INCOMPLETE if left else LIMITED if beyond else COMPLETE),
        code=stop.code or (TROUBLE if left else 0),
        message=stop.message,
        folder=str(plan.out),
        route=plan.route.name,
        rows=rows,
        by_evidence=dict(sorted(evidence.items())),
        by_reason=dict(sorted(refused.items())),
        first_of_reason=dict(tally.first),
        unknown_rows=tuple(tally.unknown),
        tree_changed=tree_changed,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cost=_cost(run),
        counted=counted_risk(evidence.get("counted", 0), run.fingerprint),
        shards=tuple(str(plan.out / shard.file) for shard in folder.shards),
        paused=_paused(run),
        by_prompt_evidence=dict(sorted(folder.prompt_evidence.items())),
        cut=folder.cut,
    )


def _cost(run: Run) -> dict[str, Json]:
    """Return the run's money, and an engine server's time."""
    api = run.plan.route.api
    seconds: dict[str, Json] = {}
    with run.ledger.transaction():
        money = run.ledger.tally(run.manifest.run)
        if api in SERVED_APIS:
            seconds = {"engine_seconds": round(run.ledger.engine_seconds(run.manifest.run), 3)}
    return seconds | cost_of(money, emulated=api != "openrouter", budget_pico=run.plan.budget_pico)


def _paused(run: Run) -> dict[str, Json] | None:
    """Return the trip that paused the run, as JSON.

    The report shows it, and the next session asks for --resume. None where the run did not pause.
    """
    trip = run.trip
    if trip is None or run.stop.code != TRIPPED:
        return None
    numbers: dict[str, Json] = {"value": trip.value, "limit": trip.limit, "window": trip.window}
    shown: dict[str, Json] = {"rows": list(trip.rows), "spent_usd": usd_text(trip.spent_pico)}
    return {"sign": str(trip.sign), "dataset": trip.dataset, "sentence": trip.sentence, **numbers, **shown}
