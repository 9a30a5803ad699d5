"""A run that is on: its parts, and how they are opened before anything is asked.

Guarantees: the ledger and the folder are this run's alone; spilled answers are read in first; the folder is the one
that these settings began, and a run's budget counts what its earlier sessions spent.

The event log of a run: one JSON object a line, beside the shards, for programs that watch.

Guarantees: lines are only added, each whole before the next and each with its time (UTC); nothing of a prompt, an
answer's text or a key stands in it. Nothing is read back from it: the ledger and the manifest are what a run goes by.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TextIO, TypeAlias

from pipeline.base.money import pico, usd_text
from pipeline.gate.gate import Kind, Permit, day_caps
from pipeline.generation.backends.hosted import HostedBackend, find_endpoint, find_key_limit
from pipeline.generation.backends.local import PROVIDER, LocalBackend
from pipeline.generation.breaker import Breaker, Sign, Trip, limits_of
from pipeline.generation.budget import Amount, Budget, Cap
from pipeline.generation.coverage import keep_audit
from pipeline.generation.ledger import Ledger
from pipeline.generation.ledger_writer import LedgerWriter, read_spill
from pipeline.generation.outcome import Backend
from pipeline.generation.paid_client import UNUSABLE, PaidClient, StopError
from pipeline.generation.plan import Plan, PromptsFile, settings
from pipeline.generation.preflight import (
    Forecast,
    forecast,
    require_fingerprint,
    require_hope,
    require_known_cost,
    require_unpaused,
)
from pipeline.generation.retry import RetryingClient
from pipeline.generation.summary import Tally
from pipeline.proof.fingerprint import Fingerprint, committed_fingerprints
from pipeline.records import OWN_APIS, SERVED_APIS, Json, JsonObject
from pipeline.shards import manifest as manifests
from pipeline.shards.manifest import Manifest, Session
from pipeline.shards.shards import ShardFolder

Progress: TypeAlias = Callable[[Tally], None]


@dataclass(slots=True)
class Stop:
    """Why the run is stopping, once it is; the first reason stands."""

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
    """The parts of a run that is on."""

    plan: Plan
    permit: Permit
    folder: ShardFolder
    manifest: Manifest
    ledger: Ledger
    budget: Budget
    engine: Backend
    fingerprint: Fingerprint | None
    progress: Progress
    breaker: Breaker
    events: EventLog
    forecast: Forecast
    tally: Tally = field(default_factory=Tally)
    trip: Trip | None = None
    stop: Stop = field(default_factory=Stop)


async def begin(
    stack: AsyncExitStack, permit: Permit, plan: Plan, progress: Progress, root: Path, ledger_at: Path
) -> Run:
    """Open ledger, engine and folder, in an order that asks nothing twice. Raises StopError."""
    if permit.job.kind is Kind.PROBE:
        raise StopError("a probe's permit sends the committed probes alone, and these are other prompts", UNUSABLE)
    scope = plan.scope()
    ledger = Ledger(ledger_at)
    stack.callback(ledger.close)
    read_spill(ledger)
    if plan.route.api == "local":
        return await _begin_local(stack, permit, plan, progress, scope, ledger)
    if plan.route.api in SERVED_APIS:
        return await _begin_served(stack, permit, plan, progress, scope, ledger)
    return await _begin_hosted(stack, permit, plan, progress, scope, ledger, root)


async def _begin_served(
    stack: AsyncExitStack, permit: Permit, plan: Plan, progress: Progress, scope: PromptsFile, ledger: Ledger
) -> Run:
    from pipeline.generation.backends.server import ServerBackend, open_server, provenance

    server = await open_server(stack, plan)
    wanted = settings(plan, scope, None, plan.route.api) | await provenance(server.facts)
    manifest, folder = _open(stack, permit, plan, ledger, wanted)
    with ledger.transaction():
        ledger.free(manifest.run)
    budget = budget_of(permit, plan, ledger, manifest.run)
    scribe = await stack.enter_async_context(_scribe(ledger))
    turns = RetryingClient(PaidClient(scribe, budget, server, resend_unknown=True), plan.patience, plan.concurrency)
    engine = ServerBackend(plan, server, turns, manifest.run)
    return _run(stack, permit, plan, progress, scope, (manifest, folder, ledger, budget, engine, None))


async def _begin_local(
    stack: AsyncExitStack, permit: Permit, plan: Plan, progress: Progress, scope: PromptsFile, ledger: Ledger
) -> Run:
    if plan.weights is None:
        raise StopError("the local route needs a model: give its folder with --weights DIR")
    engine = await asyncio.to_thread(LocalBackend, plan, plan.weights)
    manifest, folder = _open(stack, permit, plan, ledger, settings(plan, scope, None, PROVIDER))
    return _run(stack, permit, plan, progress, scope, (manifest, folder, ledger, Budget(), engine, None))


async def _begin_hosted(
    stack: AsyncExitStack,
    permit: Permit,
    plan: Plan,
    progress: Progress,
    scope: PromptsFile,
    ledger: Ledger,
    root: Path,
) -> Run:
    from pipeline.generation.engines.openrouter import KeyMissingError, open_client

    try:
        opened = open_client("openrouter" if plan.route.api == "openrouter" else "emulator", plan.base_url)
        client = await stack.enter_async_context(opened)
    except (KeyMissingError, ValueError) as error:
        raise StopError(str(error)) from error
    endpoint = await find_endpoint(client, plan)
    fingerprint = _fingerprint(plan, endpoint.provider_name, root)
    require_fingerprint(plan, fingerprint)
    require_hope(plan, fingerprint, endpoint.supported_parameters)
    wanted = settings(plan, scope, fingerprint, endpoint.provider_name)
    manifest, folder = _open(stack, permit, plan, ledger, wanted)
    budget = budget_of(permit, plan, ledger, manifest.run, await find_key_limit(client))
    scribe = await stack.enter_async_context(_scribe(ledger))
    engine = HostedBackend(
        plan, endpoint, PaidClient(scribe, budget, client, resend_unknown=plan.resend_unknown), manifest.run
    )
    return _run(stack, permit, plan, progress, scope, (manifest, folder, ledger, budget, engine, fingerprint))


_Parts: TypeAlias = "tuple[Manifest, ShardFolder, Ledger, Budget, Backend, Fingerprint | None]"


def _run(
    stack: AsyncExitStack, permit: Permit, plan: Plan, progress: Progress, scope: PromptsFile, parts: _Parts
) -> Run:
    manifest, folder, ledger, budget, engine, fingerprint = parts
    events = EventLog(plan.out)
    stack.callback(events.close)
    events.write("started", run=manifest.run, route=plan.route.name, model=plan.route.model, lines=scope.lines)
    breaker = Breaker(limits_of(plan.watch.limits), ignored=plan.watch.accepted)
    tally = _tally(plan, scope)
    rows = max(tally.lines - len(folder), 0)
    left = budget_left(permit, plan, ledger, manifest.run)
    with ledger.transaction():
        tally.spent_pico = tally.spent_before = ledger.spent(run=manifest.run)
    events.write("estimate", rows=rows, budget_usd=usd_text(left), text=_estimate(plan, ledger, rows))
    forecast = Forecast(rows, left, ignored=Sign.BUDGET in plan.watch.accepted)
    given = (plan, permit, folder, manifest, ledger, budget, engine, fingerprint, progress, breaker, events, forecast)
    return Run(*given, tally=tally)


def _estimate(plan: Plan, ledger: Ledger, rows: int) -> str:
    """What the run is expected to cost, in words; said on stderr where it is asked of somebody."""
    with ledger.transaction():
        found = forecast(ledger.costs(plan.route), rows)
    text = "not known: too few answers of this route are in the ledger" if found is None else found.text
    if plan.route.api not in OWN_APIS:
        sys.stderr.write(f"estimate for {rows} rows: {text}\n")
    return text


def budget_left(permit: Permit, plan: Plan, ledger: Ledger, run: str) -> int:
    """Pico-dollars that the run may still spend of its own budget."""
    with ledger.transaction():
        return max(min(plan.budget_pico, pico(permit.budget_usd)) - ledger.spent(run=run), 0)


@asynccontextmanager
async def _scribe(ledger: Ledger) -> AsyncIterator[LedgerWriter]:
    scribe = LedgerWriter(ledger)
    try:
        yield scribe
    finally:
        await scribe.close()


def _tally(plan: Plan, scope: PromptsFile) -> Tally:
    lines = scope.lines if plan.limit is None else min(plan.limit, scope.lines)
    return Tally(lines, scope.lines, budget_pico=plan.budget_pico)


def _fingerprint(plan: Plan, provider: str, root: Path) -> Fingerprint | None:
    way = (provider, plan.route.model, plan.route.stream)
    known = committed_fingerprints(root)
    return next((found for found in known if (found.provider, found.model, found.stream) == way), None)


def _open(
    stack: AsyncExitStack, permit: Permit, plan: Plan, ledger: Ledger, wanted: JsonObject
) -> tuple[Manifest, ShardFolder]:
    manifests.begin(plan.out, wanted)  # a folder that is not ours is left as it is, without a lock file
    stack.callback(manifests.hold(plan.out).close)
    manifest = manifests.begin(plan.out, wanted)
    with ledger.transaction():
        require_known_cost(manifest, ledger.tally(manifest.run), plan.out, ledger.path)
    require_unpaused(manifest, plan)
    audit = plan.cover.audit_sha256 if plan.cover else ""
    metadata = {"run": manifest.run, "format": plan.fmt.name, "tokenizer_sha256": plan.fmt.tokenizer.sha256}
    metadata |= {"audit_sha256": audit} if audit else {}
    folder = ShardFolder(plan.out, route=plan.route.name, metadata=metadata)
    manifests.check_shards(manifest, folder.shards, plan.out)
    session = Session(now_text(), permit.attestation_sha256, dict(permit.digests), audit=audit)
    manifest = replace(manifest, sessions=(*manifest.sessions, session), shards=tuple(folder.shards))
    manifests.write(plan.out, manifest)
    if plan.cover:
        keep_audit(plan.out, plan.cover)
    return manifest, folder


def budget_of(permit: Permit, plan: Plan, ledger: Ledger, run: str, key_left: Decimal | None = None) -> Budget:
    """The run's own caps, over all its sessions and never more than the permit's; the day's, and the key's.

    The gate looked at the day's spend before this run had the ledger's lock; here no other run can add to it.
    `key_left`: what the key may still spend, in USD.
    """
    limit, caps = min(plan.budget_pico, pico(permit.budget_usd)), plan.caps
    with ledger.transaction():
        used, today = ledger.used(run=run), ledger.used(api=plan.route.api, today=True)
    mend = "go on after midnight UTC, or raise it"
    found = [
        Cap("run", limit, caps.tokens, caps.requests, used),
        Cap("UTC day", caps.day_pico, caps.day_tokens, caps.day_requests, today, mend),
    ]
    if plan.route.api == "openrouter":
        mend = "go on after midnight UTC, or with the attestation that CI signed"
        most = day_caps(permit.job.kind, permit.scope).values()
        found += [Cap("UTC day", pico=cap, used=Amount(pico=today.pico), mend=mend) for cap in most]
    if key_left is not None:
        found.append(Cap("key", pico=pico(key_left), mend="raise the key's limit, or use another key"))
    return Budget(*found)


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


EVENTS = "events.jsonl"


class EventLog:
    """Open for appending until `close`. Raises OSError where the disk takes no more."""

    def __init__(self, folder: Path) -> None:
        self._file: TextIO = (folder / EVENTS).open("a", encoding="utf-8", newline="\n", buffering=1)

    def write(self, event: str, **fields: Json) -> None:
        """One line: `at`, `event`, and its fields."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._file.write(json.dumps({"at": at, "event": event, **fields}, ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
