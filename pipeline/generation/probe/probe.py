"""A probe of one route: the committed prompts, asked through ledger, budget and retry, and written as exchanges.

Guarantees: nothing but the probes whose sha256 the permit names is sent; the worst case of all of them is said, and
fits every cap, before the first is sent. What is answered is on disk before it is used, and the same command goes on
where it stopped, asking nothing twice.

The questions of a probe, asked a few at a time, and what became of each.

Guarantees: a stop of any kind lets what is in flight come in; whatever one answer makes the program stumble over is
said of that answer, and stops no other.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path

from pipeline.base.money import usd_text
from pipeline.base.redaction import Redaction
from pipeline.gate.digests import DigestError, tree_digests
from pipeline.gate.gate import PROBES, Kind, Permit
from pipeline.generation.backends.hosted import find_endpoint, find_key_limit
from pipeline.generation.billing import completion_of, error_text
from pipeline.generation.budget import Amount, Budget, BudgetError
from pipeline.generation.engines.catalog import Endpoint
from pipeline.generation.engines.openrouter import KeyMissingError, OpenRouter, key_from_environment, open_client
from pipeline.generation.ledger import Ledger, State, exchanged
from pipeline.generation.ledger_schema import LedgerError
from pipeline.generation.ledger_writer import LedgerWriter, read_spill
from pipeline.generation.outcome import refusing_errors
from pipeline.generation.paid_client import BUDGET_SPENT, TROUBLE, UNUSABLE, PaidClient, Reply, StopError
from pipeline.generation.plan import Plan
from pipeline.generation.probe.exchange_file import FILE, Source, write_exchanges
from pipeline.generation.probe.probes import ProbePlan, read_probes
from pipeline.generation.probe.requests import ProbeRequest, ProbeRequests, probe_requests_of
from pipeline.generation.retry import Retry
from pipeline.generation.run import budget_of, now_text
from pipeline.records import Json, Refusal
from pipeline.shards import manifest as manifests
from pipeline.shards.manifest import Manifest, ManifestError, Session

MILLION = 10**6
DONE = "every question was asked"


async def run_probe(
    permit: Permit, wanted: ProbePlan, *, say: Callable[[str], None], root: Path, ledger: Path
) -> Findings:
    """Ask, and write `exchanges.jsonl`. `say` hears the estimate before anything is sent. Raises StopError."""
    _require_permitted(permit, wanted, root)
    try:
        async with AsyncExitStack() as stack:
            kept = Ledger(ledger)
            stack.callback(kept.close)
            read_spill(kept)
            client = await stack.enter_async_context(_client(wanted.plan))
            findings, manifest = await _ask(stack, permit, wanted, say, (client, kept))
            _end(manifest, wanted.plan.out, findings, root)
            return findings
    except ManifestError as error:
        raise StopError(str(error), UNUSABLE) from error
    except LedgerError as error:
        raise StopError(str(error)) from error
    except OSError as error:
        raise StopError(f"{error.filename or wanted.plan.out}: {error.strerror or error}") from error


def _require_permitted(permit: Permit, wanted: ProbePlan, root: Path) -> None:
    """A permit is for one job: these prompts, as they lie in the tree, on this route."""
    job, route = permit.job, wanted.plan.route
    committed = read_probes(root / PROBES)
    asked = job.route is not None and (job.route.name, job.route.model) == (route.name, route.model)
    known = job.prompts_sha256 == committed.sha256 and all(probe in committed.probes for probe in wanted.chosen)
    if job.kind is not Kind.PROBE or not asked or not known:
        message = "the permit is not for these probes on this route: a probe sends the committed prompts alone"
        raise StopError(message, UNUSABLE)


def _client(plan: Plan) -> OpenRouter:
    try:
        return open_client("openrouter" if plan.route.api == "openrouter" else "emulator", plan.base_url)
    except (KeyMissingError, ValueError) as error:
        raise StopError(str(error)) from error


async def _ask(
    stack: AsyncExitStack,
    permit: Permit,
    wanted: ProbePlan,
    say: Callable[[str], None],
    parts: tuple[OpenRouter, Ledger],
) -> tuple[Findings, Manifest]:
    plan, (client, ledger) = wanted.plan, parts
    endpoint = await find_endpoint(client, plan)
    manifest = _begin(stack, permit, wanted, endpoint)
    run = manifest.run
    questions = probe_requests_of(wanted.chosen, plan, endpoint, run, wanted.repeats)
    todo = _unasked(questions, ledger, resend=plan.resend_unknown)
    say(estimate(wanted, questions, todo, endpoint))
    budget = budget_of(permit, plan, ledger, run, await find_key_limit(client))
    _require_room(budget, todo.worst)
    scribe = await stack.enter_async_context(_scribe(ledger))
    desk = PaidClient(scribe, budget, client, resend_unknown=plan.resend_unknown)
    findings = await ProbeClient(permit, plan, desk, endpoint.provider_name).ask(questions.asked)
    with ledger.transaction():
        findings.spent_pico = ledger.spent(run=run)
    source = Source(run, client.base_url, endpoint.provider_name)
    findings.left_out = [f"{name}: not asked, {why}" for name, why in questions.left_out]
    findings.left_out += write_exchanges(plan.out / FILE, exchanged(ledger.path, run), source, _redaction(plan))
    return findings, manifest


@asynccontextmanager
async def _scribe(ledger: Ledger) -> AsyncIterator[LedgerWriter]:
    scribe = LedgerWriter(ledger)
    try:
        yield scribe
    finally:
        await scribe.close()


def _redaction(plan: Plan) -> Redaction:
    """Knows the key that was in use, if one was."""
    return Redaction(key_from_environment().value if plan.route.api == "openrouter" else None)


def _begin(stack: AsyncExitStack, permit: Permit, wanted: ProbePlan, endpoint: Endpoint) -> Manifest:
    out, settings = wanted.plan.out, wanted.settings(endpoint.provider_name)
    manifests.begin(out, settings)  # a folder that is not ours is left as it is, without a lock file
    stack.callback(manifests.hold(out).close)
    manifest = manifests.begin(out, settings)
    session = Session(now_text(), permit.attestation_sha256, dict(permit.digests))
    manifest = replace(manifest, sessions=(*manifest.sessions, session))
    manifests.write(out, manifest)
    return manifest


def _unasked(questions: ProbeRequests, ledger: Ledger, *, resend: bool) -> ProbeRequests:
    """Those that will be sent: the ledger has neither an answer nor a doubt."""
    with ledger.transaction():
        entries = [ledger.find(question.request.identity) for question in questions.asked]
    again = {State.FAILED_FREE, *([State.UNKNOWN] if resend else [])}
    pairs = zip(questions.asked, entries, strict=True)
    return ProbeRequests(tuple(one for one, entry in pairs if entry is None or entry.state in again))


def estimate(wanted: ProbePlan, questions: ProbeRequests, todo: ProbeRequests, endpoint: Endpoint) -> str:
    """How many requests, and the most that they may cost at the endpoint's prices."""
    plan, probes = wanted.plan, len({question.probe.id for question in questions.asked})
    before = len(questions.asked) - len(todo.asked)
    known = f", {before} of them asked before" if before else ""
    money = "" if plan.route.api == "openrouter" else " (emulated: no money)"
    prices = f"${_price(endpoint.prompt_usd)} and ${_price(endpoint.completion_usd)} a million tokens"
    return (
        f"{plan.route.name} {plan.route.model}: {len(questions.asked)} requests{known}; {probes} probes as a stream and"
        f" as one body, {wanted.repeats} times each\n"
        f"at most ${usd_text(todo.worst.pico)} at {prices} in and out, of a budget of ${usd_text(plan.budget_pico)}"
        f"{money}"
    )


def _price(usd: Decimal) -> str:
    """Of a million tokens, in USD."""
    return f"{(usd * MILLION).normalize():f}"


def _require_room(budget: Budget, worst: Amount) -> None:
    """Raises StopError unless all that may be sent fits under every cap at once."""
    try:
        budget.reserve(worst)
    except BudgetError as error:
        raise StopError(f"nothing was sent, for all requests together need more: {error}", BUDGET_SPENT) from error
    budget.settle(worst, Amount())


def _end(manifest: Manifest, out: Path, findings: Findings, root: Path) -> None:
    try:
        tree = tree_digests(root)
    except DigestError as error:
        tree = {"error": str(error)}
    result: dict[str, Json] = {"requests": dict(findings.by_fate()), "spent_usd": usd_text(findings.spent_pico)}
    manifest = replace(manifest, result=result)
    outcome = findings.message or DONE
    manifests.write(out, manifests.with_last_session(manifest, tree_end=tree, ended=now_text(), outcome=outcome))


INTERRUPTED = 130
MOST_GIVEN_UP = 3
"""So many in a row that were turned away at every attempt, and the provider is down."""


class ProbeStatus(StrEnum):
    """`refused`: turned away for good, free of charge. `again`: for now. `unknown`: perhaps billed, and no answer."""

    ANSWERED = "answered"
    REFUSED = "refused"
    AGAIN = "again"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What became of one question; `why` says what is not as it is known to be, and is empty where all is."""

    question: ProbeRequest
    fate: ProbeStatus
    why: str = ""


@dataclass(slots=True)
class Findings:
    """What came of a probe, and why it stopped, where it did."""

    told: list[ProbeResult] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    spent_pico: int = 0
    message: str = ""
    code: int = 0

    def stop(self, message: str, code: int) -> None:
        """The first reason stands."""
        if not self.code:
            self.message, self.code = message, code

    def by_fate(self) -> Counter[str]:
        """How many questions had which fate."""
        return Counter(str(told.fate) for told in self.told)


class ProbeClient:
    """Asks; `provider` is the display name of the one that was asked for."""

    def __init__(self, permit: Permit, plan: Plan, desk: PaidClient, provider: str) -> None:
        self._permit = permit
        self._desk = desk
        self._workers = plan.concurrency
        self._provider = provider
        self._findings = Findings()
        self._closing = asyncio.Event()
        self._retry = Retry(plan.patience, self._pause, self._closing.is_set)
        self._given_up = 0

    async def ask(self, questions: Sequence[ProbeRequest]) -> Findings:
        """Every question, until one stops the rest."""
        waiting, findings = iter(questions), self._findings
        with self._signals():
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(self._workers):
                        group.create_task(self._work(waiting))
            except asyncio.CancelledError:
                findings.stop("broken off: what was in flight may have been paid for", INTERRUPTED)
        if lost := findings.by_fate().keys() & {ProbeStatus.AGAIN, ProbeStatus.UNKNOWN}:
            findings.stop(f"not all came to an answer ({', '.join(sorted(lost))})", TROUBLE)
        return findings

    async def _work(self, waiting: Iterator[ProbeRequest]) -> None:
        while not self._closing.is_set() and (question := next(waiting, None)) is not None:
            try:
                if datetime.now(UTC) >= self._permit.expires:
                    self._stop("the attestation expired. Run: nox -s contract, then the same command", TROUBLE)
                    return
                self._findings.told.append(await self._one(question))
            except StopError as error:
                self._stop(str(error), error.code)
            except Exception as error:  # noqa: BLE001 - an error of our own must not lose the others' answers either
                self._stop(f"an error of this program: {type(error).__name__}: {error}", TROUBLE)

    async def _one(self, question: ProbeRequest) -> ProbeResult:
        reply = await self._retry(lambda: self._desk.ask(question.request, question.worst))
        told = self._told(question, reply)
        self._given_up = self._given_up + 1 if told.fate is ProbeStatus.AGAIN and not self._closing.is_set() else 0
        if self._given_up >= MOST_GIVEN_UP:
            self._stop(f"{self._given_up} in a row were turned away at every attempt: {told.why}", TROUBLE)
        return told

    def _told(self, question: ProbeRequest, reply: Reply) -> ProbeResult:
        entry = reply.entry
        why = reply.why or entry.note or ""
        if reply.again:
            return ProbeResult(question, ProbeStatus.AGAIN, why)
        if entry.state is State.FAILED_FREE:
            return ProbeResult(question, ProbeStatus.REFUSED, why or (error_text(entry.answer) if entry.answer else ""))
        if entry.answer is None or entry.state is State.UNKNOWN:
            return ProbeResult(question, ProbeStatus.UNKNOWN, why)
        answer = entry.answer
        completion = refusing_errors(lambda: completion_of(answer, stream=question.stream))
        if isinstance(completion, Refusal):
            return ProbeResult(question, ProbeStatus.ANSWERED, completion.detail)
        if completion.provider not in (None, self._provider):
            return ProbeResult(question, ProbeStatus.ANSWERED, f"{completion.provider} answered, not {self._provider}")
        return ProbeResult(question, ProbeStatus.ANSWERED, question.probe.known.differs(completion))

    async def _pause(self, seconds: float) -> None:
        """Wait, but not for a probe that is stopping."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return

    def _stop(self, message: str, code: int) -> None:
        self._findings.stop(message, code)
        self._closing.set()
        self._desk.close()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C stops asking and lets answers in flight come in; the second breaks them off."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def interrupt() -> None:
            if self._closing.is_set() and task is not None:
                task.cancel()
            self._stop("interrupted: what was in flight has come in and is written", INTERRUPTED)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupt)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
