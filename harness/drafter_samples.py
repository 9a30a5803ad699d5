"""Small things to test a drafter's parts on: folders of rows as a run writes them, and targets with drawn weights.

What needs torch imports it when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline import manifest as manifests
from pipeline.manifest import Manifest, Session
from pipeline.records import Evidence, Json, Span, SpanKind, TokenRow
from pipeline.shards import ShardFolder

TOKENIZER = "ab" * 32
ATTESTATION = "cd" * 32
TREE: Mapping[str, str] = {"pipeline/": "1"}


def row(
    name: str, prompt: Sequence[int], output: Sequence[int], evidence: Evidence = Evidence.STREAM_DELTAS
) -> TokenRow:
    """A row whose last token ended it."""
    stop = len(output) - 1
    spans = (Span(SpanKind.CONTENT, 0, stop), Span(SpanKind.END, stop, len(output)))
    filled = tuple(span for span in spans if span.stop > span.start >= 0)
    return TokenRow(name, tuple(prompt), tuple(output), filled, evidence)


def run_folder(
    folder: Path,
    rows: Sequence[TokenRow],
    *,
    sessions: Sequence[Session] | None = None,
    counted: Json = None,
    rows_a_shard: int = 3,
    **settings: Json,
) -> Path:
    """A finished run of these rows, attested, on a tree that did not change."""
    common: dict[str, Json] = {"format": "tiny-kimi", "tokenizer_sha256": TOKENIZER, "route": "emulator/chutes"}
    told = common | settings
    metadata = {"run": folder.name} | {key: str(told[key]) for key in ("format", "tokenizer_sha256")}
    shards = ShardFolder(folder, route=str(told["route"]), metadata=metadata, rows_a_shard=rows_a_shard)
    for each in rows:
        shards.accept(each, "B1")
    shards.flush()
    result: dict[str, Json] = {"complete": True, "counted": counted, "cost": {"usd": "0", "emulated": True}}
    ended = (Session("then", ATTESTATION, TREE, TREE, "now", "complete"),)
    found = Manifest(folder.name, told, ended if sessions is None else sessions, result, tuple(shards.shards))
    manifests.write(folder, found)
    return folder


def small_llama(folder: Path, **changes: object) -> Path:
    """A llama of 8 layers with drawn weights, written as a model directory; `changes` go into its config."""
    return small_target(folder, "llama", **changes)


def small_target(folder: Path, family: str, **changes: object) -> Path:
    """The same of any family that transformers knows."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    given: dict[str, object] = {
        "vocab_size": 48,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**given | changes))
    # Drawn norms too: with weights of one, a state before the norm could pass for one after it.
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.3)
    model.save_pretrained(folder)
    return folder
