"""The signature inside a folder's manifest.

It binds all that the manifest says: run, settings, sessions with their attestations, results, and the digests of shards
and quarantine. Guarantees: a signature copied from another folder or version holds for nothing; only keys from outside
the folder count. An attestation is named and not looked up, since later ones replace it: the signature vouches that a
program that held the key ran under it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.base.signing import (
    PROJECT,
    STATEMENT_TYPE,
    EnvelopeError,
    SigningError,
    UnknownKeyError,
    key_dir,
    known_keys,
    seal,
    signer,
    unseal,
)
from pipeline.records import Json

SIGNATURE = "signature"
PREDICATE_TYPE = "https://drafter-gate/run-manifest/v1"
ACCEPT = "--accept-unsigned"


class SignatureError(Exception):
    """A manifest is not believed: why, and what mends it."""


def with_signature(document: Mapping[str, Json]) -> dict[str, Json]:
    """Return the manifest with its signature. Raises SignatureError."""
    try:
        return {**document, SIGNATURE: seal(_payload(document), signer())}
    except SigningError as error:
        raise SignatureError(str(error)) from error


def signer_of(path: Path, document: Mapping[str, Any], *, accept_unsigned: bool = False) -> str | None:
    """Return the id of the key that signed a manifest.

    Known are this machine's key, those beside it, and CI's. Raises SignatureError where none of them signed, unless
    `accept_unsigned`: then None is returned. A manifest that was changed since a known key signed it is never accepted.
    """
    if SIGNATURE not in document:
        if accept_unsigned:
            return None
        raise SignatureError(
            f"{path} has no signature, so anyone may have written it. If an older version did, {ACCEPT} takes it"
        )
    try:
        payload, keyid = unseal(document[SIGNATURE], known_keys())
    except UnknownKeyError as error:
        if accept_unsigned:
            return None
        mend = f"Copy dev.pub.json of the machine that made it to {key_dir()}/NAME.pub.json, or give {ACCEPT}"
        raise SignatureError(f"{path} {error}. {mend}") from error
    except EnvelopeError as error:
        raise SignatureError(f"{path}: its signature {error}. Put the file back") from error
    except SigningError as error:
        raise SignatureError(f"{error}. Remove that file, or put it back") from error
    if payload != _payload(document):
        raise SignatureError(
            f"{path} was changed after it was signed by {keyid[:12]}, or its signature is another's. Put the file back"
        )
    return keyid


def _payload(document: Mapping[str, Any]) -> bytes:
    """Return the in-toto statement about all but the signature."""
    rest = {name: value for name, value in document.items() if name != SIGNATURE}
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": "manifest.json", "digest": {"sha256": hashlib.sha256(_bytes(rest)).hexdigest()}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {"project": PROJECT},
    }
    return _bytes(statement)


def _bytes(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii")
