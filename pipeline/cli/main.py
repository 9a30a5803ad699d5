"""The command line: one verb a job, each in its own module, imported only when it is the verb.

Guarantees: an error of ours is one or two sentences on stderr, never a traceback. Exit status: 0 done, 1 the work could
not be finished, 2 unusable arguments, 3 the gate is shut, 4 the budget is spent, 5 the breaker
paused the run, 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

DEBUG = "DRAFTER_GATE_DEBUG"
FAILED, UNUSABLE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141
OWN = frozenset({"", "pipeline", "harness", "tests"})
NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class Verb:
    """Where a verb lives: its module has `add_parser(subparsers)`, whose parser sets `run`."""

    module: str
    help: str


VERBS: Mapping[str, Verb] = {
    "generate": Verb("pipeline.cli.generate", "ask a model for completions and keep the proven ones"),
    "probe": Verb("pipeline.cli.probe", "ask a route the committed probes, and write what came as exchanges"),
    "gate": Verb("pipeline.cli.gate", "say whether the gate is open, and if not, what mends it"),
    "reconstruct": Verb("pipeline.cli.reconstruct", "rebuild token ids of answers that you have, JSON lines on stdin"),
    "render": Verb("pipeline.cli.reconstruct", "render prompts to token ids, JSON lines on stdin"),
    "fingerprint": Verb("pipeline.cli.fingerprint", "learn what routes do to text from recorded exchanges"),
    "prepare": Verb("pipeline.cli.prepare", "a dataset's rows to prompts, with a reason for each row left out"),
    "datasets": Verb("pipeline.cli.prepare", "every dataset's page: schema, licence, what is dropped and why"),
    "audit": Verb("pipeline.cli.audit", "which features a dataset's rows use, with the first of each to look at"),
    "merge": Verb("pipeline.cli.merge", "one training set of the shards of several runs"),
    "train": Verb("pipeline.cli.train", "an EAGLE-3 drafter from proven rows"),
    "states": Verb("pipeline.cli.states", "the hidden states of proven rows, on disk for training"),
    "evaluate": Verb("pipeline.cli.evaluate", "acceptance and speed of a drafter, and whether it is lossless"),
    "export": Verb("pipeline.cli.export", "drafters and rows as other programs read them"),
    "reasons": Verb("pipeline.cli.reasons", "every reason for a refusal, as a table"),
    "ledger": Verb("pipeline.cli.ledger", "list what was spent, by day and route, and what is unsettled"),
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
        return PIPE_CLOSED
    except Exception as error:  # noqa: BLE001 - the last resort: a user never meets a traceback unasked
        return _failed(error)
    finally:
        _give_up_unwritable_output()
    return status


def _give_up_unwritable_output() -> None:
    """What Python would flush at exit has nowhere to go where the reader left (`| head`) or the disk is full."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
    said, status = _said(error)
    sys.stderr.write(f"error: {said}\n")
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    return status


def _said(error: Exception) -> tuple[str, int]:
    """The sentence for the user, and the exit status."""
    if type(error).__module__.partition(".")[0] == "pipeline":
        return str(error), UNUSABLE
    if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").partition(".")[0]) not in OWN:
        mend = "Run: . .nox/torch/bin/activate, an environment that `nox -s generate` makes"
        return f"{sys.executable} lacks {package}. {mend}", UNUSABLE
    if isinstance(error, OSError):
        if error.filename is None and error.errno in NO_ROOM:
            what = f"the output cannot be written whole ({error.strerror})"
            return f"{what}. Make room, or send it elsewhere, and run the same command again", FAILED
        return f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}", UNUSABLE
    report = f"Please report it with what this prints: {DEBUG}=1 and the same command"
    return f"this program failed ({type(error).__name__}: {error}).\n{report}", FAILED


if __name__ == "__main__":
    sys.stderr.write("error: this module is no program. Run: python -m pipeline …\n")
    sys.exit(UNUSABLE)
