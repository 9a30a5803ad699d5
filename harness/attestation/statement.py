"""The attestation: the suite's result as an in-toto statement in a DSSE envelope, signed, about exactly this tree.

Plain JSON throughout, since in-toto's protobuf classes turn integers into floats. `python -m harness attestation
rotate --private FILE` makes a new key pair for CI.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from securesystemslib.dsse import Envelope
from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined]  # public, without __all__

from harness.attestation.signing import SigningError, new_ci_key, signer
from pipeline.base.paths import ROOT
from pipeline.gate.attestation import (
    LIFETIME,
    PAYLOAD_TYPE,
    PREDICATE_TYPE,
    PROJECT,
    STATEMENT_TYPE,
    Scope,
    attestation_path,
)
from pipeline.gate.digests import algorithm, file_sha256
from pipeline.gate.environment import canonical_name, observe
from pipeline.records import Json

CONFIGURATION = ("constraints.txt", "pyproject.toml")
ENTRY = re.compile(r"""["']?\b(recorded_at|source|route|model)["']?: *["']?([^"'\s,]+)""")
PROVENANCE_CHARS = 4096
"""Provenance stands first in a cassette and in a golden, so no file is read further."""


@dataclass(frozen=True, slots=True)
class Result:
    """A whole run: the tests that passed, the groups they make up, the (route, feature) pairs that they cover."""

    passed: frozenset[str]
    groups: frozenset[str]
    contracts: frozenset[tuple[str, str]]
    digests: Mapping[str, str]
    profile: str
    max_examples: int


def write_attestation(result: Result, root: Path = ROOT, now: datetime | None = None) -> tuple[Path, Scope, datetime]:
    """Sign and put in place, whole or not at all; the path, the scope, the expiry. Raises SigningError, OSError."""
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
    """The envelope's JSON, around the statement's."""
    payload = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    envelope.sign(key)
    return json.dumps(envelope.to_dict(), indent=1).encode() + b"\n"


def statement(result: Result, scope: Scope, issued: datetime, root: Path) -> dict[str, Json]:
    """An in-toto Statement v1 with the predicate test-result v0.1 and this project's own fields beside its own."""
    subjects: list[Json] = [
        {"name": name, "digest": {algorithm(name): digest}} for name, digest in sorted(result.digests.items())
    ]
    return {
        "_type": STATEMENT_TYPE,
        "subject": subjects,
        "predicateType": PREDICATE_TYPE,
        "predicate": {**_outcome(result, root), **_circumstances(result, scope, issued, root)},
    }


def _outcome(result: Result, root: Path) -> dict[str, Json]:
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


def _circumstances(result: Result, scope: Scope, issued: datetime, root: Path) -> dict[str, Json]:
    cassettes = [_provenance(path) for path in sorted((root / "cassettes").rglob("*.yaml"))]
    goldens = [_provenance(path) for path in sorted((root / "goldens").rglob("*.json"))]
    return {
        "project": PROJECT,
        "scope": scope.value,
        "issuedAt": issued.isoformat(),
        "expiresAt": (issued + LIFETIME[scope]).isoformat(),
        "hypothesis": {"profile": result.profile, "maxExamples": result.max_examples},
        "oldestCassette": _oldest(cassettes),
        "oldestGolden": _oldest(goldens),
        "liveCassettes": dict[str, Json](_live(cassettes)),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def installed_digest() -> str:
    """Sha256 over the sorted lines `name==version` of what is installed."""
    installed = sorted({f"{canonical_name(name)}=={version}\n" for name, version in observe().distributions})
    return hashlib.sha256("".join(installed).encode()).hexdigest()


def _provenance(path: Path) -> dict[str, str]:
    """`recorded_at`, `source`, `route` and `model`, as far as a recording gives them at its head."""
    with path.open(encoding="utf-8") as file:
        return dict(reversed(ENTRY.findall(file.read(PROVENANCE_CHARS))))


def _oldest(recordings: Iterable[Mapping[str, str]]) -> str | None:
    return min((entry["recorded_at"] for entry in recordings if "recorded_at" in entry), default=None)


def _live(cassettes: list[dict[str, str]]) -> dict[str, str]:
    """When the oldest live cassette of each paid route and model was recorded."""
    live: dict[str, list[dict[str, str]]] = {}
    for entry in cassettes:
        if entry.get("source") == "live":
            live.setdefault(f"{entry['route']} {entry['model']}", []).append(entry)
    return {way: _oldest(live[way]) or "" for way in sorted(live)}


def main(arguments: list[str] | None = None) -> int:
    """Rotate CI's key. Exit 0, or 2 with the reason."""
    parser = argparse.ArgumentParser(prog="python -m harness attestation", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    rotate = verbs.add_parser("rotate", help="make a new key pair for CI")
    rotate.add_argument("--private", type=Path, required=True, metavar="FILE", help="for the private half (0600)")
    options = parser.parse_args(arguments)
    try:
        public = new_ci_key(ROOT, options.private)
    except SigningError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(
        f"public half:  {public}\nprivate half: {options.private} (mode 0600)\n"
        "Now: store the private file's text as the CI secret DRAFTER_GATE_CI_KEY, delete the file, commit the public\n"
        "half. Remove older keys in pipeline/gate/keys/ when their attestations are a week old; at once if leaked.\n"
    )
    return 0
