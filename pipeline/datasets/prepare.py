"""Select the rows of a dataset worth a generation.

Guarantees: rows in, and further questions of them where every one is asked, are prompts out and rejected rows, counted
on either side of the work and compared. A prompt is held to its row before it is taken, and what it leaves out or
decodes is written down. Of equal questions the first is kept. The draw depends only on the seed and the rows' ids. All
files are whole or absent. Memory does not grow with the rows. Raises PreparationError where nothing is left.

What is decided by one row alone (`RowFilter`) may run in any process: each prompt of a block is a Candidate or a
Rejected. Lengths are those of the ids that the target is served. A prompt that is too long loses whole
turns from its end, back to an earlier question, never a part of one.
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

import orjson

from pipeline.base.disk_sets import DiskCounter, DiskSet, temporary
from pipeline.base.files import write_whole
from pipeline.base.json_lines import line_of, object_of
from pipeline.base.processes import map_in_order
from pipeline.datasets.blocks import Block, count_of
from pipeline.datasets.conversation import digest, normal, open_questions, skeleton, to_last_question
from pipeline.datasets.decontaminate import NGrams
from pipeline.datasets.fidelity.compare import compare_raw
from pipeline.datasets.fidelity.comparison import Change
from pipeline.datasets.registry import Dataset, Turns, gathered, outcomes_of
from pipeline.datasets.rows import Raw, Reject, Rejected, RejectedError
from pipeline.datasets.sources import blocks_of
from pipeline.records import Json, Prompt, RefusedError

if TYPE_CHECKING:
    from pipeline.formats.format import Format


OUT = "prompts.jsonl"


class PreparationError(Exception):
    """Nothing is left of a source, or the counts disagree."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of the candidates are taken.

    At most `cap` that begin alike, and `limit` of all, drawn by `seed`.
    """

    cap: int | None = None
    limit: int | None = None
    seed: int = 0


@dataclass(slots=True)
class Counts:
    """Rows read, prompts written, and rejected rows by reason.

    `more` questions are asked of these rows, beside one of each; `changes` counts the prompts by what they leave out.
    """

    rows: int = 0
    more: int = 0
    prompts: int = 0
    rejected: Counter[Reject] = field(default_factory=Counter)
    changes: Counter[Change] = field(default_factory=Counter)

    def check(self) -> None:
        """Raise PreparationError where rows are lost or none left."""
        reasons = ", ".join(f"{number} {reason}" for reason, number in self.rejected.most_common())
        if self.rows + self.more != self.prompts + self.rejected.total():
            asked = f"{self.rows} rows" + (f" and {self.more} more questions of them" if self.more else "")
            raise PreparationError(f"{asked} became {self.prompts} prompts and {reasons}: please report it")
        if not self.prompts:
            raise PreparationError(f"nothing is left of {self.rows} rows ({reasons}), so nothing was written")


@dataclass(frozen=True, slots=True)
class Preparation:
    """A row filter, a selection, and the number of workers."""

    row_filter: RowFilter
    selection: Selection = Selection()
    workers: int = 1

    def write(self, source: Path | str, out: Path, rejects: Path, changes: Path | None = None) -> Counts:
        """Write prompts, rejected rows and changes as JSON lines.

        Changes stand beside the prompts, unless `changes` says where. Raises SourceError, PreparationError, OSError or
        WorkerError, and leaves no file then.
        """
        counts = Counts()

        def write(prompts: BinaryIO) -> None:
            def write_both(rejected: BinaryIO) -> None:
                write_whole(changes or beside(out, "changes"), lambda notes: fill(prompts, rejected, notes))

            write_whole(rejects, write_both)

        def fill(prompts: BinaryIO, rejected: BinaryIO, notes: BinaryIO) -> None:
            self._fill(source, (prompts, rejected, notes), counts)

        write_whole(out, write)
        return counts

    def _fill(self, source: Path | str, files: tuple[BinaryIO, BinaryIO, BinaryIO], counts: Counts) -> None:
        prompts, rejects, notes = files

        def reject(rejected: Rejected) -> None:
            counts.rejected[rejected.reason] += 1
            rejects.write(line_of(rejected.document()))

        def counted(blocks: Iterable[Block]) -> Iterator[Block]:
            for block in blocks:
                counts.rows += count_of(block)
                yield block

        def each(answers: Iterable[Answers]) -> Iterator[Candidate | Rejected]:
            for some in answers:
                counts.more += some.more
                yield from some.found

        dataset = self.row_filter.dataset
        blocks = gathered(dataset, counted(blocks_of(source, dataset.schema)))
        with closing(map_in_order(blocks, self.row_filter.answers, self.workers)) as answers:
            different = first_of_each(each(answers), self.selection.cap, reject)
            for candidate in draw(different, self.selection, reject):
                prompts.write(candidate.line)
                notes.write(candidate.note)
                counts.prompts += 1
                counts.changes.update(set(candidate.changes))
        counts.check()


def beside(out: Path, what: str) -> Path:
    """Return the file of that kind beside the prompts."""
    return out.with_name(f"{what}.jsonl" if out.name == OUT else f"{out.stem}.{what}.jsonl")


def first_of_each(
    answers: Iterable[Candidate | Rejected], cap: int | None, reject: Callable[[Rejected], None]
) -> Iterator[Candidate]:
    """Yield candidates with a new id and question.

    They are of no more than `cap` rows that begin alike. The others are given to `reject`.
    """
    row, over = "", False
    with closing(DiskSet()) as ids, closing(DiskSet()) as questions, closing(DiskCounter()) as openings:
        for one in answers:
            if isinstance(one, Rejected):
                reject(one)
            elif not ids.add(one.id):
                reject(one.rejected(Reject.REPEATED, f"an earlier row is {one.id} too"))
            elif not questions.add(one.skeleton):
                reject(one.rejected(Reject.DUPLICATE, "an earlier row asks the same"))
            else:
                if cap is not None and row != one.row:
                    row, over = one.row, openings.add(one.opening) > cap
                if over:
                    reject(one.rejected(Reject.OVER_CAP, f"{cap} earlier rows begin with this user turn"))
                else:
                    yield one


def draw(
    candidates: Iterator[Candidate], selection: Selection, reject: Callable[[Rejected], None]
) -> Iterator[Candidate]:
    """Yield `limit` candidates, or all, in the source's order.

    Those are taken whose ids hash lowest under the seed, so a smaller draw by the same seed is part of a larger one.
    The others are given to `reject`.
    """
    if selection.limit is None:
        yield from candidates
        return
    with closing(temporary("CREATE TABLE drawn (lot BLOB PRIMARY KEY) WITHOUT ROWID")) as db, TemporaryFile() as spool:
        for one in candidates:
            db.execute("INSERT INTO drawn VALUES (?)", (_lot(one.id, selection.seed),))
            spool.write(one.spooled())
        last = db.execute("SELECT lot FROM drawn ORDER BY lot LIMIT 1 OFFSET ?", (selection.limit - 1,)).fetchone()
        spool.seek(0)
        for line in spool:
            one = Candidate.unspooled(line)
            if last is None or _lot(one.id, selection.seed) <= last[0]:
                yield one
            else:
                reject(one.rejected(Reject.NOT_DRAWN, f"{selection.limit} were drawn by seed {selection.seed}"))


def _lot(row_id: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}:{row_id}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A prompt that only other rows can still keep out.

    `line` is what is written, `note` what is told of it, and `changes` which kinds that tells; by `skeleton` and
    `opening` it is compared with those of other rows, and `row` is its own.
    """

    id: str
    line: bytes
    note: bytes
    changes: tuple[Change, ...]
    file: str
    at: int
    row: str = ""
    skeleton: str = ""
    opening: str = ""

    def rejected(self, reason: Reject, detail: str) -> Rejected:
        """Return the candidate's prompt as a rejected row."""
        return Rejected(self.id, reason, detail, self.file, self.at, object_of(self.line))

    def spooled(self) -> bytes:
        """Return what is written of it, as one line."""
        return line_of([self.id, self.line.decode(), self.note.decode(), self.changes, self.file, self.at])

    @staticmethod
    def unspooled(line: bytes) -> Candidate:
        """Return the candidate of such a line."""
        row_id, text, note, changes, file, at = orjson.loads(line)
        return Candidate(row_id, text.encode(), note.encode(), tuple(map(Change, changes)), file, at)


@dataclass(frozen=True, slots=True)
class Answers:
    """What became of a block's rows.

    `more` is how many there are beside one a row.
    """

    found: list[Candidate | Rejected]
    more: int


@dataclass(frozen=True, slots=True)
class RowFilter:
    """What each row alone must pass.

    `target` has the template and the limit in tokens, `grams` the evaluation prompts; None checks nothing. `turns` says
    which questions of a row are asked.
    """

    dataset: Dataset
    target: TargetFormat | None = None
    grams: NGrams | None = None
    turns: Turns = Turns.LAST

    def answers(self, block: Block) -> Answers:
        """Return what became of each question, in order."""
        found: list[Candidate | Rejected] = []
        more, before = 0, None
        for raw, outcome in outcomes_of(self.dataset, block, self.turns):
            if raw is None or isinstance(outcome, Rejected):
                found.append(outcome)  # type: ignore[arg-type]  # a row that could not be read has no prompt
                continue
            more += raw is before
            before = raw
            try:
                found.append(self._candidate(raw, outcome))
            except RejectedError as error:
                found.append(replace(error.of(raw, outcome.id), row=document(outcome)))
        return Answers(found, more)

    def _candidate(self, raw: Raw, prompt: Prompt) -> Candidate:
        """Return the prompt up to its last question. Raises RejectedError."""
        prompt = to_last_question(prompt)
        if self.target is not None:
            prompt = self.target.fitted(prompt)
        if self.grams is not None and (hit := self.grams.hit(prompt)) is not None:
            raise RejectedError(Reject.CONTAMINATED, f"{hit.place} says {hit.words!r} too")
        told = compare_raw(self.dataset.name, raw, prompt)
        if told.differences:
            raise RejectedError(Reject.UNFAITHFUL, told.differences[0])
        changes: list[Json] = [{"change": str(change), "what": what} for change, what in told.changes]
        note = line_of({"id": prompt.id, "file": raw.file, "line": raw.line, "changes": changes})
        kinds = tuple(change for change, _ in told.changes)
        opening = normal(self.dataset.opening(prompt))
        keys = f"{raw.file}:{raw.line}", digest(skeleton(prompt)), digest(opening)
        return Candidate(prompt.id, line_of(document(prompt)), note, kinds, raw.file, raw.line, *keys)


def document(prompt: Prompt) -> dict[str, Json]:
    """Return the prompt as `generate` reads it, without default values."""
    line: dict[str, Json] = {"id": prompt.id, "messages": [dict(message) for message in prompt.messages]}
    if prompt.tools:
        line["tools"] = [dict(tool) for tool in prompt.tools]
    if not prompt.thinking:
        line["thinking"] = False
    return {**line, "dataset": prompt.dataset}


@dataclass(frozen=True, slots=True)
class TargetFormat:
    """A target's format, and its limit in tokens, if any."""

    fmt: Format
    most: int | None = None

    def fitted(self, prompt: Prompt) -> Prompt:
        """Return the prompt, or the longest prefix that fits.

        Raises RejectedError.
        """
        with _refusals_as_rejections():
            spelled = self.fmt.special_text(prompt)
        if spelled is not None:
            raise RejectedError(Reject.SPECIAL_TEXT, f"the prompt spells {spelled}")
        if (tokens := self._tokens(prompt)) <= (self.most or tokens):
            return prompt
        ends = [end for end in open_questions(prompt.messages) if end < len(prompt.messages)]
        fitting = self._longest_fitting(prompt, ends)
        if fitting is None:
            raise RejectedError(
                Reject.TOO_LONG, f"{tokens} tokens as a whole, and the first question alone over {self.most}"
            )
        return fitting

    def _longest_fitting(self, prompt: Prompt, ends: Sequence[int]) -> Prompt | None:
        """Return the longest prefix that fits, found by bisection.

        A longer conversation has more tokens.
        """
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
        with _refusals_as_rejections():
            return len(self.fmt.render(prompt))


@contextmanager
def _refusals_as_rejections() -> Iterator[None]:
    """Turn the format's refusal into a rejection."""
    try:
        yield
    except RefusedError as error:
        where = f" ({error.refusal.field})" if error.refusal.field else ""
        raise RejectedError(Reject.UNRENDERABLE, f"{error.refusal.detail}{where}") from None
