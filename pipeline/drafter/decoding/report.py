"""The report of an evaluation: acceptance, speed, losslessness, loops.

Guarantees: acceptance length is tokens a target pass, the target's own token included and the prompt's pass excluded,
over all rounds of a set; position k's acceptance is the share of rounds that accepted k drafts or more, as engines
report it. Seconds are of whole answers, with the prompt's pass and the drafter's. A model that repeats itself is easily
drafted: answers that end in a loop (a tail that repeats one stretch of tokens at least three times) are counted, and
the acceptance length without them is reported too. Names that would share a line of the report are refused before
anything is decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from pipeline.drafter.decoding.evaluate import Trial
from pipeline.records import Ids, Json

ALL = "all"
LOOPING = 0.1
"""Share of looping answers above which an acceptance length says little."""


GRAM = 4
LONGEST_PERIOD = 64
SHORTEST_LOOP = 24
"""In tokens: a few equal lines are no loop."""
TIMES = 3
COLUMNS = (
    ("acceptance_length", 6, 2),
    ("tokens_a_second", 7, 1),
    ("plain_tokens_a_second", 7, 1),
    ("speedup", 5, 2),
    ("distinct_4grams", 5, 2),
)
"""Numbers of a table line: key, width, digits."""


class ReportError(Exception):
    """Sets, drafters or shapes that share a name.

    Their numbers would be added up.
    """


@dataclass(frozen=True, slots=True)
class ReportCell:
    """The trials of one set, drafter and shape."""

    dataset: str
    contender: str
    shape: str
    trials: Sequence[Trial]

    def document(self) -> dict[str, Json]:
        """Return all numbers; None where nothing was measured."""
        rounds = [each for trial in self.trials for each in trial.speculated.rounds]
        deepest = max((each.offered for each in rounds), default=0)
        at_least = [sum(each.accepted >= k for each in rounds) for k in range(1, deepest + 1)]
        offered = [sum(each.offered >= k and each.accepted >= k - 1 for each in rounds) for k in range(1, deepest + 1)]
        loops = [loop_length(trial.plain.ids) > 0 for trial in self.trials]
        free = [trial for trial, loop in zip(self.trials, loops, strict=True) if not loop]
        tokens = sum(len(trial.speculated.ids) for trial in self.trials)
        plain_tokens = sum(len(trial.plain.ids) for trial in self.trials)
        speed = _share(tokens, sum(trial.speculated.seconds for trial in self.trials))
        plain_speed = _share(plain_tokens, sum(trial.plain.seconds for trial in self.trials))
        return {
            "set": self.dataset,
            "drafter": self.contender,
            "shape": self.shape,
            "prompts": len(self.trials),
            "tokens": tokens,
            "rounds": len(rounds),
            "acceptance_length": acceptance_length(self.trials),
            "acceptance": [_share(number, len(rounds)) for number in at_least],
            "acceptance_given_the_one_before": [_share(n, of) for n, of in zip(at_least, offered, strict=True)],
            "tokens_a_second": speed,
            "plain_tokens_a_second": plain_speed,
            "speedup": speed / plain_speed if speed and plain_speed else None,
            "distinct_4grams": distinct_4grams(trial.plain.ids for trial in self.trials),
            "looping_answers": sum(loops),
            "acceptance_length_without_loops": acceptance_length(free),
        }


def acceptance_length(trials: Sequence[Trial]) -> float | None:
    """Return tokens a target pass."""
    rounds = [each for trial in trials for each in trial.speculated.rounds]
    return _share(sum(each.yielded for each in rounds), len(rounds))


def cells_of(trials: Sequence[Trial]) -> list[ReportCell]:
    """Group trials by set, drafter and shape, in order.

    With more than one set, also over all of them.
    """
    sets = list(dict.fromkeys(trial.prompt.dataset for trial in trials))
    keys = list(dict.fromkeys((trial.contender, trial.shape.name) for trial in trials))
    found: list[ReportCell] = []
    for dataset in [*sets, *([ALL] if len(sets) > 1 else [])]:
        for contender, shape in keys:
            own = [
                trial
                for trial in trials
                if (trial.contender, trial.shape.name) == (contender, shape) and dataset in (trial.prompt.dataset, ALL)
            ]
            found.append(ReportCell(dataset, contender, shape, own))
    return found


def require_apart(sets: Iterable[str], contenders: Sequence[str], shapes: Sequence[str]) -> None:
    """Raise ReportError where two report lines would share their names.

    Call it before decoding.
    """
    if ALL in (named := set(sets)) and len(named) > 1:
        raise ReportError(
            f"a set of prompts is named {ALL!r}, as the line over all sets is. Rename its file, or its `dataset`"
        )
    if twice := _repeated(contenders):
        raise ReportError(
            f"two drafters would be reported as {twice!r}: one by its folder's name, one as a baseline. Rename the "
            "folder"
        )
    if twice := _repeated(shapes):
        raise ReportError(f"--shape {twice} is given twice. Give each shape once")


def _repeated(names: Sequence[str]) -> str | None:
    return next((name for at, name in enumerate(names) if name in names[:at]), None)


def lossless(trials: Sequence[Trial]) -> dict[str, Json]:
    """Count the answers compared, differing at a tie, and failing."""
    differing = [trial for trial in trials if trial.difference is not None]
    return {
        "answers": len(trials),
        "prompts": len({(trial.prompt.dataset, trial.prompt.id) for trial in trials}),
        "tokens": sum(len(trial.plain.ids) for trial in trials),
        "differing": len(differing),
        "ties": [_entry(trial) for trial in differing if trial.difference and trial.difference.is_tie],
        "failures": [_entry(trial) for trial in differing if trial.difference and not trial.difference.is_tie],
    }


def document_of(trials: Sequence[Trial]) -> dict[str, Json]:
    """Return the whole report as JSON."""
    return {"lossless": lossless(trials), "sets": [cell.document() for cell in cells_of(trials)]}


def table_of(trials: Sequence[Trial]) -> Iterator[str]:
    """Yield the report as lines."""
    documents = [cell.document() for cell in cells_of(trials)]
    wide = max((len(str(each["drafter"])) for each in documents), default=0)
    yield (
        f"{'set':<16} {'drafter':<{wide}} {'shape':<16} {'prompts':>7} {'tokens':>8} {'length':>6} "
        f"{'tok/s':>7} {'plain':>7} {'ratio':>5} {'dist4':>5} {'loops':>5}  acceptance by position"
    )
    for each in documents:
        shares = each["acceptance"] if isinstance(each["acceptance"], list) else []
        positions = " ".join(f"{share:.2f}" for share in shares if isinstance(share, float))
        numbers = " ".join(
            f"{value:>{width}.{digits}f}" if isinstance(value := each[key], float) else f"{'-':>{width}}"
            for key, width, digits in COLUMNS
        )
        yield (
            f"{each['set']!s:<16.16} {each['drafter']!s:<{wide}} {each['shape']!s:<16} {each['prompts']:>7} "
            f"{each['tokens']:>8} {numbers} {each['looping_answers']:>5}  {positions}"
        )
    yield from _notes(documents, lossless(trials))


def _notes(documents: Sequence[dict[str, Json]], found: dict[str, Json]) -> Iterator[str]:
    """Yield notes on loops, then the lossless counts."""
    for dataset in dict.fromkeys(str(each["set"]) for each in documents):
        first = next(each for each in documents if each["set"] == dataset)
        loops, prompts = first["looping_answers"], first["prompts"]
        if isinstance(loops, int) and isinstance(prompts, int) and loops > LOOPING * prompts:
            yield (
                f"note: {loops} of {prompts} answers of {dataset} end in a loop, which is easily drafted; see "
                "acceptance_length_without_loops in --json"
            )
    ties, failures = found["ties"], found["failures"]
    same = f"{found['answers']} speculative answers to {found['prompts']} prompts, {found['tokens']} tokens"
    if not isinstance(ties, list) or not isinstance(failures, list):
        return
    yield f"lossless: {same}; {len(ties)} differ at a tie, {len(failures)} fail"
    for kind, entries in (("tie", ties), ("FAILURE", failures)):
        for entry in entries:
            if isinstance(entry, dict):
                yield f"  {kind}: " + ", ".join(f"{key} {value}" for key, value in entry.items())


def _entry(trial: Trial) -> dict[str, Json]:
    found = trial.difference
    if found is None:
        return {}
    return {
        "set": trial.prompt.dataset,
        "id": trial.prompt.id,
        "drafter": trial.contender,
        "shape": trial.shape.name,
        "token": found.at,
        "margin": found.margin if isfinite(found.margin) else "an answer ended",
        "plain": found.plain,
        "speculated": found.speculated,
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def distinct_4grams(outputs: Iterable[Ids]) -> float | None:
    """Return the share of distinct runs of four tokens.

    Over all outputs together; None where none is that long.
    """
    grams = [tuple(ids[at : at + GRAM]) for ids in outputs for at in range(len(ids) - GRAM + 1)]
    return len(set(grams)) / len(grams) if grams else None


def loop_length(ids: Sequence[int]) -> int:
    """Return the length of a loop at the end.

    In tokens; 0 where the output ends otherwise.
    """
    longest = 0
    for period in range(1, min(LONGEST_PERIOD, len(ids) // TIMES) + 1):
        length = period
        while length < len(ids) and ids[-1 - length] == ids[-1 - length + period]:
            length += 1
        if length >= max(SHORTEST_LOOP, TIMES * period):
            longest = max(longest, length)
    return longest
