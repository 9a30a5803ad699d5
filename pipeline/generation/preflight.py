"""What can be known of a run before its first request, so that nobody pays to learn it.

Refuses a paid route whose every row would be refused, and a folder whose cost or answers the ledger does not know.

What a run will cost: a range from measured answers, before it begins and again once it has begun.

Guarantees: a range is given only from answers that were paid for (or emulated) on the same route and model; without
enough of them the worst case is named as such. Once a hundredth of the rows is asked, a run that would not fit its
budget even at the low end of the range is said to, once.

Whether to ask a route for a stream or for one body: the form whose fingerprint lets more rows be proven.

Guarantees: only proven traits count; where they do not tell the two apart, and where neither form is known, a stream is
asked for, since it keeps what a body hides.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.money import pico, usd_text
from pipeline.generation.breaker import Sign, Trip
from pipeline.generation.ledger import State
from pipeline.generation.paid_client import UNUSABLE, StopError
from pipeline.generation.plan import Plan
from pipeline.proof.fingerprint import Fingerprint, TraitName
from pipeline.shards.manifest import Manifest


def require_fingerprint(plan: Plan, fingerprint: Fingerprint | None) -> None:
    """Raises StopError where money would buy refused rows only: no ids asked for, and nothing known of the route."""
    if plan.route.api == "openrouter" and fingerprint is None and not plan.sampling.return_token_ids:
        raise StopError(
            f"{_way(plan)} has no fingerprint in goldens/fingerprints, so every row"
            " would be paid for and refused. Probe the route first (nox -s cassettes -- --live … --write), or use"
            " --return-token-ids where the engine has them"
        )


def require_hope(plan: Plan, fingerprint: Fingerprint | None, supported: frozenset[str]) -> None:
    """Where the fingerprint rules out every grade of evidence: StopError on a paid route, else a line on stderr.

    `supported` holds the endpoint's parameters: what it lacks is not asked for.
    """
    wanted = {"logprobs": plan.sampling.logprobs, "return_token_ids": plan.sampling.return_token_ids}
    if fingerprint is None or any(asked and name in supported for name, asked in wanted.items()):
        return
    seam = fingerprint.proven(TraitName.SEAM)
    if seam == "kept":
        return
    known = f"white space beside control tokens is {seam}" if seam else f"its {TraitName.SEAM} is not proven"
    ways = [f"--{name.replace('_', '-')}" for name in wanted if name in supported]
    mend = f"Use {' or '.join(ways)}" if ways else "Choose another provider: this one gives neither logprobs nor ids"
    if plan.route.api == "openrouter":
        raise StopError(f"{_way(plan)}: {known}, so every row would be paid for and refused. {mend}")
    sys.stderr.write(f"warning: {_way(plan)}: {known}, so every row will be refused. {mend}\n")


def require_known_cost(manifest: Manifest, spent: Mapping[State, tuple[int, int]], out: Path, ledger: Path) -> None:
    """Raises StopError where the folder's manifest names what the ledger lacks: budget and caps would begin anew.

    `spent` has requests and pico-dollars of this run by state, from the ledger.
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


def require_unpaused(manifest: Manifest, plan: Plan) -> None:
    """Raises StopError where the breaker paused this run and nobody has said that it may go on."""
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
"""Answers that a range before the run is given from."""
Z = 1.96


@dataclass(frozen=True, slots=True)
class Range:
    """Pico-dollars from `low` to `high`, and how many answers that is from."""

    low: int
    high: int
    n: int

    @property
    def text(self) -> str:
        return f"${usd_text(self.low)} to ${usd_text(self.high)}, from {self.n} measured answers"


@dataclass(slots=True)
class Costs:
    """Costs of single answers, summed as they come (Welford 1962)."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, pico: int) -> None:
        self.n += 1
        step = pico - self.mean
        self.mean += step / self.n
        self.squares += step * (pico - self.mean)

    def range_for(self, rows: int) -> Range:
        """What `rows` more answers cost at 95 %: the mean is uncertain by its sample, and each answer by itself."""
        spread = math.sqrt(self.squares / max(self.n - 1, 1)) * math.sqrt(rows + rows * rows / max(self.n, 1))
        middle = self.mean * rows
        return Range(max(round(middle - Z * spread), 0), round(middle + Z * spread), self.n)


def forecast(measured: Iterable[int], rows: int) -> Range | None:
    """The range for `rows` answers like those `measured` (pico-dollars each); None where too few were."""
    costs = Costs()
    for cost in measured:
        costs.add(cost)
    return costs.range_for(rows) if costs.n >= ENOUGH else None


class Forecast:
    """Watches what one session's answers cost. `rows` are those without a row yet, `budget` what it may spend."""

    def __init__(self, rows: int, budget: int, *, ignored: bool = False) -> None:
        self._left = rows
        self._budget = budget
        self._costs = Costs()
        self._due = max(LEAST, math.ceil(rows * SHARE))
        self._ignored = ignored

    def skip(self) -> None:
        """A row that was paid for before, or was never asked."""
        self._left -= 1

    def see(self, pico: int) -> Trip | None:
        """One more settled answer; the trip, where the estimate is due and the budget would not hold for the rest."""
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
    """True for a stream. `route` is API/PROVIDER as the user writes it."""
    provider = _plain(route.partition("/")[2].partition("/")[0])
    forms = {one.stream: strength(one) for one in known if one.model == model and _plain(one.provider) == provider}
    return forms.get(True, 0) >= forms.get(False, 0)


def strength(fingerprint: Fingerprint) -> int:
    """How much can be proven without ids: 0 nothing, 1 by counts, 2 by deltas, where more rows are."""
    native = fingerprint.proven(TraitName.COUNT_NATIVE) is True
    if fingerprint.proven(TraitName.SEAM) != "kept" or not native:
        return 0
    return 2 if fingerprint.proven(TraitName.DELTAS) == "tokens" else 1


def _plain(name: str) -> str:
    """Providers are written in two ways: `Moonshot AI` answers, `moonshotai` is asked."""
    return "".join(char for char in name.lower() if char.isalnum())
