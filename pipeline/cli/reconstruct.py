"""`python -m pipeline reconstruct` and `render`: JSON lines in, JSON lines out.

Guarantees: exit 0 when every line was answered, refused lines among them; 2 on unusable arguments, before any line; 1
where a worker process was lost, and with it the answers that were still due.

The offline verbs' work, line by line: text that somebody already has from an API to proven ids, and prompts to ids.

Guarantees: one line out for each line in, in order, in constant memory; a malformed line is a refused line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import BinaryIO

import orjson

from pipeline.base.json_lines import line_of, object_of
from pipeline.base.processes import Work, WorkerError, map_lines
from pipeline.base.prompts import prompt_of
from pipeline.formats.format import Format
from pipeline.formats.registry import FORMATS, ROOT, open_format
from pipeline.proof.fingerprint import Fingerprint, committed_fingerprints, fingerprint_of, read_fingerprints
from pipeline.proof.locations import rendered as ids_of_prompt
from pipeline.proof.oracle import OracleTally, judged
from pipeline.proof.reconstruct import Expected, reconstruct
from pipeline.proof.wire.completion import completion_of_body, completion_of_sse
from pipeline.records import Completion, Json, JsonObject, Reason, Refusal, RefusedError, TokenRow

WORKER_LOST = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The two verbs."""
    rebuild = subparsers.add_parser("reconstruct", help="API answers to proven token ids, JSON lines on stdin")
    _add_common(rebuild)
    rebuild.add_argument(
        "--fingerprint", type=Path, metavar="FILE", help="the route's traits; default: the committed ones"
    )
    rebuild.add_argument(
        "--oracle", action="store_true", help="where ids were returned, say how our rebuild from text compares"
    )
    rebuild.set_defaults(run=run_reconstruct)
    render = subparsers.add_parser("render", help="prompts to prompt ids, JSON lines on stdin")
    _add_common(render)
    render.set_defaults(run=run_render)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", required=True, metavar="NAME", help=", ".join(sorted(FORMATS)))
    parser.add_argument("--workers", type=_workers, default=1, metavar="N", help="processes; default: 1, this one")
    parser.add_argument("--tokenizer", metavar="DIR", help="directory of the vocabulary, or hub:REPOSITORY@REVISION")


def _workers(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes; 1 is this one alone")
    return int(text)


class StdinError(Exception):
    """There is nothing to read from."""


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise StdinError("stdin is closed. Give the lines with `< FILE`.")
    return sys.stdin.buffer


def run_reconstruct(args: argparse.Namespace) -> int:
    """Answers every line of stdin."""
    fmt = open_format(args.format, args.tokenizer)
    known = read_fingerprints(args.fingerprint) if args.fingerprint else committed_fingerprints(ROOT)

    def work(lines: Iterable[bytes], first: int) -> Iterable[bytes]:
        return dumped(rebuilt(lines, fmt, known, oracle=args.oracle, first=first))

    if not args.oracle:
        return _answer(work, args.workers)
    tally = OracleTally()
    status = _answer(work, args.workers, tally)
    sys.stderr.write(tally.line() + "\n")
    return status


def run_render(args: argparse.Namespace) -> int:
    """Renders every line of stdin."""
    fmt = open_format(args.format, args.tokenizer)
    return _answer(lambda lines, first: dumped(rendered(lines, fmt, first=first)), args.workers)


def _answer(work: Work, workers: int, tally: OracleTally | None = None) -> int:
    """Every line of stdin to stdout; the exit status."""
    status = 0
    with closing(map_lines(_stdin(), work, workers)) as results:
        try:
            for result in results:
                if tally is not None:
                    tally.note(orjson.loads(line) for line in result.splitlines())
                sys.stdout.buffer.write(result)
        except WorkerError as error:
            sys.stderr.write(f"error: {error}\n")
            status = WORKER_LOST
    sys.stdout.buffer.flush()
    return status


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
    limit = Expected(max_tokens=_max_tokens(line), stop=_stop(line))
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
