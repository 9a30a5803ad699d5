"""The private keys: a developer's own, and CI's.

Guarantees: a private key is written with mode 0600 and never printed; one that others may read is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from securesystemslib.signer import CryptoSigner, SSlibKey  # type: ignore[attr-defined]  # public, without __all__

from pipeline.gate.attestation import Scope, key_dir, trusted_keys

CI_KEY = "DRAFTER_GATE_CI_KEY"
ROTATE = "python -m harness attestation rotate --private FILE"


class SigningError(Exception):
    """No key can sign; the message says what mends it."""


def signer(root: Path, environ: Mapping[str, str] = os.environ) -> tuple[CryptoSigner, Scope]:
    """Return the key to sign with, and its scope.

    CI's key where `$DRAFTER_GATE_CI_KEY` holds its PEM text, else the developer's own. Raises SigningError.
    """
    if pem := environ.get(CI_KEY):
        ci = _load(pem.encode(), f"${CI_KEY}")
        if trusted_keys(root).get(ci.public_key.keyid, (None, None))[1] is not Scope.CI:
            raise SigningError(f"the public half of ${CI_KEY} is not in pipeline/gate/keys/. Run: {ROTATE}")
        return ci, Scope.CI
    return developer_key(key_dir()), Scope.DEV


def developer_key(directory: Path) -> CryptoSigner:
    """Return the key in `dev.pem`, made where it is missing.

    Its public half is written beside it, where the gate finds it. Raises SigningError.
    """
    path = directory / "dev.pem"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            write_private(path, CryptoSigner.generate_ed25519())
        if path.stat().st_mode & 0o077:
            raise SigningError(f"{path} can be read by others. Run: rm {path}, and a new key is made")
        key = _load(path.read_bytes(), str(path))
        write_public(directory / "dev.pub.json", key.public_key)
    except OSError as error:
        raise SigningError(f"{path}: {error.strerror}. Run: export DRAFTER_GATE_KEYS=DIR") from error
    return key


def new_ci_key(root: Path, private: Path) -> Path:
    """Make CI's key pair; return the public half's path.

    The private half goes to `private`, the public half into pipeline/gate/keys/. Raises SigningError.
    """
    pair = CryptoSigner.generate_ed25519()
    try:
        write_private(private, pair)
        public = root / "pipeline" / "gate" / "keys" / f"ci-{pair.public_key.keyid[:12]}.json"
        write_public(public, pair.public_key)
    except OSError as error:
        raise SigningError(f"{error.filename or private}: {error.strerror}. Name a file that does not exist") from error
    return public


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
    path.write_text(json.dumps(key.to_dict(), indent=1, sort_keys=True) + "\n", "utf-8")


def _load(pem: bytes, where: str) -> CryptoSigner:
    try:
        private = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SigningError(f"{where} holds no readable private key in PEM. Run: {ROTATE}") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise SigningError(f"{where} holds no Ed25519 key. Run: {ROTATE}")
    return CryptoSigner(private)
