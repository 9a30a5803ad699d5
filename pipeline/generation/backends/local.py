"""Answer rows by a model in this process.

Guarantees: rows run in batches, nothing is sent and nothing is paid.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.generation.coverage import withheld
from pipeline.generation.engines.output import complete
from pipeline.generation.outcome import Outcome, Row, Status, StopError
from pipeline.generation.plan import Plan, row_seed
from pipeline.proof.reconstruct import Expected
from pipeline.records import Reason, Refusal

PROVIDER = "local"


class LocalBackend:
    """`Backend` over a local model.

    Needs torch; importing this module does not.
    """

    workers = 1

    def __init__(self, plan: Plan, weights: Path) -> None:
        """Load the model.

        Raises StopError where torch or the model is missing.
        """
        try:
            from pipeline.generation.engines.local import EngineError, load_engine
        except ImportError as error:
            raise StopError(f"the local route needs torch and transformers ({error}). Run: nox -s generate") from error
        try:
            self._engine = load_engine(weights)
        except EngineError as error:
            raise StopError(str(error)) from error
        self.batch = plan.concurrency
        self.expected = Expected(PROVIDER, plan.route.model, plan.sampling.max_tokens)
        self._plan = plan

    def refusal(self, row: Row) -> Refusal | None:
        """Refuse a prompt with a key, or without room."""
        if (refusal := withheld(row.prompt, self._plan)) is not None:
            return refusal
        wanted = len(row.prompt_ids) + self._plan.sampling.max_tokens
        if wanted <= self._engine.context:
            return None
        detail = f"prompt and max_tokens need {wanted} tokens, the model takes {self._engine.context}"
        return Refusal(Reason.PROMPT_UNSUPPORTED, detail, field="messages")

    async def complete(self, rows: Sequence[Row]) -> list[Outcome]:
        """Return one outcome a row, from one batch."""
        sampling = self._plan.sampling
        settings = [replace(sampling, seed=row_seed(sampling.seed, row.prompt.id)) for row in rows]
        outputs = await asyncio.to_thread(self._engine.generate, [row.prompt_ids for row in rows], settings)
        model, fmt = self._plan.route.model, self._plan.fmt
        return [
            Outcome(
                row,
                Status.ANSWERED,
                complete(row.prompt_ids, output, fmt, thinking=row.prompt.thinking, model=model),
            )
            for row, output in zip(rows, outputs, strict=True)
        ]

    def close(self) -> None:
        """Nothing is in flight between batches."""
