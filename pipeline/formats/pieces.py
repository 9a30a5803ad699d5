"""Text mixed with control tokens, and its ids.

Guarantees: text is encoded apart from the control tokens beside it, with specials off.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, TypeAlias

from pipeline.formats.tokenizer import Tokenizer

Piece: TypeAlias = str | int
"""A stretch of text, or a control token's id."""


_WORD_CHARS: Final = 16
"""Texts up to this long are mostly a layout's own (`user`, `assistant\\n`) and come again and again."""


def encode_pieces(tokenizer: Tokenizer, pieces: Iterable[Piece]) -> list[int]:
    """Return ids: text encoded apart, control tokens by id."""
    ids: list[int] = []
    append_pieces(ids, tokenizer, pieces)
    return ids


def append_pieces(ids: list[int], tokenizer: Tokenizer, pieces: Iterable[Piece]) -> None:
    """Append the ids of `pieces` to `ids`."""
    for piece in pieces:
        if isinstance(piece, int):
            ids.append(piece)
        elif len(piece) > _WORD_CHARS:
            ids += tokenizer.encode(piece)
        elif piece:
            ids += _word(tokenizer, piece)


@lru_cache(maxsize=1024)
def _word(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text))
