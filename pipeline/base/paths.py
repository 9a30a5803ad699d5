"""Where this checkout keeps its state: the attestation and the ledger, in `.drafter-gate/` unless told otherwise."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def state_dir() -> Path:
    """`$DRAFTER_GATE_STATE`, or `.drafter-gate/` at the root of the checkout. It need not exist yet."""
    return Path(os.environ.get("DRAFTER_GATE_STATE") or ROOT / ".drafter-gate")


def ledger_path() -> Path:
    """The one ledger of this checkout."""
    return state_dir() / "ledger.sqlite"
