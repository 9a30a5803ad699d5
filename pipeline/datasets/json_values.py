"""JSON values that stand in one file one after another, or in one array: found one at a time, without loading the file.

Guarantees: memory grows with the longest value, not with the file. Where the text stops being JSON, nothing behind it
can be found, so that is an error and no rejected row.
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
    """The text is no JSON from here on; says after how many values."""


def values_in(file: BinaryIO) -> Iterator[str]:
    """The text of each value: the items of an array, or values with white space between. Raises BrokenJsonError."""
    text = _Text(file)
    array = text.next_char() == "["
    text.at += array
    for number in range(1, 1 << 62):
        char = text.next_char()
        if char == "" or (array and char == "]"):
            return _check_end(text, array=array, closed=char == "]", number=number)
        if array and number > 1:
            text.expect(",", number)
        yield text.value(number)


def _check_end(text: _Text, *, array: bool, closed: bool, number: int) -> None:
    if array and not closed:
        raise BrokenJsonError(f"the array is cut off after {number - 1} records")
    text.at += closed
    if array and text.next_char() != "":
        raise BrokenJsonError(f"text follows the array of {number - 1} records")


class _Text:
    """A window on the file: `at` is where the next value begins."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._held = ""
        self._decoder = json.JSONDecoder()
        self.at = 0

    def next_char(self) -> str:
        """The next character that is not white space; "" at the end of the file."""
        while True:
            while self.at < len(self._held):
                if (char := self._held[self.at]) not in BETWEEN:
                    return char
                self.at += 1
            if not self._more(PART):
                return ""

    def expect(self, wanted: str, number: int) -> None:
        """Pass over one character."""
        if self.next_char() != wanted:
            raise BrokenJsonError(f"record {number} does not follow a comma")
        self.at += 1
        if self.next_char() == "]":
            raise BrokenJsonError(f"a comma stands after the last of {number - 1} records")

    def value(self, number: int) -> str:
        """The text of the value that begins here."""
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
