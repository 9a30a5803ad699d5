"""Other tokenisations of the same bytes, as models sample them.

Guarantees: a re-split has the bytes of the original, other ids, and every control token where it was. The caller
chooses whether the number of tokens stays the same.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from random import Random

    from pipeline.formats.tokenizer import Tokenizer
    from pipeline.records import Ids

WIDTHS = (2, 3, 4)
"""How many neighbours a re-split of the same count rewrites: as few as it can."""


def resplit(tokenizer: Tokenizer, ids: Sequence[int], rng: Random, *, same_count: bool) -> Ids | None:
    """Return other ids with the bytes of `ids`, never canonical.

    One token is cut in two, or the boundaries of a few are moved where `same_count`. None where that is impossible.
    """
    for width in WIDTHS if same_count else (1,):
        found = list(_resplits(tokenizer, ids, width, width if same_count else 2))
        rng.shuffle(found)
        for other in found:
            if not is_canonical(tokenizer, other):
                return other
    return None


def is_canonical(tokenizer: Tokenizer, ids: Sequence[int]) -> bool:
    """Return whether the tokenizer would split the bytes so."""
    return canonical(tokenizer, ids) == tuple(ids)


def canonical(tokenizer: Tokenizer, ids: Sequence[int]) -> Ids | None:
    """Return the tokenizer's own split of the same bytes.

    Control tokens stay in place. None where a stretch between them is not UTF-8.
    """
    encoded: list[int] = []
    for is_control, run in groupby(ids, tokenizer.is_control):
        if is_control:
            encoded += run
            continue
        try:
            encoded += tokenizer.encode(tokenizer.decode_bytes(run).decode())
        except UnicodeDecodeError:
            return None
    return tuple(encoded)


def _resplits(tokenizer: Tokenizer, ids: Sequence[int], width: int, parts: int) -> Iterator[Ids]:
    """Yield `ids` with `width` base tokens as `parts` others."""
    for index in range(len(ids) - width + 1):
        window = tuple(ids[index : index + width])
        if not any(map(tokenizer.is_control, window)):
            for other in _split(tokenizer, tokenizer.decode_bytes(window), parts):
                if other != window:
                    yield (*ids[:index], *other, *ids[index + width :])


def _split(tokenizer: Tokenizer, data: bytes, parts: int) -> Iterator[Ids]:
    """Yield every way to write `data` as `parts` base tokens."""
    if parts == 1:
        token = tokenizer.id_of_bytes(data)
        if token is not None:
            yield (token,)
        return
    for at in range(1, len(data) - parts + 2):
        first = tokenizer.id_of_bytes(data[:at])
        if first is not None:
            yield from ((first, *rest) for rest in _split(tokenizer, data[at:], parts - 1))
