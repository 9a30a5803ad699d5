"""Characters whose class differs between the Unicode tables of engines."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from pipeline.formats.unicode_tables import CHANGED, first_changed


def test_every_listed_character_is_newer_or_changed() -> None:
    """U+0295 and U+1171E were assigned before, and changed their class after Unicode 14."""
    if unicodedata.unidata_version != "14.0.0":
        pytest.skip(f"this Python has Unicode {unicodedata.unidata_version}, not the oldest table in use")
    listed = [char for char in map(chr, range(sys.maxunicode + 1)) if CHANGED.match(char)]

    assert 15106 == len(listed)
    assert {0x295, 0x1171E} == {ord(char) for char in listed if unicodedata.category(char) != "Cn"}


@pytest.mark.parametrize("char, expected", [("\U0001e5d0", 3), ("\U0001fa77", 3), ("é", None), ("中", None)])
def test_a_newer_character_is_found_with_its_place(char: str, expected: int | None) -> None:
    assert expected == first_changed(f"Is {char}")
