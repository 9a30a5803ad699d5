"""The end of a run: what waits is written, the tree is looked at again, the manifest says what came of it all.

Guarantees: a summary comes out whatever stopped the run; what could not be written is said to be so.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from pipeline.base.money import usd_text
from pipeline.gate.digests import DigestError, changed, tree_digests
from pipeline.generation.paid_client import BUDGET_SPENT, TRIPPED, TROUBLE
from pipeline.generation.run import Run, now_text
from pipeline.generation.summary import Summary, cost_of, counted_risk
from pipeline.proof.fingerprint import SERVED_APIS
from pipeline.records import Json
from pipeline.shards import manifest as manifests

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
