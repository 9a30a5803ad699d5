"""Rebuild token ids of answers, and render prompts, offline.

    python -m pipeline reconstruct --format NAME < ANSWERS.jsonl
    python -m pipeline render --format NAME < PROMPTS.jsonl

Guarantees: one line out for each line in, in order, in constant memory; a malformed line is a refused line. Exit 0 if
every line was answered, refused ones included; 1 if a worker process was lost, and with it the answers still due; 2 on
unusable arguments, before any line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import orjson

from pipeline.base.json_lines import line_of, object_of
from pipeline.base.processes import Work, WorkerError, map_lines
from pipeline.base.prompts import prompt_of
from pipeline.base.screen import say, show_json_lines
from pipeline.formats.format import Format
from pipeline.formats.registry import FORMATS, ROOT, open_format
from pipeline.generation.outcome import internal_error
from pipeline.proof.fingerprint import Fingerprint, committed_fingerprints, fingerprint_of, read_fingerprints
from pipeline.proof.locations import rendered as ids_of_prompt
from pipeline.proof.oracle import OracleTally, judged
from pipeline.proof.reconstruct import Expected, reconstruct
from pipeline.proof.wire.completion import completion_of_body, completion_of_sse
from pipeline.records import Completion, Json, JsonObject, Reason, Refusal, RefusedError, TokenRow

WORKER_LOST = 1
ANSWER_KEYS = frozenset({"id", "prompt", "response", "sse", "max_tokens", "stop", "provider"})


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    rebuild = subparsers.add_parser(
        "reconstruct", help="rebuild the token ids of answers that you have, JSON lines on stdin"
    )
    _add_common(rebuild)
    rebuild.add_argument(
        "--fingerprint", type=Path, metavar="FILE", help="the route's traits (default: the committed ones)"
    )
    said = "who gave the answers that do not name their provider; a line's `provider` comes before it"
    rebuild.add_argument("--provider", metavar="NAME", help=said)
    rebuild.add_argument(
        "--oracle", action="store_true", help="where ids were returned, compare them with the rebuild from text"
    )
    rebuild.set_defaults(run=run_reconstruct)
    render = subparsers.add_parser("render", help="render prompts to token ids, JSON lines on stdin")
    _add_common(render)
    render.set_defaults(run=run_render)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", required=True, metavar="NAME", help=", ".join(sorted(FORMATS)))
    parser.add_argument("--workers", type=workers, default=1, metavar="N", help="processes (default: 1, this one)")
    parser.add_argument("--tokenizer", metavar="DIR", help="directory of the vocabulary, or hub:REPOSITORY@REVISION")


def workers(text: str) -> int:
    """Parse a number of processes. Raises argparse.ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes; 1 is this one alone")
    return int(text)


class StdinError(Exception):
    """There is nothing to read from."""


def run_reconstruct(args: argparse.Namespace) -> int:
    """Answer every line of stdin."""
    fmt = open_format(args.format, args.tokenizer)
    known = read_fingerprints(args.fingerprint) if args.fingerprint else committed_fingerprints(ROOT)

    def work(lines: Iterable[bytes], first: int) -> Iterable[bytes]:
        return dumped(rebuilt(lines, fmt, known, oracle=args.oracle, first=first, provider=args.provider))

    if not args.oracle:
        return _answer(work, args.workers)
    tally = OracleTally()
    status = _answer(work, args.workers, tally)
    say(tally.line())
    return status


def run_render(args: argparse.Namespace) -> int:
    """Render every line of stdin."""
    fmt = open_format(args.format, args.tokenizer)
    return _answer(lambda lines, first: dumped(rendered(lines, fmt, first=first)), args.workers)


def _answer(work: Work, workers: int, tally: OracleTally | None = None) -> int:
    """Answer every line of stdin; return the exit status."""
    if sys.stdin is None:
        raise StdinError("stdin is closed. Give the lines with `< FILE`.")
    status = 0
    with closing(map_lines(sys.stdin.buffer, work, workers)) as results:
        try:
            for result in results:
                if tally is not None:
                    tally.note(orjson.loads(line) for line in result.splitlines())
                show_json_lines(result)
        except WorkerError as error:
            say(f"error: {error}")
            status = WORKER_LOST
    return status


def rebuilt(
    lines: Iterable[bytes],
    fmt: Format,
    known: Sequence[Fingerprint],
    *,
    oracle: bool = False,
    first: int = 1,
    provider: str | None = None,
) -> Iterator[dict[str, object]]:
    """Yield the result of each answer.

    `{"id", "status", "reason"?, "detail"?, "evidence"?, "prompt_ids", "output_ids", "spans"}`. With `oracle`, a row
    whose ids the engine returned also says what the rebuild from text makes of it. `first` is the number of the first
    line. `provider` gave the answers that name none; such a row says so (`stated_provider`).
    """
    return _each(lines, partial(_rebuild, fmt=fmt, known=known, oracle=oracle, provider=provider), first)


def rendered(lines: Iterable[bytes], fmt: Format, *, first: int = 1) -> Iterator[dict[str, object]]:
    """Yield the ids of each prompt: `{"id", "prompt_ids"}`.

    A refused line is as `rebuilt` gives it.
    """

    def render(line: dict[str, Json]) -> dict[str, object]:
        prompt = prompt_of(_without_nulls(line))
        return {"id": prompt.id, "prompt_ids": ids_of_prompt(fmt, prompt)}

    return _each(lines, render, first)


def _each(
    lines: Iterable[bytes], answer: Callable[[dict[str, Json]], dict[str, object]], first: int
) -> Iterator[dict[str, object]]:
    """Answer each line; refuse what cannot be read."""
    for number, raw in enumerate(lines, first):
        if raw.isspace():
            continue
        identity: Json = None
        try:
            line = object_of(raw)
            given = line.get("id")
            identity = given if isinstance(given, str | int) else None
            yield answer(line)
        except RefusedError as error:
            yield _refused(identity, error.refusal, number)
        except RecursionError:
            deep = Refusal(Reason.MALFORMED_INPUT, "the line is nested too deeply", field="line")
            yield _refused(identity, deep, number)
        except MemoryError:
            raise  # the machine's trouble, not the line's
        except Exception as error:  # noqa: BLE001 — one line's trouble must not lose the others
            yield _refused(identity, internal_error(error), number)


def _rebuild(
    line: dict[str, Json], fmt: Format, known: Sequence[Fingerprint], *, oracle: bool, provider: str | None
) -> dict[str, object]:
    if not line.keys() <= ANSWER_KEYS:
        unknown = min(line.keys() - ANSWER_KEYS)
        message = f"unknown key {unknown!r}; a line has {', '.join(sorted(ANSWER_KEYS))}"
        raise RefusedError(Reason.MALFORMED_INPUT, message, field=unknown)
    given = line.get("prompt")
    if not isinstance(given, dict):
        raise RefusedError(Reason.MALFORMED_INPUT, "prompt must be an object", field="prompt")
    prompt = prompt_of({**_without_nulls(given), "id": line.get("id")})
    answered = _completion(line)
    completion = _with_provider(answered, line.get("provider", provider))
    fingerprint = None if completion.token_ids is not None else fingerprint_of(completion, known)
    expected = _expected(line)
    row = reconstruct(prompt, completion, fmt, fingerprint, expected)
    if not isinstance(row, TokenRow):
        return _refused(prompt.id, row)
    accepted = _accepted(row)
    if completion.provider != answered.provider:
        accepted["stated_provider"] = completion.provider
    if not oracle or completion.token_ids is None:
        return accepted
    return {**accepted, "oracle": judged(row, prompt, completion, fmt, known, expected)}


def _without_nulls(value: JsonObject) -> dict[str, Json]:
    """Drop null `tools` and `thinking`, as exporters write them."""
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


def _with_provider(completion: Completion, stated: Json) -> Completion:
    """Return the answer with the provider that the caller states.

    RefusedError(WRONG_PROVIDER) where the answer names another.
    """
    if stated is None:
        return completion
    if not isinstance(stated, str) or not stated:
        raise RefusedError(Reason.MALFORMED_INPUT, "provider must be a name", field="provider")
    if completion.provider not in (None, stated):
        message = f"{completion.provider} answered, the caller states {stated}"
        raise RefusedError(Reason.WRONG_PROVIDER, message, field="provider")
    return replace(completion, provider=stated)


def _expected(line: JsonObject) -> Expected:
    """Return what was asked for, where the line says it."""
    most, stop = line.get("max_tokens"), line.get("stop")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most <= 0):
        raise RefusedError(Reason.MALFORMED_INPUT, "max_tokens must be a positive whole number", field="max_tokens")
    is_texts = isinstance(stop, list) and all(isinstance(text, str) for text in stop)
    if not (stop is None or isinstance(stop, str) or is_texts):
        raise RefusedError(Reason.MALFORMED_INPUT, "stop must be a text or a list of texts", field="stop")
    return Expected(max_tokens=most, stop=bool(stop))


def _accepted(row: TokenRow) -> dict[str, object]:
    return {
        "id": row.id,
        "status": "accepted",
        "evidence": row.evidence,
        "prompt_evidence": row.prompt_evidence,
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
    """Yield each result as one JSON line in UTF-8.

    Half a surrogate pair in an id stays an escape.
    """
    for result in results:
        yield line_of(result)
