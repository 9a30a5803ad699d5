"""A target's directory: config, hashes, embedding and head.

Guarantees: only local files are read and the model is not run; the head of a tied model is its embedding. Refuses a
config that contradicts itself or the weights, and rows in another vocabulary than the target's, with ids that it lacks,
or longer than its context.
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
from pipeline.drafter.target.contradictions import NESTED, contradictions
from pipeline.records import Json, RefusedError

INDEX = "model.safetensors.index.json"
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
HEADS = ("lm_head.weight", "embed_out.weight")
ABOUT_THE_FILE = ("transformers_version", "_name_or_path")
"""Config keys that say who wrote it, and decide no number."""
VOCABULARIES = ("tiktoken.model", "tokenizer.json")


class TargetError(Exception):
    """An unreadable target, or another one than was meant."""


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What identifies a target, and what a drafter must match."""

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
    """Read the config and hash config and weights.

    Raises TargetError, OSError.
    """
    path = directory / "config.json"
    if not path.is_file() or not any(directory.glob("*.safetensors")):
        raise TargetError(f"{directory} holds no config.json with *.safetensors: give the target's directory")
    config = _config(directory)
    text = config.get_text_config()
    try:
        sizes = int(text.hidden_size), int(text.vocab_size), int(text.num_hidden_layers)
    except (AttributeError, TypeError) as error:
        what = "hidden_size, vocab_size and num_hidden_layers"
        raise TargetError(f"{path} lacks one of {what}") from error
    weights = weights_sha256(directory)
    document = _document(path)
    # The weights alone do not say how they are to be used: hash every key that may decide a number.
    deciding = {name: value for name, value in document.items() if name not in ABOUT_THE_FILE}
    return TargetFacts(directory, config, weights, hashlib.sha256(canonical(deciding)).hexdigest(), *sizes)


def check_rows(facts: TargetFacts, rows: TrainingRows) -> None:
    """Raise TargetError unless the target can read the rows.

    It must have their vocabulary, their ids and as many positions.
    """
    wanted = rows.folders[0].tokenizer_sha256
    there = [name for name in VOCABULARIES if (facts.directory / name).is_file()]
    found = {name: hashlib.sha256((facts.directory / name).read_bytes()).hexdigest() for name in there}
    if found and wanted not in found.values():
        listed = " and ".join(f"{name} has {sha256[:12]}" for name, sha256 in found.items())
        raise TargetError(
            f"the rows are in the vocabulary {wanted[:12]} and the target {facts.directory} has another ({listed}): "
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
    """Return notes that are no reason to refuse."""
    other = sorted({each for folder in rows.folders for each in folder.weights()} - {facts.weights_sha256})
    found = [f"rows were sampled from other weights ({each[:12]}) than the target's" for each in other]
    if not any((facts.directory / name).is_file() for name in VOCABULARIES):
        found.append(f"{facts.directory} has no vocabulary of its own, so the rows' was not compared with it")
    return found


@dataclass(frozen=True, slots=True)
class EmbeddingAndHead:
    """The target's embedding and head, both [vocabulary, hidden].

    The same tensor where the target ties them.
    """

    embedding: torch.Tensor
    head: torch.Tensor


def read_embedding_and_head(directory: Path, dtype: torch.dtype = torch.float32) -> EmbeddingAndHead:
    """Read embedding and head alone. Raises TargetError, OSError."""
    files = _files_of_tensors(directory)
    embedding = _named(files, EMBEDDINGS)
    if embedding is None:
        raise TargetError(f"{directory} holds no embedding under a name that is known ({', '.join(EMBEDDINGS)})")
    head = _named(files, HEADS)
    text = _config(directory).get_text_config()
    tied = _is_tied(directory, text)
    if head is None and not tied:
        raise TargetError(f"{directory} holds no head ({', '.join(HEADS)}) and its config ties none to the embedding")
    first = _tensor(files[embedding], embedding, dtype)
    last = first if head is None else _tensor(files[head], head, dtype)
    for name, tensor in {embedding: first, head: last}.items():
        if (shape := tuple(tensor.shape)) != (wanted := (text.vocab_size, text.hidden_size)):
            raise TargetError(f"{directory}: {name} is {shape}, and its config says {wanted} (vocabulary, hidden)")
    if tied and head is not None and not torch.equal(first, last):
        # transformers ties nothing then, with a warning; engines keep the embedding.
        raise TargetError(
            f"{directory}: its config ties the head to the embedding, and its weights hold another {head}. Say in the "
            "config which holds: tie_word_embeddings false, or weights without that head"
        )
    return EmbeddingAndHead(first, first if tied else last)


def _is_tied(directory: Path, text: Any) -> bool:  # noqa: ANN401 - transformers' configs are untyped here
    """Return whether a target's head is its embedding.

    Where a config nests that of the language model, either may say so; transformers asks the whole.
    """
    document = _document(directory / "config.json")
    nested = document.get(NESTED)
    said = [place.get("tie_word_embeddings") for place in (document, nested) if isinstance(place, dict)]
    found = [one for one in said if one is not None]
    return bool(found[0] if found else getattr(text, "tie_word_embeddings", False))


def _document(path: Path) -> dict[str, Json]:
    """Return a config's JSON.

    Raises TargetError for none, and for one that contradicts itself.
    """
    try:
        document = strict_object(path.read_bytes())
    except RefusedError as error:
        raise TargetError(f"{path} is none ({error.refusal.detail})") from error
    if (found := next(contradictions(document), None)) is not None:
        raise TargetError(
            f"{path} contradicts itself: {found}. Write in both places what the weights were trained with"
        )
    return document


def _config(directory: Path) -> Any:  # noqa: ANN401 - transformers' configs are untyped here
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # noqa: BLE001 - a config of a wrong type meets whatever class reads it
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        raise TargetError(f"{directory}: its config.json is none ({first})") from None


def _files_of_tensors(directory: Path) -> dict[str, Path]:
    """Return the file of each tensor. Raises TargetError."""
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


def _named(files: dict[str, Path], endings: tuple[str, ...]) -> str | None:
    """Return the tensor name with one of these endings.

    The shortest one, where a smaller model lies in the same file.
    """
    found = [name for name in files if any(name == end or name.endswith(f".{end}") for end in endings)]
    return min(found, key=len, default=None)


def _tensor(path: Path, name: str, dtype: torch.dtype) -> torch.Tensor:
    try:
        with safe_open(path, "pt") as file:
            return file.get_tensor(name).to(dtype)
    except SafetensorError as error:
        raise TargetError(f"{path}: {name} cannot be read ({error})") from error
