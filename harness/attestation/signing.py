"""Which key signs an attestation, and CI's key pair."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined]  # public, without __all__

from pipeline.base import signing
from pipeline.base.signing import CI_KEY, SigningError, write_private, write_public
from pipeline.gate.attestation import Scope


def signer(root: Path, environ: Mapping[str, str] = os.environ) -> tuple[CryptoSigner, Scope]:
    """Return the key to sign with, and its scope.

    Raises SigningError.
    """
    return signing.signer(root, environ), Scope.CI if environ.get(CI_KEY) else Scope.DEV


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
