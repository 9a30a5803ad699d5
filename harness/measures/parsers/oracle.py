"""Run an engine's own Kimi parsers, in its environment.

`python oracle.py sglang|vllm [TOKENIZER]`

Guarantees: the parsers' files are the installed package's, unedited and not stubbed. Nothing of this project is
imported, since the pins of the two environments differ. JSON lines in, `{"text", "ids", "thinking"}`, and JSON lines
out, `{"reasoning", "content", "calls": [[id, arguments]]}`. SGLang's parsers need neither torch nor their package's own
`__init__`.
"""

from __future__ import annotations

import importlib.machinery
import json
import logging
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

Parse = Callable[[Mapping[str, Any]], dict[str, Any]]


def main() -> int:
    """Parse standard input; 2 for another engine's name."""
    logging.disable(logging.CRITICAL)
    known: dict[str, Callable[..., Parse]] = {"sglang": sglang_parser, "vllm": vllm_parser}
    if len(sys.argv) < 2 or sys.argv[1] not in known:  # noqa: PLR2004 — the engine's name
        sys.stderr.write("usage: oracle.py sglang | vllm TOKENIZER_DIRECTORY\n")
        return 2
    parse = known[sys.argv[1]](*sys.argv[2:])
    for line in sys.stdin:
        sys.stdout.write(json.dumps(parse(json.loads(line))) + "\n")
    return 0


def sglang_parser(*_: str) -> Parse:
    """Return SGLang's parser: reasoning, tools, then the server's ids."""
    _as_bare_package("sglang")
    from sglang.srt.function_call.kimik2_detector import KimiK2Detector
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    def parse(case: Mapping[str, Any]) -> dict[str, Any]:
        forced = bool(case["thinking"])
        parser = ReasoningParser(model_type="kimi_k2", stream_reasoning=False, force_reasoning=forced)
        reasoning, text = parser.parse_non_stream(case["text"])
        found = KimiK2Detector().detect_and_parse(text or "", [])
        calls = [[f"functions.{call.name}:{call.tool_index}", call.parameters] for call in found.calls]
        return {"reasoning": reasoning or "", "content": found.normal_text or "", "calls": calls}

    return parse


def _as_bare_package(name: str) -> None:
    """Import submodules without the package's `__init__`, which needs torch."""
    spec = importlib.machinery.PathFinder.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit(f"{name} is not installed here. Run: nox -s parsers")
    module = types.ModuleType(name)
    module.__path__ = list(spec.submodule_search_locations)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__spec__.submodule_search_locations = module.__path__
    sys.modules[name] = module


def vllm_parser(tokenizer: str, *_: str) -> Parse:
    """Return vLLM's parser over ids, as its server calls it."""
    from transformers import AutoTokenizer
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.kimi_k2 import KimiK2Parser

    loaded = AutoTokenizer.from_pretrained(tokenizer)
    request = ChatCompletionRequest(model="any", messages=[{"role": "user", "content": "hi"}])

    def parse(case: Mapping[str, Any]) -> dict[str, Any]:
        parser = KimiK2Parser(loaded, None, chat_template_kwargs={"thinking": bool(case["thinking"])})
        said = parser.parse(case["text"], request, enable_auto_tools=True, model_output_token_ids=case["ids"])
        calls = [[call.id, call.arguments] for call in said[2] or ()]
        return {"reasoning": said[0] or "", "content": said[1] or "", "calls": calls}

    return parse


if __name__ == "__main__":
    sys.exit(main())
