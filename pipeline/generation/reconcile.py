"""Ask the provider what unsettled requests really cost.

Guarantees: the provider is only read, free of charge. A request is settled only at the cost that the provider names,
and freed only where that is nothing, upstream with the account's own key included. What the provider does not know, or
not yet, stays as it is.

A request that ends as settled keeps the answer that it had: an error, or a stream that was cut, is refused as just that
by every later run, without and with `--resend-unknown`. That is on purpose. `/generation` tells a cost and never a text
(`/generation/content` only what an account chose to store there, without the stream that it was), so there is nothing
to prove a row from; and what is known to be paid is not paid again. Whoever wants the row all the same gives it another
id, which is another request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from enum import StrEnum

from pipeline.base.money import pico
from pipeline.generation.engines.catalog import fetch_generation
from pipeline.generation.engines.openrouter import OpenRouter
from pipeline.generation.ledger import Ledger
from pipeline.records import Json, JsonObject


class Reconciled(StrEnum):
    """The result of asking about one unsettled request."""

    SETTLED = "settled"
    FREE = "billed nothing"
    NOT_YET = "not known to the provider, or not yet"
    NO_ID = "no generation id came, so it cannot be asked about"


async def reconcile(client: OpenRouter, ledger: Ledger, api: str) -> Mapping[Reconciled, int]:
    """Ask about every unsettled request of one API.

    Raises NoAnswerError, CatalogError, LedgerError.
    """
    with ledger.transaction():
        entries = ledger.unsettled(api)
    found: Counter[Reconciled] = Counter()
    for entry in entries:
        if entry.answer is None or entry.answer.generation_id is None:
            found[Reconciled.NO_ID] += 1
            continue
        record = await fetch_generation(client, entry.answer.generation_id)
        cost = None if record is None else _cost(record)
        if record is None or cost is None:
            found[Reconciled.NOT_YET] += 1
            continue
        tokens = (_count(record.get("native_tokens_prompt")), _count(record.get("native_tokens_completion")))
        with ledger.transaction():
            ledger.reconcile(entry, cost, tokens)
        found[Reconciled.SETTLED if cost else Reconciled.FREE] += 1
    return found


def _cost(record: JsonObject) -> int | None:
    """Return the cost in pico-dollars, None where unknown.

    Where upstream billed a key of the account's own, `total_cost` is a fee, and that bill is added. Where `is_byok` is
    absent, an upstream bill above the cost says the same, as in `billing`.
    """
    cost, own_key = _amount(record.get("total_cost")), record.get("is_byok")
    upstream = _amount(record.get("upstream_inference_cost"))
    if cost is None or own_key is False or (own_key is None and (upstream is None or upstream <= cost)):
        return cost
    return None if upstream is None else cost + upstream


def _amount(value: Json) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return pico(Decimal(str(value)))
    except (InvalidOperation, ValueError):
        return None


def _count(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
