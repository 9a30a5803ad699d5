"""List the datasets by name, and read their prompts.

Guarantees: one entry for each published row schema of B1 to B8, and one for OpenAI messages. A name that stands for
several schemas (`B3`, `B5`, `B8`) finds each row's variant by its columns. Every row that is read comes out as one
Prompt or one Rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import MappingProxyType

from pipeline.base.disk_sets import DiskSet
from pipeline.datasets.adapters import (
    glaive,
    magicoder,
    messages,
    opencode,
    openthoughts,
    sharegpt,
    sweagent,
    ultrachat,
)
from pipeline.datasets.adapters import mixture_of_thoughts as thoughts
from pipeline.datasets.blocks import Block, rows_of
from pipeline.datasets.conversation import first_turn, to_drawn_question, to_every_question, to_last_question
from pipeline.datasets.rows import Raw, Reject, Rejected, RejectedError
from pipeline.datasets.sources import Schema, SourceError, blocks_of
from pipeline.records import Prompt, ToolMode

FEW = 3
"""Rows of Glaive that may begin with the same user turn: the same few requests come hundreds of times."""


class Turns(StrEnum):
    """Which questions of a row become prompts."""

    LAST = "last"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Dataset:
    """One published row schema, and how its rows become prompts.

    `columns` are those that a source must have, `more` those that are read where present; `read` gives a row's
    conversation, and `one` the prompt that is made of it where one is wanted; `defaults` the features (by
    `features.Feature`'s values) that hold where a prompt's text cannot tell; `tools` how its tools are sent; `page` its
    page of docs/datasets.md; `cap` how many rows preparation keeps that begin with the same `opening`; `gather` joins
    rows before they are adapted; `variants` the entries that the name stands for.
    """

    name: str
    title: str
    licence: str
    revision: str
    columns: frozenset[str]
    read: Callable[[Raw], Prompt]
    page: str
    one: Callable[[Prompt], Prompt] = to_last_question
    more: frozenset[str] = frozenset()
    defaults: frozenset[str] = frozenset()
    tools: ToolMode = ToolMode.RAW
    cap: int | None = None
    opening: Callable[[Prompt], str] = field(default=first_turn)
    gather: Callable[[Iterable[Block]], Iterator[Block]] | None = None
    variants: tuple[str, ...] = ()

    @property
    def schema(self) -> Schema:
        """What is read of a source."""
        entries = [DATASETS[name] for name in self.variants] or [self]
        read = frozenset().union(*(one.columns | one.more for one in entries))
        return Schema(self.name, [one.columns for one in entries], read)

    def adapt(self, raw: Raw) -> Prompt | Rejected:
        """Return the row's prompt, or why it gives none."""
        outcome = self.asked(raw, Turns.LAST)
        return outcome if isinstance(outcome, Rejected) else outcome[0]

    def asked(self, raw: Raw, turns: Turns) -> list[Prompt] | Rejected:
        """Return the row's prompts, or why it gives none."""
        try:
            whole = self.read(raw)
            whole.id.encode("utf-8")
            one = self.one(whole)
            return to_every_question(whole, one) if turns is Turns.ALL else [one]
        except RejectedError as error:
            return error.of(raw)
        except UnicodeEncodeError:
            return RejectedError(Reject.WRONG_SHAPE, "the id holds half a surrogate pair and has no UTF-8").of(raw)


_ACTING = frozenset({"tools_declared"})
_PUBLISHED: Sequence[Dataset] = (
    Dataset(
        glaive.NAME,
        "Glaive function calling v2",
        "Apache-2.0",
        "e7f4b6456019f5d8bcb991ef0dd67d8ff23221ac",
        glaive.COLUMNS,
        glaive.adapt,
        glaive.PAGE,
        one=glaive.to_one_question,
        cap=FEW,
    ),
    Dataset(
        glaive.RESHAPED,
        "Glaive function calling v2, as LLaMA-Factory ships it",
        "Apache-2.0",
        "",
        glaive.RESHAPED_COLUMNS,
        glaive.adapt_reshaped,
        "The same rows in another shape: see B1.",
        one=glaive.to_one_question,
        cap=FEW,
    ),
    Dataset(
        opencode.NAME,
        "OpenCodeInstruct",
        "CC-BY-4.0",
        "",
        opencode.COLUMNS,
        opencode.adapt,
        opencode.PAGE,
        more=opencode.MORE,
    ),
    Dataset(
        magicoder.OSS,
        "Magicoder OSS-Instruct",
        "MIT",
        "5f839b1f",
        magicoder.OSS_COLUMNS,
        magicoder.adapt_oss,
        magicoder.OSS_PAGE,
        more=magicoder.OSS_MORE,
    ),
    Dataset(
        magicoder.EVOL,
        "Magicoder Evol-Instruct",
        "Apache-2.0",
        "b0079beaa0361d82412520b873715bee59cc7dd4",
        magicoder.EVOL_COLUMNS,
        magicoder.adapt_evol,
        magicoder.EVOL_PAGE,
        more=magicoder.EVOL_MORE,
    ),
    Dataset(
        thoughts.NAME,
        "Mixture-of-Thoughts",
        "not confirmed: the card states none, an edit of it Apache-2.0",
        "",
        thoughts.COLUMNS,
        thoughts.adapt,
        thoughts.PAGE,
    ),
    Dataset(
        openthoughts.SMALL,
        "OpenThoughts-114k",
        "Apache-2.0",
        "",
        openthoughts.SMALL_COLUMNS,
        openthoughts.adapt_small,
        openthoughts.SMALL_PAGE,
    ),
    Dataset(
        openthoughts.LARGE,
        "OpenThoughts3-1.2M",
        "Apache-2.0",
        "",
        openthoughts.LARGE_COLUMNS,
        openthoughts.adapt_large,
        openthoughts.LARGE_PAGE,
    ),
    Dataset(
        ultrachat.NAME,
        "UltraChat 200k",
        "MIT",
        "",
        ultrachat.COLUMNS,
        ultrachat.adapt,
        ultrachat.PAGE,
        more=ultrachat.MORE,
        cap=1,
    ),
    Dataset(
        sharegpt.NAME,
        "ShareGPT V3 and V4.3",
        "Apache-2.0 by the card; rights in the text unclear",
        "",
        sharegpt.COLUMNS,
        sharegpt.adapt,
        sharegpt.PAGE,
        more=sharegpt.MORE,
        gather=sharegpt.joined_chunks,
    ),
    Dataset(
        sweagent.NEBIUS,
        "SWE-agent trajectories (nebius)",
        "CC-BY-4.0",
        "",
        sweagent.NEBIUS_COLUMNS,
        sweagent.adapt_nebius,
        sweagent.NEBIUS_PAGE,
        one=to_drawn_question,
        defaults=_ACTING,
        cap=1,
        opening=sweagent.task_of,
    ),
    *(
        Dataset(
            name,
            f"SWE-smith trajectories ({name.rpartition('-')[2]})",
            "MIT",
            "08e109b4a59eaeebf80e4675cd125d42e7ac99a4",
            sweagent.SMITH_COLUMNS,
            sweagent.adapt_smith,
            sweagent.SMITH_PAGE,
            one=to_drawn_question,
            more=sweagent.SMITH_MORE,
            defaults=_ACTING,
            cap=1,
            opening=sweagent.task_of,
        )
        for name in (sweagent.TOOL, sweagent.XML, sweagent.TICKS)
    ),
    Dataset(
        messages.NAME,
        "OpenAI messages",
        "yours",
        "",
        messages.COLUMNS,
        messages.adapt,
        messages.PAGE,
        one=messages.as_it_is,
        more=messages.MORE,
    ),
)


def _by_columns(variants: Sequence[Dataset], raw: Raw) -> Prompt:
    """Read a row by the first variant it fits.

    Raises RejectedError.
    """
    for variant in variants:
        if variant.columns <= raw.value.keys():
            return variant.read(raw)
    wanted = ", or ".join(", ".join(sorted(variant.columns)) for variant in variants)
    raise RejectedError(Reject.WRONG_SHAPE, f"the row has none of these columns: {wanted}")


def _union(name: str, title: str, *variants: str) -> Dataset:
    known = {one.name: one for one in _PUBLISHED}
    entries = [known[variant] for variant in variants]
    first = entries[0]
    return Dataset(
        name,
        title,
        "; ".join(dict.fromkeys(one.licence for one in entries)),
        "",
        frozenset(),
        partial(_by_columns, entries),
        f"Each row by its columns: {', '.join(variants)}.",
        one=first.one,
        defaults=first.defaults,
        cap=first.cap,
        opening=first.opening,
        variants=variants,
    )


_ALL = (
    *_PUBLISHED,
    _union("B3", "Magicoder", magicoder.OSS, magicoder.EVOL),
    _union("B5", "OpenThoughts", openthoughts.SMALL, openthoughts.LARGE),
    _union("B8", "SWE-agent trajectories", sweagent.NEBIUS, sweagent.TOOL),
)
DATASETS: Mapping[str, Dataset] = MappingProxyType({one.name: one for one in sorted(_ALL, key=lambda one: one.name)})


def dataset_named(name: str) -> Dataset:
    """Return the entry called `name`.

    Raises SourceError, which lists the names that exist.
    """
    try:
        return DATASETS[name]
    except KeyError:
        raise SourceError(f"unknown dataset {name!r}; there are {', '.join(DATASETS)}") from None


def gathered(dataset: Dataset, blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the same rows, joined where they belong together."""
    return iter(blocks) if dataset.gather is None else dataset.gather(blocks)


def outcomes_of(
    dataset: Dataset, block: Block, turns: Turns = Turns.LAST
) -> Iterator[tuple[Raw | None, Prompt | Rejected]]:
    """Yield each row of a block with its outcomes.

    The row is None where it could not be read.
    """
    for row in rows_of(block):
        if isinstance(row, Rejected):
            yield None, row
            continue
        outcome = dataset.asked(row, turns)
        yield from ((row, one) for one in ((outcome,) if isinstance(outcome, Rejected) else outcome))


def prompts_of(name: str, source: Path | str) -> Iterator[Prompt | Rejected]:
    """Yield every row of a source, adapted or rejected.

    In order, each id once, in constant memory. `source` is a file, a folder, a glob or
    hub:REPO@COMMIT[:CONFIG[:SPLIT]]. Raises SourceError for an unknown dataset, an unreadable or empty source, or the
    wrong columns::

        for outcome in prompts_of("B6", "ultrachat/train_sft.parquet"):
            print(outcome.id, outcome.reason if isinstance(outcome, Rejected) else len(outcome.messages))
    """
    dataset = dataset_named(name)
    with closing(DiskSet()) as ids:
        for block in gathered(dataset, blocks_of(source, dataset.schema)):
            for raw, outcome in outcomes_of(dataset, block):
                if raw is None or isinstance(outcome, Rejected) or ids.add(outcome.id):
                    yield outcome
                else:
                    detail = f"an earlier row is {outcome.id} too"
                    yield Rejected(outcome.id, Reject.REPEATED, detail, raw.file, raw.line, raw.value)
