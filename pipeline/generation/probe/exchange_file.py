"""A run's exchanges out of the ledger, as a file.

A fingerprint is learned from it, and cassettes are made of it. Guarantees: a body stands there as it came, and a
request as it was sent. Left out, each with a word, are errors, whose bodies can name the account, what did not come
whole, and answers that hold the key, whole or in pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import urlsplit

from pipeline.base.files import write_whole
from pipeline.base.json_lines import line_of
from pipeline.base.redaction import REMOVED, Redaction
from pipeline.generation.ledger import LedgerExchange
from pipeline.records import Json

FILE: Final = "exchanges.jsonl"
VERBATIM: Final = "verbatim"
OK: Final = 200
# In an answer's own structure: within a string its quotation marks would be escaped.
_ERROR: Final = re.compile(rb'(?<!\\)"error"\s*:\s*(?!null\b)')
# A field that deltas fill, and what one of them says.
_SAID: Final = re.compile(r'"(content|reasoning|reasoning_content|arguments|text)":\s*"((?:[^"\\]|\\.)*)"')
_KEPT_HEADERS: Final = {"content_type": "content-type", "retry_after": "retry-after"}


@dataclass(frozen=True, slots=True)
class Source:
    """What all exchanges of a run share.

    Where it was sent, and the provider's display name that was asked for.
    """

    run: str
    base_url: str
    provider: str

    @property
    def endpoint(self) -> str:
        """Host and path, without the scheme."""
        parts = urlsplit(self.base_url)
        return f"{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}/chat/completions"


def why_left_out(one: LedgerExchange, redaction: Redaction) -> str:
    """Return why an answer is left out; empty if kept."""
    if one.answer.status != OK:
        return f"an error of status {one.answer.status}"
    if _ERROR.search(one.answer.raw):
        return "an error in its body"
    if one.answer.headers.get("complete") is False:
        return "an answer that was cut off"
    try:
        text = one.answer.raw.decode("utf-8")
    except UnicodeDecodeError:
        return "an answer that is no UTF-8"
    return "an answer that holds the key" if _holds_key(text, redaction) else ""


def write_exchanges(path: Path, kept: Iterable[LedgerExchange], source: Source, redaction: Redaction) -> list[str]:
    """Write the file, whole.

    Returns, for each answer that is left out, its row and why. Raises OSError.
    """
    reasons = [(one, why_left_out(one, redaction)) for one in kept]

    def write(file: BinaryIO) -> None:
        file.writelines(line_of(line_of_exchange(one, source)) for one, why in reasons if not why)

    write_whole(path, write)
    return [f"{one.row}: {why}" for one, why in reasons if why]


def line_of_exchange(one: LedgerExchange, source: Source) -> dict[str, Json]:
    """Return the line of one answer.

    `row` is the probe's id, the form, and which time it was asked.
    """
    request: dict[str, Json] = json.loads(one.body)
    return {
        "id": one.identity[:12],
        "source": {"run": source.run, "route": one.route, "row": one.row, "answered_at": one.answered_at},
        "fidelity": VERBATIM,
        "endpoint": source.endpoint,
        "provider": source.provider,
        "model": one.model,
        "status": one.answer.status,
        "stream": request["stream"],
        "request": request,
        "headers": {name: value for ours, name in _KEPT_HEADERS.items() if (value := one.answer.headers.get(ours))},
        "body": one.answer.raw.decode("utf-8"),
    }


def _holds_key(text: str, redaction: Redaction) -> bool:
    """Whether an answer holds the key.

    The client took the key out of it, or a reader of its deltas would put one together.
    """
    fields: dict[str, list[str]] = {}
    for field, piece in _SAID.findall(text):
        fields.setdefault(field, []).append(piece)
    spelled = " ".join(map("".join, fields.values()))
    return REMOVED in text or redaction.of_text(spelled) != spelled
