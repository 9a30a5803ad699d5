"""The engines that are spoken to by ids, by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipeline.generation.engines.server import EngineDialect
from pipeline.generation.engines.sglang import SGLang
from pipeline.generation.engines.vllm import VLLM

DIALECTS: Mapping[str, Callable[[], EngineDialect]] = {"sglang": SGLang, "vllm": VLLM}
