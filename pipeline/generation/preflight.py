"""What can be known of a run before its first request, so that nobody pays to learn it.

Refuses a paid route whose every row would be refused, and a folder whose cost or answers the ledger does not know.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from pipeline.base.money import pico, usd_text
from pipeline.generation.ledger import State
from pipeline.generation.paid_client import UNUSABLE, StopError
from pipeline.generation.plan import Plan
from pipeline.proof.fingerprint import Fingerprint, TraitName
from pipeline.records import Json
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
    named, (answers, known) = _settled(cost, out), spent.get(State.SETTLED, (0, 0))
    settled = cost.get("settled_requests")
    told = settled if isinstance(settled, int) else 0
    lost = bool(cost.get("unsettled_requests")) and not spent
    if known < named or answers < told or lost:
        raise StopError(
            f"{out} cost ${usd_text(named)} so far in {told} answers, and {ledger} knows of ${usd_text(known)} in"
            f" {answers}: it is not the ledger that"
            " this run began with. Put that one back, or name its folder with DRAFTER_GATE_STATE=DIR, or give"
            " another --out DIR",
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


def _settled(cost: Mapping[str, Json], out: Path) -> int:
    try:
        return pico(str(cost.get("usd")))
    except ValueError as error:
        raise StopError(
            f"{out}: the manifest's cost is no amount ({error}). Give another --out DIR", UNUSABLE
        ) from error


def _way(plan: Plan) -> str:
    return f"{plan.route.name} {plan.route.model} ({'stream' if plan.route.stream else 'no stream'})"
