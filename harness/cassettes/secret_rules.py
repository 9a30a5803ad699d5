r"""What counts as a secret in a recording: the shapes and names of `pipeline.base.secret_shapes`, and more.

Guarantees: nothing here matches the mark that takes a secret's place.
"""

from __future__ import annotations

import re
from typing import Final

from pipeline.base.secret_shapes import FIELD, MARK, PATTERNS, QUERY_NAMES, RAW

__all__ = ["CREDENTIALS", "FIELD", "MARK", "PATTERNS", "QUERY", "RAW", "SAID"]

SAID: Final = re.compile(r'(?<!\\)"(?:message|error|detail|description|error_description)"\s*:\s*(?=")')
"""Text of an error, which a server wrote: in an answer's own structure a model's words have other names."""

QUERY: Final = re.compile(rf"(?:{QUERY_NAMES})", re.IGNORECASE)
"""Names of parameters whose value is a secret, matched in full."""

CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "x-api-key", "api-key"})
"""Request headers that carry the key in use."""
