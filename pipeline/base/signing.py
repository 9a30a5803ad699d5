"""Ed25519 keys, and DSSE envelopes signed with them.

Attestations and manifests are signed with the same keys: a developer's own, and CI's. Guarantees: a private key is
written with mode 0600 and never printed; one that others may read is refused. A key's id is computed and never read, so
that no file can claim another key's id. Nothing of a payload is returned before its signature is verified.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from securesystemslib.dsse import Envelope
from securesystemslib.signer import CryptoSigner, SSlibKey  # type: ignore[attr-defined]  # public, without __all__

from pipeline.base.paths import ROOT

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PROJECT = "drafter-gate"
CI_KEY = "DRAFTER_GATE_CI_KEY"
ROTATE = "python -m harness attestation rotate --private FILE"


class SigningError(Exception):
    """No key signs, or is read, and what mends it."""


class EnvelopeError(Exception):
    """An envelope is not believed; the message says why."""


class UnknownKeyError(EnvelopeError):
    """An envelope is signed by an unknown key."""


def key_dir() -> Path:
    """Return the folder of the developer's own keys.

    `$DRAFTER_GATE_KEYS`, or `drafter-gate/` in the user's configuration folder.
    """
    if named := os.environ.get("DRAFTER_GATE_KEYS"):
        return Path(named)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "drafter-gate"


def own_public_key(keys: Path | None = None) -> Path:
    """Return where the developer's public key lies."""
    return (key_dir() if keys is None else keys) / "dev.pub.json"


def ci_public_keys(root: Path = ROOT) -> list[Path]:
    """Return the files of CI's committed public keys."""
    return sorted((root / "pipeline" / "gate" / "keys").glob("*.json"))


def known_keys(root: Path = ROOT) -> dict[str, SSlibKey]:
    """Return the public keys that are known, by id.

    This machine's own, those beside it, of other machines whose rows are taken, and CI's. Raises SigningError.
    """
    files = [*sorted(key_dir().glob("*.pub.json")), *ci_public_keys(root)]
    return {key.keyid: key for key in map(read_public_key, files)}


def signer(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> CryptoSigner:
    """Return the key to sign with.

    CI's where `$DRAFTER_GATE_CI_KEY` holds its PEM text, else the developer's own. Raises SigningError.
    """
    if pem := environ.get(CI_KEY):
        ci = load_private(pem.encode(), f"${CI_KEY}")
        if ci.public_key.keyid not in {read_public_key(path).keyid for path in ci_public_keys(root)}:
            raise SigningError(f"the public half of ${CI_KEY} is not in pipeline/gate/keys/. Run: {ROTATE}")
        return ci
    return developer_key(key_dir())


def developer_key(directory: Path) -> CryptoSigner:
    """Return the key in `dev.pem`, made where it is missing.

    Its public half is written beside it, where the gate finds it. Raises SigningError.
    """
    path = directory / "dev.pem"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            with contextlib.suppress(FileExistsError):
                write_private(path, CryptoSigner.generate_ed25519())
        if path.stat().st_mode & 0o077:
            raise SigningError(f"{path} can be read by others. Run: rm {path}, and a new key is made")
        key = load_private(path.read_bytes(), str(path))
        write_public(own_public_key(directory), key.public_key)
    except OSError as error:
        raise SigningError(f"{path}: {error.strerror}. Run: export DRAFTER_GATE_KEYS=DIR") from error
    return key


def write_private(path: Path, key: CryptoSigner) -> None:
    """Write a private key as PEM, mode 0600.

    The file is complete when it appears. Raises FileExistsError rather than replace a key.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes)
    try:
        os.link(draft, path)
    finally:
        draft.unlink()


def write_public(path: Path, key: SSlibKey) -> None:
    """Write a public key whole, unless it is there already."""
    data = (json.dumps(key.to_dict(), indent=1, sort_keys=True) + "\n").encode()
    if path.is_file() and path.read_bytes() == data:
        return
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_bytes(data)
    draft.replace(path)


def load_private(pem: bytes, where: str) -> CryptoSigner:
    """Read an Ed25519 private key in PEM. Raises SigningError."""
    try:
        private = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SigningError(f"{where} holds no readable private key in PEM. Run: {ROTATE}") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise SigningError(f"{where} holds no Ed25519 key. Run: {ROTATE}")
    return CryptoSigner(private)


def read_public_key(path: Path) -> SSlibKey:
    """Read an Ed25519 public key file. Raises SigningError."""
    try:
        public = bytes.fromhex(json.loads(path.read_bytes())["keyval"]["public"])
        return SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(public))
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{path} holds no readable Ed25519 public key ({type(error).__name__}: {error})"
        raise SigningError(what) from error


def seal(payload: bytes, key: CryptoSigner) -> dict[str, Any]:
    """Return the DSSE envelope around a payload, as JSON."""
    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    envelope.sign(key)
    return dict(envelope.to_dict())


def unseal(document: object, keys: Mapping[str, SSlibKey]) -> tuple[bytes, str]:
    """Return payload and key id once the signature holds.

    The envelope must be whole and signed once, by one of `keys`. Raises EnvelopeError, and UnknownKeyError.
    """
    try:
        envelope = Envelope.from_dict(document)  # type: ignore[arg-type]  # whatever else it is, it raises
    except Exception as error:  # securesystemslib raises whatever its parts raise
        raise EnvelopeError(f"is no DSSE envelope ({type(error).__name__}: {error})") from error
    if envelope.payload_type != PAYLOAD_TYPE:
        raise EnvelopeError(f"carries a {envelope.payload_type!r}, not a {PAYLOAD_TYPE!r}")
    if len(envelope.signatures) != 1:
        raise EnvelopeError(f"carries {len(envelope.signatures)} signatures, where one is wanted")
    (keyid,) = envelope.signatures
    if keyid not in keys:
        raise UnknownKeyError(f"is signed by the key {keyid[:12]}, which nobody here trusts")
    try:
        envelope.verify([keys[keyid]], threshold=1)
    except Exception as error:  # as above; whatever it is, the signature does not hold
        raise EnvelopeError(f"was altered after it was signed by {keyid[:12]}: {error}") from error
    return envelope.payload, keyid
