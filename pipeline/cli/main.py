"""The menu of verbs, and how each ends.

Guarantees: only the verb's own module is imported. An error of ours is one or two sentences on stderr, never a
traceback. Exit status: 0 done, 1 the work could not be finished, 2 unusable arguments, 3 the gate is shut, 4 the budget
is spent, 5 the breaker paused the run, 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.base.screen import say, say_logs, say_traceback, show

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

DEBUG = "DRAFTER_GATE_DEBUG"
FAILED, UNUSABLE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141
OWN = frozenset({"", "pipeline", "harness", "tests"})
_EXPECTED = (OSError, MemoryError)
"""Errors of the machine, which nobody need report."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb's module and its line in the menu.

    The module has `add_parser(subparsers)`, which sets `run` on the parser.
    """

    module: str
    help: str


VERBS: Mapping[str, Verb] = {
    "generate": Verb("pipeline.cli.generate", "ask a model for completions and keep the proven ones"),
    "probe": Verb("pipeline.cli.probe", "ask a route the committed probes, and write the exchanges"),
    "gate": Verb("pipeline.cli.gate", "say whether the gate is open, and if not, what mends it"),
    "reconstruct": Verb(
        "pipeline.cli.reconstruct", "rebuild the token ids of answers that you have, JSON lines on stdin"
    ),
    "render": Verb("pipeline.cli.reconstruct", "render prompts to token ids, JSON lines on stdin"),
    "fingerprint": Verb("pipeline.cli.fingerprint", "learn what routes do to text from recorded exchanges"),
    "prepare": Verb("pipeline.cli.prepare", "turn a dataset's rows into prompts, with a reason for each row left out"),
    "datasets": Verb("pipeline.cli.prepare", "print every dataset's page: schema, licence, what is dropped and why"),
    "audit": Verb("pipeline.cli.audit", "count the features that a dataset's rows use, and show the first of each"),
    "merge": Verb("pipeline.cli.merge", "make one training set of the shards of several runs"),
    "train": Verb("pipeline.cli.train", "train an EAGLE-3 drafter on proven rows"),
    "states": Verb("pipeline.cli.states", "compute the hidden states of proven rows, on disk for training"),
    "evaluate": Verb("pipeline.cli.evaluate", "measure a drafter's acceptance and speed, and whether it is lossless"),
    "export": Verb("pipeline.cli.export", "write drafters and rows as other programs read them"),
    "reasons": Verb("pipeline.cli.reasons", "print every reason for a refusal, as a table"),
    "ledger": Verb("pipeline.cli.ledger", "list what was spent, by day and route, and what is unsettled"),
}


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status.

    main(["gate", "status"])
    """
    say_logs()
    try:
        options = _parser(arguments).parse_args(arguments)
        _require_outside_tree(getattr(options, "out", None))
        status: int = options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        return PIPE_CLOSED
    except Exception as error:  # noqa: BLE001 - the last resort: a user never meets a traceback unasked
        said, status = _explained(error)
        say(*said)
        if os.environ.get(DEBUG):
            say_traceback(error)
        return status
    finally:
        _give_up_unwritable_output()
    return status


def _give_up_unwritable_output() -> None:
    """Drop output that cannot be written.

    Python would flush it at exit, and fail, where the reader has left (`| head`) or the disk is full.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """Show arguments escaped: somebody else may have named the file."""

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        (say if file is sys.stderr else show)(*message.removesuffix("\n").split("\n"))


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m pipeline", description="Proven token sequences from hosted APIs.")
    subparsers = parser.add_subparsers(required=True, metavar="VERB")
    named = next((argument for argument in arguments if argument in VERBS), None)
    chosen = VERBS[named].module if named else None
    for verb, entry in VERBS.items():
        if entry.module != chosen:
            subparsers.add_parser(verb, help=entry.help)
    if chosen is not None:
        import_module(chosen).add_parser(subparsers)
    return parser


def _require_outside_tree(out: object) -> None:
    """Refuse an output among the files that the attestation covers.

    It would shut the gate for the run that writes it. Raises DigestError.
    """
    if not isinstance(out, str | Path):
        return
    from pipeline.base.paths import ROOT
    from pipeline.gate.digests import HASHED, DigestError

    place = Path(out).resolve()
    if place.is_relative_to(ROOT) and (place == ROOT or place.relative_to(ROOT).parts[0] in {*HASHED, ".git"}):
        raise DigestError(
            f"{out} lies in the tree that the attestation covers, and would shut the gate. Give --out runs/NAME"
        )


def _explained(error: Exception) -> tuple[list[str], int]:
    """Return the lines for the user, and the exit status."""
    if type(error).__module__.partition(".")[0] == "pipeline":
        return [f"error: {line}" for line in getattr(error, "lines", (str(error),))], UNUSABLE
    said, status = _sentence(error)
    report = f"Please report it with what this prints: {DEBUG}=1 and the same command"
    return [f"error: {said}", *([report] if status == FAILED and not isinstance(error, _EXPECTED) else [])], status


def _sentence(error: Exception) -> tuple[str, int]:
    """Return what went wrong outside our words, and the status."""
    if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").partition(".")[0]) not in OWN:
        mend = "Run: . .nox/torch/bin/activate, an environment that `nox -s generate` makes"
        return f"{sys.executable} lacks {package}. {mend}", UNUSABLE
    if isinstance(error, OSError):
        if error.filename is None and error.errno in NO_ROOM:
            what = f"the output cannot be written whole ({error.strerror})"
            return f"{what}. Make room, or send it elsewhere, and run the same command again", FAILED
        return f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}", UNUSABLE
    if isinstance(error, RecursionError):
        return f"the input is nested too deeply for this program ({error}). Take out what is nested so", UNUSABLE
    if isinstance(error, MemoryError):
        return "there is not enough memory for this input. Give less of it at once, or more memory", FAILED
    return f"this program failed ({type(error).__name__}: {error}).", FAILED


if __name__ == "__main__":
    say("error: this module is no program. Run: python -m pipeline …")
    sys.exit(UNUSABLE)
