"""Check a run before its first request.

Refuses a paid route whose every row would be refused, and a folder whose cost or answers the ledger does not know.

A forecast is a range from measured answers. Guarantees: it is given only from answers that were paid for (or emulated)
on the same route and model; without enough of them the worst case is named as such. Once a hundredth of the rows is
asked, a run that would not fit its budget even at the low end of the range trips, once.

`better_form` chooses between a stream and one body, by proven traits alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.money import pico, usd_text
from pipeline.base.screen import say
from pipeline.generation.breaker import Sign, Trip
from pipeline.generation.ledger import Ledger, State
from pipeline.generation.outcome import UNUSABLE, StopError
from pipeline.generation.plan import Plan
from pipeline.proof.fingerprint import Fingerprint, TraitName
from pipeline.shards.manifest import Manifest


def require_fingerprint(plan: Plan, fingerprint: Fingerprint | None) -> None:
    """Refuse to pay where every row would be refused.

    That is so where no ids are asked for and nothing is known of the route. Raises StopError.
    """
    if plan.route.api == "openrouter" and fingerprint is None and not plan.sampling.return_token_ids:
        raise StopError(
            f"{_way(plan)} has no fingerprint in goldens/fingerprints, so every row"
            " would be paid for and refused. Probe the route first (nox -s cassettes -- --live … --write), or use"
            " --return-token-ids where the engine has them"
        )


def require_hope(plan: Plan, fingerprint: Fingerprint | None, supported: frozenset[str]) -> None:
    """Require that some grade of evidence is possible.

    Where the fingerprint rules out all of them: StopError on a paid route, else a line on stderr. `supported` holds the
    endpoint's parameters; what it lacks is not asked for.
    """
    wanted = {"logprobs": plan.sampling.logprobs, "return_token_ids": plan.sampling.return_token_ids}
    if fingerprint is None or any(value and name in supported for name, value in wanted.items()):
        return
    seam = fingerprint.proven(TraitName.SEAM)
    if seam == "kept":
        return
    known = f"white space beside control tokens is {seam}" if seam else f"its {TraitName.SEAM} is not proven"
    ways = [f"--{name.replace('_', '-')}" for name in wanted if name in supported]
    mend = f"Use {' or '.join(ways)}" if ways else "Choose another provider: this one gives neither logprobs nor ids"
    if plan.route.api == "openrouter":
        raise StopError(f"{_way(plan)}: {known}, so every row would be paid for and refused. {mend}")
    say(f"warning: {_way(plan)}: {known}, so every row will be refused. {mend}")


def require_known_cost(manifest: Manifest, spent: Mapping[State, tuple[int, int]], out: Path, ledger: Path) -> None:
    """Require that the ledger knows the folder's cost.

    Otherwise budget and caps would begin anew. `spent` has requests and pico-dollars of this run by state, from the
    ledger. Raises StopError.
    """
    cost = manifest.result.get("cost")
    if not isinstance(cost, dict):
        return
    try:
        named = pico(str(cost.get("usd")))
    except ValueError as error:
        message = f"{out}: the manifest's cost is no amount ({error}). Give another --out DIR"
        raise StopError(message, UNUSABLE) from error
    answers, known = spent.get(State.SETTLED, (0, 0))
    settled = cost.get("settled_requests")
    named_answers = settled if isinstance(settled, int) else 0
    lost = bool(cost.get("unsettled_requests")) and not spent
    if known < named or answers < named_answers or lost:
        raise StopError(
            f"{out} cost ${usd_text(named)} so far in {named_answers} answers, and {ledger} knows of"
            f" ${usd_text(known)} in {answers}: it is not the ledger that this run began with. Put that one back, or"
            " name its folder with DRAFTER_GATE_STATE=DIR, or give another --out DIR",
            UNUSABLE,
        )


def require_same_ledger(manifest: Manifest, ledger: Ledger, out: Path) -> None:
    """Require the ledger that the folder's sessions wrote.

    Raises StopError.
    """
    if other := next((one.ledger for one in manifest.sessions if one.ledger not in {"", ledger.id}), None):
        raise StopError(
            f"{out} was begun with ledger {other[:12]}, and {ledger.path} is ledger {ledger.id[:12]}: what was paid for"
            " would be paid for again. Put that one back with its -wal file, or name its folder with"
            " DRAFTER_GATE_STATE=DIR, or give another --out DIR",
            UNUSABLE,
        )


def require_unpaused(manifest: Manifest, plan: Plan) -> None:
    """Refuse a run that the breaker paused.

    Unless the user says that it may go on. Raises StopError.
    """
    paused = manifest.result.get("paused")
    if not isinstance(paused, dict) or plan.watch.resume or paused.get("sign") in plan.watch.accepted:
        return
    raise StopError(
        f"{plan.out} was paused by the breaker: {paused.get('sentence')}. Look at those rows, then go on with --resume"
        f" (it is judged again) or --accept-trip {paused.get('sign')} (it is not)",
        UNUSABLE,
    )


def _way(plan: Plan) -> str:
    return f"{plan.route.name} {plan.route.model} ({'stream' if plan.route.stream else 'no stream'})"


SHARE = 0.01
LEAST = 50
ENOUGH = 20
"""Answers that a range before the run needs."""
Z = 1.96


@dataclass(frozen=True, slots=True)
class Range:
    """Pico-dollars from `low` to `high`, from `n` answers."""

    low: int
    high: int
    n: int

    @property
    def text(self) -> str:
        return f"${usd_text(self.low)} to ${usd_text(self.high)}, from {self.n} measured answers"


@dataclass(slots=True)
class Costs:
    """Costs of single answers, summed as they come.

    By Welford (1962).
    """

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, pico: int) -> None:
        self.n += 1
        step = pico - self.mean
        self.mean += step / self.n
        self.squares += step * (pico - self.mean)

    def range_for(self, rows: int) -> Range:
        """Return what `rows` more answers cost, at 95 %.

        The mean is uncertain by its sample, and each answer by itself.
        """
        spread = math.sqrt(self.squares / max(self.n - 1, 1)) * math.sqrt(rows + rows * rows / max(self.n, 1))
        middle = self.mean * rows
        return Range(max(round(middle - Z * spread), 0), round(middle + Z * spread), self.n)


def forecast(measured: Iterable[int], rows: int) -> Range | None:
    """Return the cost of `rows` answers like those `measured`.

    In pico-dollars; None where too few were measured.
    """
    costs = Costs()
    for cost in measured:
        costs.add(cost)
    return costs.range_for(rows) if costs.n >= ENOUGH else None


class Forecast:
    """Watch the costs of one session's answers.

    `rows` are those without a row yet, `budget` what may be spent on them.
    """

    def __init__(self, rows: int, budget: int, *, ignored: bool = False) -> None:
        self._left = rows
        self._budget = budget
        self._costs = Costs()
        self._due = max(LEAST, math.ceil(rows * SHARE))
        self._ignored = ignored

    def skip(self) -> None:
        """Count a row that cost nothing in this session."""
        self._left -= 1

    def see(self, pico: int) -> Trip | None:
        """Count one more settled answer; return the trip.

        It trips where the estimate is due and the budget would not hold for the rest.
        """
        self._costs.add(pico)
        self._left -= 1
        self._budget -= pico
        if self._costs.n != self._due or self._ignored or self._left <= 0:
            return None
        found = self._costs.range_for(self._left)
        if found.low <= self._budget:
            return None
        spent = round(self._costs.mean * self._costs.n)
        return Trip(Sign.BUDGET, "", found.low, self._budget, self._costs.n, (), spent)


def better_form(route: str, model: str, known: Sequence[Fingerprint]) -> bool:
    """Whether a stream lets more rows be proven.

    `route` is API/PROVIDER as the user writes it. Only proven traits count. Where they do not tell the two forms apart,
    and where neither is known, a stream is asked for, since it keeps what a body hides.
    """
    provider = _plain(route.partition("/")[2].partition("/")[0])
    forms = {one.stream: strength(one) for one in known if one.model == model and _plain(one.provider) == provider}
    return forms.get(True, 0) >= forms.get(False, 0)


def strength(fingerprint: Fingerprint) -> int:
    """Return how much can be proven without ids.

    0 nothing, 1 by counts, 2 by deltas, where more rows are proven.
    """
    native = fingerprint.proven(TraitName.COUNT_NATIVE) is True
    if fingerprint.proven(TraitName.SEAM) != "kept" or not native:
        return 0
    return 2 if fingerprint.proven(TraitName.DELTAS) == "tokens" else 1


def _plain(name: str) -> str:
    """Return a provider's name in a comparable form.

    `Moonshot AI` answers, `moonshotai` is asked.
    """
    return "".join(char for char in name.lower() if char.isalnum())
