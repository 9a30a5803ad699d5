"""Parsed tool calls against the section that the ids hold: a check of ids that are known, never a source of them.

Guarantees: as many calls, of the same names in the same order, with arguments that are the same JSON. How a provider
names or re-serialises a call is its own affair where the ids are given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from pipeline.formats.kimi_tokens import ARGUMENT_BEGIN, CALL_BEGIN, CALL_END
from pipeline.formats.parts import Headed
from pipeline.readings import Case
from pipeline.records import Ids, Reason, RefusedError, Span, SpanKind

_CALL = re.compile(
    re.escape(CALL_BEGIN) + r"(.*?)" + re.escape(ARGUMENT_BEGIN) + r"(.*?)" + re.escape(CALL_END), re.DOTALL
)


def require_same_calls(case: Case, ids: Ids, spans: Sequence[Span], contradiction: Reason) -> None:
    """RefusedError(contradiction) where the calls shown are not those of the section.

    Not judged where the model wrote a marker as text, since a parser that reads text makes of that what it will, nor in
    a family whose calls are not Kimi's, unless it tells them (`Headed`): the count and the section are checked there.
    """
    headed = case.fmt if isinstance(case.fmt, Headed) else None
    if headed is None and (CALL_BEGIN not in case.fmt.tool_markers() or _spells_marker(case, ids)):
        return
    shown = [(call.name, call.arguments) for call in case.completion.tool_calls]
    emitted = list(_emitted(case, ids, spans)) if headed is None else headed.calls_in(ids)
    if len(shown) != len(emitted):
        message = f"{len(shown)} calls came, the ids hold {len(emitted)}"
        raise RefusedError(contradiction, message, field="tool_calls")
    for (name, arguments), (identity, text) in zip(shown, emitted, strict=True):
        if _name(identity) != name or not _same_json(arguments, text):
            message = f"call {name}({arguments[:40]}) came, the ids say {identity}({text[:40]})"
            raise RefusedError(contradiction, message, field="tool_calls")


def _spells_marker(case: Case, ids: Ids) -> bool:
    text = case.fmt.tokenizer.decode_bytes(token for token in ids if not case.fmt.tokenizer.is_control(token))
    return b"<|tool_call" in text


def _emitted(case: Case, ids: Ids, spans: Sequence[Span]) -> Iterator[tuple[str, str]]:
    for span in spans:
        if span.kind is SpanKind.TOOL_SECTION:
            raw = case.fmt.tokenizer.decode_bytes(ids[span.start : span.stop]).decode("utf-8", errors="replace")
            yield from _CALL.findall(raw)


def _name(identity: str) -> str:
    """`functions.NAME:INDEX`, as the model writes it, with white space that parsers strip."""
    return re.sub(r":\d+$", "", identity.strip()).removeprefix("functions.")


def _same_json(shown: str, emitted: str) -> bool:
    try:
        # NaN is not equal to itself, its name is.
        return bool(json.loads(shown, parse_constant=str) == json.loads(emitted, parse_constant=str))
    except (ValueError, RecursionError):
        return shown.strip() == emitted.strip()
