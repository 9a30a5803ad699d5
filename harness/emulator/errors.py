"""OpenRouter's error answers, in shapes seen on the wire.

Guarantees: every body is `{"error": {"message", "code"[, "metadata"]}, "user_id"?}`. `user_id` is a made-up one, so
that recordings hold something that must be scrubbed.
"""

from __future__ import annotations

import json
from typing import Final

from pipeline.records import Json

BAD_REQUEST: Final = 400
UNAUTHORIZED: Final = 401
NO_CREDIT: Final = 402
NOT_FOUND: Final = 404
RATE_LIMITED: Final = 429
BAD_GATEWAY: Final = 502

USER_ID: Final = "user_2emulatorEmulatorEmulator0000"


class ApiError(Exception):
    """An error answer to send.

    `headers` go on the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        metadata: dict[str, Json] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.metadata = metadata
        self.headers = headers or {}

    def body(self) -> bytes:
        """Return the JSON body.

        401 and 404 answers carry no user.
        """
        error: dict[str, Json] = {"message": self.message, "code": self.status}
        if self.metadata is not None:
            error["metadata"] = self.metadata
        answer: dict[str, Json] = {"error": error}
        if self.status not in {UNAUTHORIZED, NOT_FOUND}:
            answer["user_id"] = USER_ID
        return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()


def provider_error(provider: str, raw: str, status: int = BAD_GATEWAY) -> ApiError:
    """Return the error of a failing provider.

    `raw` is the provider's own message.
    """
    return ApiError(status, "Provider returned error", metadata={"raw": raw, "provider_name": provider})


def rate_limited(limit: int, reset_ms: int, retry_after: int) -> ApiError:
    """Return OpenRouter's own 429.

    The limits stand in headers and once more in the body.
    """
    limits: dict[str, str] = {
        "X-RateLimit-Limit": str(limit),
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": str(reset_ms),
    }
    return ApiError(
        RATE_LIMITED,
        "Rate limit exceeded: requests-per-minute. ",
        metadata={"headers": {**limits}, "provider_name": None},
        headers={**limits, "Retry-After": str(retry_after)},
    )


def context_overflow(context: int, prompt: int, output: int) -> ApiError:
    """Return the error of a request that does not fit.

    All three arguments in tokens.
    """
    return ApiError(
        BAD_REQUEST,
        f"This endpoint's maximum context length is {context} tokens. However, you requested about {prompt + output} "
        f"tokens ({prompt} of text input, {output} in the output). Please reduce the length of either one, or use the "
        "context-compression plugin to compress your prompt automatically.",
        metadata={"provider_name": None},
    )
