"""What was really billed for requests whose cost is not known: asked of the provider, generation by generation.

Guarantees: reads only at the provider, free of charge; a request is settled only at the cost that the provider names,
and freed only where that is nothing. What the provider does not know, or not yet, stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from enum import StrEnum

from pipeline.engines.catalog import fetch_generation
from pipeline.engines.openrouter import OpenRouter
from pipeline.ledger import Entry, Ledger
from pipeline.money import pico
from pipeline.records import Json, JsonObject


class Found(StrEnum):
    """What came of one unsettled request."""

    SETTLED = "settled"
    FREE = "billed nothing"
    NOT_YET = "not known to the provider, or not yet"
    NO_ID = "no generation id came, so it cannot be asked about"


async def reconcile(client: OpenRouter, ledger: Ledger, api: str) -> Mapping[Found, int]:
    """Ask about every unsettled request of one API. Raises NoAnswerError, CatalogError, LedgerError."""
    with ledger.transaction():
        entries = ledger.unsettled(api)
    found: Counter[Found] = Counter()
    for entry in entries:
        found[await _reconciled(client, ledger, entry)] += 1
    return found


async def _reconciled(client: OpenRouter, ledger: Ledger, entry: Entry) -> Found:
    if entry.answer is None or entry.answer.generation_id is None:
        return Found.NO_ID
    record = await fetch_generation(client, entry.answer.generation_id)
    cost = None if record is None else _cost(record)
    if record is None or cost is None:
        return Found.NOT_YET
    tokens = (_count(record.get("native_tokens_prompt")), _count(record.get("native_tokens_completion")))
    with ledger.transaction():
        ledger.reconcile(entry, cost, tokens)
    return Found.SETTLED if cost else Found.FREE


def _cost(record: JsonObject) -> int | None:
    value = record.get("total_cost")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return pico(Decimal(str(value)))
    except (InvalidOperation, ValueError):
        return None


def _count(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
