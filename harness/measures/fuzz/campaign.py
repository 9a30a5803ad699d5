"""Cases in order, counted, written down and resumed.

Guarantees: what is done stands in the state file after every `EVERY` cases, so that a campaign that was ended begins
again there. A state of other seeds or of another seed number is not continued. An exception of a case is a failure of
that case, and does not end the campaign.
"""

from __future__ import annotations

import json
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias

from pipeline.base.files import write_whole

EVERY = 5_000
KEPT = 200
"""Failures that are kept by number and in words; all are counted."""
WARM = 10
"""The share of a process's cases, one in so many, after which its memory must not grow."""
MOST_GROWTH_MIB = 64
LONGEST = 600
Case: TypeAlias = Callable[[int], tuple[str, str]]


class Source(Protocol):
    """Cases by their numbers; `digest` identifies what is mutated."""

    digest: str

    def case(self, number: int) -> tuple[str, str]:
        """Return a case's outcome, and what is wrong with it."""

    def told(self, number: int) -> str:
        """Return a case in words."""


class CampaignError(Exception):
    """A state file of another campaign."""


@dataclass(slots=True)
class Section:
    """The cases of one kind, counted by outcome.

    `seeds` identifies what is mutated.
    """

    name: str
    seeds: str
    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str, str]] = field(default_factory=list)

    def run(self, case: Case, until: int) -> Iterator[int]:
        """Do cases up to `until`; yield now and then."""
        while self.done < until:
            began = time.process_time()
            for number in range(self.done, min(until, self.done - self.done % EVERY + EVERY)):
                self._note(number, *_of(case, number))
            self.seconds += time.process_time() - began
            yield self.done

    def _note(self, number: int, outcome: str, wrong: str) -> None:
        self.done = number + 1
        self.outcomes[outcome] += 1
        if wrong:
            self.failed += 1
            if len(self.failures) < KEPT:
                self.failures.append((number, outcome, wrong[:LONGEST]))


def _of(case: Case, number: int) -> tuple[str, str]:
    try:
        return case(number)
    except Exception as error:  # noqa: BLE001 — whatever it is, it is this case's failure
        return "exception", f"{type(error).__name__}: {error}"


@dataclass(slots=True)
class Campaign:
    """Sections under one seed, in a state file.

    `peaks` are this process's after each write, in MiB, by section.
    """

    path: Path | None
    seed: int
    sections: dict[str, Section] = field(default_factory=dict)
    peaks: dict[str, list[float]] = field(default_factory=dict)

    @staticmethod
    def begun(path: Path | None, seed: int) -> Campaign:
        """Return a state file's campaign, or a new one.

        Raises CampaignError for the state of another, OSError.
        """
        campaign = Campaign(path, seed)
        if path is None or not path.is_file():
            return campaign
        try:
            state: dict[str, Any] = json.loads(path.read_bytes())
            found = state["seed"]
            for told in state["sections"]:
                counts = {**told, "outcomes": Counter(told["outcomes"]), "failures": [*map(tuple, told["failures"])]}
                campaign.sections[told["name"]] = Section(**counts)
        except (ValueError, LookupError, TypeError) as error:
            raise CampaignError(f"{path} is no state of a campaign ({error}). Give another --state") from None
        if found != seed:
            raise CampaignError(f"{path} is of seed {found}, and this campaign of {seed}. Give another --state")
        return campaign

    def run(self, name: str, source: Source, until: int) -> Iterator[Section]:
        """Do cases up to `until`, and write the state.

        Raises CampaignError where the section began on other seeds.
        """
        section = self.sections.setdefault(name, Section(name, source.digest))
        if section.seeds != source.digest:
            what = f"{name} on the seeds {section.seeds}, and here are {source.digest}"
            raise CampaignError(f"{self.path} is of {what}. Give another --state, or the same vocabularies and rows")
        peaks = self.peaks.setdefault(name, [])
        for _ in section.run(source.case, until):
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
            self.write()
            yield section

    def write(self) -> None:
        """Write the state file, if there is one."""
        # `asdict` makes a Counter anew of its items, and counts those.
        sections = [{**asdict(one), "outcomes": dict(one.outcomes)} for one in self.sections.values()]
        state = {"seed": self.seed, "sections": sections}

        def fill(file: BinaryIO) -> None:
            file.write(json.dumps(state, indent=1).encode())

        if self.path is not None:
            write_whole(self.path, fill)

    def growth(self, name: str) -> float:
        """Return a section's growth after its first tenth, in MiB."""
        peaks = self.peaks.get(name, [])
        return peaks[-1] - peaks[len(peaks) // WARM] if peaks else 0.0

    @property
    def failed(self) -> bool:
        """Whether a case failed, or memory grew."""
        return any(one.failed or self.growth(one.name) > MOST_GROWTH_MIB for one in self.sections.values())

    def report(self) -> str:
        """Return what became of all cases, section by section."""
        lines: list[str] = []
        for one in self.sections.values():
            rate = 60 * one.done / one.seconds if one.seconds else 0
            lines.append(f"{one.name}: {one.done:,} cases, {rate:,.0f} a CPU minute, {one.failed} failed")
            if peaks := self.peaks.get(one.name):
                lines.append(f"  peak memory {peaks[-1]:,.0f} MiB, {self.growth(one.name):+,.0f} since the first tenth")
            lines += [f"  {outcome:28} {count:,}" for outcome, count in one.outcomes.most_common()]
            lines += [f"  case {number} ({outcome}): {wrong}" for number, outcome, wrong in one.failures]
        return "\n".join(lines) + "\n"
