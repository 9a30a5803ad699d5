r"""Undo the encodings that a key may stand behind.

Guarantees: text is only read. Undone, in any order and up to `DEEPEST` times over: escapes (`\u0073`, `\x73`, `%73`,
`&#115;`), hex, base64 in both alphabets at any offset and with line ends in it, and UTF-16 and UTF-32, which are ASCII
between null bytes. Not undone: compression, encryption, and what is spread over two texts.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterator
from typing import Final

DEEPEST: Final = 3
"""Encodings over each other that are undone."""

_CODE: Final = re.compile(
    r"\\+(?:u00|u\{0*|x|U000000)([0-7][0-9a-f])\}?|%(?:25)*([0-7][0-9a-f])|&#(?:x0*([0-7][0-9a-f])|0*(\d{2,3}));|\\+/",
    re.IGNORECASE,
)
_LINE_END: Final = r"(?:\\+[rn]|[\r\n])+[ \t]*"
_BASE64: Final = re.compile(rf"[A-Za-z0-9+/_-]{{16,}}(?:{_LINE_END}[A-Za-z0-9+/_-]{{2,}})*")
_HEX: Final = re.compile("[0-9A-Fa-f]{28,}")
_SEPARATORS: Final = str.maketrans("", "", " ,:;-")
"""What stands between the bytes of a dump."""
_TEXT: Final = re.compile(rb"[\x20-\x7e\x00\r\n\t]{12,}")
"""What is text in decoded bytes; all else is noise, which no encoding gave."""
_ALPHABET: Final = str.maketrans("-_", "+/")


def decodings(text: str) -> Iterator[str]:
    """Yield what a text says with encodings undone.

    Layer under layer; what no encoding gives is left out.
    """
    waiting = [text]
    for _ in range(DEEPEST):
        waiting = [found for each in waiting for undo in _DECODERS if (found := undo(each))]
        yield from waiting


def _unescaped(text: str) -> str:
    if not any(sign in text for sign in ("\\", "%", "&#")):
        return ""
    found = _CODE.sub(_char, text)
    return "" if found == text else found


def _char(match: re.Match[str]) -> str:
    hexadecimal = match[1] or match[2] or match[3]
    if hexadecimal is not None:
        return chr(int(hexadecimal, 16))
    return "/" if match[4] is None else chr(int(match[4]))


def _narrowed(text: str) -> str:
    return text.replace("\0", "") if "\0" in text else ""


def _from_base64(text: str) -> str:
    return "\n".join(part for run in _BASE64.findall(text) for part in _at_offsets(re.sub(_LINE_END, "", run)))


def _at_offsets(run: str) -> Iterator[str]:
    """Yield the texts that a run of base64 gives.

    At each of four offsets, for what stands before it may be of its alphabet.
    """
    plain = run.translate(_ALPHABET)
    for offset in range(4):
        whole = plain[offset:]
        whole = whole[:-1] if len(whole) % 4 == 1 else whole
        yield from _texts(binascii.a2b_base64(whole + "=" * (-len(whole) % 4)))


def _from_hex(text: str) -> str:
    runs = _HEX.findall(text.translate(_SEPARATORS).replace("0x", ""))
    shifted = (run[offset:] for run in runs for offset in (0, 1))
    return "\n".join(part for run in shifted for part in _texts(bytes.fromhex(run[: len(run) // 2 * 2])))


def _texts(data: bytes) -> Iterator[str]:
    yield from (found.decode("ascii") for found in _TEXT.findall(data))


_DECODERS: Final[tuple[Callable[[str], str], ...]] = (_unescaped, _narrowed, _from_base64, _from_hex)
