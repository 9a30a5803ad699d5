r"""The ids that a stream's deltas spell, one token a delta.

Guarantees: ids are returned only where exactly one sequence of tokens can have been streamed as these deltas. A server
that streams tokens holds back the bytes of an unfinished character, so that the delta after carries it: `" "` then
`"✨"` may be the tokens `" "`, `"✨"` or `" \xe2\x9c"`, `"\xa8"`. Both are tried; two that fit are no proof.

Text that a stream may have sent twice: what else its deltas can stand for.

Guarantees: a legitimate repetition is never dropped, and a duplicate is never kept for one. Some servers send a chunk
again, the whole text at the end, or the text so far in every delta; nothing in the deltas tells that from a model that
repeats itself. So the other texts are named here, and a proof from text stands only if the counts rule them out.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import accumulate, compress, count, islice, pairwise
from operator import eq

from pipeline.formats.tokenizer import Tokenizer
from pipeline.records import Ids


@dataclass(frozen=True, slots=True)
class _Path:
    """Ways to have spelled the deltas so far; `ids` are those of one of them."""

    ways: int
    ids: Ids


_NO_ASCII = "\x80"
_TOKEN_CHARS = 64
"""Few tokens are longer: a text that is, is not worth remembering."""
_CERTAIN: Mapping[int, _Path] = {0: _Path(1, ())}


def spell(tokenizer: Tokenizer, texts: Sequence[str], markers: Mapping[str, int]) -> Ids | None:
    """One id a text, where there is exactly one way; None where there is none or more than one.

    `markers` are control tokens that this route sends as text of their own.
    """
    known = _known(tokenizer) if max(map(len, texts), default=0) <= _TOKEN_CHARS else partial(_token, tokenizer)
    try:
        direct = list(map(known, texts))
    except UnicodeEncodeError:
        return None
    if not markers.keys().isdisjoint(texts):
        direct = [markers.get(text, token) for text, token in zip(texts, direct, strict=True)]
    ids: list[int | None] = []
    at = 0
    for position in [position for position, text in enumerate(texts) if text >= _NO_ASCII and position]:
        if position <= at:
            continue
        ids += direct[at : position - 1]
        held = _spell_held_back(tokenizer, texts, direct, markers, position - 1)
        if held is None:
            return None
        ids += held
        at = position - 1 + len(held)
    ids += direct[at:]
    return None if None in ids else tuple(token for token in ids if token is not None)


def _spell_held_back(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    direct: Sequence[int | None],
    markers: Mapping[str, int],
    at: int,
) -> Ids | None:
    """The ids from the delta at `at` on, which may hold back half a character, to where none can be held back."""
    paths = _CERTAIN
    for position in range(at, len(texts)):
        if texts[position] in markers:
            token = direct[position]
            if token is None or 0 not in paths or paths[0].ways != 1:
                return None
            return (*paths[0].ids, token)
        after = texts[position + 1].encode() if position + 1 < len(texts) else b""
        paths = _step(tokenizer, paths, texts[position].encode(), after)
        if paths.keys() == {0}:
            return paths[0].ids if paths[0].ways == 1 else None
    return None


def _token(tokenizer: Tokenizer, text: str) -> int | None:
    return tokenizer.id_of_bytes(text.encode())


@cache
def _known(tokenizer: Tokenizer) -> Callable[[str], int | None]:
    """The same, and remembered: few tokens make most of every text."""
    return lru_cache(maxsize=1 << 16)(partial(_token, tokenizer))


def _step(tokenizer: Tokenizer, paths: Mapping[int, _Path], raw: bytes, after: bytes) -> dict[int, _Path]:
    """`paths` by how many bytes of the next delta's first character an earlier token already holds."""
    found: dict[int, _Path] = {}
    for taken, path in paths.items():
        for held in range(_first_char(after)):
            token = tokenizer.id_of_bytes(raw[taken:] + after[:held])
            if token is None:
                continue
            before = found.get(held)
            found[held] = _Path(path.ways + (before.ways if before else 0), (*path.ids, token))
    return found


def _first_char(raw: bytes) -> int:
    """The length in bytes of the first character; 1 where there is none."""
    if not raw or raw[0] < 0xC0:  # noqa: PLR2004 — ASCII
        return 1
    return 2 if raw[0] < 0xE0 else 3 if raw[0] < 0xF0 else 4  # noqa: PLR2004 — UTF-8's length by its first byte


def may_hide_bytes(tokenizer: Tokenizer, text: str) -> bool:
    r"""Whether the last token of the delta `text`, where a stream was cut, may have begun a character too.

    A server never sends those bytes: `" "` at the end of a cut stream may be the token `" "` or `" \xf0\x9f"`. Where
    joining what is seen makes another last token, the count tells.
    """
    last = tokenizer.encode(text)[-1:]
    return not _stems(tokenizer).isdisjoint({text.encode(), tokenizer.decode_bytes(last)})


@cache
def _stems(tokenizer: Tokenizer) -> frozenset[bytes]:
    """Every whole text that some token continues with the first bytes of a character, and no more."""
    pieces = map(tokenizer.token_bytes, tokenizer.base_ids)
    return frozenset(stem for piece in pieces if (stem := _stem(piece)))


def _stem(piece: bytes) -> bytes:
    """What stands before an unfinished character at the end of `piece`; empty where there is none."""
    decoder = getincrementaldecoder("utf-8")()
    try:
        decoder.decode(piece)
    except UnicodeDecodeError:
        return b""
    held = len(decoder.getstate()[0])
    return piece[:-held] if held else b""


def crossed_boundary(tokenizer: Tokenizer, tokens: Iterable[int], texts: Iterable[str]) -> int | None:
    """The first byte where a delta ends and no token does; half characters count to the token that ends them."""
    pieces = tokenizer.pieces(tokens)
    whole = b"".join(pieces)
    ends = set(accumulate(map(len, pieces)))
    if not whole.isascii():
        ends = {_whole_chars(whole, end) for end in ends}
    shown = list(accumulate(map(len, map(str.encode, texts))))
    return None if ends.issuperset(shown) else next(end for end in shown if end not in ends)


def _whole_chars(data: bytes, end: int) -> int:
    """`end` moved back to where a character begins, if it lies inside one."""
    while end < len(data) and end > 0 and 0x80 <= data[end] < 0xC0:  # noqa: PLR2004 — UTF-8 continuation bytes
        end -= 1
    return end


MANY = 64
"""Runs of equal deltas, above which the other texts are too many to try."""


def is_cumulative(texts: Sequence[str]) -> bool:
    """Whether every delta says again all that the one before it said, and some say more."""
    return len(texts) > 1 and all(after.startswith(before) for before, after in pairwise(texts)) and len(set(texts)) > 1


def without_repeats(texts: Sequence[str]) -> Iterator[str]:
    """The texts that these deltas stand for if some of them are repetitions of the server and not of the model."""
    if again := _said_again(texts):
        whole, ends = "".join(texts), list(accumulate(map(len, texts)))
        for one in _first_of_each_run(again):
            yield whole[: ends[one] - len(texts[one])] + whole[ends[one] :]
        left_out = set(again)
        yield "".join(text for position, text in enumerate(texts) if position not in left_out)
    if len(texts) > 1 and texts[-1] == "".join(texts[:-1]):
        yield texts[-1]
    if is_cumulative(texts):
        yield texts[-1]


def repeated_runs(texts: Sequence[str]) -> int:
    """How many runs of two and more equal deltas there are."""
    return len(_first_of_each_run(_said_again(texts)))


def _said_again(texts: Sequence[str]) -> list[int]:
    """The deltas that are equal to the one after them."""
    return list(compress(count(), map(eq, texts, islice(texts, 1, None))))


def _first_of_each_run(positions: Sequence[int]) -> list[int]:
    return [position for before, position in pairwise((-2, *positions)) if position != before + 1]
