"""Parsed tool calls against the section that the ids hold: a check of ids that are known, never a source of them.

Guarantees: as many calls, of the same names in the same order, with arguments that are the same JSON; of an answer that
was cut, the last call as far as it came. How a provider names or re-serialises a call is its own affair where the ids
are given, and so is what it leaves out of its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from pipeline.formats.format import Headed
from pipeline.formats.kimi.tokens import ARGUMENT_BEGIN, CALL_BEGIN, CALL_END
from pipeline.proof.answer import Answer
from pipeline.records import Ids, Reason, RefusedError, Span, SpanKind

_CALL = re.compile(
    re.escape(CALL_BEGIN) + r"(.*?)" + re.escape(ARGUMENT_BEGIN) + r"(.*?)" + re.escape(CALL_END), re.DOTALL
)


_CUT_CALL = re.compile(re.escape(CALL_BEGIN) + r"(.*?)" + re.escape(ARGUMENT_BEGIN) + r"(.*)\Z", re.DOTALL)


def around_section(case: Answer, ids: Ids, spans: Sequence[Span]) -> tuple[str, ...]:
    """The texts that an answer shows whose section is in no text: what stands before it, and that with what follows.

    Empty where there is no section. SGLang leaves out a section that was cut and streams the text after one, vLLM
    leaves out one that nobody sent `tools` for.
    """
    section = next((span.start for span in spans if span.kind is SpanKind.TOOL_SECTION), None)
    if section is None or isinstance(case.fmt, Headed) or CALL_BEGIN not in case.fmt.tool_markers():
        return ()
    around = [span for span in spans if span.kind is SpanKind.CONTENT]
    before = [span for span in around if span.start < section]
    return _text(case, ids, before), _text(case, ids, around)


def _text(case: Answer, ids: Ids, spans: Sequence[Span]) -> str:
    tokens = [token for span in spans for token in ids[span.start : span.stop]]
    return case.fmt.tokenizer.decode_bytes(tokens).decode("utf-8", errors="replace")


def require_same_calls(case: Answer, ids: Ids, spans: Sequence[Span], contradiction: Reason) -> None:
    """RefusedError(contradiction) where the calls shown are not those of the section.

    Not judged where the model wrote a marker as text, since a parser that reads text makes of that what it will, nor in
    a family whose calls are not Kimi's, unless it tells them (`Headed`): the count and the section are checked there.
    """
    headed = case.fmt if isinstance(case.fmt, Headed) else None
    if headed is None and (CALL_BEGIN not in case.fmt.tool_markers() or _spells_marker(case, ids)):
        return
    shown = [(call.name, call.arguments) for call in case.completion.tool_calls]
    emitted = list(_emitted(case, ids, spans)) if headed is None else headed.calls_in(ids)
    if headed is None and not case.ended and len(shown) == len(emitted) + 1:
        emitted += _cut_call(case, ids, spans, shown[-1][1])
    if len(shown) != len(emitted):
        message = f"{len(shown)} calls came, the ids hold {len(emitted)}"
        raise RefusedError(contradiction, message, field="tool_calls")
    for (name, arguments), (identity, text) in zip(shown, emitted, strict=True):
        if _name(identity) != name or not _same_json(arguments, text):
            message = f"call {name}({arguments[:40]}) came, the ids say {identity}({text[:40]})"
            raise RefusedError(contradiction, message, field="tool_calls")


def _spells_marker(case: Answer, ids: Ids) -> bool:
    text = case.fmt.tokenizer.decode_bytes(token for token in ids if not case.fmt.tokenizer.is_control(token))
    return b"<|tool_call" in text


def _emitted(case: Answer, ids: Ids, spans: Sequence[Span]) -> Iterator[tuple[str, str]]:
    for span in spans:
        if span.kind is SpanKind.TOOL_SECTION:
            yield from _CALL.findall(_text(case, ids, [span]))


def _cut_call(case: Answer, ids: Ids, spans: Sequence[Span], shown: str) -> Iterator[tuple[str, str]]:
    """The call that the answer was cut in, with the arguments shown, if it holds them from their beginning on."""
    for span in spans:
        if span.kind is SpanKind.TOOL_SECTION:
            raw = _text(case, ids, [span])
            found = _CUT_CALL.search(raw[raw.rfind(CALL_BEGIN) :])
            if found is not None and found[2].startswith(shown):
                yield found[1], shown


def _name(identity: str) -> str:
    """`functions.NAME:INDEX`, as the model writes it, with white space that parsers strip."""
    return re.sub(r":\d+$", "", identity.strip()).removeprefix("functions.")


def _same_json(shown: str, emitted: str) -> bool:
    if not emitted.strip():
        return shown.strip() in ("", "{}")  # engines say {} where no arguments came
    try:
        # NaN is not equal to itself, its name is.
        return bool(json.loads(shown, parse_constant=str) == json.loads(emitted, parse_constant=str))
    except (ValueError, RecursionError):
        return shown.strip() == emitted.strip()
