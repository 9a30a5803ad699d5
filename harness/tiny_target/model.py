"""The tiny target's architecture: a plain LlamaForCausalLM that every engine can serve.

Guarantees: head_dim 32, eight layers (EAGLE-3's default layer ids collide below seven), tied embeddings, about 1.3 M
parameters. Needs torch and transformers.
"""

from __future__ import annotations

from transformers import LlamaConfig, LlamaForCausalLM

from harness.tiny_target.vocabulary import BASE_SIZE
from pipeline.formats.tokenizer import CONTROL_TOKENS

CONTEXT = 2048


def new_model() -> LlamaForCausalLM:
    """An untrained model; its weights follow torch's global seed."""
    return LlamaForCausalLM(config())


def config() -> LlamaConfig:
    """The shape; the model stops at `<|im_end|>`, as Kimi's config.json says, and pads with [PAD]."""
    return LlamaConfig(
        vocab_size=BASE_SIZE + CONTROL_TOKENS,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=BASE_SIZE,
        eos_token_id=BASE_SIZE + 2,
        pad_token_id=BASE_SIZE + 255,
        initializer_range=0.04,
    )
