"""The offline verbs' work, line by line: text that somebody already has from an API to proven ids, and prompts to ids.

Guarantees: one line out for each line in, in order, in constant memory; a malformed line is a refused line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial

from pipeline.base.json_lines import line_of, object_of
from pipeline.base.prompts import prompt_of
from pipeline.formats.format import Format
from pipeline.proof.fingerprint import Fingerprint, fingerprint_of
from pipeline.proof.locations import rendered as ids_of_prompt
from pipeline.proof.oracle import judged
from pipeline.proof.reconstruct import Asked, reconstruct
from pipeline.proof.wire.completion import completion_of_body, completion_of_sse
from pipeline.records import Completion, Json, JsonObject, Reason, Refusal, RefusedError, TokenRow

ANSWER_KEYS = frozenset({"id", "prompt", "response", "sse", "max_tokens", "stop"})


def rebuilt(
    lines: Iterable[bytes], fmt: Format, known: Sequence[Fingerprint], *, oracle: bool = False, first: int = 1
) -> Iterator[dict[str, object]]:
    """One result a line: `{"id", "status", "reason"?, "detail"?, "evidence"?, "prompt_ids", "output_ids", "spans"}`.

    With `oracle`, a row whose ids the engine returned also says what the rebuild from text makes of it. `first` is the
    number of the first line.
    """
    return _each(lines, partial(_rebuild, fmt=fmt, known=known, oracle=oracle), first)


def rendered(lines: Iterable[bytes], fmt: Format, *, first: int = 1) -> Iterator[dict[str, object]]:
    """One result a line: `{"id", "prompt_ids"}`, or a refused one as `rebuilt` gives it."""
    return _each(lines, partial(_render, fmt=fmt), first)


def _each(
    lines: Iterable[bytes], answer: Callable[[dict[str, Json]], dict[str, object]], first: int
) -> Iterator[dict[str, object]]:
    for number, raw in enumerate(lines, first):
        if raw.isspace():
            continue
        identity: Json = None
        try:
            line = object_of(raw)
            told = line.get("id")
            identity = told if isinstance(told, str | int) else None
            yield answer(line)
        except RefusedError as error:
            yield _refused(identity, error.refusal, number)
        except RecursionError:
            yield _refused(
                identity, Refusal(Reason.MALFORMED_INPUT, "the line is nested too deeply", field="line"), number
            )


def _render(line: dict[str, Json], fmt: Format) -> dict[str, object]:
    prompt = prompt_of(_without_nulls(line))
    return {"id": prompt.id, "prompt_ids": ids_of_prompt(fmt, prompt)}


def _rebuild(line: dict[str, Json], fmt: Format, known: Sequence[Fingerprint], *, oracle: bool) -> dict[str, object]:
    if not line.keys() <= ANSWER_KEYS:
        unknown = min(line.keys() - ANSWER_KEYS)
        message = f"unknown key {unknown!r}; a line has {', '.join(sorted(ANSWER_KEYS))}"
        raise RefusedError(Reason.MALFORMED_INPUT, message, field=unknown)
    asked = line.get("prompt")
    if not isinstance(asked, dict):
        raise RefusedError(Reason.MALFORMED_INPUT, "prompt must be an object", field="prompt")
    prompt = prompt_of({**_without_nulls(asked), "id": line.get("id")})
    completion = _completion(line)
    fingerprint = None if completion.token_ids is not None else fingerprint_of(completion, known)
    limit = Asked(max_tokens=_max_tokens(line), stop=_stop(line))
    row = reconstruct(prompt, completion, fmt, fingerprint, limit)
    if not isinstance(row, TokenRow):
        return _refused(prompt.id, row)
    if not oracle or completion.token_ids is None:
        return _accepted(row)
    return {**_accepted(row), "oracle": judged(row, prompt, completion, fmt, known, limit)}


def _without_nulls(value: JsonObject) -> dict[str, Json]:
    """`tools` and `thinking` may be null for absent, as exporters write them."""
    return {key: item for key, item in value.items() if item is not None or key not in ("tools", "thinking")}


def _completion(line: JsonObject) -> Completion:
    if ("response" in line) == ("sse" in line):
        raise RefusedError(Reason.MALFORMED_INPUT, "a line has either response or sse", field="response")
    if "response" in line:
        return completion_of_body(line["response"])
    sse = line["sse"]
    if not isinstance(sse, str):
        raise RefusedError(Reason.MALFORMED_INPUT, "sse must be the stream's raw text", field="sse")
    return completion_of_sse(sse)


def _stop(line: JsonObject) -> bool:
    """Whether stop texts were asked for."""
    value = line.get("stop")
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(text, str) for text in value)):
        return bool(value)
    if value is None:
        return False
    raise RefusedError(Reason.MALFORMED_INPUT, "stop must be a text or a list of texts", field="stop")


def _max_tokens(line: JsonObject) -> int | None:
    value = line.get("max_tokens")
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise RefusedError(Reason.MALFORMED_INPUT, "max_tokens must be a positive whole number", field="max_tokens")


def _accepted(row: TokenRow) -> dict[str, object]:
    return {
        "id": row.id,
        "status": "accepted",
        "evidence": row.evidence,
        "prompt_ids": row.prompt_ids,
        "output_ids": row.output_ids,
        "spans": [{"kind": span.kind, "start": span.start, "stop": span.stop} for span in row.spans],
    }


def _refused(identity: Json, refusal: Refusal, line: int | None = None) -> dict[str, object]:
    where = {
        key: value for key, value in asdict(refusal).items() if value is not None and key not in ("reason", "detail")
    }
    result: dict[str, object] = {
        "id": identity,
        "status": "refused",
        "reason": refusal.reason,
        "detail": refusal.detail,
    }
    if where:
        result["where"] = where
    if line is not None:
        result["line"] = line
    return {**result, "prompt_ids": None, "output_ids": None, "spans": None}


def dumped(results: Iterable[dict[str, object]]) -> Iterator[bytes]:
    """Each result as one JSON line in UTF-8; half a surrogate pair in an id stays an escape."""
    for result in results:
        yield line_of(result)
