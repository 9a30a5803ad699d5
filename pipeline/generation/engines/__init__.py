"""Clients of the engines and APIs that generate tokens.

Guarantees: exact ids or exact bytes come back, and nothing is parsed here but what an engine's ids need. Importing this
package needs no torch; `local.py` does. `DIALECTS` names the engines that are spoken to by ids.

Read in this order:

- `openrouter.py`: `OpenRouter`, the client of OpenRouter and of the emulator; one request out, the answer's bytes back
- `request.py`: the body of a chat completion request
- `catalog.py`: endpoints, prices, key limits and past generations, as OpenRouter lists them for free
- `output.py`: `EngineOutput`, the ids that an engine sampled, and the Completion that shows them
- `server.py`: `EngineServer`, the client of an engine's server, and `EngineDialect`, what differs between engines
- `sglang.py`, `vllm.py`: the two dialects
- `local.py`: `LocalEngine`, a Hugging Face model in this process
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipeline.generation.engines.server import EngineDialect
from pipeline.generation.engines.sglang import SGLang
from pipeline.generation.engines.vllm import VLLM

DIALECTS: Mapping[str, Callable[[], EngineDialect]] = {"sglang": SGLang, "vllm": VLLM}
