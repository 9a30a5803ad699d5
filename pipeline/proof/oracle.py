"""The oracle: our rebuild from text beside returned ids.

Guarantees: the rebuild sees no returned id and no logprob, only what every hosted API shows. A refusal is neither a
match nor a mismatch, and is counted apart. A mismatch does not touch the row, whose ids are the engine's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.formats.format import Format
from pipeline.proof.fingerprint import Fingerprint, fingerprint_of
from pipeline.proof.reconstruct import Expected, reconstruct
from pipeline.records import Completion, Prompt, Refusal, RefusedError, TokenRow

EQUAL, DIFFERS, REFUSED = "equal", "differs", "refused"


def shown_only(completion: Completion) -> Completion:
    """Return the answer without ids and logprobs."""
    return replace(completion, token_ids=None, prompt_ids=None, ids_from=(), logprobs=None)


def judged(
    row: TokenRow, prompt: Prompt, completion: Completion, fmt: Format, known: Sequence[Fingerprint], expected: Expected
) -> str:
    """Return the verdict on the rebuild from text.

    `equal:EVIDENCE`, `differs:EVIDENCE` or `refused:REASON`. `row` has the engine's ids.
    """
    shown = shown_only(completion)
    rebuilt: TokenRow | Refusal
    try:
        rebuilt = reconstruct(prompt, shown, fmt, fingerprint_of(shown, known), expected)
    except RefusedError as error:
        rebuilt = error.refusal
    if isinstance(rebuilt, Refusal):
        return f"{REFUSED}:{rebuilt.reason}"
    same = (rebuilt.prompt_ids, rebuilt.output_ids) == (row.prompt_ids, row.output_ids)
    return f"{EQUAL if same else DIFFERS}:{rebuilt.evidence}"


@dataclass(slots=True)
class OracleTally:
    """Counted verdicts."""

    verdicts: Counter[str] = field(default_factory=Counter)

    def note(self, results: Iterable[Mapping[str, object]]) -> None:
        """Count the verdicts of these results."""
        self.verdicts.update(verdict for result in results if isinstance(verdict := result.get("oracle"), str))

    def rates(self) -> dict[str, tuple[int, int]]:
        """Return exact matches and rebuilds.

        By the evidence that the rebuild would have given.
        """
        rebuilt: dict[str, tuple[int, int]] = {}
        for verdict, count in sorted(self.verdicts.items()):
            result, _, why = verdict.partition(":")
            if result != REFUSED:
                equal, total = rebuilt.get(why, (0, 0))
                rebuilt[why] = (equal + count * (result == EQUAL), total + count)
        return rebuilt

    def refusals(self) -> dict[str, int]:
        """Return the number of refused rebuilds by reason."""
        mark = f"{REFUSED}:"
        return {name.removeprefix(mark): n for name, n in sorted(self.verdicts.items()) if name.startswith(mark)}

    def line(self) -> str:
        """Return the exact-match rate in one line."""
        if not self.verdicts:
            return "oracle: no accepted answer came with ids"
        rates, refusals = self.rates(), self.refusals()
        equal, total = (sum(pair[place] for pair in rates.values()) for place in (0, 1))
        grades = ", ".join(f"{name} {one}/{many}" for name, (one, many) in rates.items())
        rate = f"{equal}/{total} equal ({equal / total:.4f}): {grades}" if total else "none rebuilt"
        reasons = ", ".join(f"{name} {count}" for name, count in refusals.items())
        return f"oracle: {self.verdicts.total()} answers with ids; {rate}" + (
            f"; refused: {reasons}" if reasons else ""
        )
