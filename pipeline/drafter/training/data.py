"""Training data: proven rows, or a store of states.

With rows, the target computes states as training goes. Guarantees: the policy (evidence, end, length) applies to rows
and stores alike, and what is left out is counted by reason. A store is of the target that was given, and is checked as
it is read. Either way the gate's job names the rows' format and vocabulary.
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
from pipeline.drafter.rows import PROMPT_RISK, RowPolicy, TrainingRows, read_rows
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
from pipeline.records import Evidence, Json
from pipeline.shards.manifest import MANIFEST

UNUSED_NAMES = re.compile(r"reserved|place.?holder|unused", re.IGNORECASE)
"""Control tokens that no format uses: models keep hundreds."""


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Rows or a store, checked, before anything is loaded.

    Exactly one of `rows` and `store` is set.
    """

    facts: TargetFacts
    layers: Layers
    format: str
    job: Job
    policy: RowPolicy
    document: dict[str, Json]
    rows: TrainingRows | None = None
    store: StateStore | None = None
    left_out: dict[str, int] = field(default_factory=dict)
    indices: Sequence[int] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenedStates:
    """A source of states, with the target's embedding and head."""

    source: StateSource
    weights: EmbeddingAndHead
    computed: dict[str, str]


def read_training_data(
    paths: Sequence[Path],
    target: Path,
    policy: RowPolicy,
    layers: Sequence[int] | None = None,
    *,
    accept_changed_tree: bool = False,
    accept_unsigned: bool = False,
) -> TrainingData:
    """Read and check rows, or one store.

    Raises RowsError, StoreError, TargetError, LayerError, OSError.
    """
    if any(is_store(path) for path in paths):
        if len(paths) > 1:
            raise RowsError("one store of states trains by itself: give it alone, or folders of rows")
        return _read_store(paths[0], target, policy, layers, accept_unsigned=accept_unsigned)
    rows = read_rows(paths, policy, accept_changed_tree=accept_changed_tree, accept_unsigned=accept_unsigned)
    facts = target_facts(target)
    check_rows(facts, rows)
    notes = [
        f"{len(rows):,} rows of {rows.tokens:,} tokens, {rows.emitted:,} of them emitted",
        *target_notes(facts, rows),
    ]
    if (risk := rows.risk()) is not None:
        notes.append(f"risk: {risk}")
    return TrainingData(
        facts,
        layers_of(facts.num_layers, layers),
        rows.folders[0].format,
        job_of(rows.folders),
        policy,
        rows.document(),
        rows=rows,
        left_out=dict(rows.left_out),
        notes=tuple(notes),
    )


def is_store(path: Path) -> bool:
    """Whether the folder's manifest is that of a store."""
    try:
        return "states" in json.loads((path / MANIFEST).read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def open_states(data: TrainingData, device: torch.device, dtype: torch.dtype | None = None) -> OpenedStates:
    """Open the source of states.

    A target that runs computes in `dtype`. Raises TargetError, OSError.
    """
    facts = data.facts
    if data.store is not None:
        weights = read_embedding_and_head(facts.directory, computing_dtype(facts, device))
        computed = computed_with(data.store.dtype, device)
        return OpenedStates(
            data.store, EmbeddingAndHead(weights.embedding.to(device), weights.head.to(device)), computed
        )
    if data.rows is None:
        raise RowsError("there are neither rows nor states to train on")
    chosen = dtype or computing_dtype(facts, device)
    target: Target = load_target(facts.directory, layers=data.layers, device=device, dtype=chosen, facts=facts)
    online = OnlineStates(target, data.rows)
    return OpenedStates(online, EmbeddingAndHead(target.embedding, target.head), computed_with(chosen, device))


def frequencies(source: StateSource, rows: Sequence[int], vocabulary: int) -> torch.Tensor:
    """Count each emitted token of these rows, int64 [V]."""
    found = torch.zeros(vocabulary, dtype=torch.int64)
    for index in rows:
        row = source.training[index]
        found += torch.bincount(row.ids[row.mask], minlength=vocabulary)
    return found


def control_ids(data: TrainingData) -> list[int]:
    """Return the control tokens that are in use.

    Those of the rows' format; without a format, those that the target's own vocabulary calls special. Raises
    FormatError, TokenizerError.
    """
    directory, size = data.facts.directory, data.facts.vocab_size
    vocabulary = directory / "tokenizer.json"
    named: dict[str, int] = {}
    if data.format:
        family = FORMATS.get(data.format)
        here = family is not None and (directory / family.file).is_file()
        tokenizer = open_format(data.format, str(directory) if here else None).tokenizer
        named = {name: tokenizer.id_of(name) for name in tokenizer.control_names}
    elif vocabulary.is_file():
        added = json.loads(vocabulary.read_bytes()).get("added_tokens") or []
        named = {str(token["content"]): int(token["id"]) for token in added if token.get("special")}
    used = {token for name, token in named.items() if not UNUSED_NAMES.search(name)}
    # The config's ids that begin a text or end an answer.
    text = data.facts.config.get_text_config()
    for ends in (getattr(text, name, None) for name in ("bos_token_id", "eos_token_id")):
        used |= {token for token in (ends if isinstance(ends, list) else [ends]) if isinstance(token, int)}
    return sorted(token for token in used if token < size)


def _read_store(
    path: Path, target: Path, policy: RowPolicy, layers: Sequence[int] | None, *, accept_unsigned: bool
) -> TrainingData:
    """Open and check a store. Raises RowsError, StoreError, TargetError, OSError."""
    store, facts = StateStore(path, accept_unsigned=accept_unsigned), target_facts(target)
    store.check_target(facts)
    if layers is not None and tuple(layers) != store.layers:
        own = ",".join(map(str, store.layers))
        raise RowsError(f"{path} holds states of the layers {own}: leave --layers out, or extract anew with others")
    kept, left_out = _by_policy(store, policy)
    rows: dict[str, Any] = store.document.settings["rows"]
    try:
        folder = rows["folders"][0]
        name, tokenizer = str(folder["format"]), str(folder["tokenizer_sha256"])
    except (LookupError, TypeError) as error:
        raise RowsError(f"{path} does not say from which rows its states are. Extract them anew") from error
    job = Job(Kind.TRAIN, format=name, tokenizer_sha256=tokenizer if name else None)
    shards = "".join(shard.sha256 for shard in store.document.shards)
    document: dict[str, Json] = {
        **rows,
        "store": store.document.settings["dtype"],
        "states_computed": store.document.settings["computed"],
        "states_sha256": hashlib.sha256(shards.encode()).hexdigest(),
        "policy": policy.document(),
    }
    notes = [f"{len(kept):,} rows of {path}, states in {store.document.settings['dtype']}"]
    grades = {grade for row in map(store.placed.__getitem__, kept) for grade in (row.evidence, row.prompt_evidence)}
    if (risk := rows.get("counted_risk")) and str(Evidence.COUNTED) in grades:
        notes.append(f"risk: {risk}")
    prompts = sum(store.placed[index].prompt_evidence == Evidence.COUNTED for index in kept)
    if prompts and "prompt_evidence" not in rows:
        notes.append(f"risk: {PROMPT_RISK.format(prompts)}")
    return TrainingData(
        facts,
        store.layers,
        name,
        job,
        policy,
        document,
        store=store,
        left_out=left_out,
        indices=kept,
        notes=tuple(notes),
    )


def _by_policy(store: StateStore, policy: RowPolicy) -> tuple[list[int], dict[str, int]]:
    """Return indices of taken rows, and counts of the others.

    Raises RowsError where none is taken.
    """
    kept: list[int] = []
    left_out: Counter[str] = Counter()
    for index, row in enumerate(store.placed):
        if (reason := policy.refuses(row)) is None:
            kept.append(index)
        else:
            left_out[str(reason)] += 1
    if not kept:
        listed = ", ".join(f"{number:,} {why}" for why, number in sorted(left_out.items())) or "the store holds none"
        raise RowsError(f"no row of {store.folder} is left to train on: {listed}. {policy.remedy(left_out)}")
    return kept, dict(left_out)


def dtype_named(name: str | None) -> torch.dtype | None:
    """Return the dtype of that name; None for None."""
    return None if name is None else DTYPES[name]
