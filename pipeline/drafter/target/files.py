"""A target's directory without running it: its config, its hashes, its embedding and its head.

Guarantees: only local files are read; the head of a tied model is its embedding. Refuses a directory whose vocabulary
is another than the rows', and ids that the target does not have.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pipeline.base.files import weights_sha256
from pipeline.base.json_lines import canonical, strict_object
from pipeline.drafter.rows import TrainingRows
from pipeline.records import RefusedError

INDEX = "model.safetensors.index.json"
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
HEADS = ("lm_head.weight", "embed_out.weight")
ABOUT_THE_FILE = ("transformers_version", "_name_or_path")
"""What a config says of who wrote it."""
VOCABULARIES = ("tiktoken.model", "tokenizer.json")


class TargetError(Exception):
    """A directory that holds no target that can be read, or another target than was meant."""


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What a manifest says of the target, and what a drafter must agree with."""

    directory: Path
    config: Any
    weights_sha256: str
    config_sha256: str
    hidden_size: int
    vocab_size: int
    num_layers: int

    @property
    def model_type(self) -> str:
        return str(self.config.model_type)


def target_facts(directory: Path) -> TargetFacts:
    """Read config and hash weights. Raises TargetError, OSError."""
    if not (directory / "config.json").is_file() or not any(directory.glob("*.safetensors")):
        raise TargetError(f"{directory} holds no config.json with *.safetensors: give the target's directory")
    config = _config(directory)
    text = config.get_text_config()
    try:
        sizes = int(text.hidden_size), int(text.vocab_size), int(text.num_hidden_layers)
    except (AttributeError, TypeError) as error:
        what = "hidden_size, vocab_size and num_hidden_layers"
        raise TargetError(f"{directory / 'config.json'} lacks one of {what}") from error
    return TargetFacts(directory, config, weights_sha256(directory), _config_sha256(directory), *sizes)


def _config_sha256(directory: Path) -> str:
    """Of all in config.json that may decide a number: the weights alone do not say how they are to be used."""
    try:
        found = strict_object((directory / "config.json").read_bytes())
    except RefusedError as error:
        raise TargetError(f"{directory / 'config.json'} is none ({error.refusal.detail})") from error
    kept = {name: value for name, value in found.items() if name not in ABOUT_THE_FILE}
    return hashlib.sha256(canonical(kept)).hexdigest()


def check_rows(facts: TargetFacts, rows: TrainingRows) -> None:
    """Raises TargetError where the target has another vocabulary than the rows, or not so many ids or positions."""
    wanted = rows.folders[0].tokenizer_sha256
    found = {name: _sha256(facts.directory / name) for name in VOCABULARIES if (facts.directory / name).is_file()}
    if found and wanted not in found.values():
        told = " and ".join(f"{name} has {sha256[:12]}" for name, sha256 in found.items())
        raise TargetError(
            f"the rows are in the vocabulary {wanted[:12]} and the target {facts.directory} has another ({told}): "
            "their ids mean different tokens. Give the target that made the rows"
        )
    if (highest := rows.highest_id()) >= facts.vocab_size:
        raise TargetError(
            f"the rows have the id {highest} and the target {facts.directory} knows ids below {facts.vocab_size}"
        )
    context = getattr(facts.config.get_text_config(), "max_position_embeddings", None)
    if context and (long := sum(length > context for length in rows.lengths)):
        raise TargetError(
            f"{long:,} rows are longer than the {context:,} positions of the target {facts.directory}. Leave them out "
            f"with --longest {context}"
        )


def target_notes(facts: TargetFacts, rows: TrainingRows) -> list[str]:
    """What is worth knowing and no reason to refuse."""
    other = sorted({each for folder in rows.folders for each in folder.weights()} - {facts.weights_sha256})
    told = [f"rows were sampled from other weights ({each[:12]}) than the target's" for each in other]
    if not any((facts.directory / name).is_file() for name in VOCABULARIES):
        told.append(f"{facts.directory} has no vocabulary of its own, so the rows' was not compared with it")
    return told


@dataclass(frozen=True, slots=True)
class EmbeddingAndHead:
    """The target's embedding and head, both [vocabulary, hidden]; the same tensor where it ties them."""

    embedding: torch.Tensor
    head: torch.Tensor


def read_embedding_and_head(directory: Path, dtype: torch.dtype = torch.float32) -> EmbeddingAndHead:
    """Embedding and head alone, without loading the model. Raises TargetError, OSError."""
    places = _places(directory)
    embedding = _named(places, EMBEDDINGS)
    if embedding is None:
        raise TargetError(f"{directory} holds no embedding under a name that is known ({', '.join(EMBEDDINGS)})")
    head = _named(places, HEADS)
    tied = bool(getattr(_config(directory).get_text_config(), "tie_word_embeddings", False))
    if head is None and not tied:
        raise TargetError(f"{directory} holds no head ({', '.join(HEADS)}) and its config ties none to the embedding")
    first = _tensor(places[embedding], embedding, dtype)
    return EmbeddingAndHead(first, first if head is None or tied else _tensor(places[head], head, dtype))


def _config(directory: Path) -> Any:  # noqa: ANN401 - transformers' configs are untyped here
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # noqa: BLE001 - a config of a wrong type meets whatever class reads it
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        raise TargetError(f"{directory}: its config.json is none ({told})") from None


def _places(directory: Path) -> dict[str, Path]:
    """In which file each tensor is."""
    index = directory / INDEX
    try:
        if index.is_file():
            named = json.loads(index.read_bytes())["weight_map"]
            return {name: directory / file for name, file in named.items()}
        found: dict[str, Path] = {}
        for path in sorted(directory.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                found |= dict.fromkeys(file.keys(), path)
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise TargetError(f"{directory}: its weights cannot be read ({error})") from error
    return found


def _named(places: dict[str, Path], endings: tuple[str, ...]) -> str | None:
    """The tensor with one of these endings; the shortest name, where a smaller model lies in the same file."""
    found = [name for name in places if any(name == end or name.endswith(f".{end}") for end in endings)]
    return min(found, key=len, default=None)


def _tensor(path: Path, name: str, dtype: torch.dtype) -> torch.Tensor:
    try:
        with safe_open(path, "pt") as file:
            return file.get_tensor(name).to(dtype)
    except SafetensorError as error:
        raise TargetError(f"{path}: {name} cannot be read ({error})") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
