"""Measure everything about SGLang that needs a GPU.

`python -m harness engines gpu-check --python PYTHON --drafter DIR`

Guarantees: three parts in a few minutes, each with its own PASS or FAIL and its seconds. The golden set of the tiny
target is recorded and compared with those of the CPU. SGLang's own EAGLE-3 decoding with an exported drafter gives what
plain decoding gives, in rounds as long as ours. Its hidden states equal transformers'. A failed part does not end the
others. Exit 1 if one fails.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from harness.engines.launch import running
from harness.engines.settings import Start
from harness.goldens import engine_sets as golden_run
from harness.measures.engines import speculation
from harness.measures.engines import states as engine_states
from pipeline.base.screen import say, show
from pipeline.drafter.target.server import flags

LIMIT: Final = "0.02"
"""Of the largest number: bfloat16 keeps eight bits of each, and sums over a few hundred of them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen parts; 0 if all pass."""
    parser = argparse.ArgumentParser(
        prog="python -m harness engines gpu-check", description=str(__doc__).split("\n")[0]
    )
    add = parser.add_argument
    add("--python", required=True, metavar="PYTHON", help="the interpreter of SGLang's environment")
    add("--drafter", type=Path, required=True, metavar="DIR", help="an exported drafter of the model: nox -s drafter")
    add("--model", type=Path, default=golden_run.WEIGHTS, metavar="DIR", help="default: the tiny target")
    add("--device", choices=["cpu", "cuda"], default="cuda")
    add("--prompts", type=int, default=64, metavar="N", help="answered by speculation (default 64)")
    add("--only", choices=["goldens", "speculation", "states"], action="append", help="this part alone")
    options = parser.parse_args(arguments)
    failed = [name for name, part in parts(options).items() if not passed(name, part)]
    show(f"{'FAIL: ' + ', '.join(failed) if failed else 'PASS'}")
    return 1 if failed else 0


def parts(options: argparse.Namespace) -> Mapping[str, Callable[[], int]]:
    """Return each part as a function of its exit status."""
    given = ["sglang", "--python", options.python, "--device", options.device]
    own = [*given, "--model", str(options.model), "--drafter", str(options.drafter), "--prompts", str(options.prompts)]
    found: dict[str, Callable[[], int]] = {
        "goldens": lambda: golden_run.main(given),
        "speculation": lambda: speculation.main(own),
        "states": lambda: states(Start("sglang", options.python, options.model.resolve(), options.device)),
    }
    return {name: part for name, part in found.items() if not options.only or name in options.only}


def passed(name: str, part: Callable[[], int]) -> bool:
    """Run one part and print its result."""
    begun = time.monotonic()
    try:
        code = part()
    except Exception as error:  # noqa: BLE001 - the other parts still have their say
        say(f"error: {type(error).__name__}: {error}")
        code = 2
    show(f"{name}: {'FAIL' if code else 'PASS'} in {time.monotonic() - begun:.0f} s")
    return code == 0


def states(start: Start) -> int:
    """Compare the hidden states of a new server. Raises EngineError."""
    config = json.loads((start.model / "config.json").read_text("utf-8"))
    layers = (1, config["num_hidden_layers"] // 2 - 1, config["num_hidden_layers"] - 4)
    more = flags(config["model_type"], layers, config["num_hidden_layers"])
    with running(Start(start.name, start.python, start.model, start.device, more=more)) as engine:
        wanted = ["--url", engine.url, "--model", str(start.model), "--layers", *map(str, layers)]
        return engine_states.main([*wanted, *(["--limit", LIMIT] if start.device == "cuda" else [])])
