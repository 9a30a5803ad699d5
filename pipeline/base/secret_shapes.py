r"""What counts as a secret: shapes that are one wherever they stand, and names whose value is one.

Guarantees: a shape asks for a digit, a length or a prefix that prose does not have, and none matches the mark that
takes its place. Where a rule has the group `secret`, that part alone is one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

MARK: Final = "[SCRUBBED]"

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
_SCHEMES: Final = "basic|bearer|digest|negotiate|token|api-?key"

PATTERNS: Final[Mapping[str, re.Pattern[str]]] = {
    name: re.compile(pattern, re.IGNORECASE)
    for name, pattern in {
        "OpenRouter key": r"sk-or-[a-z0-9_-]{8,}",
        "API key": r"(?<![a-z0-9])sk-(?=[a-z_-]*\d)[a-z0-9_-]{16,}",
        "Hugging Face token": r"(?<![a-z0-9])hf_[a-z0-9]{16,}",
        "GitHub token": r"(?<![a-z0-9])gh[pousr]_[a-z0-9]{20,}",
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

FIELD: Final = re.compile(rf'(?<!\\)"(?:{SECRET_NAMES})"\s*:\s*(?=["\d\[-])', re.IGNORECASE)
"""JSON members that are secrets by name, where their value is text, a number or a list; a schema of that name has an
object."""

RAW: Final = re.compile(r'(?<!\\)"raw"\s*:\s*(?=["{\[])')
"""`error.metadata.raw`: what upstream said, which has held team and key ids. In answers only; text there is quoted."""
