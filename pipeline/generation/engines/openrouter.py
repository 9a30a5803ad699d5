"""Client of OpenRouter and of its emulator.

Guarantees: a request leaves as exactly the bytes it was given, once, with the SDK's own retries off. The body comes
back byte for byte (keep-alive white space, SSE comments and what follows an in-band error included), whatever its
status. Nothing is refused or parsed here: `pipeline.proof.wire` does that. No key stands in a repr, a message or an
answer.

A pool's work for each request grows with its connections, so `OpenRouter` uses `Pools` of a few connections each.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.cookiejar import DefaultCookiePolicy
from typing import Final, Generic, Literal, Protocol, Self, TypeVar, cast
from urllib.parse import urlsplit

import httpx2
import openai

from pipeline.base.redaction import Redaction, redact
from pipeline.generation.engines.bounded import MOST_BYTES, WHOLE_SECONDS, BoundedClient, cut_of
from pipeline.records import Reason, RefusedError

OPENROUTER_URL: Final = "https://openrouter.ai/api/v1"
KEY_VARIABLE: Final = "OPENROUTER_API_KEY"
FROM_KEYRING: Final = "keyring get drafter-gate openrouter"
KEY_CHARS: Final = 16
"""Shorter keys are refused: every key is blotted out of what comes back, and a short one would blot out text."""

EMULATOR_KEY: Final = "emulator-needs-no-key"
READ_SECONDS: Final = 180.0
"""The longest silence within an answer; OpenRouter sends keep-alives every few seconds."""

GENERATION_ID: Final = re.compile(rb'"id"\s*:\s*"(gen-[\w-]+)"')
UNSENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)
"""Failures before the first byte of a request."""

NO_COOKIES: Final = DefaultCookiePolicy(allowed_domains=())
"""Nothing of one answer goes with the next request."""

HEADERS: Final = cast(
    "Mapping[str, str]",
    {
        "X-OpenRouter-Cache": "false",  # a preset may have switched it on, and a replayed answer is no sample
        # The SDK would send $OPENAI_ORG_ID and $OPENAI_PROJECT_ID, which are another company's business.
        "OpenAI-Organization": openai.Omit(),
        "OpenAI-Project": openai.Omit(),
    },
)


# At its lowest level the library below logs every header that comes back, cookies among them, if logs are on.
logging.getLogger("httpcore2").setLevel(logging.WARNING)


class KeyMissingError(Exception):
    """No usable key in the environment."""


class NoAnswerError(Exception):
    """The connection failed before a status came back.

    `sent` says whether the request may have been billed.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class Key:
    """An API key that does not print."""

    value: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came back over HTTP.

    `raw` is the body with only its content encoding undone; `complete` is False where it was cut. `retry_after` and
    `rate_limit_reset` are the headers' own text (seconds or a date; milliseconds since 1970). `engine_seconds` is its
    share of the time that an engine of our own was busy.
    """

    status: int
    raw: bytes = field(repr=False)
    content_type: str
    generation_id: str | None
    retry_after: str | None
    rate_limit_reset: str | None = None
    complete: bool = True
    engine_seconds: float | None = None
    cut: str = ""
    """Why it is not complete."""


def key_from_environment() -> Key:
    """Return the key in $OPENROUTER_API_KEY.

    It is looked for nowhere else. From a keyring it comes by way of the variable: the keyring's library is a package
    that constraints.txt does not list, and the gate refuses those, so its command, installed apart from here, hands the
    key over.
    """
    value = os.environ.get(KEY_VARIABLE, "")
    if not value:
        raise KeyMissingError(
            f"${KEY_VARIABLE} is not set: run export {KEY_VARIABLE}=<key of https://openrouter.ai/keys>, or, where the"
            f" key lies in a keyring, export {KEY_VARIABLE}=$({FROM_KEYRING})"
        )
    if len(value) < KEY_CHARS or not all("!" <= char <= "~" for char in value):
        rule = f"a key is at least {KEY_CHARS} printable ASCII characters without white space"
        raise KeyMissingError(f"${KEY_VARIABLE} holds {len(value)} characters that are no key: {rule}. Set it again.")
    return Key(value)


def encode_body(body: dict[str, object]) -> bytes:
    """Return the request's bytes.

    Compact JSON in the order given, so that one request has one hash. Raises RefusedError for a lone surrogate.
    """
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        message = f"the request holds the lone surrogate U+{ord(text[error.start]):04X}, which has no UTF-8"
        raise RefusedError(Reason.LONE_SURROGATE, message, field="messages") from None


@dataclass(frozen=True, slots=True)
class _Wire:
    """One pool of connections, and the SDK over it."""

    http: httpx2.AsyncClient
    sdk: openai.AsyncOpenAI

    async def close(self) -> None:
        await self.sdk.close()


class OpenRouter:
    """Pools of connections to one base URL.

    Use as `async with`, or close it.
    """

    def __init__(
        self,
        base_url: str = OPENROUTER_URL,
        key: Key | None = None,
        *,
        read_seconds: float = READ_SECONDS,
        whole_seconds: float = WHOLE_SECONDS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._key = key or Key(EMULATOR_KEY)
        self._redaction = Redaction(key.value if key else None)
        self._read_seconds, self._whole_seconds, self._most_bytes = read_seconds, whole_seconds, most_bytes
        self._tls = httpx2.create_ssl_context()
        self._pools = Pools(self._wire)

    def _wire(self) -> _Wire:
        http = BoundedClient(
            most_bytes=self._most_bytes,
            whole_seconds=self._whole_seconds,
            verify=self._tls,
            timeout=httpx2.Timeout(None, connect=20.0, read=self._read_seconds, write=60.0),
            limits=httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
            trust_env=not is_loopback(self.base_url),  # a proxy from the environment cannot reach this loopback
        )
        http.cookies.jar.set_policy(NO_COOKIES)
        sdk = openai.AsyncOpenAI(
            api_key=self._key.value,
            base_url=self.base_url,
            max_retries=0,
            http_client=http,
            default_headers=HEADERS,
        )
        return _Wire(http, sdk)

    def __repr__(self) -> str:
        return f"OpenRouter({self.base_url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._pools.close()

    async def send(self, body: bytes) -> HttpAnswer:
        """Send one POST of `body` to /chat/completions.

        Raises NoAnswerError where no status came back.
        """
        with self._pools.use() as wire:
            try:
                response = await wire.sdk.post(
                    "/chat/completions",
                    cast_to=httpx2.Response,
                    content=body,
                    options={"headers": {"Content-Type": "application/json"}},
                    stream=True,
                    stream_cls=openai.AsyncStream[object],
                )
            except openai.APIStatusError as error:  # the SDK has read the body, and the answer is an answer
                return self._whole(error.response)
            except openai.APIConnectionError as error:
                raise self._no_answer(error.__cause__ or error) from None
            return self._answer(response)  # type: ignore[arg-type]  # cast_to says what it is; stream_cls hides it

    async def get(self, path: str, **params: str) -> HttpAnswer:
        """Send one GET below the base URL.

        Free of charge on OpenRouter. Raises NoAnswerError.
        """
        headers = {"Authorization": f"Bearer {self._key.value}"}
        try:
            with self._pools.use() as wire:
                response = await wire.http.get(f"{self.base_url}/{path.lstrip('/')}", params=params, headers=headers)
        except httpx2.TransportError as error:
            raise self._no_answer(error) from None
        return self._whole(response)

    def _whole(self, response: httpx2.Response) -> HttpAnswer:
        """Return an error or a page.

        One that was cut says too little to be read. Raises NoAnswerError.
        """
        if cut := cut_of(response):
            raise self._no_answer(httpx2.ReadError(f"status {response.status_code}, then {cut}"))
        return self._answer(response)

    def _answer(self, response: httpx2.Response) -> HttpAnswer:
        raw, cut = response.content, cut_of(response)
        headers, of_header, raw = response.headers, self._redaction.of_header, self._redaction.of(raw)
        found = GENERATION_ID.search(raw)
        return HttpAnswer(
            status=response.status_code,
            raw=raw,
            content_type=of_header(headers.get("content-type")) or "",
            generation_id=of_header(headers.get("x-generation-id")) or (found.group(1).decode() if found else None),
            retry_after=of_header(headers.get("retry-after")),
            rate_limit_reset=of_header(headers.get("x-ratelimit-reset")),
            complete=not cut,
            cut=cut,
        )

    def _no_answer(self, cause: BaseException) -> NoAnswerError:
        host = urlsplit(self.base_url).netloc
        what = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
        what = redact(self._redaction.of_text(what), 300)
        if isinstance(cause, UNSENT):
            message = f"{host} could not be reached ({what}). This request was not sent, so nothing was billed for it."
            return NoAnswerError(message, sent=False)
        message = f"{host} gave no answer ({what}). The request was sent and may be billed."
        return NoAnswerError(message, sent=True)


def is_loopback(url: str) -> bool:
    """Whether the URL names this machine."""
    return urlsplit(url).hostname in {"localhost", "127.0.0.1", "::1"}


def open_client(api: Literal["emulator", "openrouter"], base_url: str | None = None) -> OpenRouter:
    """Return a client for the API.

    The key comes from the environment for `openrouter`; none goes to an emulator. Raises KeyMissingError, ValueError.
    """
    if api == "openrouter":
        return OpenRouter(base_url or OPENROUTER_URL, key_from_environment())
    if base_url is None or not is_loopback(base_url):
        message = f"the emulator is reached on this machine only, and {base_url!r} is not on it"
        raise ValueError(f"{message}. Start one with: python -m harness emulator --port 0")
    return OpenRouter(base_url)


CONNECTIONS = 8
"""Connections of one pool."""


class Closing(Protocol):
    """A client that can be closed."""

    async def close(self) -> None: ...


T = TypeVar("T", bound=Closing)


@dataclass(slots=True)
class _Pool(Generic[T]):
    client: T
    in_flight: int = 0


class Pools(Generic[T]):
    """Clients with `CONNECTIONS` connections each.

    A request goes through the first client that has room, so that few requests keep few connections. Clients are made
    as they are needed.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._pools: list[_Pool[T]] = []

    @contextmanager
    def use(self) -> Iterator[T]:
        """Lend a client with a free connection for one request."""
        pool = next((pool for pool in self._pools if pool.in_flight < CONNECTIONS), None)
        if pool is None:
            pool = _Pool(self._make())
            self._pools.append(pool)
        pool.in_flight += 1
        try:
            yield pool.client
        finally:
            pool.in_flight -= 1

    async def close(self) -> None:
        """Close all connections."""
        for pool in self._pools:
            await pool.client.close()
