"""The command line: one verb a job, each in its own module, imported only when it is the verb.

Guarantees: an error of ours is one or two sentences on stderr, never a traceback. Exit status: 0 done, 1 the work could
not be finished, 2 unusable arguments, 3 the gate is shut, 4 the budget is spent, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

DEBUG = "DRAFTER_GATE_DEBUG"
FAILED, UNUSABLE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141


@dataclass(frozen=True, slots=True)
class Verb:
    """Where a verb lives: its module has `add_parser(subparsers)`, whose parser sets `run`."""

    module: str
    help: str


VERBS: Mapping[str, Verb] = {
    "generate": Verb("pipeline.generate_cli", "ask a model for completions and keep the proven ones"),
    "gate": Verb("pipeline.gate_cli", "say whether the gate is open, and if not, what mends it"),
    "reconstruct": Verb("pipeline.reconstruct_cli", "rebuild token ids of answers that you have, JSON lines on stdin"),
    "render": Verb("pipeline.reconstruct_cli", "render prompts to token ids, JSON lines on stdin"),
    "ledger": Verb("pipeline.ledger_cli", "list what was spent, by day and route, and what is unsettled"),
}


def main(arguments: Sequence[str]) -> int:
    """Run one command; its exit status."""
    try:
        options = _parser(arguments).parse_args(arguments)
        status: int = options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader left (`| head`); what Python would flush at exit has nowhere to go either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as error:  # noqa: BLE001 - the last resort: a user never meets a traceback unasked
        return _failed(error)
    return status


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline", description="Proven token sequences from hosted APIs.")
    subparsers = parser.add_subparsers(required=True, metavar="VERB")
    named = next((argument for argument in arguments if argument in VERBS), None)
    chosen = VERBS[named].module if named else None
    for verb, entry in VERBS.items():
        if entry.module != chosen:
            subparsers.add_parser(verb, help=entry.help)
    if chosen is not None:
        import_module(chosen).add_parser(subparsers)
    return parser


def _failed(error: Exception) -> int:
    ours = type(error).__module__.partition(".")[0] == "pipeline"
    if ours:
        sys.stderr.write(f"error: {error}\n")
    elif isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"error: {where}{error.strerror or error}\n")
    else:
        sys.stderr.write(f"error: this program failed ({type(error).__name__}: {error}).\n")
        sys.stderr.write(f"Please report it with what this prints: {DEBUG}=1 and the same command\n")
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    return UNUSABLE if ours or isinstance(error, OSError) else FAILED
