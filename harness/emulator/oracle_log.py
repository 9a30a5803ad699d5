"""The oracle log: every answer's true ids, as JSONL.

Guarantees: an answer's line is written and flushed before its first byte is sent. Tests and the summary of a run read
it; what is under test never does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Literal, Self

from pipeline.records import Ids


@dataclass(frozen=True, slots=True)
class OracleEntry:
    """What was really served and sampled.

    `noncanonical`: the tokenizer splits the text of the ids otherwise. `resegmented`: re-split on purpose, with the
    same number of tokens or another. `cut`: no end token was sampled. `cost` in USD, exact.
    """

    generation_id: str
    sample_id: str | None
    provider: str
    stream: bool
    thinking: bool
    prompt_ids: Ids
    output_ids: Ids
    noncanonical: bool
    resegmented: Literal["same_count", "other_count"] | None
    cut: bool
    cost: str

    def line(self) -> str:
        """Return one line of JSON, its newline included."""
        return json.dumps(asdict(self), separators=(",", ":")) + "\n"


class OracleLog:
    """Append to one file; to nothing without a path."""

    def __init__(self, path: Path | None) -> None:
        self._file: IO[str] | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8", newline="\n")

    def append(self, entry: OracleEntry) -> None:
        """Write and flush one entry."""
        if self._file is not None:
            self._file.write(entry.line())
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_oracle(path: Path) -> Iterator[OracleEntry]:
    """Yield the entries in the order of writing.

    A torn last line is left out: its answer was never sent.
    """
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            if line.endswith("\n"):
                fields = json.loads(line)
                fields["prompt_ids"], fields["output_ids"] = tuple(fields["prompt_ids"]), tuple(fields["output_ids"])
                yield OracleEntry(**fields)
