"""Whether a job may run on exactly this tree.

Guarantees: it fails closed; an error of its own is an objection. It judges the tree, the interpreter and the
attestation together, and it asks what the job is for: a route or a feature without a passed contract is refused. Every
objection names the command that mends it. It verifies and never signs: the code that signs is in `harness`.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from pathlib import Path

from pipeline.base.money import pico, usd_text
from pipeline.base.paths import ROOT
from pipeline.gate import digests, environment
from pipeline.gate.attestation import (
    Attestation,
    AttestationError,
    Scope,
    attestation_path,
    read_attestation,
    trusted_keys,
)
from pipeline.gate.kills import KILLS, TEETH, changed_files, weaknesses
from pipeline.records import PROVE, Objection, Route

SHUT = 3
"""Exit status of a command that the gate refuses."""
DRAFTER = "drafter"
"""The group of contract tests that training and extraction need."""
PROVE_DRAFTER = "nox -s contract_drafter"
TRAINING = "pipeline/drafter/"
"""What no paid request runs through."""
MOST_NAMED = 3
FREE_APIS = ("local", "sglang", "vllm", "emulator")
CONTRACT_EXAMPLES = 200
"""Examples that the contract suite draws for a property."""
DEV_PICO_A_DAY = pico(1)
PROBE_PICO_A_DAY = pico(1)
LIVE_CASSETTE_AGE = timedelta(days=90)
RECORDED: Mapping[str, str] = {"goldens/": "nox -s goldens", "cassettes/": "nox -s cassettes"}
TINY_TOKENIZER = "harness/tiny_target/weights/tiktoken.model"
PROBES = "goldens/probes.jsonl"
"""The prompts of probes; the attestation covers them."""


class Kind(StrEnum):
    """What a job does.

    A probe records a paid route's live cassettes, so it cannot need them.
    """

    GENERATE = "generate"
    PROBE = "probe"
    TRAIN = "train"


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done, and with which means.

    `features` are those of its prompts. `budget_usd` is the most that all its sessions may spend together, and
    `spent_pico` what earlier ones spent of it. `prompts_sha256` names the prompts of a probe.
    """

    kind: Kind
    route: Route | None = None
    format: str = ""
    tokenizer_sha256: str | None = None
    features: frozenset[str] = frozenset()
    budget_usd: Decimal | float = 0.0
    spent_pico: int = 0
    prompts_sha256: str | None = None

    @property
    def is_free(self) -> bool:
        """Whether no real money is spent; emulated dollars are none."""
        return self.route is None or self.route.api in FREE_APIS


@dataclass(frozen=True, slots=True)
class Permit:
    """Permission for one job, in one scope, budget and time."""

    job: Job
    scope: Scope
    budget_usd: Decimal | float
    expires: datetime
    attestation_sha256: str
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Decision:
    """A permit, or the objections; never both."""

    permit: Permit | None
    objections: tuple[Objection, ...] = ()

    @property
    def allowed(self) -> bool:
        return self.permit is not None


class GateShutError(Exception):
    """The gate refused; `lines` has one for each objection."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.lines = tuple(f"refused: {objection}" for objection in decision.objections)
        super().__init__("\n".join(self.lines))


@dataclass(frozen=True, slots=True)
class Standing:
    """What holds for every job: the tree and this process."""

    objections: tuple[Objection, ...]
    attested: Attestation | None = None
    digests: Mapping[str, str] | None = None
    tiny_tokenizer: str = ""
    probes: str = ""
    unbroken: tuple[str, ...] = ()
    """Files that are not those that the kill table broke."""


def require(job: Job, *, spent_today_pico: int = 0, root: Path = ROOT) -> Permit:
    """Return the permit for a job. Raises GateShutError.

    `spent_today_pico` is the real money spent this UTC day, from the ledger.

        permit = require(Job(Kind.GENERATE, route, fmt.name, fmt.tokenizer.sha256), spent_today_pico=spent)
    """
    decision = decide(job, root=root, spent_today_pico=spent_today_pico)
    if decision.permit is None:
        raise GateShutError(decision)
    return decision.permit


def decide(
    job: Job,
    *,
    root: Path = ROOT,
    spent_today_pico: int = 0,
    now: datetime | None = None,
    runtime: environment.Runtime | None = None,
    attestation: Path | None = None,
    keys: Path | None = None,
) -> Decision:
    """Return the permit, or all objections. Never raises."""
    standing = examine(root, now=now, runtime=runtime, attestation=attestation, keys=keys)
    return judge(job, standing, spent_today_pico=spent_today_pico, now=now)


def examine(
    root: Path = ROOT,
    *,
    now: datetime | None = None,
    runtime: environment.Runtime | None = None,
    attestation: Path | None = None,
    keys: Path | None = None,
) -> Standing:
    """Examine the interpreter, the tree and the attestation. Never raises."""
    try:
        runtime = environment.observe() if runtime is None else runtime
        objections = [*process_objections(runtime, root)]
        attested: Attestation | None = None
        try:
            path = attestation_path() if attestation is None else attestation
            attested = read_attestation(path, trusted_keys(root, keys), now or datetime.now(UTC))
            found = digests.tree_digests(root)
            objections += changed_objections(attested.digests, found)
            objections += suite_objections(runtime, attested)
            tiny, probes = _digest_of(root / TINY_TOKENIZER), _digest_of(root / PROBES)
            unbroken = changed_files(attested.kills, root) if attested.kills else ()
        except AttestationError as error:
            return Standing((*objections, error.objection))
        except digests.DigestError as error:
            return Standing((*objections, Objection(str(error), PROVE)), attested)
        return Standing(tuple(objections), attested, found, tiny, probes, unbroken)
    except Exception as error:  # noqa: BLE001 - fail closed: what cannot be judged is refused
        return Standing((_broken(error),))


def judge(job: Job, standing: Standing, *, spent_today_pico: int = 0, now: datetime | None = None) -> Decision:
    """Judge one job on what was examined. Never raises."""
    try:
        objections = list(standing.objections)
        if standing.attested is None or standing.digests is None:
            return Decision(None, tuple(objections) or (_broken(RuntimeError("nothing was examined")),))
        for check in CHECKS:
            objections += check(job, standing, spent_today_pico, now or datetime.now(UTC))
        if objections:
            return Decision(None, tuple(objections))
        attested, found = standing.attested, dict(standing.digests)
        return Decision(Permit(job, attested.scope, job.budget_usd, attested.expires, attested.sha256, found))
    except Exception as error:  # noqa: BLE001 - fail closed, as above
        return Decision(None, (*standing.objections, _broken(error)))


# What is asked of the tree and the process


def process_objections(runtime: environment.Runtime, root: Path) -> Iterator[Objection]:
    """How this process was started and what it can load."""
    yield from environment.start_objections(runtime)
    yield from environment.isolation_objections(runtime)
    yield from environment.location_objections(runtime, root)
    yield from unhashed_objections(root)
    yield from digests.forged_caches(root)
    try:
        yield from environment.lock_objections(runtime, root)
    except OSError as error:
        yield Objection(f"constraints.txt cannot be read ({error.strerror})", "git checkout constraints.txt")


def unhashed_objections(root: Path) -> Iterator[Objection]:
    """Code or test settings that no digest covers."""
    for name in digests.unhashed_code(root):
        mend = f"mv {shlex.quote(name)} .." if (root / name).is_dir() else f"rm {shlex.quote(name)}"
        yield Objection(f"{name} lies at the root, where it can be loaded and no digest covers it", mend)


def changed_objections(attested: Mapping[str, str], found: Mapping[str, str]) -> Iterator[Objection]:
    """Subjects whose digests differ from the attested ones."""
    if names := digests.changed(attested, found):
        made = [name for name in names if name in RECORDED]
        undo = f", after git checkout {' '.join(made)} (to undo it) or {' and '.join(RECORDED[name] for name in made)}"
        mend = f"{PROVE}{undo} (to make it anew)" if made else PROVE
        yield Objection(f"changed since the contract suite passed: {', '.join(names)}", mend)


def suite_objections(runtime: environment.Runtime, attested: Attestation) -> Iterator[Objection]:
    """How the suite ran, where that differs from this process."""
    if attested.examples < CONTRACT_EXAMPLES:
        yield Objection(f"the suite drew {attested.examples} examples a property, not {CONTRACT_EXAMPLES}", PROVE)
    yield from environment.start_differences(runtime, attested.python, attested.direct, attested.startup)


def _digest_of(path: Path) -> str:
    return digests.file_sha256(path) if path.exists() else ""


def require_same_tree(permit: Permit, root: Path = ROOT) -> None:
    """Refuse a tree that changed since the gate looked.

    Called once everything is imported, right before the first request or step. Raises GateShutError.
    """
    if names := moved(permit, root):
        what = f"changed since the gate looked, so other code may run than was proven: {', '.join(names)}"
        raise GateShutError(Decision(None, (Objection(what, PROVE),)))


def moved(permit: Permit, root: Path = ROOT) -> tuple[str, ...]:
    """Return the subjects that changed since the permit was given.

    For the manifest of a run that has ended. Raises digests.DigestError where the tree can no longer be hashed.
    """
    return digests.changed(permit.digests, digests.tree_digests(root))


def _broken(error: Exception) -> Objection:
    return Objection(f"the gate could not judge ({type(error).__name__}: {error})", PROVE)


# What is asked of a job


def group_objections(job: Job, standing: Standing, _spent: int, _now: datetime) -> Iterator[Objection]:
    """The groups of the contract suite that the job needs."""
    groups = standing.attested.groups if standing.attested else frozenset()
    if "base" not in groups:
        yield Objection("the attestation lacks the group base", PROVE)
    if job.kind is Kind.TRAIN:
        if DRAFTER not in groups:
            what = "no contract of the drafter has passed: its masks, losses, vocabulary, export and decoding"
            yield Objection(what, PROVE_DRAFTER)
        if job.tokenizer_sha256 is None:
            return
    if job.tokenizer_sha256 is None:
        yield Objection("the job names no tokenizer, so no contract can cover it", "python -m pipeline generate --help")
    elif job.tokenizer_sha256 != standing.tiny_tokenizer and f"tokenizer:{job.tokenizer_sha256}" not in groups:
        what = f"no contract of {job.format or 'the'} tokenizer {job.tokenizer_sha256[:12]} has passed"
        yield Objection(what, f"DRAFTER_GATE_TOKENIZERS=DIR {PROVE}")


def coverage_objections(job: Job, standing: Standing, _spent: int, _now: datetime) -> Iterator[Objection]:
    """Features of the prompts that no passed contract covers."""
    if job.route is None or job.kind is Kind.PROBE or standing.attested is None:
        return
    if lacking := sorted(job.features - covered(job.route, job.format, standing)):
        what = f"no contract on {way_of(job.route, job.format)} that passed covers: {', '.join(lacking)}"
        yield Objection(what, f"{PROVE}, once a contract test covers it, or leave out the prompts that use it")


def covered(route: Route, format_name: str, standing: Standing) -> frozenset[str]:
    """Return the features that passed contracts on this route cover."""
    contracts, way = standing.attested.contracts if standing.attested else frozenset(), way_of(route, format_name)
    return frozenset(feature for name, feature in contracts if name == way)


def way_of(route: Route, format_name: str) -> str:
    """Return the name that contracts have for a route.

    A paid route is named with its format, since one provider serves several families.
    """
    return route.name if route.api in FREE_APIS else f"{route.name} {format_name}"


def live_objections(job: Job, standing: Standing, _spent: int, now: datetime) -> Iterator[Objection]:
    """Live recordings that a paid route needs, and their age.

    Cassettes of the emulator prove our code only.
    """
    if job.is_free or job.route is None or job.kind is Kind.PROBE or standing.attested is None:
        return
    way = f"{job.route.name} {job.route.model or 'MODEL'}"
    oldest = standing.attested.live.get(way)
    if f"live:{job.route.name}" not in standing.attested.groups or oldest is None:
        yield Objection(f"the attestation has no live recording of {way}", record_live(job.route))
    elif now - oldest > LIVE_CASSETTE_AGE:
        age, limit = (now - oldest).days, LIVE_CASSETTE_AGE.days
        yield Objection(f"the oldest live recording of {way} is {age} days old, limit {limit}", record_live(job.route))


def record_live(route: Route) -> str:
    """Return the commands that record and prove live cassettes."""
    model = route.model or "MODEL"
    return f"nox -s cassettes -- --live --route {route.name} --model {model} --budget-usd 0.50, then {PROVE}"


def prompt_objections(job: Job, standing: Standing, _spent: int, _now: datetime) -> Iterator[Objection]:
    """The prompts of a probe must be the committed ones.

    A probe runs without live proof, so it may send only what was reviewed for it.
    """
    if job.kind is Kind.PROBE and (not standing.probes or job.prompts_sha256 != standing.probes):
        yield Objection(f"a probe sends the prompts of {PROBES} alone, and these are others", f"git checkout {PROBES}")


def money_objections(job: Job, standing: Standing, spent_today_pico: int, _now: datetime) -> Iterator[Objection]:
    """The budget, and the caps on a UTC day."""
    spent = min(spent_today_pico, job.spent_pico)
    if not (math.isfinite(job.budget_usd) and job.budget_usd >= 0 and spent >= 0):
        yield Objection(f"a budget of {job.budget_usd} USD is no amount", "python -m pipeline generate --budget-usd 1")
        return
    if job.is_free or standing.attested is None:
        return
    wanted = max(0, pico(job.budget_usd) - job.spent_pico)
    for who, cap in day_caps(job.kind, standing.attested.scope).items():
        if spent_today_pico + wanted > cap:
            left, asked = max(0, cap - spent_today_pico), f"{usd_text(wanted)}{' more' * bool(job.spent_pico)} asked"
            what = f"{who} unlocks ${usd_text(cap)} a UTC day in all: ${usd_text(spent_today_pico)} is spent, ${asked}"
            lower = f"python -m pipeline {job.kind} … --budget-usd {usd_text(left + job.spent_pico)}"
            more = "wait for the next UTC day" if job.kind is Kind.PROBE else "use the attestation that CI signed"
            yield Objection(what, f"{lower}, or {more}")


def kill_objections(job: Job, standing: Standing, _spent: int, _now: datetime) -> Iterator[Objection]:
    """The kill table that CI's paid jobs need.

    The suite that passed must have been seen to notice broken promises, on these very files.
    """
    attested = standing.attested
    if job.is_free or job.kind is Kind.PROBE or attested is None or attested.scope is Scope.DEV:
        return
    mend = f"{TEETH}, commit {KILLS}, and use the attestation that CI signs for it"
    if attested.kills is None:
        yield Objection("no kill table shows that the contract suite notices a broken promise", mend)
        return
    for weakness in weaknesses(attested.kills.shares):
        yield Objection(f"the kill table of {attested.kills.measured}: {weakness}", mend)
    if other := [name for name in standing.unbroken if not name.startswith(TRAINING)]:
        rest = f" and {len(other) - MOST_NAMED} more" if len(other) > MOST_NAMED else ""
        what = f"the kill table of {attested.kills.measured} broke other files: {', '.join(other[:MOST_NAMED])}"
        yield Objection(what + rest, mend)


def day_caps(kind: Kind, scope: Scope) -> dict[str, int]:
    """Return the day's caps in pico-dollars, by their owner.

    The run keeps to them too.
    """
    caps = {"a probe": PROBE_PICO_A_DAY} if kind is Kind.PROBE else {}
    if scope is Scope.DEV:
        caps["a developer's attestation"] = DEV_PICO_A_DAY
    return caps


CHECKS: tuple[Callable[[Job, Standing, int, datetime], Iterator[Objection]], ...] = (
    group_objections,
    coverage_objections,
    live_objections,
    prompt_objections,
    money_objections,
    kill_objections,
)
"""Each check of a job, in the order in which its objections are shown: job, standing, spent today, now."""
