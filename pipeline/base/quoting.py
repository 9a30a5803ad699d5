"""A provider's own words, as they may stand in a message, a log, a report or a quarantine line.

Guarantees: nothing of a secret's shape or behind a secret's name is quoted, nor what upstream said behind `raw`; what
is quoted has UTF-8. An answer itself is kept as it came: this is for what is said about it.
"""

from __future__ import annotations

import re
from typing import Final

from pipeline.base.secret_shapes import FIELD, MARK, PATTERNS, RAW

LOOKED_AT: Final = 4096
"""Characters of a text that are read at all; a quotation is far shorter."""

_VALUE: Final = r'(?:"(?:[^"\\]|\\.)*"?|\{[^}]*\}?|\[[^\]]*\]?|[^,}\s]+)'
_MEMBERS: Final = tuple(re.compile(rule.pattern.replace(r"(?<!\\)", "") + _VALUE, rule.flags) for rule in (FIELD, RAW))


def quoted(text: str, most: int) -> str:
    """At most so many characters of `text`."""
    seen = text[:LOOKED_AT].replace('\\"', '"')
    for rule in _MEMBERS:
        seen = rule.sub(_without_value, seen)
    for rule in PATTERNS.values():
        seen = rule.sub(_without, seen)
    return seen[:most].encode("utf-8", "replace").decode("utf-8")


def _without_value(match: re.Match[str]) -> str:
    return f"{match[0].partition(':')[0]}: {MARK}"


def _without(match: re.Match[str]) -> str:
    if "secret" not in match.re.groupindex:
        return MARK
    start, stop = (match.start("secret") - match.start(), match.end("secret") - match.start())
    return match[0][:start] + MARK + match[0][stop:]
