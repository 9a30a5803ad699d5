r"""Evidence `stream_deltas`: a stream that sent one token a delta.

Guarantees: ids are returned only where exactly one sequence of tokens can have been streamed as these deltas, and the
provider's count agrees. A server that streams tokens holds back the bytes of an unfinished character, so the next
delta carries it: `" "` then `"✨"` may be the tokens `" "`, `"✨"` or `" \xe2\x9c"`, `"\xa8"`. Both are tried; two that
fit are no proof.

Some servers send a chunk again, the whole text at the end, or the text so far in every delta. Nothing in the deltas
tells that from a model that repeats itself, so `without_repeats` names the other texts, and a proof from text stands
only if the count rules them out.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import accumulate, compress, count, islice, pairwise
from operator import eq

from pipeline.formats.format import Opener, Parts
from pipeline.formats.tokenizer import Tokenizer
from pipeline.proof.answer import Answer, Proof
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.text_guards import require_limit, require_shown_thinking
from pipeline.records import Evidence, Ids


def by_stream_deltas(answer: Answer) -> Proof | None:
    """Return the ids that the deltas spell.

    None where the deltas are not tokens or do not close the count: `by_count` then decides. `require_text_evidence`
    must hold of the answer. A `<think>` that the model emitted is in no delta, and servers differ in whether reasoning
    shows it. Only the count tells of it, so such an answer is `counted`.
    """
    if answer.completion.deltas is None or answer.completion.tool_calls:
        return None
    if answer.proven(TraitName.DELTAS) != "tokens" or answer.proven(TraitName.COUNT_NATIVE) is not True:
        return None
    fields = [answer.delta_texts(name) for name in ("reasoning", "content")]
    last = (text for field in fields for text in _last_deltas(answer, field))
    if any(map(is_cumulative, fields)) or any(may_hide_bytes(answer.fmt.tokenizer, text) for text in last):
        return None
    total = answer.completion_tokens
    parts, ids = _spelled_parts(answer, *fields) or (None, ())
    if parts is None or answer.count_of(parts, len(ids)) != total:
        return None
    require_limit(answer, parts)
    require_shown_thinking(answer)
    opened_unseen = answer.opener is Opener.MODEL and parts.reasoning is not None
    if opened_unseen and any(next(without_repeats(field), None) is not None for field in fields):
        return None  # a delta that was sent twice would stand for the token that no delta shows
    evidence = Evidence.COUNTED if opened_unseen else Evidence.STREAM_DELTAS
    return Proof(ids, answer.fmt.layout(ids, thinking=answer.prompt.thinking), evidence)


def _last_deltas(answer: Answer, texts: Sequence[str]) -> Iterator[str]:
    """Yield each delta that a control token follows, or nothing.

    A server never sends what it holds back there.
    """
    if not answer.markers.keys().isdisjoint(texts):
        yield from (before for before, after in pairwise(texts) if after in answer.markers)
    yield from texts[-1:]


def _spelled_parts(answer: Answer, reasoning: Sequence[str], content: Sequence[str]) -> tuple[Parts, Ids] | None:
    """Return the spelled ids and their parts.

    The parts hold no text, as nothing reads it. None where the deltas spell no tokens, or not where the thinking ended.
    """
    fmt = answer.fmt
    markers = answer.markers if answer.raw_markers else {}
    thought = spell(fmt.tokenizer, reasoning, {})
    body = spell(fmt.tokenizer, content, markers)
    if thought is None or body is None:
        return None
    controls = frozenset(markers.values())
    marked = () if controls.isdisjoint(body) else tuple(token for token in body if token in controls)
    end = (fmt.end_id_for(marked),) if answer.ended else ()
    if answer.opener is Opener.NOBODY or (answer.opener is Opener.MODEL and not thought):
        if fmt.is_headed:
            return None
        return Parts(None, think_closed=False, body=marked, ended=answer.ended), (*body, *end)
    begin = fmt.opening_ids if answer.opener is Opener.MODEL else ()
    if answer.shows_close:
        parts = Parts("", think_closed=True, body=marked, ended=answer.ended)
        return parts, (*begin, *thought, *fmt.closing_ids, *body, *end)
    if not body and not answer.ended:
        return Parts("", think_closed=False, body=(), ended=False), (*begin, *thought)
    return None


# Spelling: one id a delta


@dataclass(frozen=True, slots=True)
class _Path:
    """Ways to have spelled the deltas so far.

    `ids` are those of one of them.
    """

    ways: int
    ids: Ids


_NO_ASCII = "\x80"
_TOKEN_CHARS = 64
"""Few tokens are longer, so longer texts are not remembered."""
_CERTAIN: Mapping[int, _Path] = {0: _Path(1, ())}


def spell(tokenizer: Tokenizer, texts: Sequence[str], markers: Mapping[str, int]) -> Ids | None:
    """Return one id a text, where that is unambiguous.

    None where there is no way, or more than one. `markers` are control tokens that this route sends as texts of their
    own.
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


def _token(tokenizer: Tokenizer, text: str) -> int | None:
    return tokenizer.id_of_bytes(text.encode())


@cache
def _known(tokenizer: Tokenizer) -> Callable[[str], int | None]:
    """Return `_token` with a memory: texts repeat often."""
    return lru_cache(maxsize=1 << 16)(partial(_token, tokenizer))


def _spell_held_back(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    direct: Sequence[int | None],
    markers: Mapping[str, int],
    at: int,
) -> Ids | None:
    """Return the ids from delta `at` to a clean boundary.

    That delta may hold back half a character. None where there is no way, or more than one.
    """
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


def _step(tokenizer: Tokenizer, paths: Mapping[int, _Path], raw: bytes, after: bytes) -> dict[int, _Path]:
    """Return the paths one delta further.

    The key is how many bytes of the next delta's first character an earlier token already holds.
    """
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
    """Return the first character's length in bytes; 1 without one."""
    if not raw or raw[0] < 0xC0:  # noqa: PLR2004 — ASCII
        return 1
    return 2 if raw[0] < 0xE0 else 3 if raw[0] < 0xF0 else 4  # noqa: PLR2004 — UTF-8's length by its first byte


def may_hide_bytes(tokenizer: Tokenizer, text: str) -> bool:
    r"""Return whether a cut after this delta may hide bytes.

    The last token of `text` may have begun a character, and a server never sends those bytes: `" "` at the end of a cut
    stream may be the token `" "` or `" \xf0\x9f"`. Where joining what is seen makes another last token, the count
    tells.
    """
    last = tokenizer.encode(text)[-1:]
    return not _stems(tokenizer).isdisjoint({text.encode(), tokenizer.decode_bytes(last)})


@cache
def _stems(tokenizer: Tokenizer) -> frozenset[bytes]:
    """Return what stands before half a character in tokens."""
    pieces = map(tokenizer.token_bytes, tokenizer.base_ids)
    return frozenset(stem for piece in pieces if (stem := _stem(piece)))


def _stem(piece: bytes) -> bytes:
    """Return what stands before an unfinished character at the end.

    Empty where the piece ends with a whole character.
    """
    decoder = getincrementaldecoder("utf-8")()
    try:
        decoder.decode(piece)
    except UnicodeDecodeError:
        return b""
    held = len(decoder.getstate()[0])
    return piece[:-held] if held else b""


def crossed_boundary(tokenizer: Tokenizer, tokens: Iterable[int], texts: Iterable[str]) -> int | None:
    """Return the first byte where only a delta ends.

    No token ends there. Half characters count to the token that ends them.
    """
    pieces = tokenizer.pieces(tokens)
    whole = b"".join(pieces)
    ends = set(accumulate(map(len, pieces)))
    if not whole.isascii():
        ends = {_whole_chars(whole, end) for end in ends}
    shown = list(accumulate(map(len, map(str.encode, texts))))
    return None if ends.issuperset(shown) else next(end for end in shown if end not in ends)


def _whole_chars(data: bytes, end: int) -> int:
    """Return `end`, moved back to where its character begins."""
    while end < len(data) and end > 0 and 0x80 <= data[end] < 0xC0:  # noqa: PLR2004 — UTF-8 continuation bytes
        end -= 1
    return end


# Repeats: what else the deltas can stand for

MANY = 64
"""Runs of equal deltas, above which the other texts are too many to try."""


def is_cumulative(texts: Sequence[str]) -> bool:
    """Return whether every delta repeats the one before it.

    Some deltas must say more than that.
    """
    return len(texts) > 1 and all(after.startswith(before) for before, after in pairwise(texts)) and len(set(texts)) > 1


def without_repeats(texts: Sequence[str]) -> Iterator[str]:
    """Yield what is left if the server repeated itself."""
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
    """Count the runs of two and more equal deltas."""
    return len(_first_of_each_run(_said_again(texts)))


def _said_again(texts: Sequence[str]) -> list[int]:
    """Return the positions of deltas that equal the next one."""
    return list(compress(count(), map(eq, texts, islice(texts, 1, None))))


def _first_of_each_run(positions: Sequence[int]) -> list[int]:
    return [position for before, position in pairwise((-2, *positions)) if position != before + 1]
