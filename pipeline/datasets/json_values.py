"""Find the JSON values of a file without loading it.

The values stand one after another, or in one array.

Guarantees: memory grows with the longest value, not with the file. Where the text stops being JSON, no later value can
be found, so that is an error and not a rejected row.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import BinaryIO

from pipeline.base.json_lines import LONGEST_LINE

PART = 256 * 1024
BETWEEN = " \t\r\n"


class BrokenJsonError(Exception):
    """The text is no JSON from some record on."""


def values_in(file: BinaryIO) -> Iterator[str]:
    """Yield each value's text: an array's items, or all values.

    Raises BrokenJsonError.
    """
    text = _JsonWindow(file)
    array = text.next_char() == "["
    text.at += array
    for number in range(1, 1 << 62):
        char = text.next_char()
        if char == "" or (array and char == "]"):
            break
        if array and number > 1:
            text.expect(",", number)
        yield text.value(number)
    if array and char != "]":
        raise BrokenJsonError(f"the array is cut off after {number - 1} records")
    text.at += array
    if array and text.next_char() != "":
        raise BrokenJsonError(f"text follows the array of {number - 1} records")


class _JsonWindow:
    """A window on the file; `at` is the next value."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._held = ""
        self._decoder = json.JSONDecoder()
        self.at = 0

    def next_char(self) -> str:
        """Return the next character but white space, or ""."""
        while True:
            while self.at < len(self._held):
                if (char := self._held[self.at]) not in BETWEEN:
                    return char
                self.at += 1
            if not self._more(PART):
                return ""

    def expect(self, wanted: str, number: int) -> None:
        """Skip the comma before a record. Raises BrokenJsonError."""
        if self.next_char() != wanted:
            raise BrokenJsonError(f"record {number} does not follow a comma")
        self.at += 1
        if self.next_char() == "]":
            raise BrokenJsonError(f"a comma stands after the last of {number - 1} records")

    def value(self, number: int) -> str:
        """Return the text of the value that begins here."""
        size = PART
        while True:
            try:
                end = self._decoder.raw_decode(self._held, self.at)[1]
                if end < len(self._held) or not self._more(size):
                    text, self.at = self._held[self.at : end], end
                    return text
            except RecursionError:
                raise BrokenJsonError(f"record {number} is nested too deeply to read") from None
            except ValueError as error:
                # A value that was cut by the window reads as an error until more of it is there.
                if len(self._held) - self.at > LONGEST_LINE or not self._more(size):
                    raise BrokenJsonError(f"record {number} is no JSON ({error})") from None
            size *= 2

    def _more(self, size: int) -> bool:
        data = self._file.read(size)
        try:
            text = self._decode(data, not data)
        except UnicodeDecodeError as error:
            raise BrokenJsonError(f"not UTF-8 ({error.reason})") from None
        if data:
            self._held, self.at = self._held[self.at :] + text, 0
        return bool(data)
