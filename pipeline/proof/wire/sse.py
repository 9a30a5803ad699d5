"""The events of a stream: server-sent events as text, each as its data.

Guarantees: lines end as the EventSource rules say (CRLF, CR, LF), several data lines are joined, a byte-order mark and
comments are no data. A comment that a gateway sent as data (`data: : PROCESSING`) is still a comment: no JSON begins
with a colon. Refuses a stream that was cut inside an event, and an event that calls itself an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.base.quoting import quoted
from pipeline.records import Reason, RefusedError


@dataclass(slots=True)
class Events:
    """A stream's events in order, in UTF-8 with LF line ends; `at` is where the next one begins.

    Whoever reads events by themselves may move `at`. Half a surrogate pair keeps its three bytes.
    """

    raw: bytes
    at: int = 0

    def __iter__(self) -> Iterator[str]:
        """The data of each event that has any; RefusedError(STREAM_CUT) where the text ends inside a line."""
        while (stop := self.raw.find(b"\n\n", self.at)) >= 0:
            block, self.at = self.raw[self.at : stop].decode("utf-8", "surrogatepass"), stop + 2
            if "\n" not in block and block.startswith("data: {"):
                yield block[6:]
            elif data := _data(block):
                yield data
        tail = self.raw[self.at :].decode("utf-8", "surrogatepass")
        if data := _data(tail):
            if not tail.endswith("\n") and data != "[DONE]":  # whoever saved it may have left out the last line end
                message = f"the last event has no blank line after it: {quoted(data, 60)}"
                raise RefusedError(Reason.STREAM_CUT, message, field="sse")
            yield data


def events_of(raw: str) -> Events:
    """The events of a stream's whole text."""
    text = raw.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return Events(text.encode("utf-8", "surrogatepass"))


def sse_data(raw: str) -> Iterator[str]:
    """The data of each event of a stream's whole text."""
    return iter(events_of(raw))


def _data(block: str) -> str:
    lines = block.split("\n")
    data = "\n".join(line[5:].removeprefix(" ") for line in lines if line.startswith("data:"))
    if any(line.startswith("event:") and line[6:].strip() == "error" for line in lines):
        raise RefusedError(Reason.UPSTREAM_ERROR, f"an event called error: {quoted(data, 200)}", field="error")
    return "" if data.isspace() or data.startswith(":") else data
