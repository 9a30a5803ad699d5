r"""Characters that engines' Unicode tables class differently.

Vocabularies split text by classes such as `\p{L}`, and each tokenizer library carries the table of its own time:
engines in use have those of Unicode 14 to 17. A character that was assigned, or whose class changed, after Unicode 14
is split in two ways, often in as many tokens, so no text and no count say what was emitted or served.

The list is what `\p{…}` of ICU 78 (Unicode 17) says otherwise than Python 3.11's `unicodedata` (Unicode 14). The
tables of our own libraries are pinned by `constraints.txt`, which the gate compares.
"""

from __future__ import annotations

import re
from typing import Final

OLDEST, NEWEST = "14.0", "17.0"
"""Unicode versions of the tables in use."""

_RANGES: Final = """
295 88F 897 C5C CDC CF3 ECE 1ACF-1ADD 1AE0-1AEB 1B4E-1B4F 1B7F 1C89-1C8A 20C1 2427-2429 2B96 2FFC-2FFF 31E4-31E5
31EF A7CB-A7CF A7D2 A7D4 A7DA-A7DC A7F1 FBC3-FBD2 FD90-FD91 FDC8-FDCE 105C0-105F3 10940-10959 10D40-10D65
10D69-10D85 10D8E-10D8F 10EC2-10EC7 10ED0-10ED8 10EFA-10EFF 1123F-11241 11380-11389 1138B 1138E 11390-113B5
113B7-113C0 113C2 113C5 113C7-113CA 113CC-113D5 113D7-113D8 113E1-113E2 116D0-116E3 1171E 11B00-11B09
11B60-11B67 11BC0-11BE1 11BF0-11BF9 11DB0-11DDB 11DE0-11DE9 11F00-11F10 11F12-11F3A 11F3E-11F5A 1342F
13439-13455 13460-143FA 16100-16139 16D40-16D79 16EA0-16EB8 16EBB-16ED3 16FF2-16FF6 187F8-187FF 18CFF
18D09-18D1E 18D80-18DF2 1B132 1B155 1CC00-1CCFC 1CD00-1CEB3 1CEBA-1CED0 1CEE0-1CEF0 1D2C0-1D2D3 1DF25-1DF2A
1E030-1E06D 1E08F 1E4D0-1E4F9 1E5D0-1E5FA 1E5FF 1E6C0-1E6DE 1E6E0-1E6F5 1E6FE-1E6FF 1F6D8 1F6DC 1F774-1F77F
1F7D9 1F8B2-1F8BB 1F8C0-1F8C1 1F8D0-1F8D8 1FA54-1FA57 1FA75-1FA77 1FA87-1FA8A 1FA8E-1FA8F 1FAAD-1FAAF
1FABB-1FABF 1FAC6 1FAC8 1FACD-1FACF 1FADA-1FADC 1FADF 1FAE8-1FAEA 1FAEF 1FAF7-1FAF8 1FBCB-1FBEF 1FBFA
2B739-2B73F 2CEA2-2CEAD 2EBF0-2EE5D 31350-33479
"""


def _pattern(ranges: str) -> re.Pattern[str]:
    spans = (each.partition("-") for each in ranges.split())
    return re.compile("[" + "".join(f"\\U{int(a, 16):08x}-\\U{int(b or a, 16):08x}" for a, _, b in spans) + "]")


CHANGED: Final = _pattern(_RANGES)
"""Matches one such character."""


def first_changed(text: str) -> int | None:
    r"""Return where the first such character stands, if any.

    >>> first_changed("a new letter: \U0001e5d0"), first_changed("plain")
    (14, None)
    """
    found = None if text.isascii() else CHANGED.search(text)
    return None if found is None else found.start()
