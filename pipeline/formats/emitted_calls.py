"""Tool calls as emitted ids say them, beside parsed ones.

Guarantees: JSON is compared by type and by the spelling of its numbers: `1`, `true`, `1.0` and `"1"` are four values.
White space, escapes and the order of keys may differ, because engines write JSON anew. What Python's writer makes of
the emitted JSON is taken too, since engines use it: `1e2` becomes `100.0`, and the last of equal keys stays.

Some families write parameters as text without types. There a parser guesses the type by the tool's schema, so a shown
value agrees if it is the text itself, or the JSON (or Python constant) that the text spells.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pipeline.formats.pieces import Piece

Exact: TypeAlias = "tuple[str, str] | tuple[str, tuple[object, ...]]"
"""A JSON value: its kind with its spelling, or with its members."""

_PYTHON = {"True": "true", "False": "false", "None": "null"}
_SPACE = " \t\n\r"


@dataclass(frozen=True, slots=True)
class EmittedCall:
    """One call in emitted ids.

    `arguments` is its JSON as text. `parameters` stands in for it where the family writes untyped texts by name. Only
    the last call of a cut answer is not `whole`.
    """

    identity: str
    arguments: str = ""
    parameters: tuple[tuple[str, str], ...] | None = None
    whole: bool = True

    def says(self, shown: str) -> bool:
        """Return whether parsed arguments can be these."""
        if self.parameters is not None:
            return _are_parameters(self.parameters, shown)
        if not self.arguments.strip():
            return shown.strip() in ("", "{}")  # engines say {} where no arguments came
        return shown.strip() == self.arguments.strip() or is_same_json(self.arguments, shown)


def is_same_json(emitted: str, shown: str) -> bool:
    """Return whether shown JSON can be the emitted one.

    Texts that are no JSON are never the same.

    >>> is_same_json("[1, 1e2]", "[1,100.0]"), is_same_json("[1]", "[true]")
    (True, False)
    """
    ours, theirs = exact_json(emitted), exact_json(shown)
    if ours is None or theirs is None:
        return False
    return theirs in (ours, exact_json(json.dumps(json.loads(emitted))))


def exact_json(text: str) -> Exact | None:
    """Return a JSON text's value by type and spelling.

    None where it is no JSON.

    >>> exact_json("[1, true]") == exact_json("[1,true]"), exact_json("1") == exact_json("true")
    (True, False)
    """
    number = _number
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_int=number, parse_float=number, parse_constant=_constant
        )
        return _exact(value)
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class _Spelled:
    exact: Exact


def _number(text: str) -> _Spelled:
    return _Spelled(("number", text))


def _constant(text: str) -> _Spelled:
    return _Spelled(("constant", text))


def _object(pairs: Sequence[tuple[str, object]]) -> _Spelled:
    return _Spelled(("object", tuple(sorted((key, repr(_exact(value)), _exact(value)) for key, value in pairs))))


def _exact(value: object) -> Exact:
    if isinstance(value, _Spelled):
        return value.exact
    if isinstance(value, list):
        return "list", tuple(map(_exact, value))
    return ("text", value) if isinstance(value, str) else ("constant", json.dumps(value))


def _are_parameters(parameters: Sequence[tuple[str, str]], shown: str) -> bool:
    """Return whether a parsed object can be these texts."""
    members = raw_members(shown or "{}")
    if members is None:
        return False
    ours, theirs = ({key.strip(): value for key, value in pairs} for pairs in (parameters, members.items()))
    return ours.keys() == theirs.keys() and all(_is_value(ours[key], theirs[key]) for key in ours)


def _is_value(text: str, shown: str) -> bool:
    said = text.strip()
    if shown.startswith('"') and json.loads(shown).strip() == said:
        return True
    return is_same_json(_PYTHON.get(said, said), shown)


def raw_members(text: str) -> dict[str, str] | None:
    """Return a JSON object's values as they are written.

    None where it is no object, or a key comes twice.

    >>> raw_members('{"a": 1e2, "b": [true]}')
    {'a': '1e2', 'b': '[true]'}
    """
    decoder, found = json.JSONDecoder(), dict[str, str]()
    try:
        if not isinstance(json.loads(text), dict):
            return None
        at = _after_space(text, 0) + 1
        while text[at := _after_space(text, at)] != "}":
            at = _after_space(text, at + 1) if text[at] == "," else at
            key, at = decoder.raw_decode(text, at)
            start = _after_space(text, _after_space(text, at) + 1)
            _, at = decoder.raw_decode(text, start)
            if key in found:
                return None
            found[key] = text[start:at]
    except (ValueError, RecursionError):
        return None
    return found


def _after_space(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def between(pieces: Sequence[Piece], begin: int, end: int) -> Iterator[tuple[list[Piece], bool]]:
    """Yield what stands from each `begin` to its `end`.

    And whether that end is there: of a cut answer, the last one's is not.
    """
    inside: list[Piece] | None = None
    for piece in pieces:
        if piece == begin:
            inside = []
        elif inside is not None and piece == end:
            yield inside, True
            inside = None
        elif inside is not None:
            inside.append(piece)
    if inside is not None:
        yield inside, False


def text_of_pieces(pieces: Sequence[Piece]) -> str:
    """Return the pieces that are text, joined."""
    return "".join(piece for piece in pieces if isinstance(piece, str))
