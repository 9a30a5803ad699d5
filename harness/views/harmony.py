"""What servers' parsers show of an answer in harmony.

Guarantees: as lax as they are. Any ids are taken: what stands where no message can is dropped, a message without a
known channel is content, and a message with a recipient is a call. Several messages of a kind are joined by a line
feed in a body, and by nothing in a stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.formats.format import Format
from pipeline.records import Ids, ToolCall

_CHANNEL = re.compile(r"<\|channel\|>(\w*)")
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_STOPS = ("<|end|>", "<|return|>", "<|call|>")


@dataclass(frozen=True, slots=True)
class HarmonyTexts:
    """The tokens of each field as bytes, and the calls."""

    reasoning: tuple[bytes, ...]
    content: tuple[bytes, ...]
    calls: tuple[ToolCall, ...]


def harmony_texts(ids: Ids, fmt: Format, *, stream: bool) -> HarmonyTexts:
    """Return what a server that parses `ids` shows.

    `ids` has shape [n].
    """
    messages = list(_messages(ids, fmt))
    calls = [(_recipient(header), text) for header, text in messages if _recipient(header)]
    others = [(_CHANNEL.findall(header), text) for header, text in messages if not _recipient(header)]
    between = () if stream else (b"\n",)
    return HarmonyTexts(
        _joined([text for channel, text in others if channel == ["analysis"]], between),
        _joined([text for channel, text in others if channel != ["analysis"]], between),
        tuple(
            ToolCall(f"call_{at:08x}", to.removeprefix("functions."), b"".join(text).decode("utf-8", errors="replace"))
            for at, (to, text) in enumerate(calls)
        ),
    )


def _messages(ids: Ids, fmt: Format) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    """Yield header and text of each message.

    The first header began in the prompt. A header that was cut shows nothing.
    """
    tokenizer = fmt.tokenizer
    stops = {tokenizer.id_of(name) for name in _STOPS}
    start, message = tokenizer.id_of("<|start|>"), tokenizer.id_of("<|message|>")
    header: list[int] | None = []
    text: list[bytes] | None = None
    for token in ids:
        if text is not None and token not in stops:
            text += [] if tokenizer.is_control(token) else [tokenizer.token_bytes(token)]
        elif token in stops:
            yield from [(_text(header or [], fmt), tuple(text))] if text is not None else []
            header, text = None, None
        elif header is None:
            header = [] if token == start else None
        elif token == message:
            text = []
        else:
            header.append(token)
    yield from [(_text(header or [], fmt), tuple(text))] if text is not None else []


def _text(ids: list[int], fmt: Format) -> str:
    return fmt.tokenizer.decode_bytes(ids).decode("utf-8", errors="replace")


def _recipient(header: str) -> str:
    found = _RECIPIENT.search(header)
    return found[1] if found else ""


def _joined(texts: list[tuple[bytes, ...]], between: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return tuple(token for at, text in enumerate(texts) for token in ((*between, *text) if at else text))
