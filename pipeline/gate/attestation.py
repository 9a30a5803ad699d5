"""Verify and read the signed result of the contract suite.

Guarantees: a DSSE envelope is accepted only whole, signed once by a trusted key, and in its lifetime. Nothing in the
payload is read before its signature is verified. Every error, the libraries' own included, becomes an
`AttestationError` that carries an objection.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from securesystemslib.signer import SSlibKey  # type: ignore[attr-defined]  # public, but exported without __all__

from pipeline.base.paths import ROOT, state_dir
from pipeline.base.signing import (
    PROJECT,
    STATEMENT_TYPE,
    EnvelopeError,
    SigningError,
    ci_public_keys,
    own_public_key,
    read_public_key,
    unseal,
)
from pipeline.gate.digests import algorithm
from pipeline.gate.kills import KillTable, attested_kills
from pipeline.records import PROVE, Objection

PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
MOST_BYTES = 16 * 2**20


class Scope(StrEnum):
    """Who signed: a developer's own key, or CI's."""

    DEV = "dev"
    CI = "ci"


LIFETIME: Mapping[Scope, timedelta] = {Scope.DEV: timedelta(hours=24), Scope.CI: timedelta(days=7)}


class AttestationError(Exception):
    """The attestation is not believed; `objection` says why."""

    def __init__(self, what: str, mend: str = PROVE) -> None:
        self.objection = Objection(what, mend)
        super().__init__(str(self.objection))


@dataclass(frozen=True, slots=True)
class Attestation:
    """What a believed attestation says.

    `contracts` holds (route, feature) pairs. `live` has the time of the oldest live recording by route and model
    (`openrouter/siliconflow moonshotai/kimi-k2.5`).
    """

    scope: Scope
    keyid: str
    issued: datetime
    expires: datetime
    digests: Mapping[str, str]
    passed: int
    groups: frozenset[str]
    contracts: frozenset[tuple[str, str]]
    live: Mapping[str, datetime]
    sha256: str
    examples: int
    python: Mapping[str, str]
    direct: Mapping[str, str]
    startup: Mapping[str, str]
    kills: KillTable | None


Trusted = Mapping[str, tuple[SSlibKey, Scope]]
"""Trusted keys and what they sign for, by key id."""


def read_attestation(path: Path, trusted: Trusted, now: datetime) -> Attestation:
    """Verify an attestation, then read it. Raises AttestationError.

    `now` must carry a time zone.
    """
    raw = _read(path)
    payload, keyid, scope = _verified(raw, trusted, path)
    try:
        attestation = _attestation(json.loads(payload), keyid, scope, hashlib.sha256(raw).hexdigest())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"{path}: the signed payload is no test result of this project ({type(error).__name__}: {error})"
        raise AttestationError(what) from error
    _require_in_lifetime(attestation, now)
    return attestation


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise AttestationError(f"{path} is larger than {MOST_BYTES} bytes, so no attestation", f"rm {path}")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise AttestationError(f"there is no attestation at {path}: the contract suite has not passed here") from error
    except OSError as error:
        raise AttestationError(f"{path} cannot be read ({error.strerror})") from error


def _verified(raw: bytes, trusted: Trusted, path: Path) -> tuple[bytes, str, Scope]:
    """Return payload, key id and scope once the signature holds."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise AttestationError(f"{path} is no DSSE envelope ({type(error).__name__}: {error})") from error
    try:
        payload, keyid = unseal(document, {keyid: key for keyid, (key, _) in trusted.items()})
    except EnvelopeError as error:
        raise AttestationError(f"{path} {error}") from error
    return payload, keyid, trusted[keyid][1]


def _attestation(statement: dict[str, Any], keyid: str, scope: Scope, sha256: str) -> Attestation:
    """Return the payload's values.

    Raises ValueError, KeyError or TypeError for what is not a whole, passed test result.
    """
    predicate = statement["predicate"]
    for problem in _faults(statement, predicate, scope):
        raise ValueError(problem)
    return Attestation(
        scope=scope,
        keyid=keyid,
        issued=_time(predicate["issuedAt"]),
        expires=_time(predicate["expiresAt"]),
        digests={subject["name"]: subject["digest"][algorithm(subject["name"])] for subject in statement["subject"]},
        passed=len(predicate["passedTests"]),
        groups=frozenset(predicate["groups"]),
        contracts=frozenset((entry["route"], name) for entry in predicate["contracts"] for name in entry["features"]),
        live={route: _time(recorded) for route, recorded in predicate["liveCassettes"].items()},
        sha256=sha256,
        examples=int(predicate["hypothesis"]["maxExamples"]),
        python=_texts(predicate["runtime"]["python"]),
        direct=_texts(predicate["runtime"]["direct"]),
        startup=_texts(predicate["runtime"]["startup"]),
        kills=None if predicate["kills"] is None else attested_kills(predicate["kills"]),
    )


def _texts(value: dict[str, Any]) -> dict[str, str]:
    return {name: str(text) for name, text in value.items()}


def _faults(statement: dict[str, Any], predicate: dict[str, Any], scope: Scope) -> Iterator[str]:
    """Yield what keeps the payload from being a passed result."""
    for name, wanted in (("_type", STATEMENT_TYPE), ("predicateType", PREDICATE_TYPE)):
        if statement[name] != wanted:
            yield f"{name} is {statement[name]!r}, not {wanted!r}"
    if predicate["project"] != PROJECT:
        yield f"it speaks of the project {predicate['project']!r}"
    if predicate["result"] != "PASSED" or predicate["failedTests"] or predicate["warnedTests"]:
        yield f"its result is {predicate['result']}, with {len(predicate['failedTests'])} failed tests"
    if not predicate["passedTests"]:
        yield "it names no test that passed"
    if predicate["scope"] != scope:
        yield f"it claims the scope {predicate['scope']!r}, and its key signs for {scope.value!r} alone"


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"the time {text!r} has no zone")
    return time


def _require_in_lifetime(attestation: Attestation, now: datetime) -> None:
    limit = LIFETIME[attestation.scope]
    if attestation.issued > now:
        what = f"the attestation is from the future: issued {attestation.issued.isoformat()}, now {now.isoformat()}"
        raise AttestationError(what, f"date -u, set the clock right, then {PROVE}")
    if attestation.expires - attestation.issued > limit:
        claimed = attestation.expires - attestation.issued
        raise AttestationError(
            f"the attestation claims to live {claimed}; the scope {attestation.scope} allows {limit}"
        )
    if now >= attestation.expires:
        age, allowed = now - attestation.issued, attestation.expires - attestation.issued
        raise AttestationError(f"the attestation is too old: issued {_words(age)} ago, limit {_words(allowed)}")


def _words(span: timedelta) -> str:
    """Return a time span, as `30 h 5 min`."""
    hours, minutes = divmod(int(span.total_seconds()) // 60, 60)
    return f"{hours // 24} days {hours % 24} h" if hours >= 48 else f"{hours} h {minutes} min"  # noqa: PLR2004


def attestation_path() -> Path:
    """Return where the contract suite leaves its attestation."""
    return state_dir() / "attestation.json"


def trusted_keys(root: Path = ROOT, keys: Path | None = None) -> Trusted:
    """Return the trusted keys by id. Raises AttestationError.

    The committed public keys sign for CI; the one beside the developer's private key signs for dev alone.
    """
    own = own_public_key(keys)
    files = [*([(own, Scope.DEV)] if own.is_file() else []), *((path, Scope.CI) for path in ci_public_keys(root))]
    found: dict[str, tuple[SSlibKey, Scope]] = {}
    for path, scope in files:
        try:
            key = read_public_key(path)
        except SigningError as error:
            raise AttestationError(str(error), f"rm {path} && {PROVE}") from error
        found[key.keyid] = (key, scope)
    return found
