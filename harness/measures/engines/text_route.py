"""Start an engine with its parsers, measure its text view.

`python -m harness engines routes ENGINE --python PYTHON --model DIR`

Guarantees: the engine runs with its own Kimi parsers of reasoning and tools; `engine-routes` measures its chat endpoint
with the ids that its answers carry; then the engine is ended. Unknown options go to that measure.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from harness.engines.__main__ import add_engine, start_of
from harness.engines.launch import running
from harness.engines.settings import Name
from harness.measures.engines import routes as engine_routes
from harness.views.roundtrip import MODEL
from pipeline.base.screen import say
from pipeline.generation.engines.output import EngineError

PARSERS: Final[Mapping[Name, Sequence[str]]] = {
    "sglang": ("--reasoning-parser", "kimi_k2", "--tool-call-parser", "kimi_k2"),
    "vllm": (
        *("--reasoning-parser", "kimi_k2", "--tool-call-parser", "kimi_k2", "--enable-auto-tool-choice"),
        *("--served-model-name", MODEL),  # vLLM answers to no other name than it was given
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the status of `engine-routes`; 2 for a failed start."""
    parser = argparse.ArgumentParser(prog="python -m harness engines routes", description=str(__doc__).split("\n")[0])
    add_engine(parser)
    options, more = parser.parse_known_args(arguments)
    start = replace(start_of(options), more=tuple(PARSERS[options.engine]))
    try:
        with running(start) as engine:
            return engine_routes.main(["--engine", start.name, "--url", engine.url, *more])
    except EngineError as error:
        say(f"error: {error}")
        return 2
