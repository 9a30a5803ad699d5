"""The plan of one run: everything that decides which rows come out, and nothing that does not.

Guarantees: `settings` names all of it by content (hashes of the prompts, the tokenizer, the fingerprint, the weights),
so that two runs with equal settings may share a folder and others may not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from pipeline.formats.parts import Format
from pipeline.ledger import canonical
from pipeline.prompts import RefusedLine, read_prompts
from pipeline.records import Json, Prompt, Route, Sampling, ToolMode
from pipeline.routes import Fingerprint


@dataclass(frozen=True, slots=True)
class Plan:
    """One run as asked for. `limit` takes the first lines of the file only; `weights` is the local model's folder."""

    prompts: Path
    out: Path
    route: Route
    sampling: Sampling
    tool_mode: ToolMode
    fmt: Format
    budget_pico: int
    base_url: str | None = None
    weights: Path | None = None
    concurrency: int = 16
    limit: int | None = None
    resend_unknown: bool = False

    def lines(self) -> Iterator[Prompt | RefusedLine]:
        """The prompts to ask, and the lines that are none. Raises OSError."""
        return islice(read_prompts(self.prompts), self.limit)


@dataclass(frozen=True, slots=True)
class Scope:
    """What the prompts file holds: its sha256, and how many lines that are not blank."""

    sha256: str
    lines: int


def scope_of(path: Path) -> Scope:
    """Read the whole file once. Raises OSError."""
    digest, lines, filled = hashlib.sha256(), 0, False
    with path.open("rb") as file:
        while part := file.readline(1 << 20):
            digest.update(part)
            filled = filled or bool(part.strip())
            if part.endswith(b"\n"):
                lines, filled = lines + filled, False
    return Scope(digest.hexdigest(), lines + filled)


def settings(plan: Plan, scope: Scope, fingerprint: Fingerprint | None, provider: str) -> dict[str, Json]:
    """What a folder is begun with, as plain JSON; `provider` is the display name that answers carry."""
    return {
        "route": plan.route.name,
        "model": plan.route.model,
        "provider": provider,
        "stream": plan.route.stream,
        "tools": str(plan.tool_mode),
        "format": plan.fmt.name,
        "tokenizer_sha256": plan.fmt.tokenizer.sha256,
        "fingerprint_sha256": None if fingerprint is None else fingerprint_sha256(fingerprint),
        "weights_sha256": None if plan.weights is None else _weights_sha256(plan.weights),
        "prompts_sha256": scope.sha256,
        "sampling": {key: _plain(value) for key, value in asdict(plan.sampling).items()},
    }


def fingerprint_sha256(fingerprint: Fingerprint) -> str:
    """One digest over all traits, proven or not."""
    traits: dict[str, Json] = {
        name: {"value": trait.value, "n": trait.n, "proven": trait.proven} for name, trait in fingerprint.traits.items()
    }
    return hashlib.sha256(canonical(traits)).hexdigest()


def row_seed(seed: int | None, row: str) -> int | None:
    """Each row's own seed: equal prompts under two ids are two draws, and a run repeats. 31 bits, as APIs take."""
    if seed is None:
        return None
    digest = hashlib.sha256(f"{seed}:{row}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _weights_sha256(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _plain(value: object) -> Json:
    return value if isinstance(value, bool | int | float | str | list | None) else dict(value)  # type: ignore[call-overload]  # Sampling holds JSON
