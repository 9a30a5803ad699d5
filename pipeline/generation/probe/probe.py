"""Ask the committed probes on one route, and write exchanges.

Guarantees: nothing but the probes whose sha256 the permit names is sent. The worst case of all of them is said, and
fits every cap, before the first is sent. What is answered is on disk before it is used, and the same command goes on
where it stopped, asking nothing twice. A stop of any kind lets what is in flight come in. An error in handling one
answer is reported with that answer and stops no other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from pipeline.base.money import usd_text
from pipeline.base.redaction import Redaction
from pipeline.gate.gate import PROBES, SHUT, GateShutError, Kind, Permit, require_same_tree
from pipeline.generation.backends.hosted import client_of, find_endpoint, find_key_limit
from pipeline.generation.billing import completion_of, error_text
from pipeline.generation.budget import Amount, BudgetError
from pipeline.generation.engines.catalog import Endpoint
from pipeline.generation.engines.openrouter import OpenRouter, key_from_environment
from pipeline.generation.ledger import Ledger, State, exchanged
from pipeline.generation.ledger_mark import LedgerMark
from pipeline.generation.ledger_schema import LedgerError
from pipeline.generation.ledger_writer import LedgerWriter, read_spill
from pipeline.generation.outcome import BUDGET_SPENT, INTERRUPTED, TROUBLE, UNUSABLE, Status, StopError, refusing_errors
from pipeline.generation.paid_client import PaidClient, Reply
from pipeline.generation.plan import Plan
from pipeline.generation.preflight import require_same_ledger
from pipeline.generation.probe.exchange_file import FILE, Source, write_exchanges
from pipeline.generation.probe.probes import ProbePlan, read_probes
from pipeline.generation.probe.requests import ProbeRequest, ProbeRequests, probe_requests_of
from pipeline.generation.retry import Retry, pause
from pipeline.generation.run import budget_of, digests_at_end, now_text, on_interrupt, open_manifest
from pipeline.records import Json, Refusal
from pipeline.shards import manifest as manifests
from pipeline.shards.manifest import Manifest, ManifestError, Session

MILLION = 10**6
DONE = "every question was asked"
MOST_GIVEN_UP = 3
"""A provider that turned away this many requests in a row, each at every attempt, is down."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """How one request of a probe ended.

    `why` says what differs from the known answer, and is empty where nothing does.
    """

    question: ProbeRequest
    fate: Status
    why: str = ""


@dataclass(slots=True)
class Findings:
    """The results of a probe, and why it stopped early."""

    told: list[ProbeResult] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    spent_pico: int = 0
    message: str = ""
    code: int = 0

    def stop(self, message: str, code: int) -> None:
        """Keep the reason of a stop; the first one stands."""
        if not self.code:
            self.message, self.code = message, code

    def by_fate(self) -> Counter[str]:
        """Count the requests by status."""
        return Counter(str(result.fate) for result in self.told)


async def run_probe(
    permit: Permit, wanted: ProbePlan, *, say: Callable[[str], None], root: Path, ledger: Path
) -> Findings:
    """Ask the probes, and write `exchanges.jsonl`.

    `say` gets the estimate before anything is sent. Raises StopError. Example:

        findings = asyncio.run(run_probe(permit, wanted, say=print, root=ROOT, ledger=ledger_path()))
        findings.by_fate()["answered"], findings.code
    """
    _require_permitted(permit, wanted, root)
    try:
        async with AsyncExitStack() as stack:
            opened = Ledger(ledger)
            stack.callback(opened.close)
            read_spill(opened)
            client = await stack.enter_async_context(client_of(wanted.plan))
            findings, manifest = await _ask(stack, permit, wanted, say, (client, opened), root)
            result: dict[str, Json] = {"requests": dict(findings.by_fate()), "spent_usd": usd_text(findings.spent_pico)}
            session = {"tree_end": digests_at_end(root), "ended": now_text(), "outcome": findings.message or DONE}
            manifests.write(wanted.plan.out, manifests.with_last_session(replace(manifest, result=result), **session))
            return findings
    except GateShutError as error:
        raise StopError(str(error), SHUT) from error
    except ManifestError as error:
        raise StopError(str(error), UNUSABLE) from error
    except LedgerError as error:
        raise StopError(str(error)) from error
    except OSError as error:
        raise StopError(f"{error.filename or wanted.plan.out}: {error.strerror or error}") from error


def _require_permitted(permit: Permit, wanted: ProbePlan, root: Path) -> None:
    """Hold the plan against the permit.

    A permit is for one job: these prompts, as they lie in the tree, on this route.
    """
    job, route = permit.job, wanted.plan.route
    committed = read_probes(root / PROBES)
    asked = job.route is not None and (job.route.name, job.route.model) == (route.name, route.model)
    known = job.prompts_sha256 == committed.sha256 and all(probe in committed.probes for probe in wanted.chosen)
    if job.kind is not Kind.PROBE or not asked or not known:
        message = "the permit is not for these probes on this route: a probe sends the committed prompts alone"
        raise StopError(message, UNUSABLE)


async def _ask(
    stack: AsyncExitStack,
    permit: Permit,
    wanted: ProbePlan,
    say: Callable[[str], None],
    parts: tuple[OpenRouter, Ledger],
    root: Path,
) -> tuple[Findings, Manifest]:
    """Check the caps, ask, and write the exchanges."""
    plan, (client, ledger) = wanted.plan, parts
    endpoint = await find_endpoint(client, plan)
    manifest = open_manifest(stack, plan, wanted.settings(endpoint.provider_name))
    require_same_ledger(manifest, ledger, plan.out)
    session = Session(now_text(), permit.attestation_sha256, dict(permit.digests), ledger=ledger.id)
    manifest = replace(manifest, sessions=(*manifest.sessions, session))
    manifests.write(plan.out, manifest)
    run = manifest.run
    requests = probe_requests_of(wanted.chosen, plan, endpoint, run, wanted.repeats)
    todo = _unasked(requests, ledger, resend=plan.resend_unknown)
    for line in estimate(wanted, requests, todo, endpoint):
        say(line)
    budget = budget_of(permit, plan, ledger, run, await find_key_limit(client))
    stack.callback(budget.close)
    mark = LedgerMark(plan.out, run, ledger)
    stack.callback(mark.close)
    try:
        budget.reserve(todo.worst)
    except BudgetError as error:
        raise StopError(f"nothing was sent, for all requests together need more: {error}", BUDGET_SPENT) from error
    budget.settle(todo.worst, Amount())
    require_same_tree(permit, root)
    writer = await stack.enter_async_context(LedgerWriter(ledger, mark))
    paid_client = PaidClient(writer, budget, client, resend_unknown=plan.resend_unknown)
    findings = await ProbeClient(permit, plan, paid_client, endpoint.provider_name).ask(requests.asked)
    with ledger.transaction():
        findings.spent_pico = ledger.spent(run=run)
    source = Source(run, client.base_url, endpoint.provider_name)
    redaction = Redaction(key_from_environment().value if plan.route.api == "openrouter" else None)
    findings.left_out = [f"{name}: not asked, {why}" for name, why in requests.left_out]
    findings.left_out += write_exchanges(plan.out / FILE, exchanged(ledger.path, run), source, redaction)
    return findings, manifest


def _unasked(requests: ProbeRequests, ledger: Ledger, *, resend: bool) -> ProbeRequests:
    """Return those that will be sent.

    The ledger has neither an answer to them nor a doubt.
    """
    with ledger.transaction():
        entries = [ledger.find(one.request.identity) for one in requests.asked]
    again = {State.FAILED_FREE, *([State.UNKNOWN] if resend else [])}
    pairs = zip(requests.asked, entries, strict=True)
    return ProbeRequests(tuple(one for one, entry in pairs if entry is None or entry.state in again))


def estimate(wanted: ProbePlan, requests: ProbeRequests, todo: ProbeRequests, endpoint: Endpoint) -> tuple[str, str]:
    """Return the number of requests and their highest cost."""
    plan, probes = wanted.plan, len({one.probe.id for one in requests.asked})
    before = len(requests.asked) - len(todo.asked)
    known = f", {before} of them asked before" if before else ""
    money = "" if plan.route.api == "openrouter" else " (emulated: no money)"
    prices = f"${_price(endpoint.prompt_usd)} and ${_price(endpoint.completion_usd)} a million tokens"
    asked = f"{len(requests.asked)} requests{known}; {probes} probes as a stream and as one body"
    most = f"at most ${usd_text(todo.worst.pico)} at {prices} in and out, of a budget of ${usd_text(plan.budget_pico)}"
    return f"{plan.route.name} {plan.route.model}: {asked}, {wanted.repeats} times each", f"{most}{money}"


def _price(usd: Decimal) -> str:
    """Return the price of a million tokens, in USD."""
    return f"{(usd * MILLION).normalize():f}"


class ProbeClient:
    """Ask the requests of a probe, a few at once.

    Not a `RetryingClient`: a probe stops after three requests in a row that were turned away, whatever --attempts says,
    and keeps the third among its results. `provider` is the display name of the one that was asked for.
    """

    def __init__(self, permit: Permit, plan: Plan, client: PaidClient, provider: str) -> None:
        self._permit = permit
        self._client = client
        self._workers = plan.concurrency
        self._provider = provider
        self._findings = Findings()
        self._closing = asyncio.Event()
        self._retry = Retry(plan.patience, lambda seconds: pause(seconds, self._closing), self._closing.is_set)
        self._given_up = 0

    async def ask(self, requests: Sequence[ProbeRequest]) -> Findings:
        """Ask every request, until one stops the rest."""
        waiting, findings = iter(requests), self._findings

        def interrupt() -> bool:  # the first lets answers in flight come in; the second breaks them off
            again = self._closing.is_set()
            self._stop("interrupted: what was in flight has come in and is written", INTERRUPTED)
            return again

        with on_interrupt(interrupt):
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(self._workers):
                        group.create_task(self._work(waiting))
            except asyncio.CancelledError:
                findings.stop("broken off: what was in flight may have been paid for", INTERRUPTED)
        if lost := findings.by_fate().keys() & {Status.AGAIN, Status.UNKNOWN}:
            findings.stop(f"not all came to an answer ({', '.join(sorted(lost))})", TROUBLE)
        return findings

    async def _work(self, waiting: Iterator[ProbeRequest]) -> None:
        while not self._closing.is_set() and (request := next(waiting, None)) is not None:
            try:
                if datetime.now(UTC) >= self._permit.expires:
                    self._stop("the attestation expired. Run: nox -s contract, then the same command", TROUBLE)
                    return
                reply = await self._retry(lambda asked=request: self._client.ask(asked.request, asked.worst))  # type: ignore[misc]  # bound at once
                result = self._result(request, reply)
                again = result.fate is Status.AGAIN and not self._closing.is_set()
                self._given_up = self._given_up + 1 if again else 0
                if self._given_up >= MOST_GIVEN_UP:
                    self._stop(f"{self._given_up} in a row were turned away at every attempt: {result.why}", TROUBLE)
                self._findings.told.append(result)
            except StopError as error:
                self._stop(str(error), error.code)
            except Exception as error:  # noqa: BLE001 - an error of our own must not lose the others' answers either
                self._stop(f"an error of this program: {type(error).__name__}: {error}", TROUBLE)

    def _result(self, request: ProbeRequest, reply: Reply) -> ProbeResult:
        entry = reply.entry
        why = reply.why or entry.note or ""
        if reply.again:
            return ProbeResult(request, Status.AGAIN, why)
        if entry.state is State.FAILED_FREE:
            return ProbeResult(request, Status.REFUSED, why or (error_text(entry.answer) if entry.answer else ""))
        if (answer := entry.answer) is None or entry.state is State.UNKNOWN:
            return ProbeResult(request, Status.UNKNOWN, why)
        completion = refusing_errors(lambda: completion_of(answer, stream=request.stream))
        if isinstance(completion, Refusal):
            return ProbeResult(request, Status.ANSWERED, completion.detail)
        if completion.provider not in (None, self._provider):
            return ProbeResult(request, Status.ANSWERED, f"{completion.provider} answered, not {self._provider}")
        return ProbeResult(request, Status.ANSWERED, request.probe.known.differs(completion))

    def _stop(self, message: str, code: int) -> None:
        self._findings.stop(message, code)
        self._closing.set()
        self._client.close()
