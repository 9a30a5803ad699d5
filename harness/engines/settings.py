"""How each engine is started: command and environment.

Guarantees: what decides numbers (dtype, attention backend, no prefix cache, no chunked prefill) is always given, never
left to a default. An engine listens on loopback alone and reaches no hub.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Name = Literal["sglang", "vllm"]
Device = Literal["cpu", "cuda"]
HOST: Final = "127.0.0.1"
CPU_LAUNCH: Final = Path(__file__).parent / "cpu_launch.py"
KV_TOKENS: Final = 16384
"""Of all rows in flight together; without it SGLang takes a share of all memory."""


@dataclass(frozen=True, slots=True)
class Start:
    """What to start.

    `python` is the interpreter of the engine's environment; `more` is passed to the engine unchanged.
    """

    name: Name
    python: str
    model: Path
    device: Device = "cpu"
    port: int = 0
    context: int = 2048
    rows: int = 8
    more: Sequence[str] = ()

    @property
    def dtype(self) -> str:
        """float32 on the CPU; the model's own on a GPU.

        float32 is exact to 1e-6.
        """
        return "float32" if self.device == "cpu" else "auto"

    def command(self, port: int) -> list[str]:
        """Return the command that listens on `port`."""
        return [*(_sglang if self.name == "sglang" else _vllm)(self, port), *self.more]

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return `base` with the variables that the engines need."""
        kept = {name: value for name, value in base.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        return {**kept, **ENVIRONMENT}


ENVIRONMENT: Final[Mapping[str, str]] = {
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads are ten times slower beside any other process
    "SGLANG_RETURN_ORIGINAL_LOGPROB": "1",  # logprobs of the model, whatever the temperature
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # without it vLLM tells neither device nor dtype
}


def _sglang(start: Start, port: int) -> list[str]:
    cpu = start.device == "cpu"
    entry = [str(CPU_LAUNCH)] if cpu else ["-m", "sglang.launch_server"]
    on_cpu = ["--attention-backend", "torch_native", "--mem-fraction-static", "0.1"] if cpu else []
    return [
        *(start.python, *entry, "--model-path", str(start.model), "--host", HOST, "--port", str(port)),
        *("--device", start.device, "--dtype", start.dtype, *on_cpu),
        *("--max-total-tokens", str(KV_TOKENS), "--context-length", str(start.context)),
        *("--max-running-requests", str(start.rows), "--grammar-backend", "none"),
        *("--skip-server-warmup", "--sleep-on-idle", "--disable-radix-cache", "--chunked-prefill-size", "-1"),
    ]


def _vllm(start: Start, port: int) -> list[str]:
    backend = ["--attention-backend", "CPU_ATTN"] if start.device == "cpu" else []
    return [
        *(start.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(start.model)),
        *("--host", HOST, "--port", str(port), "--dtype", start.dtype, *backend),
        *("--max-model-len", str(start.context), "--max-num-seqs", str(start.rows)),
        *("--enforce-eager", "--no-enable-prefix-caching", "--no-enable-chunked-prefill"),
        *("--max-num-batched-tokens", str(max(KV_TOKENS, start.context))),
    ]
