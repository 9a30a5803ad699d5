"""The plan of one run: all that decides its rows.

Guarantees: `settings` names all of it by content (hashes of the prompts, the tokenizer, the fingerprint, the weights),
so that two runs with equal settings may share a folder and others may not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from pipeline.base.file_kinds import require_lines
from pipeline.base.files import weights_sha256
from pipeline.base.json_lines import canonical
from pipeline.base.prompts import RefusedLine, read_prompts
from pipeline.datasets.prompt_source import is_prepared, lines_of, size_of
from pipeline.formats.format import Format
from pipeline.generation.breaker import CANARIES, Sign
from pipeline.generation.engines.request import Privacy
from pipeline.proof.fingerprint import Fingerprint
from pipeline.records import Json, JsonObject, Prompt, Route, Sampling, ToolMode


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits beside the run's budget in dollars.

    Of the run, and of a UTC day over all runs through the same API.
    """

    tokens: int | None = None
    requests: int | None = None
    day_pico: int | None = None
    day_tokens: int | None = None
    day_requests: int | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a request is tried, and the waits between.

    `attempts` counts the first one; waits are in seconds, and `first` doubles up to `longest`.
    """

    attempts: int = 6
    first: float = 1.0
    longest: float = 60.0


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """The breaker's limits and what the user accepts.

    `limits` are those that differ from the breaker's own, `accepted` the kinds of trip that do not stop the run.
    `resume`: a run that the breaker paused may go on.
    """

    limits: Mapping[Sign, float] = field(default_factory=dict)
    accepted: frozenset[Sign] = frozenset()
    canaries: int = CANARIES
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Cover:
    """The features that may be sent, and their audit.

    `left_out` are features that no contract covers, where rows that use them are set aside; None where none may be.
    """

    features: frozenset[str]
    audit: JsonObject
    audit_sha256: str
    left_out: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One run, as the user wants it.

    `prompts` is a source of `dataset`'s rows where one is named, else a file of prompts; `limit` takes its first lines
    only. `weights` is the local model's folder. Only what is within `cover` is sent. `accept_unsigned`: the run may go
    on in a folder whose manifest no known key signed.
    """

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
    allow_secret_shapes: bool = False
    privacy: Privacy = field(default_factory=Privacy)
    caps: Caps = Caps()
    patience: RetryPolicy = RetryPolicy()
    watch: BreakerPolicy = BreakerPolicy()
    dataset: str = ""
    cover: Cover | None = None
    accept_unsigned: bool = False

    def lines(self) -> Iterator[Prompt | RefusedLine]:
        """Read the prompts, and the lines that are none.

        Raises OSError, SourceError.
        """
        rows = lines_of(self.dataset, self.prompts) if self.dataset else read_prompts(self.prompts)
        return islice(rows, self.limit)

    def scope(self) -> PromptsFile:
        """Measure the whole source. Raises OSError, SourceError."""
        if self.dataset and not is_prepared(self.prompts):
            return PromptsFile(*size_of(self.dataset, self.prompts))
        return prompts_file_of(self.prompts)


@dataclass(frozen=True, slots=True)
class PromptsFile:
    """A prompts file: its sha256, and its filled lines."""

    sha256: str
    lines: int


def prompts_file_of(path: Path) -> PromptsFile:
    """Read the whole file once. Raises OSError, FileKindError."""
    digest, lines, filled = hashlib.sha256(), 0, False
    with path.open("rb") as file:
        require_lines(path, file)
        file.seek(0)
        while part := file.readline(1 << 20):
            digest.update(part)
            filled = filled or bool(part.strip())
            if part.endswith(b"\n"):
                lines, filled = lines + filled, False
    return PromptsFile(digest.hexdigest(), lines + filled)


def settings(plan: Plan, scope: PromptsFile, fingerprint: Fingerprint | None, provider: str) -> dict[str, Json]:
    """Return what a folder is begun with, as plain JSON.

    `provider` is the display name that answers carry.
    """
    named: dict[str, Json] = {"dataset": plan.dataset} if plan.dataset else {}
    if plan.cover is not None and plan.cover.left_out is not None:
        named["left_out"] = [*plan.cover.left_out]  # rows would be missing where a later session covers more
    if plan.allow_secret_shapes:
        named |= {"prompts_with_keys": "sent"}
    return {
        **named,
        "route": plan.route.name,
        "model": plan.route.model,
        "provider": provider,
        "stream": plan.route.stream,
        "tools": str(plan.tool_mode),
        "format": plan.fmt.name,
        "tokenizer_sha256": plan.fmt.tokenizer.sha256,
        "fingerprint_sha256": None if fingerprint is None else fingerprint_sha256(fingerprint),
        "weights_sha256": None if plan.weights is None else weights_sha256(plan.weights),
        "prompts_sha256": scope.sha256,
        "privacy": asdict(plan.privacy),
        "sampling": {
            key: dict(value) if isinstance(value, Mapping) else value for key, value in asdict(plan.sampling).items()
        },
    }


def fingerprint_sha256(fingerprint: Fingerprint) -> str:
    """Return one digest over all traits, proven or not."""
    traits: dict[str, Json] = {
        name: {"value": trait.value, "n": trait.n, "proven": trait.proven} for name, trait in fingerprint.traits.items()
    }
    return hashlib.sha256(canonical(traits)).hexdigest()


def row_seed(seed: int | None, row: str) -> int | None:
    """Return a row's own seed.

    Equal prompts under two ids are two draws, and a run repeats. 31 bits, as APIs take.
    """
    if seed is None:
        return None
    digest = hashlib.sha256(f"{seed}:{row}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
