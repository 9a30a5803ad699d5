"""Start an engine's server until Ctrl-C, or measure one.

`python -m harness engines [VERB] ENGINE --python PYTHON --model DIR`

Guarantees: once the server answers, one line on stdout, `listening URL`. Exit 1 with the end of its log where it does
not. No process is left behind either way. `VERB` is one of `VERBS`, a measure that starts and ends the engine itself.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from harness.engines.launch import running
from harness.engines.settings import Start
from pipeline.base.screen import say, show
from pipeline.generation.engines.output import EngineError

VERBS: Mapping[str, str] = {
    "agreement": "harness.engines.agreement",
    "goldens": "harness.goldens.engine_sets",
    "kills": "harness.measures.engines.kills",
    "routes": "harness.measures.engines.text_route",
    "speculation": "harness.measures.engines.speculation",
    "gpu-check": "harness.measures.engines.gpu_check",
}
"""Measures, and the module of each."""


class AskedToEndError(Exception):
    """A signal asked this process to end."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal, or run a measure; exit status.

    1 where the engine did not start. A measure has its own exit status.

        main(["sglang", "--python", "sglang/bin/python", "--model", "harness/tiny_target/weights"])
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in VERBS:
        measure: Callable[[Sequence[str]], int] = importlib.import_module(VERBS[given[0]]).main
        return measure(given[1:])
    start, log = parsed(given)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a shell's background job is born deaf to Ctrl-C
        signal.signal(number, _end)
    try:
        with running(start, log=log) as engine:
            said = json.dumps(engine.facts.document())
            show(f"listening {engine.url} after {engine.seconds:.0f} s, {said}")
            while True:
                signal.pause()
    except AskedToEndError:
        return 0
    except EngineError as error:
        say(f"error: {error}")
        return 1


def parsed(arguments: Sequence[str]) -> tuple[Start, Path | None]:
    """Return what to start, and where its log goes."""
    parser = argparse.ArgumentParser(prog="python -m harness engines", description=(__doc__ or "").split("\n")[0])
    add_engine(parser)
    parser.add_argument("--log", type=Path, metavar="FILE", help="keep the engine's log there")
    options, more = parser.parse_known_args(arguments)
    return start_of(options, more), options.log


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add the options that name an engine."""
    add = parser.add_argument
    add("engine", choices=["sglang", "vllm"])
    add("--python", required=True, metavar="PYTHON", help="the interpreter of the engine's own environment")
    add("--model", type=Path, required=True, metavar="DIR", help="a model's directory")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--port", type=int, default=0, metavar="N", help="where it listens (default: a free port)")
    add("--context", type=int, default=2048, metavar="N", help="most tokens of prompt and answer (default 2048)")
    add("--rows", type=int, default=8, metavar="N", help="most rows in one batch (default 8)")


def start_of(options: argparse.Namespace, more: Sequence[str] = ()) -> Start:
    """Return the engine that the options name."""
    given = (options.engine, options.python, options.model.resolve(), options.device, options.port)
    return Start(*given, context=options.context, rows=options.rows, more=tuple(each for each in more if each != "--"))


def _end(_: int, __: FrameType | None) -> None:
    raise AskedToEndError


if __name__ == "__main__":
    sys.exit(main())
