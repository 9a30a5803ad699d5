"""Compare SGLang's hidden states with transformers'.

`python -m harness engine-states --url URL --model DIR`

Guarantees: compared row by row, on prompts sent as ids and on the tokens that the server then sampled. The largest
difference is printed with the largest number, of which it is a share: float32 keeps seven digits of either. Exit 1
where that share is above the limit. Needs torch.
"""

from __future__ import annotations

import argparse
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from harness.emulator.survey import PROMPTS
from pipeline.base.prompts import read_prompts
from pipeline.base.screen import say, show
from pipeline.drafter.target.server import ServedStatesError, rows_of
from pipeline.formats.registry import open_format
from pipeline.records import Ids, Prompt

LIMIT: Final = 1e-5
SECONDS: Final = 300


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; 1 above the limit, 2 where no states came."""
    parser = argparse.ArgumentParser(prog="python -m harness engine-states", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--url", required=True, metavar="http://127.0.0.1:PORT")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="what the server serves")
    parser.add_argument("--layers", type=int, nargs="+", required=True, metavar="L", help="outputs that it returns")
    parser.add_argument("--prompts", type=int, default=20, metavar="N")
    parser.add_argument("--tokens", type=int, default=24, metavar="N", help="to sample after each prompt")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="X", help=f"of the largest number ({LIMIT:.0e})")
    options = parser.parse_args(arguments)
    try:
        worst, largest, rows = compared(
            options.url, options.model, options.layers, prompts_of(options.prompts), options.tokens
        )
    except (ServedStatesError, OSError, ValueError, KeyError, TypeError) as error:
        say(f"error: {error}")
        return 2
    share = f"{worst / largest:.1e}, limit {options.limit:.0e}"
    told = f"largest difference {worst:.2e} among numbers up to {largest:.1f}: {share}"
    show(f"{rows} rows of layers {options.layers}: {told}")
    return 1 if worst > options.limit * largest else 0


def prompts_of(number: int) -> list[Ids]:
    """Return the ids of the first shipped prompts."""
    fmt = open_format("tiny-kimi")
    found = [fmt.render(prompt) for prompt in read_prompts(PROMPTS) if isinstance(prompt, Prompt)]
    return found[:number]


def compared(
    url: str, model: Path, layers: Sequence[int], prompts: Sequence[Ids], tokens: int
) -> tuple[float, float, int]:
    """Return the largest difference, largest number and row count.

    Raises ServedStatesError.
    """
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, local_files_only=True).eval()
    width = loaded.config.hidden_size * len(layers)
    worst, largest, count = 0.0, 0.0, 0
    for prompt in prompts:
        answer = generated(url, prompt, tokens)
        rows = torch.tensor(rows_of(answer["meta_info"], len(prompt), width))
        ids = torch.tensor([[*prompt, *answer["output_ids"][:-1]]])
        with torch.no_grad():
            states = loaded(ids, output_hidden_states=True).hidden_states
        true = torch.cat([states[layer + 1][0] for layer in layers], dim=-1)
        worst, largest = max(worst, float((rows - true).abs().max())), max(largest, float(true.abs().max()))
        count += len(rows)
    return worst, largest, count


def generated(url: str, prompt: Ids, tokens: int) -> dict[str, Any]:
    """Return one answer of `/generate` with its states.

    Sampled at temperature 1. Raises ServedStatesError.
    """
    sampling = {"max_new_tokens": tokens, "temperature": 1.0}
    body = {"input_ids": list(prompt), "sampling_params": sampling, "return_hidden_states": True}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), headers)  # noqa: S310 — our own URL
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise ServedStatesError(f"status {error.code}: {error.read()[:300]!r}") from None
    return found
