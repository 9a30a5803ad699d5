"""Secrets taken out of what providers say.

Two uses. `redact` shortens a provider's words for a message, a log, a report or a quarantine line: nothing with a
secret's shape or behind a secret's name is quoted, nor what upstream said behind `raw`, nor a word where a key stands
behind an encoding, and control characters are escaped.
`Redaction` takes the one key in use out of an answer, which a provider may echo whole, without its prefix, escaped, or
as base64 or hex.

Guarantees: a shape asks for a digit, a length or a prefix that prose does not have, and none matches the mark that
takes its place; where a rule has the group `secret`, that part alone is replaced. Bytes that hold no part of the key
come back unchanged; the key is removed wherever it stands in one piece, plain, escaped as in JSON or a URL, or encoded.
A key in pieces, one in each delta, is not found. Beside that key, an answer is kept as it came.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Final

from pipeline.base.decodings import decodings
from pipeline.base.screen import escaped

MARK: Final = "[SCRUBBED]"
REMOVED: Final = "[key removed]"
LOOKED_AT: Final = 4096
"""Characters of a text that are read at all; a quotation is far shorter."""
SHORTEST: Final = 16
"""A shorter piece of a key would blot out text that has nothing to do with it."""

SECRET_NAMES: Final = "|".join(
    [
        *("(?:proxy[-_]?)?authorization", "(?:set[-_]?)?cookies?", "(?:x[-_]?)?api[-_]?key(?:[-_]?id)?"),
        *("(?:access|refresh|id|auth|bearer|session|security)[-_]?token", "client[-_]?secret", "private[-_]?key"),
        *("secret(?:[-_]?(?:access[-_]?)?key)?", "passw(?:or)?d", "session[-_]?id", "account[-_]?id"),
        *("user[-_]?id", "org(?:ani[sz]ation)?[-_]?id", "team[-_]?id", "workspace[-_]?id"),
    ]
)
QUERY_NAMES: Final = "|".join(
    [
        SECRET_NAMES,
        *("key", "token", "sig(?:nature)?", "auth"),
        "x-(?:amz|goog)-(?:signature|credential|security-token)",
    ]
)
_START: Final = r"(?:(?<![a-z0-9])|(?<=\\[bfnrt]))"
"""Where a key begins: behind no letter or digit, but for those of an escape such as `\\n`."""
_VENDORS: Final = "gsk_|xai-|pplx-|nvapi-|glpat-|npm_|pypi-|[rs]k_live_"
_PRIVATE: Final = "[A-Z ]*PRIVATE KEY(?: BLOCK)?"
_SCHEMES: Final = "basic|bearer|digest|negotiate|token|api-?key"

PATTERNS: Final[Mapping[str, re.Pattern[str]]] = {
    name: re.compile(pattern, re.IGNORECASE)
    for name, pattern in {
        "OpenRouter key": rf"sk-or-v\d-[a-z0-9_-]{{8,}}|{_START}sk-or-(?=[a-z_-]*\d)[a-z0-9_-]{{8,}}",
        "API key": rf"{_START}sk-(?=[a-z_-]*\d)[a-z0-9_-]{{16,}}",
        "Hugging Face token": rf"{_START}hf_[a-z0-9]{{16,}}",
        "GitHub token": rf"{_START}(?:gh[pousr]_[a-z0-9]{{20,}}|github_pat_[a-z0-9_]{{20,}})",
        "AWS key": rf"{_START}(?:AKIA|ASIA)(?=[a-z]*\d)[a-z0-9]{{16}}(?![a-z0-9])",
        "Google key": rf"{_START}(?:AIza[a-z0-9_-]{{35}}|GOCSPX-[a-z0-9_-]{{20,}})",
        "Slack token": rf"{_START}(?:xox[abeoprs]|xapp)-(?=[a-z.-]*\d)[a-z0-9.-]{{10,}}",
        "access token": rf"{_START}(?:{_VENDORS})(?=[a-z_-]*\d)[a-z0-9_-]{{20,}}",
        "private key": rf"-----BEGIN {_PRIVATE}-----(?:[^-]*-----END {_PRIVATE}-----)?",
        "cookie": r"cookie[\"'\\]*\s*[:=]\s*[\[\"'\\]*[\w.-]+=(?P<secret>(?=[^\s;,\"'\\\[]*\d)[^\s;,\"'\\\[]{4,})",
        "credentials": (
            rf"authorization[\"'\\]*\s*[:=]\s*[\"'\\]*(?P<secret>(?:{_SCHEMES})\s{{1,4}}[a-z0-9._~+/=:-]{{4,}})"
        ),
        "bearer token": r"bearer\s{1,4}(?=[a-z._~+/=-]*\d)[a-z0-9._~+/=-]{12,}",
        "signed token": r"eyJ[a-z0-9_-]{8,}\.[a-z0-9_-]{8,}\.[a-z0-9_-]{8,}",
        "user id": r"(?<![a-z0-9])user[-_](?=[a-z]*\d)[a-z0-9]{20,}",
        "organisation id": (
            r"(?<![a-z0-9])org[-_](?:(?=[a-z]*\d)[a-z0-9]{6,}|[a-z0-9]{20,})"
            r"|(?<![a-z0-9])(?:team|proj)[-_](?=[a-z]*\d)[a-z0-9]{16,}"
        ),
        "password in an address": r"://(?P<secret>[^/\s\"'@\\:\[]+:[^/\s\"'@\\\[]+)@",
        "key in an address": rf"[?&](?:{QUERY_NAMES})=(?P<secret>(?=[a-z._~+/:%=-]*\d)[a-z0-9._~+/:%=-]{{8,}})",
    }.items()
}
"""Shapes that are secrets wherever they stand."""

ISSUED: Final[Mapping[str, tuple[str, ...]]] = {
    "OpenRouter key": ("sk-or-",),
    "API key": ("sk-",),
    "Hugging Face token": ("hf_",),
    "GitHub token": ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    "AWS key": ("AKIA", "ASIA"),
    "Google key": ("AIza", "GOCSPX-"),
    "Slack token": ("xox", "xapp-"),
    "access token": ("gsk_", "xai-", "pplx-", "nvapi-", "glpat-", "npm_", "pypi-", "sk_live_", "rk_live_"),
    "private key": ("PRIVATE KEY",),
    "signed token": ("eyJ",),
}
"""The kinds that an issuer marks, and the marks in their own case."""

FIELD: Final = re.compile(rf'(?<!\\)"(?:{SECRET_NAMES})"\s*:\s*(?=["\d\[-])', re.IGNORECASE)
"""JSON members that are secrets by name. Their value is text, a number or a list; in a schema it is an object."""

RAW: Final = re.compile(r'(?<!\\)"raw"\s*:\s*(?=["{\[])')
"""`error.metadata.raw`: what upstream said, which has held team and key ids. In answers only, where text is quoted."""

_VALUE: Final = r'(?:"(?:[^"\\]|\\.)*"?|\{[^}]*\}?|\[[^\]]*\]?|[^,}\s]+)'
_MEMBERS: Final = tuple(re.compile(rule.pattern.replace(r"(?<!\\)", "") + _VALUE, rule.flags) for rule in (FIELD, RAW))


def redact(text: str, most: int) -> str:
    """Return at most `most` characters, without secrets, safe to show.

    >>> redact('{"user_id": "u-1", "message": "No"}', 80)
    '{"user_id": [SCRUBBED], "message": "No"}'
    """
    found = text[:LOOKED_AT].replace('\\"', '"')
    for rule in _MEMBERS:
        found = rule.sub(lambda member: f"{member[0].partition(':')[0]}: {MARK}", found)
    for rule in PATTERNS.values():
        found = rule.sub(_masked, found)
    if any(True for decoded in decodings(found) for _ in issued_in(decoded)):
        found = f"{MARK}, words that hold an encoded key"
    return escaped(found)[:most]


def issued_in(text: str) -> Iterator[str]:
    """Yield the kinds of issued keys in a text."""
    for kind, marks in ISSUED.items():
        if any(mark in text for mark in marks):
            found = PATTERNS[kind].finditer(text)
            if any(mark in each[0] for each in found for mark in marks):
                yield kind


def _masked(match: re.Match[str]) -> str:
    if "secret" not in match.re.groupindex:
        return MARK
    start, stop = (match.start("secret") - match.start(), match.end("secret") - match.start())
    return match[0][:start] + MARK + match[0][stop:]


class Redaction:
    """Removes one key from answers; None removes nothing."""

    def __init__(self, key: str | None) -> None:
        tails = {key[match.end() :] for match in re.finditer("[-_]", key)} if key else set()
        forms = sorted({form for form in {key or "", *tails} if len(form) >= SHORTEST}, key=len, reverse=True)
        encoded = [*_encoded(forms[-1])] if forms else []
        # Who escapes letters and digits escapes all of them: without one of these runs no pattern need run.
        runs = [max(re.findall("[0-9A-Za-z]+", form), key=len, default="") for form in [*forms[-1:], *encoded]]
        runs += [f"{sign}{ord(form[0]):02x}" for form in forms[-1:] for sign in ("u00", "%")]
        self._runs = tuple({each.encode() for run in runs for each in (run, run.lower(), run.upper())})
        self._rule = re.compile("|".join(map(_escaped, [*forms, *encoded])).encode(), re.IGNORECASE)

    def of(self, raw: bytes) -> bytes:
        """Return the bytes without the key."""
        if not any(run in raw for run in self._runs):
            return raw
        return self._rule.sub(REMOVED.encode(), raw)

    def of_text(self, text: str) -> str:
        """Return the text without the key."""
        return self.of(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def of_header(self, text: str | None) -> str | None:
        """Return a header's value without the key."""
        return None if text is None else self.of_text(text)


def _encoded(form: str) -> Iterator[str]:
    """Yield a form as hex and as base64.

    At each of its three places in a longer text, without the characters that hold bits of what stands beside it.
    """
    yield form.encode().hex()
    for before, cut in enumerate((0, 2, 3)):
        data = b"\0" * before + form.encode()
        stop = -1 if len(data) % 3 else None
        yield base64.b64encode(data).decode().rstrip("=")[cut:stop]


def _escaped(form: str) -> str:
    """Return a pattern of the form, plain or escaped."""
    return "".join(
        rf"(?:{re.escape(char)}|\\+u00{ord(char):02x}|%{ord(char):02x}|\\+{re.escape(char)})" for char in form
    )
