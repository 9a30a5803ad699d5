"""Preparation: a dataset's rows to the prompts that are worth a generation, and a reason for each row that is not.

Guarantees: rows in are prompts out and rejected rows, counted on either side of the work and compared; of equal
questions the first is kept; the draw depends on the seed and the rows' ids alone; both files are whole or not there;
memory does not grow with the rows. Refuses a source of which nothing is left.

The part of preparation that looks at one row alone, and so may run in any process.

Guarantees: a block of n rows gives n answers, each a Candidate or a Rejected, whatever the rows hold.

Prompts that a target can be asked: rendered by its own template, and no longer than a limit in tokens.

Guarantees: a length is that of the ids that the target is served. A prompt that is too long loses whole turns from its
end, back to an earlier question, never a part of one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, BinaryIO

from pipeline.base.disk_sets import DiskCounter, DiskSet, temporary
from pipeline.base.files import write_whole
from pipeline.base.json_lines import line_of, object_of
from pipeline.base.processes import map_in_order
from pipeline.datasets.blocks import Block, count_of
from pipeline.datasets.conversation import digest, normal, skeleton, waiting
from pipeline.datasets.decontaminate import NGrams
from pipeline.datasets.registry import Dataset, gathered, outcomes_of
from pipeline.datasets.rows import Raw, Reject, Rejected, RejectedError
from pipeline.datasets.sources import blocks_of
from pipeline.records import Json, Prompt, RefusedError

if TYPE_CHECKING:
    from pipeline.formats.format import Format


class PreparationError(Exception):
    """Nothing was left of a source, or the counts do not add up; nothing was written."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of the candidates are taken: at most `cap` that begin alike, and `limit` of all, drawn by `seed`."""

    cap: int | None = None
    limit: int | None = None
    seed: int = 0


@dataclass(slots=True)
class Counts:
    """Rows that were read, prompts that were written, and rejected rows by reason."""

    rows: int = 0
    prompts: int = 0
    rejected: Counter[Reject] = field(default_factory=Counter)

    def check(self) -> None:
        """Raise PreparationError where a row is lost, or nothing is left."""
        told = ", ".join(f"{number} {reason}" for reason, number in self.rejected.most_common())
        if self.rows != self.prompts + self.rejected.total():
            raise PreparationError(f"{self.rows} rows became {self.prompts} prompts and {told}: please report it")
        if not self.prompts:
            raise PreparationError(f"nothing is left of {self.rows} rows ({told}), so nothing was written")


@dataclass(frozen=True, slots=True)
class Preparation:
    """What each row is held to, which of the rest are taken, and by how many processes."""

    sieve: RowFilter
    selection: Selection = Selection()
    workers: int = 1

    def write(self, source: Path | str, out: Path, rejects: Path) -> Counts:
        """Both files, as JSON lines. Raises SourceError, PreparationError, OSError, WorkerError, leaving none."""
        counts = Counts()

        def write(prompts: BinaryIO) -> None:
            write_whole(rejects, lambda rejected: self._fill(source, prompts, rejected, counts))

        write_whole(out, write)
        return counts

    def _fill(self, source: Path | str, prompts: BinaryIO, rejects: BinaryIO, counts: Counts) -> None:
        def reject(rejected: Rejected) -> None:
            counts.rejected[rejected.reason] += 1
            rejects.write(line_of(rejected.document()))

        counted = _counted(blocks_of(source, self.sieve.dataset.schema), counts)
        blocks = gathered(self.sieve.dataset, counted)
        with closing(map_in_order(blocks, self.sieve.answers, self.workers)) as answers:
            each = (answer for block in answers for answer in block)
            for candidate in _drawn(_first_of_each(each, self.selection.cap, reject), self.selection, reject):
                prompts.write(candidate.line)
                counts.prompts += 1
        counts.check()


def _counted(blocks: Iterable[Block], counts: Counts) -> Iterator[Block]:
    for block in blocks:
        counts.rows += count_of(block)
        yield block


def _first_of_each(
    answers: Iterable[Candidate | Rejected], cap: int | None, reject: Callable[[Rejected], None]
) -> Iterator[Candidate]:
    """Candidates whose id and question are new, and no more than `cap` that begin alike."""
    with closing(DiskSet()) as ids, closing(DiskSet()) as questions, closing(DiskCounter()) as openings:
        for one in answers:
            if isinstance(one, Rejected):
                reject(one)
            elif not ids.add(one.id):
                reject(one.rejected(Reject.REPEATED, f"an earlier row is {one.id} too"))
            elif not questions.add(one.skeleton):
                reject(one.rejected(Reject.DUPLICATE, "an earlier row asks the same"))
            elif cap is not None and openings.add(one.opening) > cap:
                reject(one.rejected(Reject.OVER_CAP, f"{cap} earlier rows begin with this user turn"))
            else:
                yield one


def _drawn(
    candidates: Iterator[Candidate], selection: Selection, reject: Callable[[Rejected], None]
) -> Iterator[Candidate]:
    """All candidates, or `limit` of them in the order of the source: those whose ids hash lowest under the seed.

    A smaller draw by the same seed is part of a larger one.
    """
    if selection.limit is None:
        yield from candidates
        return
    with closing(temporary("CREATE TABLE drawn (lot BLOB PRIMARY KEY) WITHOUT ROWID")) as db, TemporaryFile() as spool:
        for one in candidates:
            db.execute("INSERT INTO drawn VALUES (?)", (_lot(one.id, selection.seed),))
            spool.write(line_of([one.id, one.line.decode("utf-8"), one.file, one.at]))
        last = db.execute("SELECT lot FROM drawn ORDER BY lot LIMIT 1 OFFSET ?", (selection.limit - 1,)).fetchone()
        spool.seek(0)
        for one in map(_spooled, spool):
            if last is None or _lot(one.id, selection.seed) <= last[0]:
                yield one
            else:
                reject(one.rejected(Reject.NOT_DRAWN, f"{selection.limit} were drawn by seed {selection.seed}"))


def _lot(row_id: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}:{row_id}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _spooled(line: bytes) -> Candidate:
    import orjson

    row_id, text, file, at = orjson.loads(line)
    return Candidate(row_id, text.encode("utf-8"), "", "", file, at)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A prompt that only other rows can still keep out: its line, and the keys by which it is compared with them."""

    id: str
    line: bytes
    skeleton: str
    opening: str
    file: str
    at: int

    def rejected(self, reason: Reject, detail: str) -> Rejected:
        """The same, kept out; the row is the prompt."""
        return Rejected(self.id, reason, detail, self.file, self.at, object_of(self.line))


@dataclass(frozen=True, slots=True)
class RowFilter:
    """What each row is held to: the target's template and limit, and the evaluation prompts; None where nothing is."""

    dataset: Dataset
    target: TargetFormat | None = None
    grams: NGrams | None = None

    def answers(self, block: Block) -> list[Candidate | Rejected]:
        """One answer a row, in order."""
        return list(self._each(block))

    def _each(self, block: Block) -> Iterator[Candidate | Rejected]:
        for raw, outcome in outcomes_of(self.dataset, block):
            if raw is None or isinstance(outcome, Rejected):
                yield outcome  # type: ignore[misc]  # a row that could not be read has no prompt
                continue
            try:
                yield self._candidate(raw, outcome)
            except RejectedError as error:
                yield replace(error.of(raw, outcome.id), row=document(outcome))

    def _candidate(self, raw: Raw, prompt: Prompt) -> Candidate:
        prompt = _open_ended(prompt)
        if self.target is not None:
            prompt = self.target.fitted(prompt)
        if self.grams is not None and (hit := self.grams.hit(prompt)) is not None:
            raise RejectedError(Reject.CONTAMINATED, f"{hit.place} says {hit.words!r} too")
        opening = normal(self.dataset.opening(prompt))
        keys = digest(skeleton(prompt)), digest(opening)
        return Candidate(prompt.id, line_of(document(prompt)), *keys, raw.file, raw.line)


def document(prompt: Prompt) -> dict[str, Json]:
    """The prompt in the schema that `generate` reads; what is as by default is left out."""
    line: dict[str, Json] = {"id": prompt.id, "messages": [dict(message) for message in prompt.messages]}
    if prompt.tools:
        line["tools"] = [dict(tool) for tool in prompt.tools]
    if not prompt.thinking:
        line["thinking"] = False
    return {**line, "dataset": prompt.dataset}


def _open_ended(prompt: Prompt) -> Prompt:
    """The prompt without recorded answers after its last question. Raises RejectedError(NO_TURNS)."""
    ends = waiting(prompt.messages)
    if not ends:
        raise RejectedError(Reject.NO_TURNS, "no turn of the row waits for an answer")
    return replace(prompt, messages=prompt.messages[: ends[-1]])


@dataclass(frozen=True, slots=True)
class TargetFormat:
    """A target's format, and the most tokens that a prompt may have (None: any number)."""

    fmt: Format
    most: int | None = None

    def fitted(self, prompt: Prompt) -> Prompt:
        """The prompt, or as much of its beginning as fits. Raises RejectedError."""
        with _said():
            spelled = self.fmt.special_text(prompt)
        if spelled is not None:
            raise RejectedError(Reject.SPECIAL_TEXT, f"the prompt spells {spelled}")
        if (tokens := self._tokens(prompt)) <= (self.most or tokens):
            return prompt
        ends = [end for end in waiting(prompt.messages) if end < len(prompt.messages)]
        fitting = self._longest(prompt, ends)
        if fitting is None:
            raise RejectedError(
                Reject.TOO_LONG, f"{tokens} tokens as a whole, and the first question alone over {self.most}"
            )
        return fitting

    def _longest(self, prompt: Prompt, ends: Sequence[int]) -> Prompt | None:
        """The longest prefix that fits, found by halving: a longer conversation has more tokens."""
        low, high, found = 0, len(ends), None
        while low < high:
            middle = (low + high) // 2
            shorter = replace(prompt, messages=prompt.messages[: ends[middle]])
            if self._tokens(shorter) <= (self.most or 0):
                low, found = middle + 1, shorter
            else:
                high = middle
        return found

    def _tokens(self, prompt: Prompt) -> int:
        with _said():
            return len(self.fmt.render(prompt))


@contextmanager
def _said() -> Iterator[None]:
    """The format's refusal as a reason for the row."""
    try:
        yield
    except RefusedError as error:
        where = f" ({error.refusal.field})" if error.refusal.field else ""
        raise RejectedError(Reject.UNRENDERABLE, f"{error.refusal.detail}{where}") from None
