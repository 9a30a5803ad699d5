"""A target's directory without running it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.fixtures.drafters import TOKENIZER, row, run_folder, small_llama
from harness.tiny_target.provenance import WEIGHTS
from pipeline.drafter.rows import RowPolicy, TrainingRows, read_rows
from pipeline.drafter.target.files import TargetError, check_rows, read_embedding_and_head, target_facts, target_notes
from pipeline.formats.registry import TINY_SHA256


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_llama(tmp_path_factory.mktemp("small") / "target")


def rows(folder: Path, highest: int = 47, **settings: Any) -> TrainingRows:  # noqa: ANN401 - JSON of a manifest
    return read_rows([run_folder(folder / "run", [row("a", [1], [highest])], **settings)])


def test_facts_are_the_configs_and_the_weights_own() -> None:
    """The digest is that which a local run's manifest names."""
    facts = target_facts(WEIGHTS)
    weights = hashlib.sha256((WEIGHTS / "model.safetensors").read_bytes()).digest()

    assert (128, 1024, 8, "llama") == (facts.hidden_size, facts.vocab_size, facts.num_layers, facts.model_type)
    assert hashlib.sha256(weights).hexdigest() == facts.weights_sha256


def edited(small: Path, folder: Path, **changes: Any) -> Path:  # noqa: ANN401 - JSON of a config
    """The same weights under another config."""
    (folder / "model.safetensors").write_bytes((small / "model.safetensors").read_bytes())
    config = json.loads((small / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def test_a_config_counts_by_all_in_it_but_who_wrote_it(small: Path, tmp_path: Path) -> None:
    before = target_facts(small).config_sha256

    assert before == target_facts(edited(small, tmp_path, transformers_version="9.9")).config_sha256
    for change in ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, {"rms_norm_eps": 1e-3}):
        assert before != target_facts(edited(small, tmp_path, **change)).config_sha256


def test_a_config_of_a_wrong_type_is_refused(small: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"its config\.json is none"):
        target_facts(edited(small, tmp_path, num_attention_heads="four"))


@pytest.mark.parametrize(
    "change, said",
    [
        (
            {"rope_theta": 1e4, "rope_parameters": None, "rope_scaling": {"rope_type": "default", "rope_theta": 5e5}},
            r"rope_theta is 10000\.0 at the top and 500000\.0 in rope_scaling",
        ),
        ({"rope_theta": 5e5}, r"rope_theta is 500000\.0 at the top and 10000\.0 in rope_parameters"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(
    small: Path, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(TargetError, match=f"config.json contradicts itself: {said}"):
        target_facts(edited(small, tmp_path, **change))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_directory_without_a_model_is_refused(small: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes((small / name).read_bytes())

    with pytest.raises(TargetError, match=r"holds no config\.json with \*\.safetensors"):
        target_facts(tmp_path)


@pytest.mark.parametrize("text", ["{}", "[", '{"model_type": "nobody"}'])
def test_a_config_that_is_none_is_refused(small: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors").write_bytes((small / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text(text)

    with pytest.raises(TargetError, match=r"its config\.json is none"):
        target_facts(tmp_path)


# The rows' vocabulary and the target's


def test_rows_of_the_targets_own_vocabulary_are_taken(tmp_path: Path) -> None:
    check_rows(target_facts(WEIGHTS), rows(tmp_path, tokenizer_sha256=TINY_SHA256))


def test_rows_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=f"in the vocabulary {TOKENIZER[:12]} and the target .* has another"):
        check_rows(target_facts(WEIGHTS), rows(tmp_path))


def test_a_target_without_a_vocabulary_is_taken_and_noted(small: Path, tmp_path: Path) -> None:
    facts, given = target_facts(small), rows(tmp_path)
    check_rows(facts, given)

    assert [f"{small} has no vocabulary of its own, so the rows' was not compared with it"] == target_notes(
        facts, given
    )


def test_an_id_that_the_target_does_not_have_is_refused(small: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"the rows have the id 48 and the target .* knows ids below 48"):
        check_rows(target_facts(small), rows(tmp_path, highest=48))


def test_rows_longer_than_the_targets_context_are_refused(small: Path, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [row("a", [1], [2] * 128), row("b", [1], [2] * 127)])

    with pytest.raises(TargetError, match=r"1 rows are longer than the 128 positions .* --longest 128"):
        check_rows(target_facts(small), read_rows([folder]))
    check_rows(target_facts(small), read_rows([folder], RowPolicy(longest=128)))


def test_rows_that_other_weights_sampled_are_noted(tmp_path: Path) -> None:
    facts = target_facts(WEIGHTS)
    same = rows(tmp_path / "same", tokenizer_sha256=TINY_SHA256, weights_sha256=facts.weights_sha256)
    other = rows(tmp_path / "other", tokenizer_sha256=TINY_SHA256, weights_sha256="ef" * 32)

    assert [] == target_notes(facts, same)
    assert ["rows were sampled from other weights (efefefefefef) than the target's"] == target_notes(facts, other)


# Embedding and head


def test_embedding_and_head_are_read_without_the_model(small: Path) -> None:
    weights = load_file(small / "model.safetensors")

    ends = read_embedding_and_head(small)

    assert torch.equal(weights["model.embed_tokens.weight"], ends.embedding)
    assert torch.equal(weights["lm_head.weight"], ends.head)


def test_the_head_of_a_tied_model_is_its_embedding() -> None:
    ends = read_embedding_and_head(WEIGHTS)

    assert ends.head is ends.embedding
    assert ((1024, 128), torch.float32) == (tuple(ends.head.shape), ends.head.dtype)


def test_a_tied_config_over_another_head_is_refused(small: Path, tmp_path: Path) -> None:
    """Which one teaches? transformers takes the stored head then, and this took the embedding."""
    with pytest.raises(
        TargetError, match=r"ties the head to the embedding, and its weights hold another lm_head\.weight"
    ):
        read_embedding_and_head(edited(small, tmp_path, tie_word_embeddings=True))


def test_a_model_of_several_modalities_is_tied_by_its_top(tmp_path: Path) -> None:
    """As transformers ties it: the class with the head reads the whole config, whose text part says nothing of it."""
    text = {"hidden_size": 16, "vocab_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {
        "model_type": "qwen3_5",
        "tie_word_embeddings": True,
        "text_config": {"model_type": "qwen3_5_text", **text},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    embedding = torch.arange(48 * 16, dtype=torch.float32).reshape(48, 16)
    save_file({"model.language_model.embed_tokens.weight": embedding}, tmp_path / "model.safetensors")
    ends = read_embedding_and_head(tmp_path)

    assert ends.head is ends.embedding
    assert torch.equal(embedding, ends.head)


def test_a_top_that_ties_and_a_text_that_does_not_are_refused(small: Path, tmp_path: Path) -> None:
    text = json.loads((small / "config.json").read_bytes())
    edited(small, tmp_path)
    whole = {
        "model_type": "kimi_k25",
        "tie_word_embeddings": True,
        "text_config": {**text, "model_type": "deepseek_v3"},
    }
    (tmp_path / "config.json").write_text(json.dumps(whole))

    with pytest.raises(TargetError, match="tie_word_embeddings is True at the top and False in text_config"):
        target_facts(tmp_path)


def test_a_tied_head_that_is_stored_twice_is_the_embedding(small: Path, tmp_path: Path) -> None:
    weights = load_file(small / "model.safetensors")
    edited(small, tmp_path, tie_word_embeddings=True)
    same = {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}
    save_file(weights | same, tmp_path / "model.safetensors", metadata={"format": "pt"})
    ends = read_embedding_and_head(tmp_path)

    assert ends.head is ends.embedding


@pytest.mark.parametrize(
    "change, said",
    [
        ({"vocab_size": 56}, r"embed_tokens.weight is \(48, 16\), and its config says \(56, 16\)"),
        ({"hidden_size": 32}, r"embed_tokens.weight is \(48, 16\), and its config says \(48, 32\)"),
    ],
)
def test_ends_of_other_sizes_than_the_configs_are_refused(
    small: Path, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(TargetError, match=said):
        read_embedding_and_head(edited(small, tmp_path, **change))


def test_a_head_with_other_rows_than_the_embedding_is_refused(small: Path, tmp_path: Path) -> None:
    weights = load_file(small / "model.safetensors")
    edited(small, tmp_path)
    save_file(
        weights | {"lm_head.weight": weights["lm_head.weight"][:40].clone()},
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )

    with pytest.raises(TargetError, match=r"lm_head\.weight is \(40, 16\), and its config says \(48, 16\)"):
        read_embedding_and_head(tmp_path)


def test_weights_in_several_files_are_found_by_their_index(small: Path, tmp_path: Path) -> None:
    weights = load_file(small / "model.safetensors")
    parts = {
        "model-1.safetensors": {k: v for k, v in weights.items() if k != "lm_head.weight"},
        "model-2.safetensors": {"lm_head.weight": weights["lm_head.weight"]},
    }
    for name, part in parts.items():
        save_file(part, tmp_path / name, metadata={"format": "pt"})
    index = {"weight_map": {key: name for name, part in parts.items() for key in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_bytes((small / "config.json").read_bytes())

    assert torch.equal(weights["lm_head.weight"], read_embedding_and_head(tmp_path).head)


@pytest.mark.parametrize(
    "name, why", [("model.embed_tokens.weight", "holds no embedding"), ("lm_head.weight", "holds no head")]
)
def test_a_model_without_an_end_is_refused(small: Path, tmp_path: Path, name: str, why: str) -> None:
    weights = load_file(small / "model.safetensors")
    del weights[name]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((small / "config.json").read_bytes())

    with pytest.raises(TargetError, match=why):
        read_embedding_and_head(tmp_path)


def test_weights_that_are_cut_short_are_refused(small: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((small / "model.safetensors").read_bytes()[:-4])
    (tmp_path / "config.json").write_bytes((small / "config.json").read_bytes())

    with pytest.raises(TargetError, match="its weights cannot be read"):
        read_embedding_and_head(tmp_path)
