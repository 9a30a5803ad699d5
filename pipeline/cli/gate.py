"""Say which jobs may run, and what stops the others.

    python -m pipeline gate status

Guarantees: what shuts every job comes first, what shuts one job last, each with the command that mends it. `--json` has
the same content.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from pipeline.base.money import usd_text
from pipeline.base.paths import ROOT, ledger_path
from pipeline.base.screen import show, show_headed, show_json
from pipeline.gate import engine_goldens, gate
from pipeline.gate.attestation import Attestation, Scope
from pipeline.gate.digests import tree_digest
from pipeline.gate.kills import ENOUGH, TEETH
from pipeline.generation.ledger import spent_today
from pipeline.generation.ledger_schema import LedgerError
from pipeline.records import Json, Objection, Route


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("gate", help="say what may run on this tree, and why not")
    verbs = parser.add_subparsers(dest="gate_verb", required=True, metavar="VERB")
    shown = verbs.add_parser("status", help="what is allowed, what is shut, and what mends it")
    shown.add_argument("--json", action="store_true", help="the same as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print; return 0 if free generation may run, else 3."""
    found = status()
    if arguments.json:
        show_json(found, indent=1)
    else:
        _print(found)
    return 0 if found["open"] else gate.SHUT


def status(root: Path = ROOT, now: datetime | None = None) -> dict[str, Json]:
    """Return what is allowed and what not, as JSON.

    `open` says whether free generation may run.
    """
    now = now or datetime.now(UTC)
    standing = gate.examine(root, now=now)
    spent, ledger = 0, list[Objection]()
    try:
        spent = spent_today(ledger_path())
    except LedgerError as error:
        ledger = [Objection(f"what was spent today is not known: {error}", "python -m pipeline ledger")]
    jobs: list[Json] = []
    for name, job in _jobs(standing):
        decision = gate.judge(job, standing, spent_today_pico=spent, now=now)
        objections = decision.objections if job.is_free else (*decision.objections, *ledger)
        allowed = decision.allowed and not (ledger and not job.is_free)
        jobs.append({"job": name, "allowed": allowed, "objections": _plain(objections)})
    return {
        "open": bool(isinstance(jobs[0], dict) and jobs[0]["allowed"]),
        "objections": _plain(standing.objections),
        "jobs": jobs,
        "attestation": None if standing.attested is None else _attestation(standing.attested, standing, now),
        "kills": None if standing.attested is None else _kills(standing.attested, standing, now),
        "spent_today_usd": usd_text(spent),
        "engine_goldens": list[Json](engine_goldens.standing(root)),
    }


def _jobs(standing: gate.Standing) -> Iterator[tuple[str, gate.Job]]:
    """Yield one job of each kind, on the tiny target.

    Paid routes are those with live recordings, or a placeholder for all.
    """
    tiny = standing.tiny_tokenizer or "none"
    live = sorted(standing.attested.live if standing.attested else ())
    emulator, local = Route("emulator", "", "siliconflow"), Route("local", "")
    yield "generate emulator", gate.Job(gate.Kind.GENERATE, emulator, tokenizer_sha256=tiny)
    yield "generate local", gate.Job(gate.Kind.GENERATE, local, tokenizer_sha256=tiny)
    yield "train", gate.Job(gate.Kind.TRAIN)
    for way in live or ["openrouter/PROVIDER MODEL"]:
        name, _, model = way.partition(" ")
        route = Route("openrouter", model, name.partition("/")[2])
        yield f"generate {way}", gate.Job(gate.Kind.GENERATE, route, tokenizer_sha256=tiny)


def _attestation(attested: Attestation, standing: gate.Standing, now: datetime) -> dict[str, Json]:
    return {
        "scope": attested.scope.value,
        "signer": attested.keyid,
        "issued": attested.issued.isoformat(),
        "expires": attested.expires.isoformat(),
        "seconds_left": int((attested.expires - now).total_seconds()),
        "tests": attested.passed,
        "groups": list[Json](sorted(attested.groups)),
        "tree": tree_digest(standing.digests or attested.digests),
        "sha256": attested.sha256,
    }


def _kills(attested: Attestation, standing: gate.Standing, now: datetime) -> Json:
    """Return the kill table's shares, age and changed files."""
    if attested.kills is None:
        return None
    shares = {sort: dict[str, Json](share.document()) for sort, share in attested.kills.shares.items()}
    return {
        **shares,
        "measured": attested.kills.measured.isoformat(),
        "days": (now.date() - attested.kills.measured).days,
        "changed": list[Json](standing.unbroken),
    }


def _plain(objections: list[Objection] | tuple[Objection, ...]) -> list[Json]:
    return [{"what": objection.what, "mend": objection.mend} for objection in objections]


def _print(found: dict[str, Json]) -> None:
    for objection in _dicts(found["objections"]):
        _print_objection("shut", objection)
    jobs, printed = _dicts(found["jobs"]), _dicts(found["objections"])
    if allowed := [str(job["job"]) for job in jobs if job["allowed"]]:
        show_headed("allowed", "green", f" {', '.join(allowed)}")
    if isinstance(attestation := found["attestation"], dict):
        show(_attestation_line(attestation), _kills_line(found["kills"]))
    sets = []
    for each in _dicts(found["engine_goldens"]):
        version = f" {each['version']}" if each["version"] else ""
        mend = f" (Run: {each['mend']})" if each["mend"] else ""
        sets.append(f"{each['name']}{version} {each['what']}{mend}")
    show(f"engine goldens  {', '.join(sets)}")
    for job in jobs:
        for objection in _dicts(job["objections"]):
            if objection not in printed:
                _print_objection(f"{job['job']}: shut", objection)


def _print_objection(head: str, objection: dict[str, Json]) -> None:
    show_headed(head, "red", f"  {objection['what']}")
    if objection["mend"]:
        show(f"      Run: {objection['mend']}")


def _attestation_line(attestation: dict[str, Json]) -> str:
    minutes = int(str(attestation["seconds_left"])) // 60
    limit = f"   up to ${usd_text(gate.DEV_PICO_A_DAY)} a UTC day" if attestation["scope"] == Scope.DEV else ""
    groups = attestation["groups"] if isinstance(attestation["groups"], list) else []
    return (
        f"attestation  valid {minutes // 60} h {minutes % 60} min   signer {attestation['scope']} "
        f"{str(attestation['signer'])[:12]}   {attestation['tests']} tests   tree {str(attestation['tree'])[:12]}   "
        f"groups {', '.join(str(group)[:22] for group in groups)}{limit}"
    )


def _kills_line(kills: Json) -> str:
    if not isinstance(kills, dict):
        return f"kill table  none: a paid job beyond a developer's dollar needs one (Run: {TEETH})"
    shares = (f"{sort} {share['killed']} of {share['of']}" for sort in ENOUGH if isinstance(share := kills[sort], dict))
    changed = kills["changed"] if isinstance(kills["changed"], list) else []
    since = f"changed since: {', '.join(map(str, changed))}" if changed else "nothing that it broke has changed"
    return f"kill table  {', '.join(shares)} noticed   {kills['days']} days old   {since}"


def _dicts(value: Json) -> list[dict[str, Json]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
