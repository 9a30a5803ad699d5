"""Faults of a provider, by name.

Each stands between a true answer and the wire: costs that lie or cannot be read, answers that inflate or never end, and
texts with control characters.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from harness.emulator.service import Faults

Body: TypeAlias = Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]
COST = re.compile(rb'"cost": ?([\d.eE+-]+)')
OWN_KEY = re.compile(rb'("is_byok": ?)false')
NAMED = re.compile(rb'("(?:provider|model|native_finish_reason)": ?")')
DONE = b"data: [DONE]"
ESCAPES = rb"\u001b]0;owned\u0007\u001b[2J\rallowed"
KEEP_ALIVE = b": OPENROUTER PROCESSING\n\n"
LATE_SECONDS = 2.0
BOMB_BYTES = 1_200_000_000
_PIECE = b" " * 1_000_000


def rewritten(pattern: re.Pattern[bytes], new: bytes) -> Body:
    """Return a fault that replaces a pattern in each chunk."""

    async def body(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            yield pattern.sub(new, chunk)

    return body


async def byok(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Bill upstream in place of the provider's account."""
    upstream = rb'"cost":0,"cost_details":{"upstream_inference_cost":\1}'
    async for chunk in chunks:
        yield COST.sub(upstream, OWN_KEY.sub(rb"\1true", chunk))


async def forever(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Send keep-alives alone, for ever."""
    async for _ in chunks:
        pass  # it is made and billed all the same
    while True:
        yield KEEP_ALIVE
        await asyncio.sleep(0.5)


async def late_done(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Send the end of the stream long after the finish."""
    async for chunk in chunks:
        before, done, after = chunk.partition(DONE)
        if before:
            yield before
        if done:
            await asyncio.sleep(LATE_SECONDS)
            yield done + after


async def bomb(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Send the answer and 1.2 GB of spaces, packed."""
    whole = b"".join([chunk async for chunk in chunks])
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)  # gzip, in one member: clients stop after the first
    yield packer.compress(whole)
    for _ in range(BOMB_BYTES // len(_PIECE)):
        yield packer.compress(_PIECE)
    yield packer.flush()


FAULTS: Mapping[str, Faults] = MappingProxyType(
    {
        "bomb": Faults(body=bomb, encoding="gzip"),
        "forever": Faults(body=forever),
        "late-done": Faults(body=late_done),
        "escape": Faults(body=rewritten(NAMED, rb"\1" + ESCAPES.replace(b"\\", b"\\\\"))),
        "byok": Faults(body=byok),
        "cost-string": Faults(body=rewritten(COST, rb'"cost":"\1"')),
        "negative-cost": Faults(body=rewritten(COST, rb'"cost":-0.5')),
    }
)
