"""Goldens under test: a syrupy extension that compares tokens.

Guarantees: two goldens match when prompt ids and emitted ids are equal, whatever their provenance says. A mismatch is
explained by `golden.diff_lines`. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from harness.goldens.golden import REFRESH, SUFFIX, Golden, diff_lines, dump_golden, parse_golden
from pipeline.base.paths import ROOT

if TYPE_CHECKING:
    from syrupy.location import PyTestLocation

STEM, EXTENSION = SUFFIX.removeprefix(".").split(".")
FOLDER = Path("goldens") / "tiny_target"


class TokenGolden(SingleFileSnapshotExtension):
    """A snapshot in `goldens/tiny_target/CASE.tokens.json`.

    assert golden == snapshot(name=case)
    """

    _write_mode = WriteMode.TEXT
    file_extension = EXTENSION

    def serialize(self, data: Golden, **_: object) -> str:
        return dump_golden(data)

    def matches(self, *, serialized_data: str, snapshot_data: str) -> bool:
        return same_tokens(parse_golden(serialized_data), parse_golden(snapshot_data))

    def diff_lines(self, serialized_data: str | bytes, snapshot_data: str | bytes) -> Iterator[str]:
        """Yield how two goldens differ.

        Syrupy calls it with an empty golden where there is no file.
        """
        if not snapshot_data:
            yield f"there is no golden. Run: {REFRESH}"
            return
        yield from diff_lines(parse_golden(str(serialized_data)), parse_golden(str(snapshot_data)))
        yield f"If the change is wanted: {REFRESH}"

    @classmethod
    def dirname(cls, *, test_location: PyTestLocation) -> str:
        return str(test_location.item.config.rootpath / FOLDER)

    @classmethod
    def get_snapshot_name(cls, *, test_location: PyTestLocation, index: int | str = 0) -> str:
        """Return the file's stem, from `snapshot(name=...)`.

        So syrupy finds goldens that no test uses.
        """
        return f"{index if isinstance(index, str) else test_location.methodname}.{STEM}"


def same_tokens(first: Golden, second: Golden) -> bool:
    """Return whether tokens and prompt ids are the same."""
    return (first.prompt_ids, first.ids) == (second.prompt_ids, second.ids)


def golden_path(case: str, folder: Path = ROOT / FOLDER) -> Path:
    """Return where the case's golden lies."""
    return folder / f"{case}{SUFFIX}"
