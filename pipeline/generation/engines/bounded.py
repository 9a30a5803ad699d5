"""HTTP client whose answers have a greatest size and time.

Guarantees: no answer, error or page takes more memory than `most_bytes`, however small it came over the wire, nor more
time than `whole_seconds`, whatever keeps it alive. What came before a limit is kept: it may be paid.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httpx2

WHOLE_SECONDS: Final = 3600.0
"""The longest time for one whole answer: keep-alives alone would hold a run for ever."""
MOST_BYTES: Final = 128 * 1024 * 1024
"""The most bytes of one answer with its encoding undone: 131,072 streamed tokens of 1 KiB each."""
_ENCODED: Final = frozenset({"content-encoding", "content-length", "transfer-encoding"})


class BoundedClient(httpx2.AsyncClient):
    """A client that reads bodies up to its limits.

    `cut_of` says why a body ended early.
    """

    def __init__(
        self,
        *,
        most_bytes: int = MOST_BYTES,
        whole_seconds: float = WHOLE_SECONDS,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**settings)
        self._most_bytes, self._whole_seconds = most_bytes, whole_seconds

    async def send(self, request: httpx2.Request, **settings: Any) -> httpx2.Response:  # noqa: ANN401 - as its parent
        """Send a request and read its answer.

        Raises httpx2.ReadTimeout where no status came in time, and httpx2.TransportError as its parent does.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._whole_seconds
        try:
            async with asyncio.timeout_at(until):
                response = await super().send(request, **{**settings, "stream": True})
        except TimeoutError:
            raise httpx2.ReadTimeout(f"no status after {self._whole_seconds:g} s", request=request) from None
        raw, cut = await self._read(response, until)
        headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in _ENCODED]
        return httpx2.Response(
            response.status_code, headers=headers, content=raw, request=request, extensions={"cut": cut}
        )

    async def _read(self, response: httpx2.Response, until: float) -> tuple[bytes, str]:
        raw = bytearray()
        try:
            async with asyncio.timeout_at(until):
                async for part in response.aiter_bytes():
                    raw += part[: self._most_bytes - len(raw)]
                    if len(raw) == self._most_bytes:
                        return bytes(raw), f"the answer reached the limit of {self._most_bytes} bytes"
        except TimeoutError:
            return bytes(raw), f"the answer had not ended after {self._whole_seconds:g} s"
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            return bytes(raw), f"the connection broke ({type(error).__name__})"
        finally:
            await response.aclose()
        return bytes(raw), ""


def cut_of(response: httpx2.Response) -> str:
    """Return why a bounded body ended early, else nothing."""
    return str(response.extensions.get("cut", ""))
