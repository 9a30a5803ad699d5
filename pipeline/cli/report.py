"""What `generate` shows: progress, and a table at the end.

Guarantees: only the table and what follows it go to stdout.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from textwrap import shorten

from pipeline.base.money import PICO_PER_USD
from pipeline.base.screen import progress_bar, say, show, show_table
from pipeline.generation.outcome import BUDGET_SPENT, TRIPPED
from pipeline.generation.run import Progress as Show
from pipeline.generation.summary import Summary, Tally
from pipeline.records import MEANINGS, Reason
from pipeline.shards.shards import QUARANTINE

PLAIN_EVERY = 5.0
MOST_OF_A_DETAIL = 160


@contextmanager
def progress(*, emulated: bool) -> Iterator[Show]:
    """Show progress on stderr.

    A bar on a terminal, elsewhere a line every five seconds.
    """
    begun = last = time.monotonic()

    def show_line(tally: Tally) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= PLAIN_EVERY:
            last = now
            done = _done(tally) - tally.done_before
            rest = timedelta(seconds=round((now - begun) / max(done, 1) * (tally.lines - _done(tally))))
            state = f"{_state(tally, emulated=emulated)}, {f'{rest} to go' if done else 'nothing done yet'}"
            say(f"{_done(tally)} of {tally.lines} rows: {state}")

    with progress_bar() as bar:
        if bar is None:
            yield show_line
        else:
            yield lambda tally: bar.update(_done(tally), tally.lines, _state(tally, emulated=emulated))


def _done(tally: Tally) -> int:
    return tally.done_before + tally.accepted + tally.refused + tally.unknown_count + tally.again


def _state(tally: Tally, *, emulated: bool) -> str:
    spent, word = tally.spent_pico / PICO_PER_USD, " emulated" * emulated
    left = (tally.budget_pico - tally.spent_pico) / PICO_PER_USD
    each = f"${spent / tally.accepted:.6f} an accepted row" if tally.accepted else "no row accepted yet"
    return f"{tally.accepted} accepted, {tally.refused} refused, ${spent:.4f}{word}, {each}, ${left:.2f} left"


def print_summary(summary: Summary, again: Sequence[str]) -> None:
    """Print the table, and what to run next.

    `again` is the command line of this run.
    """
    show_table([*_lines(summary)])
    if summary.message:
        show(summary.message)
    show(*_next(summary, again))


def _lines(summary: Summary) -> Iterator[tuple[str, str]]:
    rows, cost = summary.rows, summary.cost
    yield "route", summary.route
    yield "outcome", summary.outcome
    yield "rows in the file", str(rows["in_file"])
    yield "asked now", f"{rows['asked']} (and {rows['from_ledger']} from the ledger, {rows['done_before']} done before)"
    yield "accepted", str(rows["accepted"])
    yield from _accepted(summary)
    yield "refused", str(rows["refused"])
    for reason, count in summary.by_reason.items():
        yield f"  {reason}", f"{count}: {_why(summary, reason)}"
    if rows["unknown"]:
        yield "fate unknown", f"{rows['unknown']}: {', '.join(summary.unknown_rows)}"
    if rows["left"]:
        yield "left to ask", str(rows["left"])
    if rows["beyond_limit"]:
        yield "beyond --limit", str(rows["beyond_limit"])
    yield "tokens", f"{summary.prompt_tokens} prompt, {summary.output_tokens} output, in accepted rows"
    yield "cost", f"${cost['usd']}{' (emulated: no money)' if cost['emulated'] else ''} of ${cost['budget_usd']}"
    if "engine_seconds" in cost:
        yield "engine", f"{cost['engine_seconds']} s busy with this run"
    if cost["unsettled_requests"]:
        yield "unsettled", f"at most ${cost['unsettled_worst_usd']} in {cost['unsettled_requests']} requests"
    if summary.tree_changed:
        yield "tree", f"changed while the run was on: {', '.join(summary.tree_changed)}"
    yield "shards", f"{len(summary.shards)} in {summary.folder}"


def _accepted(summary: Summary) -> Iterator[tuple[str, str]]:
    for grade, count in summary.by_evidence.items():
        yield f"  by {grade}", str(count)
    for grade, count in summary.by_prompt_evidence.items():
        yield f"  prompts by {grade}", str(count)
    if summary.cut:
        yield "  cut", f"{summary.cut}: no end token; training leaves them out without --keep-cut"


def _why(summary: Summary, reason: str) -> str:
    """Return the first refusal's detail, else the reason's meaning.

    A reason is wider than what is wrong with one row.
    """
    first = summary.first_of_reason.get(reason)
    if first is None:
        return MEANINGS[Reason(reason)]
    return f"{'the first: ' * (summary.by_reason[reason] > 1)}{shorten(first, MOST_OF_A_DETAIL, placeholder=' …')}"


def _next(summary: Summary, again: Sequence[str]) -> Iterator[str]:
    command = shlex.join(["python", "-m", "pipeline", *again])
    if summary.code == BUDGET_SPENT:
        command = shlex.join(["python", "-m", "pipeline", *_with_room(again, summary.message or "")])
        yield f"Next, to go on once that cap allows more (what was spent before counts): {command}"
    elif summary.code == TRIPPED and summary.paused is not None:
        yield f"Next: look at those rows in {summary.folder}/{QUARANTINE} and the ledger, then, to be judged again:"
        command = command.replace(" --resume", "")
        yield f"      {command} --resume"
        sign = summary.paused["sign"]
        yield f"      or, to go on whatever comes of it: {command} --accept-trip {sign}"
    elif summary.rows["unknown"]:
        yield f"Next, to ask again what may have been paid for: {command} --resend-unknown"
    elif summary.rows["left"]:
        yield f"Next, to go on: {command}"
    else:
        refused = f", and {summary.folder}/{QUARANTINE} for what was refused" if summary.rows["refused"] else ""
        yield f"Next: read {summary.folder}/manifest.json{refused};"
        yield "      python -m pipeline ledger shows what was spent"


def _with_room(again: Sequence[str], message: str) -> list[str]:
    """Return the command, its budget MORE if that was spent.

    A day's cap needs no other budget, only the next day.
    """
    if " a run:" not in message:
        return list(again)
    flag = "--budget-usd"
    raised = [f"{flag}=MORE" if part.startswith(f"{flag}=") else part for part in again]
    return ["MORE" if before == flag else part for before, part in zip(["", *raised], raised, strict=False)]
