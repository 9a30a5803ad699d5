"""Read an answer's cost and counts, and judge it.

Guarantees: the cost is the decimal that was sent, and it is found even where the answer itself is an error or was cut
after its usage. Both forms are read: a JSON body, and a stream with its usage in any chunk. An error counts as free
only where nothing can have been generated for it. No bytes, whatever they hold, make anything here raise, but for
`completion_of`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import TypeAlias

from pipeline.base.money import PICO_PER_USD, pico
from pipeline.base.redaction import redact
from pipeline.generation.ledger import LedgerAnswer
from pipeline.proof.wire.completion import completion_of_json, completion_of_sse
from pipeline.records import Completion, Reason, RefusedError

OK = 200
# No answer costs this much: a figure above it is junk and would spoil every sum it enters.
MOST_COST_PICO = 10_000 * PICO_PER_USD
MOST_TOKENS = 2**40
MOST_SHOWN = 200
BAD_REQUEST, TIMED_OUT, CLIENT_CLOSED, SERVER_ERROR, UNAVAILABLE = 400, 408, 499, 500, 503
_TELLING = (b'"usage"', b'"error"')
LATER = frozenset({409, 425, 429, UNAVAILABLE})
# These say that no request of this run can be answered: no key, no credit, no such model or endpoint.
HOPELESS = frozenset({401, 402, 404})
Exact: TypeAlias = "bool | int | Decimal | str | list[Exact] | dict[str, Exact] | None"


@dataclass(frozen=True, slots=True)
class Bill:
    """What an answer cost and counted.

    The cost is in pico-dollars, None where no `usage.cost` came; the counts are the provider's. `unread` shows a cost
    that came and cannot be read: its answer counts at its worst case, and the run stops.
    """

    cost_pico: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    unread: str = ""


class Verdict(StrEnum):
    """What an answer means for its request.

    `kept`: an answer, billed at its cost or, where none came, at its worst case. `refused`, `later`, `hopeless`: turned
    away free of charge, for good, for now, or with every request of this run. `doubt`: an error that may be billed.
    """

    KEPT = "kept"
    REFUSED = "refused"
    LATER = "later"
    HOPELESS = "hopeless"
    DOUBT = "doubt"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on an answer, with its bill.

    `why` is the error's own text, empty where the answer is kept. `refuses` says who refuses a `hopeless` run; the
    message goes on with `why`.
    """

    verdict: Verdict
    bill: Bill
    why: str = ""
    refuses: str = "the provider refuses this run, with status"


Judge: TypeAlias = Callable[[LedgerAnswer], Judgement]


def verdict_of(answer: LedgerAnswer) -> Verdict:
    """Return the verdict on an answer, without its bill."""
    return judged(answer).verdict


def judged(answer: LedgerAnswer) -> Judgement:
    """Judge an answer, fresh or found in the ledger.

    A status of 408 or 5xx can come after the provider began: OpenRouter's zero completion insurance covers answers
    without output, and whether there was output is not known here. 503 says that no provider was found, and 4xx that
    the request was turned away; with a count of output tokens even these are in doubt.
    """
    bill = bill_of(answer.raw)
    verdict = _verdict(answer.status, bill)
    return Judgement(verdict, bill, "" if verdict is Verdict.KEPT else error_text(answer))


def _verdict(status: int, bill: Bill) -> Verdict:
    if status == OK or bill.cost_pico:
        return Verdict.KEPT
    if bill.unread:
        return Verdict.DOUBT
    turned_away = status == UNAVAILABLE or BAD_REQUEST <= status < SERVER_ERROR
    turned_away = turned_away and status not in {TIMED_OUT, CLIENT_CLOSED} and not bill.completion_tokens
    if not turned_away and bill.cost_pico is None:
        return Verdict.DOUBT
    if status in HOPELESS:
        return Verdict.HOPELESS
    return Verdict.LATER if status in LATER or status == TIMED_OUT or status >= SERVER_ERROR else Verdict.REFUSED


def bill_of(raw: bytes) -> Bill:
    """Return the last usage that names a cost.

    Where none names a cost, the last usage. A cost that cannot be read is one that is named: it is a sign, and an
    earlier one does not stand for it.
    """
    usages = [usage for value in _objects(raw) if isinstance(usage := value.get("usage"), dict)]
    costed = [usage for usage in usages if "cost" in usage or usage.get("is_byok")]
    if not (chosen := (costed or usages)[-1:]):
        return Bill()
    usage = chosen[0]
    cost = _cost(usage)
    unread = redact(_shown(usage), MOST_SHOWN) if costed and cost is None else ""
    return Bill(cost, _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), unread)


def completion_of(answer: LedgerAnswer, *, stream: bool) -> Completion:
    """Parse an answer into a Completion.

    Raises RefusedError for an error status, a cut body, or another form than `stream` says.
    """
    is_json = answer.raw.lstrip()[:1] == b"{"
    if answer.status != OK:
        raise RefusedError(Reason.UPSTREAM_ERROR, error_text(answer), field="status")
    if answer.headers.get("complete") is False:
        why = answer.headers.get("cut") or "the connection broke"
        raise RefusedError(Reason.STREAM_CUT, f"{why}, after {len(answer.raw)} bytes of the answer", field="body")
    if is_json or not stream:
        completion = completion_of_json(answer.raw)
        if stream:
            raise RefusedError(Reason.STREAM_INCONSISTENT, "a stream was asked for and one body came", field="body")
        return completion
    try:
        return completion_of_sse(answer.raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RefusedError(
            Reason.STREAM_INCONSISTENT, f"the stream is no UTF-8 at byte {error.start}", field="body"
        ) from error


def error_text(answer: LedgerAnswer) -> str:
    """Return an error's status and message, in short."""
    for value in _objects(answer.raw):
        error = value.get("error")
        message = error.get("message") if isinstance(error, dict) else error
        if isinstance(message, str):
            return f"{answer.status}: {redact(message, 200)}"
    return f"{answer.status}: {len(answer.raw)} bytes without an error message"


def _objects(raw: bytes) -> Iterator[dict[str, Exact]]:
    for text in _texts(raw):
        try:
            value: Exact = json.loads(text, parse_float=_decimal, parse_int=_whole)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def _texts(raw: bytes) -> Iterator[bytes]:
    if raw.lstrip()[:1] == b"{":
        yield raw
        return
    # A stream has a chunk a token and one usage: only the lines that can matter are looked at.
    places = {name: raw.find(name) for name in _TELLING}
    while (at := min((place for place in places.values() if place >= 0), default=-1)) >= 0:
        # The line around `at`; lines end with LF, CR or both.
        feed = raw.rfind(b"\n", 0, at) + 1
        start = max(feed, raw.rfind(b"\r", feed, at) + 1)
        stop = end if (end := raw.find(b"\n", at)) >= 0 else len(raw)
        stop = back if (back := raw.find(b"\r", at, stop)) >= 0 else stop
        if raw.startswith(b"data:", start):
            yield raw[start + 5 : stop]
        places = {name: raw.find(name, stop) if 0 <= place < stop else place for name, place in places.items()}


def _decimal(text: str) -> Exact:
    """Return the number; its text where the exponent is absurd."""
    try:
        return Decimal(text)
    except ArithmeticError:
        return text


def _whole(text: str) -> Exact:
    """Return the number; its text where it is absurdly long."""
    try:
        return int(text)
    except ValueError:
        return text


def _cost(usage: dict[str, Exact]) -> int | None:
    """Return what the owner pays, None where unread.

    With a key of the account's own (`is_byok`), `cost` is a fee and upstream sends a bill of its own: both count.
    Where `is_byok` is absent, an upstream bill above the cost says the same.
    """
    cost, own_key = _amount(usage.get("cost")), usage.get("is_byok")
    details = usage.get("cost_details")
    named = details.get("upstream_inference_cost") if isinstance(details, dict) else None
    upstream = _amount(named)
    if cost is None or own_key is False or (own_key is None and named is None):
        return cost
    if upstream is None or (own_key is None and upstream <= cost):
        return None if upstream is None else cost
    return cost + upstream


def _amount(value: Exact) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    try:
        amount = pico(Decimal(value))
    except ValueError:
        return None
    return amount if amount <= MOST_COST_PICO else None


def _shown(usage: dict[str, Exact]) -> str:
    """Show the fields that say what an answer cost."""
    named = ("cost", "is_byok", "cost_details")
    try:
        return ", ".join(f"{name}: {str(usage[name])!r}" for name in named if name in usage)
    except RecursionError:
        return "nested too deeply to show"


def _count(value: Exact) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS else None
