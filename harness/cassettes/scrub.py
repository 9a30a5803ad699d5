r"""What must not lie in a cassette, and its removal.

Keys, cookies, users, organisations, raw errors: the shapes and names of `pipeline.base.redaction`, and more.

Guarantees: only headers on a short list are kept, whatever their case. In bodies and addresses every secret that a rule
knows is replaced by one mark, byte for byte elsewhere, in requests as in answers, also behind escapes and in JSON that
an error's text quotes. Scrubbing twice changes nothing, so a scrubbed recording still matches its request. `secrets_in`
scans again and finds more than is replaced: a member of a secret's name within a model's own words, a secret in pieces,
a key behind an encoding (`pipeline.base.secret_shapes`). What it finds is not saved.

Order of reading: the entries (`scrub_headers`, `scrub_body`, `scrub_uri`, `secrets_in`) and their rules; `DecodedText`,
a text with escapes undone whose characters know their places in the original; `joined`, which puts together the texts
that stand in a body in pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from pipeline.base.redaction import FIELD, MARK, PATTERNS, QUERY_NAMES, RAW
from pipeline.base.secret_shapes import encoded_shapes_in
from pipeline.records import Json

KEPT_REQUEST: Final = frozenset({"accept", "content-type", "x-openrouter-cache"})
KEPT_RESPONSE: Final = frozenset(
    {
        *("content-type", "retry-after", "x-generation-id", "x-openrouter-cache-status"),
        *("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"),
    }
)
"""What our code reads. A list of what to drop would lack the next provider's header; dates and rays are volatile."""

SHORTEST_KEY: Final = 16
"""A shorter piece of a key would blot out text that has nothing to do with it."""

MOST_PASSES: Final = 8

DATA: Final = "data:"

SAID: Final = re.compile(r'(?<!\\)"(?:message|error|detail|description|error_description)"\s*:\s*(?=")')
"""Text of an error, which a server wrote: in an answer's own structure a model's words have other names."""

QUERY: Final = re.compile(rf"(?:{QUERY_NAMES})", re.IGNORECASE)
"""Names of parameters whose value is a secret, matched in full."""

CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "x-api-key", "api-key"})
"""Request headers that carry the key in use."""

DEEPEST: Final = 8
"""Levels of strings in strings. Each doubles the backslashes, so that the eighth has 255 before every quote."""

_LETTERS: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_CODED: Final = re.compile(r"(?<!\\)\\u00(?!22|5c)([2-7][0-9a-f])", re.IGNORECASE)
_PERCENT: Final = re.compile(r"%([2-7][0-9a-f])", re.IGNORECASE)
_STRING: Final = re.compile(r'\\(?:u00([0-7][0-9a-f])|(["\\/bfnrt]))', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch to replace, and its mark."""

    start: int
    stop: int
    mark: str


def key_forms(headers: Mapping[str, str]) -> frozenset[str]:
    """Return the keys that a request's headers carry.

    Each also without its prefix (`sk-or-v1-`), as servers echo them.
    """
    words = [value.split()[-1] for name, value in headers.items() if name.lower() in CREDENTIALS and value.strip()]
    tails = {word[match.end() :] for word in words for match in re.finditer("[-_]", word)}
    return frozenset({form for form in {*words, *tails} if len(form) >= SHORTEST_KEY})


def scrub_headers(
    headers: Mapping[str, Sequence[str]], kept: frozenset[str], keys: frozenset[str] = frozenset()
) -> dict[str, list[str]]:
    """Return the headers that are kept, their values scrubbed.

    In lower case and in order.
    """
    lowered = {name.lower(): values for name, values in headers.items()}
    return {name: [_shapeless(value, keys) for value in lowered[name]] for name in sorted(lowered) if name in kept}


def scrub_body(body: bytes, *, answer: bool, keys: frozenset[str] = frozenset()) -> bytes:
    """Return `body` with its secrets and `keys` replaced.

    Bytes beyond ASCII are untouched, whatever their encoding.
    """
    text = body.decode("latin-1")
    for _ in range(MOST_PASSES):
        spans = [*_shapes(text, keys), *_members(text, answer=answer)]
        if not spans:
            break
        text = _without(text, spans)
    return text.encode("latin-1")


def scrub_uri(uri: str, keys: frozenset[str] = frozenset()) -> str:
    """Return the address without user, password and query keys."""
    parts = urlsplit(uri)

    def parameter(part: str) -> str:
        name, equals, _ = part.partition("=")
        return f"{name}={MARK}" if equals and QUERY.fullmatch(unquote(name)) else part

    query = _shapeless("".join(map(parameter, re.split("([&;])", parts.query))), keys)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], _shapeless(parts.path, keys), query, ""))


def secrets_in(data: bytes, *, answer: bool = True, keys: frozenset[str] = frozenset()) -> list[str]:
    """Return the kinds of secrets that a scan finds.

    Of one body, header or address; no word repeats the secret.
    """
    text = data.decode("latin-1")
    found = [*_found(text, answer=answer, keys=keys)]
    pieces = [*joined(text)]
    found += [f"{what}, in pieces" for each in pieces for what in _found(each, answer=False, keys=keys)]
    encoded = [what for each in (text, *pieces) for what in encoded_shapes_in(each, keys)]
    found += [what for what in encoded if what.partition(",")[0] not in found]
    return list(dict.fromkeys(found))


def _found(text: str, *, answer: bool, keys: frozenset[str]) -> Iterator[str]:
    for level, decoded in enumerate(levels(text)):
        soft = plain(decoded)
        for name, rule in _rules(keys):
            if rule.search(soft.text) or rule.search(unquoted(soft).text):
                yield name
        for rule in (FIELD, RAW) if answer and level == 0 else (FIELD,):
            yield from (f"the field {soft.text[start:].split(':')[0].strip()}" for start, _, _ in _values(soft, rule))


def _rules(keys: frozenset[str]) -> Iterator[tuple[str, re.Pattern[str]]]:
    yield from PATTERNS.items()
    for key in sorted(keys, key=len, reverse=True):
        yield "the key in use", re.compile(re.escape(key), re.IGNORECASE)


def _shapeless(text: str, keys: frozenset[str]) -> str:
    for _ in range(MOST_PASSES):
        if not (spans := [*_shapes(text, keys)]):
            break
        text = _without(text, spans)
    return text


def _shapes(text: str, keys: frozenset[str]) -> Iterator[Span]:
    """Yield secrets by shape, and the keys themselves.

    At every level of strings in strings.
    """
    for decoded in levels(text):
        soft = plain(decoded)
        hard = unquoted(soft)
        for form in (soft,) if hard is soft else (soft, hard):
            for _, rule in _rules(keys):
                group = "secret" if "secret" in rule.groupindex else 0
                for match in rule.finditer(form.text):
                    yield Span(form.place(match.start(group)), form.place(match.end(group)), MARK)


def _members(text: str, *, answer: bool) -> Iterator[Span]:
    """Yield secret members by name.

    Those of the body itself, and those in JSON that an error's text quotes. Within other strings stand a user's or a
    model's own words, which no mark may change: there the scan objects.
    """
    rules = (FIELD, RAW) if answer else (FIELD,)
    quoted = [(start + 1, stop - 1) for _, start, stop in _values(DecodedText(text), SAID)] if answer else []
    for level, decoded in enumerate(levels(text)):
        soft = plain(decoded)
        for rule in rules:
            for member, start, stop in _values(soft, rule):
                quote = text[soft.place(member) : soft.place(member + 1)]
                span = Span(soft.place(start), soft.place(stop), f"{quote}{MARK}{quote}")
                if level == 0 or any(first <= span.start and span.stop <= last for first, last in quoted):
                    yield span


def _values(decoded: DecodedText, rule: re.Pattern[str]) -> Iterator[tuple[int, int, int]]:
    """Yield the places of members that are not scrubbed yet.

    Where the member starts, its value starts and its value stops.
    """
    position, text = 0, decoded.text
    while (match := rule.search(text, position)) is not None:
        position = match.end()
        try:
            value, stop = json.JSONDecoder(strict=False).raw_decode(text, match.end())
        except (ValueError, RecursionError):
            stop, value = len(text), None  # cut off in the middle: all that is left of it goes
        if value != MARK:
            yield match.start(), match.end(), stop
        position = stop


def _without(text: str, spans: Sequence[Span]) -> str:
    """Return the text with the spans replaced.

    Of two that overlap, the first and longest is; the next pass finds the rest.
    """
    parts: list[str] = []
    position = 0
    for span in sorted(spans, key=lambda span: (span.start, -span.stop)):
        if span.start >= position:
            parts += (text[position : span.start], span.mark)
            position = span.stop
    return "".join(parts) + text[position:]


@dataclass(frozen=True, slots=True)
class DecodedText:
    """A text with escapes undone.

    `text[i]` stands for the original from `places[i]` to `places[i + 1]`; None where each stands for itself. Undoing is
    exact about places, so that what is found in the decoded text can be replaced in the original.
    """

    text: str
    places: tuple[int, ...] | None = None

    def place(self, index: int) -> int:
        """Return where the character at `index` begins in the original."""
        return index if self.places is None else self.places[index]

    def undone(self, rule: re.Pattern[str], read: Callable[[re.Match[str]], str]) -> DecodedText:
        """Return the text with each match read as one character."""
        if rule.search(self.text) is None:
            return self
        parts: list[str] = []
        places: list[int] = []
        position = 0
        for match in rule.finditer(self.text):
            parts += (self.text[position : match.start()], read(match))
            places += map(self.place, range(position, match.start() + 1))
            position = match.end()
        parts.append(self.text[position:])
        places += map(self.place, range(position, len(self.text) + 1))
        return DecodedText("".join(parts), tuple(places))


def levels(text: str) -> Iterator[DecodedText]:
    r"""Yield the text, then as its JSON strings read, recursively.

    JSON inside a JSON string has its quotes as `\"`, inside a string in that as `\\\"`, and so on.
    """
    decoded = DecodedText(text)
    for _ in range(DEEPEST):
        yield decoded
        deeper = decoded.undone(
            _STRING, lambda match: _code(match[1]) if match[1] else _LETTERS.get(match[2], match[2])
        )
        if deeper is decoded:
            return
        decoded = deeper


def plain(decoded: DecodedText) -> DecodedText:
    r"""Return the text with `\u005f` read as `_`.

    A coded quote or backslash stays, for it is no structure at this level.
    """
    return decoded.undone(_CODED, lambda match: _code(match[1]))


def unquoted(decoded: DecodedText) -> DecodedText:
    """Return the text with `%2D` read as `-`."""
    return decoded.undone(_PERCENT, lambda match: _code(match[1]))


def _code(digits: str) -> str:
    return chr(int(digits, 16))


def joined(body: str) -> Iterator[str]:
    """Yield each text that a reader puts together from pieces.

    Of two pieces or more. All strings at one place of the events, or of the items of a list, are joined in order,
    whatever the place is called.
    """
    pieces: dict[str, list[str]] = {}
    lines = [line.removeprefix(DATA) for line in body.splitlines() if line.startswith(DATA)]
    for document in lines or [body]:
        try:
            value = json.loads(document)
        except (ValueError, RecursionError):
            continue
        for place, text in _leaves(value, "", ""):
            pieces.setdefault(place, []).append(text)
    yield from ("".join(texts) for texts in pieces.values() if len(texts) > 1)


def _leaves(value: Json, exact: str, loose: str) -> Iterator[tuple[str, str]]:
    """Yield each string with its place.

    And once more with its place whatever the item of a list.
    """
    if isinstance(value, str):
        yield f"exact {exact}", value
        if loose != exact:
            yield f"loose {loose}", value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{exact}/{key}", f"{loose}/{key}")
    elif isinstance(value, list):
        for position, item in enumerate(value):
            index = item.get("index", position) if isinstance(item, dict) else position
            yield from _leaves(item, f"{exact}/{index}", f"{loose}/*")
