"""The key in use, taken out of whatever comes back: a provider may echo it, whole, without its prefix, or escaped.

Guarantees: what holds no part of the key comes back as the same bytes; the key goes wherever it stands in one piece,
plain or with characters of it as JSON or an address escapes them. A key in pieces, a delta each, is beyond this.
"""

from __future__ import annotations

import re

REMOVED = "[key removed]"
SHORTEST = 16
"""A shorter piece of a key would blot out text that has nothing to do with it."""


class Redaction:
    """Takes one key out. None: there is none to take out."""

    def __init__(self, key: str | None) -> None:
        tails = {key[match.end() :] for match in re.finditer("[-_]", key)} if key else set()
        forms = sorted({form for form in {key or "", *tails} if len(form) >= SHORTEST}, key=len, reverse=True)
        run = max(re.findall("[0-9A-Za-z]+", forms[-1]), key=len, default="") if forms else ""
        # Nobody escapes letters and digits: without the longest run of them there is no key, and no regex is run.
        self._runs = tuple({each.encode() for each in (run, run.lower(), run.upper())}) if forms else ()
        self._rule = re.compile("|".join(map(_escaped, forms)).encode(), re.IGNORECASE)

    def of(self, raw: bytes) -> bytes:
        """The bytes without the key."""
        if not any(run in raw for run in self._runs):
            return raw
        return self._rule.sub(REMOVED.encode(), raw)

    def of_text(self, text: str) -> str:
        """The text without the key."""
        return self.of(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def of_header(self, text: str | None) -> str | None:
        """The header's value without the key."""
        return None if text is None else self.of_text(text)


def _escaped(form: str) -> str:
    return "".join(
        rf"(?:{re.escape(char)}|\\+u00{ord(char):02x}|%{ord(char):02x}|\\+{re.escape(char)})" for char in form
    )
