"""The attestation: a signed in-toto statement about exactly this tree.

    python -m harness attestation rotate --private FILE

`rotate` makes a new key pair for CI. The envelope is DSSE. The JSON is plain throughout, since in-toto's protobuf
classes turn integers into floats.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined]  # public, without __all__

from harness.attestation.signing import new_ci_key, signer
from pipeline.base.paths import ROOT
from pipeline.base.screen import say, show
from pipeline.base.signing import PROJECT, STATEMENT_TYPE, SigningError, seal
from pipeline.gate.attestation import (
    LIFETIME,
    PREDICATE_TYPE,
    Scope,
    attestation_path,
)
from pipeline.gate.digests import algorithm, file_sha256
from pipeline.gate.environment import canonical_name, observe
from pipeline.gate.kills import KillTable
from pipeline.records import Json

CONFIGURATION = ("constraints.txt", "pyproject.toml")
ENTRY = re.compile(r"""["']?\b(recorded_at|source|route|model)["']?: *["']?([^"'\s,]+)""")
PROVENANCE_CHARS = 4096
"""Provenance stands first in a cassette and in a golden, so no file is read further."""


@dataclass(frozen=True, slots=True)
class Result:
    """A whole run: what passed, and what it covers.

    `contracts` are (route, feature) pairs. `lost` are tests that the attestation before had, in groups of this one, and
    `lost_kills` promises that its kill table had as noticed.
    """

    passed: frozenset[str]
    groups: frozenset[str]
    contracts: frozenset[tuple[str, str]]
    digests: Mapping[str, str]
    profile: str
    max_examples: int
    lost: frozenset[str] = frozenset()
    kills: KillTable | None = None
    lost_kills: frozenset[str] = frozenset()


def write_attestation(result: Result, root: Path = ROOT, now: datetime | None = None) -> tuple[Path, Scope, datetime]:
    """Sign and write the attestation; return path, scope and expiry.

    It appears whole or not at all. Raises SigningError, OSError.
    """
    key, scope = signer(root)
    issued = (now or datetime.now(UTC)).replace(microsecond=0)
    envelope = sign(statement(result, scope, issued, root), key)
    path = attestation_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_bytes(envelope)
    draft.replace(path)
    return path, scope, issued + LIFETIME[scope]


def sign(content: Mapping[str, Json], key: CryptoSigner) -> bytes:
    """Return the JSON of the envelope around a statement."""
    payload = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps(seal(payload, key), indent=1).encode() + b"\n"


def statement(result: Result, scope: Scope, issued: datetime, root: Path) -> dict[str, Json]:
    """Return the in-toto Statement v1 with predicate test-result v0.1.

    The predicate holds this project's own fields beside the standard ones.
    """
    subjects: list[Json] = [
        {"name": name, "digest": {algorithm(name): digest}} for name, digest in sorted(result.digests.items())
    ]
    return {
        "_type": STATEMENT_TYPE,
        "subject": subjects,
        "predicateType": PREDICATE_TYPE,
        "predicate": {**outcome_fields(result, root), **run_fields(result, scope, issued, root)},
    }


def outcome_fields(result: Result, root: Path) -> dict[str, Json]:
    """Return the standard fields: what passed, under which configuration."""
    routes = sorted({route for route, _ in result.contracts})
    features = {route: sorted(name for on, name in result.contracts if on == route) for route in routes}
    pinned: list[Json] = [{"name": name, "digest": {"sha256": file_sha256(root / name)}} for name in CONFIGURATION]
    return {
        "result": "PASSED",
        "configuration": [*pinned, {"name": "installed", "digest": {"sha256": installed_digest()}}],
        "passedTests": list[Json](sorted(result.passed)),
        "warnedTests": [],
        "failedTests": [],
        "groups": list[Json](sorted(result.groups)),
        "contracts": [{"route": route, "features": list[Json](features[route])} for route in routes],
        "counts": {"passed": len(result.passed)},
    }


def run_fields(result: Result, scope: Scope, issued: datetime, root: Path) -> dict[str, Json]:
    """Return this project's fields: scope, expiry, recordings and platform."""
    cassettes = [_provenance(path) for path in sorted((root / "cassettes").rglob("*.yaml"))]
    goldens = [_provenance(path) for path in sorted((root / "goldens").rglob("*.json"))]
    paid = [entry for entry in cassettes if entry.get("source") == "live"]
    runtime = observe()
    by_route: dict[str, list[dict[str, str]]] = {}
    for entry in paid:
        by_route.setdefault(f"{entry['route']} {entry['model']}", []).append(entry)
    live = {route: _oldest(by_route[route]) or "" for route in sorted(by_route)}
    return {
        "project": PROJECT,
        "scope": scope.value,
        "issuedAt": issued.isoformat(),
        "expiresAt": (issued + LIFETIME[scope]).isoformat(),
        "hypothesis": {"profile": result.profile, "maxExamples": result.max_examples},
        "oldestCassette": _oldest(cassettes),
        "oldestGolden": _oldest(goldens),
        "liveCassettes": dict[str, Json](live),
        "runtime": {
            "python": dict[str, Json](runtime.python),
            "direct": dict[str, Json](runtime.direct),
            "startup": dict[str, Json](runtime.startup),
        },
        "platform": platform.platform(),
        "kills": result.kills.document() if result.kills else None,
        "lostTests": list[Json](sorted(result.lost)),
        "lostKills": list[Json](sorted(result.lost_kills)),
    }


def installed_digest() -> str:
    """Return the digest of what is installed.

    Sha256 over the sorted lines `name==version`.
    """
    installed = sorted({f"{canonical_name(name)}=={version}\n" for name, version in observe().distributions})
    return hashlib.sha256("".join(installed).encode()).hexdigest()


def _provenance(path: Path) -> dict[str, str]:
    """Return the provenance at the head of a recording.

    `recorded_at`, `source`, `route` and `model`, where it has them.
    """
    with path.open(encoding="utf-8") as file:
        return dict(reversed(ENTRY.findall(file.read(PROVENANCE_CHARS))))


def _oldest(recordings: Iterable[Mapping[str, str]]) -> str | None:
    return min((entry["recorded_at"] for entry in recordings if "recorded_at" in entry), default=None)


def main(arguments: list[str] | None = None) -> int:
    """Rotate CI's key; 0, or 2 with the reason."""
    parser = argparse.ArgumentParser(prog="python -m harness attestation", description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    rotate = verbs.add_parser("rotate", help="make a new key pair for CI")
    rotate.add_argument("--private", type=Path, required=True, metavar="FILE", help="for the private half (0600)")
    options = parser.parse_args(arguments)
    try:
        public = new_ci_key(ROOT, options.private)
    except SigningError as error:
        say(str(error))
        return 2
    show(
        f"public half:  {public}",
        f"private half: {options.private} (mode 0600)",
        "Now: store the private file's text as the CI secret DRAFTER_GATE_CI_KEY, delete the file, commit the public",
        "half. Remove older keys in pipeline/gate/keys/ when their attestations are a week old; at once if leaked.",
    )
    return 0
