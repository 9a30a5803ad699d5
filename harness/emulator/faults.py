"""Where faults can be put between a true answer and the wire. None is, unless asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from harness.emulator.errors import ApiError
from harness.emulator.request import ChatRequest


def no_error(_: ChatRequest) -> ApiError | None:
    """Every request is answered."""
    return None


def unchanged(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Every body is sent whole."""
    return body


@dataclass(frozen=True, slots=True)
class Faults:
    """`before` may answer with an error in place of an answer; `body` may cut, slow or damage what is sent."""

    before: Callable[[ChatRequest], ApiError | None] = no_error
    body: Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]] = unchanged
