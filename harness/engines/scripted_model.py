"""A Llama that says again what its prompt says: engines then emit any ids that we choose, through their real parsers.

Guarantees: after a prompt of exactly `SPAN` tokens, greedy decoding emits the prompt from its first token on, whatever
the ids are and however often one comes again. One attention head looks `SPAN - 1` tokens back, which its rotary
positions make exact; the MLPs are zero. Tokenizer and control tokens are the tiny target's; the template writes the
last message and fills up with `[PAD]`. Needs torch.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness.engines.cassettes import PAD, SPAN
from pipeline.base.paths import ROOT

if TYPE_CHECKING:
    import torch

WEIGHTS: Final = ROOT / "harness" / "tiny_target" / "weights"
TEMPLATE: Final = (
    "{{ messages[-1].content }}{% for _ in range(fill or 0) %}" + PAD + "{% endfor %}"
    "<think>{% if thinking is defined and not thinking %}</think>{% endif %}"
)
"""`fill` comes in `chat_template_kwargs`: how many tokens the script lacks."""

CODE, HEAD, HIDDEN, THETA = 48, 64, 128, 10_000.0
SHARPNESS: Final = 40.0
"""The next best place scores lower by more than this: nothing of it is left after the softmax."""

LOUDNESS: Final = 4.0


def write_scripted(folder: Path) -> Path:
    """Write the model's directory, which both engines load; the folder."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tiktoken.model", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(WEIGHTS / name, folder / name)
    config = json.loads((WEIGHTS / "config.json").read_text("utf-8"))
    own = _config(config)
    (folder / "config.json").write_text(json.dumps(own, indent=1) + "\n", "utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    save_file(tensors(own["vocab_size"]), str(folder / "model.safetensors"), {"format": "pt"})
    return folder


def _config(target: dict[str, Any]) -> dict[str, Any]:
    """The tiny target's, of one layer and untied."""
    return {
        **target,
        "dtype": "float32",
        "head_dim": HEAD,
        "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_theta": THETA, "rope_type": "default"},
        "tie_word_embeddings": False,
    }


def tensors(vocabulary: int) -> dict[str, torch.Tensor]:
    """The weights by name: codes in, a head that looks back, codes out."""
    import torch

    codes = _codes(vocabulary)
    embedding = torch.zeros(vocabulary, HIDDEN)
    embedding[:, :CODE] = codes
    embedding[:, CODE] = 1.0  # what queries and keys are made of, the same at every place
    rms = math.sqrt((CODE + 1) / HIDDEN)
    head = torch.zeros(vocabulary, HIDDEN)
    head[:, HEAD : HEAD + CODE] = codes * LOUDNESS
    layer = "model.layers.0"
    zero = torch.zeros(HIDDEN, HIDDEN)
    return {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": head,
        "model.norm.weight": torch.ones(HIDDEN),
        f"{layer}.input_layernorm.weight": torch.full((HIDDEN,), rms),
        f"{layer}.post_attention_layernorm.weight": torch.ones(HIDDEN),
        **_attention(f"{layer}.self_attn"),
        **{f"{layer}.mlp.{name}_proj.weight": zero.clone() for name in ("gate", "up", "down")},
    }


def _codes(vocabulary: int) -> torch.Tensor:
    """A row of signs for each token, so far from each other that the right one always scores best."""
    import torch

    drawn = torch.randint(0, 2, (vocabulary, CODE), generator=torch.Generator().manual_seed(7))
    return drawn.float() * 2 - 1


def _attention(name: str) -> dict[str, torch.Tensor]:
    """Queries and keys of the first head are constant: only the distance, through the rotary positions, tells."""
    import torch

    half = HEAD // 2
    angles = (SPAN - 1) * THETA ** (-torch.arange(half).double() / half)
    query, key, value, output = (torch.zeros(HIDDEN, HIDDEN) for _ in range(4))
    scale = math.sqrt(SHARPNESS * math.sqrt(HEAD))
    query[:half, CODE], query[half:HEAD, CODE] = scale * angles.cos().float(), -scale * angles.sin().float()
    key[:half, CODE] = scale
    value[:CODE, :CODE] = torch.eye(CODE)
    output[HEAD : HEAD + CODE, :CODE] = torch.eye(CODE)
    names = {"q": query, "k": key, "v": value, "o": output}
    return {f"{name}.{one}_proj.weight": tensor for one, tensor in names.items()}
