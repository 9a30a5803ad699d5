"""The parts of a running generation, and how they open.

Guarantees: the ledger and the folder are this run's alone. Spilled answers are read in before anything is asked. The
folder is one that these settings began, and the budget counts what earlier sessions of the run spent.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TextIO, TypeAlias

from pipeline.base.money import pico, usd_text
from pipeline.base.screen import say
from pipeline.gate.digests import DigestError, tree_digests
from pipeline.gate.gate import Kind, Permit, day_caps
from pipeline.generation.backends.hosted import HostedBackend, client_of, find_endpoint, find_key_limit
from pipeline.generation.backends.local import PROVIDER, LocalBackend
from pipeline.generation.breaker import Breaker, Sign, Trip, limits_of
from pipeline.generation.budget import Amount, Budget, Cap
from pipeline.generation.coverage import keep_audit
from pipeline.generation.day_spend import DaySpend
from pipeline.generation.ledger import Ledger
from pipeline.generation.ledger_mark import LedgerMark
from pipeline.generation.ledger_writer import LedgerWriter, read_spill
from pipeline.generation.outcome import UNUSABLE, Backend, StopError
from pipeline.generation.paid_client import PaidClient
from pipeline.generation.plan import Plan, PromptsFile, settings
from pipeline.generation.preflight import (
    Forecast,
    forecast,
    require_fingerprint,
    require_hope,
    require_known_cost,
    require_same_ledger,
    require_unpaused,
)
from pipeline.generation.retry import RetryingClient
from pipeline.generation.summary import Tally
from pipeline.proof.fingerprint import Fingerprint, committed_fingerprints
from pipeline.records import OWN_APIS, SERVED_APIS, Json, JsonObject
from pipeline.shards import manifest as manifests
from pipeline.shards.manifest import Manifest, Session
from pipeline.shards.shards import ShardFolder

EVENTS = "events.jsonl"
LONGEST_STOP = 120.0
"""Seconds that an interrupted run waits for answers in flight.

An answer that never ended held a run against SIGTERM for as long as it liked. What comes in later is unknown in the
ledger, at its worst case."""
Progress: TypeAlias = Callable[[Tally], None]


@dataclass(slots=True)
class Stop:
    """Whether and why a run is stopping.

    The first reason stands. Each call of `ask` runs `then`.
    """

    message: str | None = None
    code: int = 0
    asked: bool = False
    error: Exception | None = None
    then: list[Callable[[], None]] = field(default_factory=list)

    def ask(self, message: str, code: int) -> None:
        if not self.asked:
            self.asked, self.message, self.code = True, message, code
        for act in self.then:
            act()


@dataclass(slots=True)
class Run:
    """The parts of a running generation."""

    plan: Plan
    permit: Permit
    folder: ShardFolder
    manifest: Manifest
    ledger: Ledger
    budget: Budget
    backend: Backend
    fingerprint: Fingerprint | None
    progress: Progress
    breaker: Breaker
    events: EventLog
    forecast: Forecast
    tally: Tally
    trip: Trip | None = None
    stop: Stop = field(default_factory=Stop)


@dataclass(frozen=True, slots=True)
class _Start:
    """What every backend opens from."""

    stack: AsyncExitStack
    permit: Permit
    plan: Plan
    scope: PromptsFile
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class _Opened:
    """What opening a backend gives."""

    manifest: Manifest
    folder: ShardFolder
    budget: Budget
    backend: Backend
    fingerprint: Fingerprint | None = None


async def begin(
    stack: AsyncExitStack, permit: Permit, plan: Plan, progress: Progress, root: Path, ledger_at: Path
) -> Run:
    """Open ledger, backend and folder, in a safe order.

    `stack` closes them. Raises StopError.
    """
    if permit.job.kind is Kind.PROBE:
        raise StopError("a probe's permit sends the committed probes alone, and these are other prompts", UNUSABLE)
    scope = plan.scope()
    ledger = Ledger(ledger_at)
    stack.callback(ledger.close)
    read_spill(ledger)
    start = _Start(stack, permit, plan, scope, ledger)
    if plan.route.api == "local":
        opened = await _open_local(start)
    elif plan.route.api in SERVED_APIS:
        opened = await _open_server(start)
    else:
        opened = await _open_hosted(start, root)
    return _run_of(start, opened, progress)


async def _open_server(start: _Start) -> _Opened:
    from pipeline.generation.backends.server import ServerBackend, open_server, provenance

    plan, ledger = start.plan, start.ledger
    server = await open_server(start.stack, plan)
    wanted = settings(plan, start.scope, None, plan.route.api) | await provenance(server.facts)
    manifest, folder = _open_folder(start, wanted)
    with ledger.transaction():
        ledger.free(manifest.run)
    budget = budget_of(start.permit, plan, ledger, manifest.run)
    writer = await start.stack.enter_async_context(LedgerWriter(ledger))
    client = RetryingClient(PaidClient(writer, budget, server, resend_unknown=True), plan.patience, plan.concurrency)
    return _Opened(manifest, folder, budget, ServerBackend(plan, server, client, manifest.run))


async def _open_local(start: _Start) -> _Opened:
    if start.plan.weights is None:
        raise StopError("the local route needs a model: give its folder with --weights DIR")
    backend = await asyncio.to_thread(LocalBackend, start.plan, start.plan.weights)
    manifest, folder = _open_folder(start, settings(start.plan, start.scope, None, PROVIDER))
    return _Opened(manifest, folder, Budget(), backend)


async def _open_hosted(start: _Start, root: Path) -> _Opened:
    plan, ledger = start.plan, start.ledger
    client = await start.stack.enter_async_context(client_of(plan))
    endpoint = await find_endpoint(client, plan)
    form = (endpoint.provider_name, plan.route.model, plan.route.stream)
    known = committed_fingerprints(root)
    fingerprint = next((found for found in known if (found.provider, found.model, found.stream) == form), None)
    require_fingerprint(plan, fingerprint)
    require_hope(plan, fingerprint, endpoint.supported_parameters)
    manifest, folder = _open_folder(start, settings(plan, start.scope, fingerprint, endpoint.provider_name))
    budget = budget_of(start.permit, plan, ledger, manifest.run, await find_key_limit(client))
    start.stack.callback(budget.close)
    mark = LedgerMark(plan.out, manifest.run, ledger)
    start.stack.callback(mark.close)
    writer = await start.stack.enter_async_context(LedgerWriter(ledger, mark))
    paid_client = PaidClient(writer, budget, client, resend_unknown=plan.resend_unknown)
    return _Opened(manifest, folder, budget, HostedBackend(plan, endpoint, paid_client, manifest.run), fingerprint)


def _open_folder(start: _Start, wanted: JsonObject) -> tuple[Manifest, ShardFolder]:
    plan, ledger = start.plan, start.ledger
    manifest = open_manifest(start.stack, plan, wanted)
    require_same_ledger(manifest, ledger, plan.out)
    with ledger.transaction():
        require_known_cost(manifest, ledger.tally(manifest.run), plan.out, ledger.path)
    require_unpaused(manifest, plan)
    audit = plan.cover.audit_sha256 if plan.cover else ""
    metadata = {"run": manifest.run, "format": plan.fmt.name, "tokenizer_sha256": plan.fmt.tokenizer.sha256}
    metadata |= {"audit_sha256": audit} if audit else {}
    if moved := manifests.move_unnamed(plan.out, manifest):
        why = "its manifest does not name what they hold; rows of this run come again"
        say(f"{plan.out}: moved to {', '.join(f'{name}.unnamed' for name in moved)}, for {why}")
    folder = ShardFolder(plan.out, route=plan.route.name, metadata=metadata)
    manifests.check_files(manifest, folder)
    session = Session(
        now_text(), start.permit.attestation_sha256, dict(start.permit.digests), audit=audit, ledger=ledger.id
    )
    manifest = manifests.naming(replace(manifest, sessions=(*manifest.sessions, session)), folder)
    manifests.write(plan.out, manifest)
    if plan.cover:
        keep_audit(plan.out, plan.cover)
    return manifest, folder


def open_manifest(stack: AsyncExitStack, plan: Plan, wanted: JsonObject) -> Manifest:
    """Begin or resume a folder, and hold its lock."""
    out, accept_unsigned = plan.out, plan.accept_unsigned
    manifests.begin(out, wanted, accept_unsigned=accept_unsigned)  # one that is not ours gets no lock file
    stack.callback(manifests.hold(out).close)
    return manifests.begin(out, wanted, accept_unsigned=accept_unsigned)


def _run_of(start: _Start, opened: _Opened, progress: Progress) -> Run:
    """Start the event log, and assemble the run."""
    plan, permit, ledger, lines, run = start.plan, start.permit, start.ledger, start.scope.lines, opened.manifest.run
    events = EventLog(plan.out)
    start.stack.callback(events.close)
    events.write("started", run=run, ledger=ledger.id, route=plan.route.name, model=plan.route.model, lines=lines)
    breaker = Breaker(limits_of(plan.watch.limits), ignored=plan.watch.accepted)
    tally = Tally(lines if plan.limit is None else min(plan.limit, lines), lines, budget_pico=plan.budget_pico)
    rows = max(tally.lines - len(opened.folder), 0)
    left = budget_left(permit, plan, ledger, run)
    with ledger.transaction():
        tally.spent_pico = tally.spent_before = ledger.spent(run=run)
        costs = forecast(ledger.costs(plan.route), rows)
    text = "not known: too few answers of this route are in the ledger" if costs is None else costs.text
    if plan.route.api not in OWN_APIS:
        say(f"estimate for {rows} rows: {text}")
    events.write("estimate", rows=rows, budget_usd=usd_text(left), text=text)
    return Run(
        *(plan, permit, opened.folder, opened.manifest, ledger, opened.budget, opened.backend, opened.fingerprint),
        *(progress, breaker, events, Forecast(rows, left, ignored=Sign.BUDGET in plan.watch.accepted)),
        tally=tally,
    )


def budget_left(permit: Permit, plan: Plan, ledger: Ledger, run: str) -> int:
    """Return the pico-dollars left of the run's own budget."""
    with ledger.transaction():
        return max(min(plan.budget_pico, pico(permit.budget_usd)) - ledger.spent(run=run), 0)


def budget_of(permit: Permit, plan: Plan, ledger: Ledger, run: str, key_left: Decimal | None = None) -> Budget:
    """Return the caps of run, day and key.

    The run's own caps hold over all its sessions and are never above the permit's. The gate looked at the day's spend
    before this run had the ledger's lock; here no other run can add to it, and other checkouts' runs book their own.
    `key_left` is what the key may still spend, in USD.
    """
    limit, caps = min(plan.budget_pico, pico(permit.budget_usd)), plan.caps
    with ledger.transaction():
        used, today = ledger.used(run=run), ledger.used(api=plan.route.api, today=True)
    mend = "go on after midnight UTC, or raise it"
    found = [
        Cap("run", limit, caps.tokens, caps.requests, used),
        Cap("UTC day", caps.day_pico, caps.day_tokens, caps.day_requests, today, mend),
    ]
    day = None
    if plan.route.api == "openrouter":
        mend = "go on after midnight UTC, or with the attestation that CI signed"
        most = [*day_caps(permit.job.kind, permit.scope).values()]
        found += [Cap("UTC day", pico=cap, used=Amount(pico=today.pico), mend=mend) for cap in most]
        day = DaySpend(min([*most, *([] if caps.day_pico is None else [caps.day_pico])], default=None))
    if key_left is not None:
        found.append(Cap("key", pico=pico(key_left), mend="raise the key's limit, or use another key"))
    return Budget(*found, day=day)


class EventLog:
    """A run's event log, for programs that watch.

    One JSON object a line, beside the shards. Lines are only added, each whole before the next and with its time (UTC).
    Nothing of a prompt, an answer's text or a key stands in it, and nothing is read back from it. Raises OSError where
    the disk takes no more.
    """

    def __init__(self, folder: Path) -> None:
        self._file: TextIO = (folder / EVENTS).open("a", encoding="utf-8", newline="\n", buffering=1)

    def write(self, event: str, **fields: Json) -> None:
        """Write one line: `at`, `event`, and the fields."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._file.write(json.dumps({"at": at, "event": event, **fields}) + "\n")

    def close(self) -> None:
        self._file.close()


@contextmanager
def on_interrupt(stop: Callable[[], bool]) -> Iterator[None]:
    """Call `stop` at each SIGINT and SIGTERM.

    Cancels the task of the block once `stop` returns True, and at the latest `LONGEST_STOP` seconds after the first.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    latest: list[asyncio.TimerHandle] = []

    def break_off() -> None:
        if task is not None and not task.cancelling():  # a third must not cancel the writing of what was broken off
            say("breaking off what is in flight")
            task.cancel()

    def interrupted() -> None:
        if not latest:
            latest.append(loop.call_later(LONGEST_STOP, break_off))
        if stop():
            break_off()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)
    try:
        yield
    finally:
        for timer in latest:
            timer.cancel()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def digests_at_end(root: Path) -> dict[str, str]:
    """Return the digests of the tree, or the error."""
    try:
        return tree_digests(root)
    except DigestError as error:
        return {"error": str(error)}


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
