"""Where this checkout keeps its attestation and its ledger."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def state_dir() -> Path:
    """Return `$DRAFTER_GATE_STATE`, or `.drafter-gate/` in the checkout.

    The folder need not exist yet.
    """
    return Path(os.environ.get("DRAFTER_GATE_STATE") or ROOT / ".drafter-gate")


def ledger_path() -> Path:
    """Return the path of this checkout's ledger."""
    return state_dir() / "ledger.sqlite"
