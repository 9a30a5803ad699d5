"""The engines that are spoken to by ids, by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipeline.engines.serving import Dialect
from pipeline.engines.sglang import SGLang
from pipeline.engines.vllm import VLLM

DIALECTS: Mapping[str, Callable[[], Dialect]] = {"sglang": SGLang, "vllm": VLLM}
