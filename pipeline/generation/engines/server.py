"""Client of an engine's server, asked by ids.

Holds what SGLang and vLLM have in common. Guarantees: exact ids go in and exact ids come out, the end token included.
An answer without ids, with another number of them than it counts, or of another prompt is an EngineError. Text is never
read, let alone encoded again. A server is asked again who it is after every failure and on every new connection, and no
answer of another one is given back. Nothing of the server is kept but the fields of `EngineFacts`, since its own dump
of settings holds keys.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.cookiejar import DefaultCookiePolicy
from typing import Any, Final, Protocol, Self

import httpx2

from pipeline.base.json_lines import foreign_json
from pipeline.base.redaction import redact
from pipeline.generation.engines.bounded import BoundedClient, cut_of
from pipeline.generation.engines.openrouter import HttpAnswer, NoAnswerError, encode_body
from pipeline.generation.engines.output import EngineError, EngineOutput
from pipeline.records import Ids, Json, Sampling

OK: Final = 200
_SHUT: Final = frozenset({401, 403, 407})
_BROKEN: Final = 500
_JSON: Final = {"content-type": "application/json"}
READ_SECONDS: Final = 600.0
"""The longest wait for one whole answer: a CPU decodes a long one in minutes."""
CONNECT_SECONDS: Final = 10.0
MOST_OF_AN_ERROR: Final = 300
MOST_UNLIKELY: Final = -1e30
"""No logprob of a sampled token lies below."""
SURE: Final = 1e-6
"""A logprob of 0 as float32 rounds it."""


class NoIdsError(EngineError):
    """An engine was asked for ids and gave none.

    It will give none to any other request.
    """


class EngineGoneError(EngineError):
    """The server does not answer.

    It was never there, or it died with the request.
    """


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a server says of itself.

    A fact is None where it does not say. `model` is its own name for what it serves, `weights` the directory that it
    loaded, `context` the most tokens of prompt and answer together.
    """

    engine: str
    version: str
    model: str
    weights: str | None
    context: int
    device: str | None
    dtype: str | None
    attention_backend: str | None

    def document(self) -> dict[str, Json]:
        """Return what decides the numbers, for provenance.

        Neither a place nor a limit is among it.
        """
        numbers = ("engine", "version", "device", "dtype", "attention_backend")
        return {name: value for name, value in asdict(self).items() if name in numbers}


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """One request: prompt ids and how to sample.

    `stop_ids` end an answer beside the model's own.
    """

    prompt: Ids
    sampling: Sampling
    stop_ids: Ids = ()


class EngineDialect(Protocol):
    """Protocol of how one engine is spoken to.

    Implemented by `SGLang` and `VLLM`; held against recorded answers. Methods raise EngineError.
    """

    name: str
    path: str
    fact_paths: Sequence[str]

    def body(self, request: ServerRequest, model: str) -> dict[str, Json]:
        """Return the request's JSON."""
        ...

    def generation(self, request: ServerRequest, answer: Mapping[str, Any]) -> EngineOutput:
        """Return the ids that the answer carries."""
        ...

    def facts(self, pages: Mapping[str, Mapping[str, Any] | None]) -> EngineFacts:
        """Pick the facts from the pages at `fact_paths`.

        A page is None where the server has none.
        """
        ...


class EngineServer:
    """A running server.

    Use as `async with`; `facts` are read on entering.
    """

    facts: EngineFacts

    def __init__(self, dialect: EngineDialect, base_url: str, *, in_flight: int = 8) -> None:
        self.dialect, self.base_url = dialect, base_url.rstrip("/")
        self._slots = asyncio.Semaphore(in_flight)
        self._busy, self._doubted, self._looking = BusyClock(), False, asyncio.Lock()
        # One connection more, for the question who the server is.
        limits = httpx2.Limits(
            max_connections=in_flight + 1, max_keepalive_connections=in_flight, keepalive_expiry=None
        )
        timeout = httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
        # No proxy of the environment stands between this machine and itself, and no cookie goes from row to row.
        self._http = BoundedClient(whole_seconds=READ_SECONDS, limits=limits, timeout=timeout, trust_env=False)
        self._http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))

    async def __aenter__(self) -> Self:
        try:
            self.facts = await self._facts()
        except BaseException:
            await self._http.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def generate(self, request: ServerRequest) -> EngineOutput:
        """Return one answer, at most `in_flight` at a time.

        Raises EngineError, EngineGoneError.
        """
        self.require_room(request)
        async with self._slots:
            try:
                answer = await self.send(self.body(request))
            except NoAnswerError as error:
                raise EngineGoneError(str(error)) from None
        if answer.status != OK:
            raise EngineError(self._error(self.dialect.path, answer.status, answer.raw))
        return generation_of(self.dialect, request, answer.raw)

    def body(self, request: ServerRequest) -> bytes:
        """Return the request's bytes."""
        return encode_body(dict(self.dialect.body(request, self.facts.model)))

    async def send(self, body: bytes) -> HttpAnswer:
        """Send one POST of `body`.

        Returns the answer's bytes, whatever the status; nothing is billed. Raises NoAnswerError.
        """

        async def traced(event: str, _: object) -> None:
            if event.startswith("connection.connect_"):  # the server now need not be the server before
                self._doubted = True

        try:
            await self._require_same()
            with self._busy.share() as share:
                url, extensions = f"{self.base_url}{self.dialect.path}", {"trace": traced}
                response = await self._http.post(url, content=body, headers=_JSON, extensions=extensions)
            if cut := cut_of(response):
                raise httpx2.ReadError(cut)
            await self._require_same()
        except (EngineGoneError, httpx2.RequestError) as error:
            self._doubted = True
            gone = error if isinstance(error, EngineGoneError) else self._gone(error)
            raise NoAnswerError(f"{gone}: start it again", sent=False) from None
        self._doubted = self._doubted or response.status_code != OK
        kind, later = response.headers.get("content-type", ""), response.headers.get("retry-after")
        seconds = round(share.seconds, 6)
        return HttpAnswer(response.status_code, response.content, kind, None, later, engine_seconds=seconds)

    async def generate_all(self, requests: Sequence[ServerRequest]) -> list[EngineOutput]:
        """Return all answers, in order."""
        return list(await asyncio.gather(*map(self.generate, requests)))

    def require_room(self, request: ServerRequest) -> None:
        """Require a prompt, and room for max_tokens after it.

        Raises EngineError.
        """
        if not request.prompt or request.sampling.max_tokens < 1:
            raise EngineError("the prompt is empty or max_tokens below 1; give at least one token of each")
        if (wanted := len(request.prompt) + request.sampling.max_tokens) > self.facts.context:
            message = f"{wanted} tokens of prompt and max_tokens exceed the server's context of {self.facts.context}"
            raise EngineError(f"{message}; lower max_tokens")

    async def _require_same(self) -> None:
        """Require that the first server still answers.

        Raises NoAnswerError where another is in its place, EngineGoneError where none is.
        """
        async with self._looking:
            if not self._doubted:
                return
            try:
                found = await self._facts()
            except EngineGoneError:
                raise
            except EngineError as error:
                raise NoAnswerError(str(error), sent=False) from None
            if found != self.facts:
                message = f"another server answers at {self.base_url}: it was {self.facts}, and is {found}"
                raise NoAnswerError(f"{message}. Start the former one again", sent=False)
            self._doubted = False

    async def _facts(self) -> EngineFacts:
        return self.dialect.facts({path: await self._page(path) for path in self.dialect.fact_paths})

    async def _page(self, path: str) -> Mapping[str, Any] | None:
        try:
            response = await self._http.get(f"{self.base_url}{path}")
            if cut := cut_of(response):
                raise httpx2.ReadError(cut)
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            raise self._gone(error) from None
        if response.status_code in _SHUT or response.status_code >= _BROKEN:
            raise EngineError(self._error(path, response.status_code, response.content))
        try:
            return _object(response.content, f"{self.dialect.name}, {path}") if response.status_code == OK else None
        except EngineError:
            return None

    def _gone(self, error: httpx2.RequestError | httpx2.InvalidURL) -> EngineGoneError:
        what = redact(f"{type(error).__name__}: {error}", MOST_OF_AN_ERROR)
        return EngineGoneError(f"{self.dialect.name} at {self.base_url} does not answer ({what})")

    def _error(self, path: str, status: int, raw: bytes) -> str:
        what = redact(raw.decode("utf-8", errors="replace"), MOST_OF_AN_ERROR)
        return f"{self.dialect.name} answered {path} with status {status}: {what}"


def generation_of(dialect: EngineDialect, request: ServerRequest, raw: bytes) -> EngineOutput:
    """Read an answer's bytes as one answer to the request.

    Raises EngineError.
    """
    return checked(request, dialect.generation(request, _object(raw, f"{dialect.name}, {dialect.path}")))


def checked(request: ServerRequest, output: EngineOutput) -> EngineOutput:
    """Require one answer to what was asked.

    It ended by itself, or is as long as it may be. Raises EngineError.
    """
    found, most = len(output.ids), request.sampling.max_tokens
    if not found or found > most or (found != most and not output.finished):
        how = "ended by itself" if output.finished else "cut by length"
        raise EngineError(f"the answer has {found} ids and was {how}, with max_tokens {most}")
    if not found == len(output.logprobs) == len(output.runner_up):
        raise EngineError(f"the answer has {found} ids and {len(output.logprobs)} logprobs")
    return output


def ids_of(value: object, what: str) -> Ids:
    """Require a list of token ids.

    Raises NoIdsError where there is none, EngineError for anything else.
    """
    if value is None:
        raise NoIdsError(f"{what}: the engine was asked for token ids and returned none; nothing else is taken")
    if not isinstance(value, list) or not all(type(each) is int and each >= 0 for each in value):
        raise EngineError(f"{what} is no list of token ids")
    return tuple(value)


def require_count(ids: Ids, counted: object, what: str) -> None:
    """Require that the engine counts what it returned.

    Raises EngineError.
    """
    if counted != len(ids):
        raise EngineError(f"{what}: {len(ids)} ids came, the engine counts {counted!r}")


def member(value: object, name: str, what: str) -> Any:  # noqa: ANN401 - any JSON, judged by who asks
    """Return a member of a JSON object, None where absent.

    Raises EngineError where `value` is no object.
    """
    if not isinstance(value, dict):
        raise EngineError(f"{what} is no JSON object")
    return value.get(name)


def number(value: object, what: str) -> float:
    """Require a finite logprob. Raises EngineError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not MOST_UNLIKELY < value <= SURE:
        raise EngineError(f"{what} is no logprob ({redact(repr(value), 40)})")
    return float(value)


def runner_up(chosen: int, top: Sequence[tuple[int, float]], what: str) -> tuple[int, float]:
    """Return the likeliest token that was not chosen.

    Raises EngineError where none is named.
    """
    found = [each for each in top if each[0] != chosen]
    if not found:
        raise EngineError(f"{what} names no token beside the chosen one")
    return max(found, key=lambda each: each[1])


def text_of(value: object) -> str | None:
    """Return a non-empty text, else None."""
    return value if isinstance(value, str) and value else None


def whole(value: object, what: str) -> int:
    """Require a whole number from 1. Raises EngineError."""
    if type(value) is not int or value < 1:
        raise EngineError(f"{what} is no number of tokens ({value!r})")
    return value


def _object(content: bytes, what: str) -> Mapping[str, Any]:
    try:
        found = foreign_json(content)
    except ValueError as error:
        raise EngineError(f"{what}: the answer is no JSON ({redact(str(error), 100)})") from None
    if isinstance(found, dict):
        return found
    raise EngineError(f"{what}: the answer is no JSON object")


@dataclass(slots=True)
class RequestSeconds:
    """Seconds of one request, once it is over."""

    seconds: float = 0.0


class BusyClock:
    """A clock that runs while something is in flight.

    The shares of all requests add up to the seconds in which at least one was in flight; those that are in flight
    together share each second alike.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._in_flight = 0
        self._each = 0.0
        self._seen = 0.0

    @contextmanager
    def share(self) -> Iterator[RequestSeconds]:
        """Measure one request's share."""
        found = RequestSeconds()
        begun = self._passed()
        self._in_flight += 1
        try:
            yield found
        finally:
            found.seconds = self._passed() - begun
            self._in_flight -= 1

    def _passed(self) -> float:
        """Seconds so far of a request that never ended."""
        now = self._clock()
        if self._in_flight:
            self._each += (now - self._seen) / self._in_flight
        self._seen = now
        return self._each
