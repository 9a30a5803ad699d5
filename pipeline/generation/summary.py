"""The result of a session, as one value.

For the table, for `--json`, and for the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.base.money import usd_text
from pipeline.generation.ledger import State
from pipeline.proof.fingerprint import Fingerprint, TraitName
from pipeline.records import Json


@dataclass(slots=True)
class Tally:
    """Counts of this session while it runs.

    The folder has counts of its own. `lines` are those that the session goes through, of `in_file`; `first` is the
    first refusal's detail by reason.
    """

    lines: int = 0
    in_file: int = 0
    done_before: int = 0
    asked: int = 0
    from_ledger: int = 0
    again: int = 0
    unknown: list[str] = field(default_factory=list)
    unknown_count: int = 0
    accepted: int = 0
    refused: int = 0
    spent_pico: int = 0
    budget_pico: int = 0
    spent_before: int = 0
    first: dict[str, str] = field(default_factory=dict)

    MOST_UNKNOWN_NAMED = 20

    def lose(self, row_id: str) -> None:
        """Count a row whose request may have been billed.

        The first of them are named.
        """
        self.unknown_count += 1
        if len(self.unknown) < self.MOST_UNKNOWN_NAMED:
            self.unknown.append(row_id)


@dataclass(frozen=True, slots=True)
class Summary:
    """How a session ended.

    Token counts are of accepted rows; money is of the whole run, emulated or real.
    """

    outcome: str
    code: int
    message: str | None
    folder: str
    route: str
    rows: Mapping[str, int]
    by_evidence: Mapping[str, int]
    by_reason: Mapping[str, int]
    first_of_reason: Mapping[str, str]
    unknown_rows: tuple[str, ...]
    tree_changed: tuple[str, ...]
    prompt_tokens: int
    output_tokens: int
    cost: Mapping[str, Json]
    counted: Mapping[str, Json]
    shards: tuple[str, ...]
    paused: Mapping[str, Json] | None = None
    by_prompt_evidence: Mapping[str, int] = field(default_factory=dict)
    cut: int = 0

    def result(self) -> dict[str, Json]:
        """Return the part that the manifest keeps."""
        return {
            "complete": self.outcome == "complete",
            "rows": dict(self.rows),
            "accepted_by_evidence": dict(self.by_evidence),
            "accepted_by_prompt_evidence": dict(self.by_prompt_evidence),
            "accepted_cut": self.cut,
            "refused_by_reason": dict(self.by_reason),
            "unknown_rows": list(self.unknown_rows),
            "tree_changed": list(self.tree_changed),
            "tokens": {"prompt": self.prompt_tokens, "output": self.output_tokens},
            "cost": dict(self.cost),
            "counted": dict(self.counted),
            "paused": None if self.paused is None else dict(self.paused),
        }

    def document(self) -> dict[str, Json]:
        """Return the whole, as `--json` prints it."""
        head: dict[str, Json] = {"outcome": self.outcome, "exit": self.code, "message": self.message}
        where: dict[str, Json] = {"out": self.folder, "route": self.route, "shards": list(self.shards)}
        return head | where | self.result()


def cost_of(tally: Mapping[State, tuple[int, int]], *, emulated: bool, budget_pico: int) -> dict[str, Json]:
    """Return money by how sure it is, in USD.

    Exact decimals of what is settled, and the worst case of what is not.
    """
    settled = tally.get(State.SETTLED, (0, 0))[1]
    open_states = (State.RESERVED, State.ANSWERED, State.UNKNOWN)
    unsettled = sum(tally.get(state, (0, 0))[1] for state in open_states)
    return {
        "usd": usd_text(settled),
        "unsettled_worst_usd": usd_text(unsettled),
        "unsettled_requests": sum(tally.get(state, (0, 0))[0] for state in open_states),
        "settled_requests": tally.get(State.SETTLED, (0, 0))[0],
        "emulated": emulated,
        "budget_usd": usd_text(budget_pico),
    }


def counted_risk(rows: int, fingerprint: Fingerprint | None) -> dict[str, Json]:
    """Return what the grade `counted` leaves open.

    That is how often the route re-splits at the same count, as far as measured.
    """
    trait = None if fingerprint is None else fingerprint.traits.get(TraitName.SAME_COUNT_MISMATCH)
    return {
        "rows": rows,
        "same_count_mismatch": None if trait is None else trait.value,
        "meaning": "rows of the grade `counted` whose ids may be another split of the same text and length: wrong of n"
        " measured on this route, and the upper bound of the rate at 95 %; null means not measured",
    }
