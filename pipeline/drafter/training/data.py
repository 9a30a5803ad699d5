"""What a drafter is trained on: proven rows whose states the target makes as it goes, or a store of states.

Guarantees: rows and store are both held to the policy (evidence, length), and what is left out is counted by reason;
a store is of the target that was given, and it is checked as it is read. The gate is asked for the rows' format and
vocabulary, whichever way they come.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pipeline.drafter.row_folders import RowsError, job_of
from pipeline.drafter.rows import LeftOut, RowPolicy, TrainingRows, read_rows
from pipeline.drafter.states.manifest import DTYPES, computed_with
from pipeline.drafter.states.shards import StateStore
from pipeline.drafter.target.files import (
    EmbeddingAndHead,
    TargetFacts,
    check_rows,
    read_embedding_and_head,
    target_facts,
    target_notes,
)
from pipeline.drafter.target.hidden_states import OnlineStates, StateSource, Target, computing_dtype, load_target
from pipeline.drafter.target.layers import Layers, layers_of
from pipeline.formats.registry import FORMATS, open_format
from pipeline.gate.gate import Job, Kind
from pipeline.records import STRENGTH, Evidence, Json
from pipeline.shards.manifest import MANIFEST

UNUSED_NAMES = re.compile(r"reserved|place.?holder|unused", re.IGNORECASE)
"""Control tokens that no format uses: models keep hundreds."""


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Rows or a store, before anything is loaded: exactly one of `rows` and `store` is there."""

    facts: TargetFacts
    layers: Layers
    format: str
    job: Job
    policy: RowPolicy
    document: dict[str, Json]
    rows: TrainingRows | None = None
    store: StateStore | None = None
    left_out: dict[str, int] = field(default_factory=dict)
    wanted: Sequence[int] | None = None
    told: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenedStates:
    """Material with its target's ends and its source of states, on a device."""

    source: StateSource
    ends: EmbeddingAndHead
    computed: dict[str, str]


def read_training_data(
    paths: Sequence[Path],
    target: Path,
    policy: RowPolicy,
    layers: Sequence[int] | None = None,
    *,
    accept_changed_tree: bool = False,
) -> TrainingData:
    """Read and check what the paths hold. Raises RowsError, StoreError, TargetError, LayerError, OSError."""
    if any(is_store(path) for path in paths):
        if len(paths) > 1:
            raise RowsError("one store of states trains by itself: give it alone, or folders of rows")
        return _of_store(paths[0], target, policy, layers)
    rows = read_rows(paths, policy, accept_changed_tree=accept_changed_tree)
    facts = target_facts(target)
    check_rows(facts, rows)
    told = [
        f"{len(rows):,} rows of {rows.tokens:,} tokens, {rows.emitted:,} of them emitted",
        *target_notes(facts, rows),
    ]
    told += [f"risk: {risk}"] if (risk := rows.risk()) is not None else []
    return TrainingData(
        facts,
        layers_of(facts.num_layers, layers),
        rows.folders[0].format,
        job_of(rows.folders),
        policy,
        rows.document(),
        rows=rows,
        left_out=dict(rows.left_out),
        told=tuple(told),
    )


def is_store(path: Path) -> bool:
    """Whether a folder's manifest says that it is a store of states."""
    try:
        return "states" in json.loads((path / MANIFEST).read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def open_states(material: TrainingData, device: torch.device, dtype: torch.dtype | None = None) -> OpenedStates:
    """The source of states and the target's embedding and head. A target that runs computes in `dtype`.

    Raises TargetError, OSError.
    """
    facts = material.facts
    if material.store is not None:
        ends = read_embedding_and_head(facts.directory, computing_dtype(facts, device))
        computed = computed_with(material.store.dtype, device)
        return OpenedStates(material.store, EmbeddingAndHead(ends.embedding.to(device), ends.head.to(device)), computed)
    if material.rows is None:
        raise RowsError("there are neither rows nor states to train on")
    chosen = dtype or computing_dtype(facts, device)
    target: Target = load_target(facts.directory, layers=material.layers, device=device, dtype=chosen, facts=facts)
    online = OnlineStates(target, material.rows)
    return OpenedStates(online, EmbeddingAndHead(target.embedding, target.head), computed_with(chosen, device))


def frequencies(source: StateSource, rows: Sequence[int], vocabulary: int) -> torch.Tensor:
    """How often each token of the vocabulary was emitted in these rows, int64 [V]."""
    found = torch.zeros(vocabulary, dtype=torch.int64)
    for index in rows:
        row = source.training[index]
        found += torch.bincount(row.ids[row.mask], minlength=vocabulary)
    return found


def control_ids(material: TrainingData) -> list[int]:
    """The control tokens of the rows' format, those that models keep for no use left out.

    Without a format, those that the target's own vocabulary calls special. Raises FormatError, TokenizerError.
    """
    directory, size = material.facts.directory, material.facts.vocab_size
    if material.format:
        family = FORMATS.get(material.format)
        here = family is not None and (directory / family.file).is_file()
        tokenizer = open_format(material.format, str(directory) if here else None).tokenizer
        named = {name: tokenizer.id_of(name) for name in tokenizer.control_names}
    else:
        named = _special(directory / "tokenizer.json")
    used = {token for name, token in named.items() if not UNUSED_NAMES.search(name)}
    return sorted(token for token in used | _ends(material.facts) if token < size)


def _of_store(path: Path, target: Path, policy: RowPolicy, layers: Sequence[int] | None) -> TrainingData:
    store, facts = StateStore(path), target_facts(target)
    store.check_target(facts)
    if layers is not None and tuple(layers) != store.layers:
        own = ",".join(map(str, store.layers))
        raise RowsError(f"{path} holds states of the layers {own}: leave --layers out, or extract anew with others")
    kept, left_out = _by_policy(store, policy)
    rows: dict[str, Any] = store.document.settings["rows"]
    name, tokenizer = _source_of(rows, path)
    job = Job(Kind.TRAIN, format=name, tokenizer_sha256=tokenizer if name else None)
    shards = "".join(shard.sha256 for shard in store.document.shards)
    states: dict[str, Json] = {
        "store": store.document.settings["dtype"],
        "states_computed": store.document.settings["computed"],
        "states_sha256": hashlib.sha256(shards.encode()).hexdigest(),
    }
    document: dict[str, Json] = {**rows, **states, "policy": policy.document()}
    told = [f"{len(kept):,} rows of {path}, states in {store.document.settings['dtype']}"]
    told += [f"risk: {risk}"] if (risk := _risk(store, kept, rows)) is not None else []
    return TrainingData(
        facts, store.layers, name, job, policy, document, store=store, left_out=left_out, wanted=kept, told=tuple(told)
    )


def _by_policy(store: StateStore, policy: RowPolicy) -> tuple[list[int], dict[str, int]]:
    kept: list[int] = []
    left_out: Counter[str] = Counter()
    weakest = STRENGTH[str(policy.min_evidence)]
    for index, length in enumerate(store.lengths):
        if STRENGTH[store.evidence[index]] < weakest:
            left_out[str(LeftOut.WEAK_EVIDENCE)] += 1
        elif policy.longest is not None and length > policy.longest:
            left_out[str(LeftOut.TOO_LONG)] += 1
        else:
            kept.append(index)
    if not kept:
        told = ", ".join(f"{number:,} {why}" for why, number in sorted(left_out.items())) or "the store holds none"
        raise RowsError(
            f"no row of {store.folder} is left to train on: {told}. Lower --min-evidence or raise --longest"
        )
    return kept, dict(left_out)


def _source_of(rows: dict[str, Any], path: Path) -> tuple[str, str]:
    """Format and vocabulary of a store's rows."""
    try:
        folder = rows["folders"][0]
        return str(folder["format"]), str(folder["tokenizer_sha256"])
    except (LookupError, TypeError) as error:
        raise RowsError(f"{path} does not say from which rows its states are. Extract them anew") from error


def _risk(store: StateStore, kept: Sequence[int], rows: dict[str, Any]) -> str | None:
    weak = any(store.evidence[index] == Evidence.COUNTED for index in kept)
    risk = rows.get("counted_risk")
    return str(risk) if weak and risk else None


def _special(path: Path) -> dict[str, int]:
    if not path.is_file():
        return {}
    added = json.loads(path.read_bytes()).get("added_tokens") or []
    return {str(token["content"]): int(token["id"]) for token in added if token.get("special")}


def _ends(facts: TargetFacts) -> set[int]:
    """The ids that end an answer or begin a text, as the target's config names them."""
    text = facts.config.get_text_config()
    found = [getattr(text, name, None) for name in ("bos_token_id", "eos_token_id")]
    return {token for each in found for token in (each if isinstance(each, list) else [each]) if isinstance(token, int)}


def dtype_named(name: str | None) -> torch.dtype | None:
    """The dtype of that name; None stays None."""
    return None if name is None else DTYPES[name]
