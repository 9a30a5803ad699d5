"""The engines that are asked by ids, by route.

Apart from the package, so that importing a request or a price loads no client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipeline.generation.engines.server import EngineDialect
from pipeline.generation.engines.sglang import SGLang
from pipeline.generation.engines.vllm import VLLM

DIALECTS: Mapping[str, Callable[[], EngineDialect]] = {"sglang": SGLang, "vllm": VLLM}
