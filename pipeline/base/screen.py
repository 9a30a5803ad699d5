r"""Text that is not ours, made safe to show.

Guarantees: what comes out of `escaped` moves no cursor, rings no bell, reverses no line and begins none, in a terminal,
in HTML and in a log alike. Providers' errors, models' names and rows' texts were seen to hold escape sequences that
forged a line "allowed".
"""

from __future__ import annotations

import re
from typing import Final

_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""Control, format and direction characters, invisible ones, and halves of surrogate pairs."""


def escaped(text: str, *, lines: bool = False) -> str:
    r"""Return the text with such characters as `\x1b` or `\u202e`.

    Line feeds are kept where `lines` are ours.

    >>> print(escaped("done\x1b[2K\rallowed"))
    done\x1b[2K\rallowed
    """
    return _UNSAFE.sub(lambda found: found[0] if lines and found[0] == "\n" else _escape(found[0]), text)


def _escape(char: str) -> str:
    return repr(char)[1:-1] if not char.isprintable() else f"\\u{ord(char):04x}"
