"""Hidden states of a target in this process.

Guarantees: the target reads `prompt_ids + output_ids` exactly as they lie in the row (teacher forcing), with no text
and no template between. `aux` are OUTPUTS of the 0-based layers low, mid and high: the residual stream before any norm.
`last` is AFTER the final norm, what the head reads, at emitted positions alone, since the loss teaches successors of
emitted tokens and reads no others.

Refuses a model whose head does more to `last` than multiply by its weight, since a drafter trained on it would match
nothing that is served, and states that are not finite. Rows run right-padded, which a causal model cannot see.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from torch import nn

from pipeline.base.screen import say_logs_of_transformers
from pipeline.drafter.rows import TrainingRow
from pipeline.drafter.target.files import TargetError, TargetFacts, target_facts
from pipeline.drafter.target.layers import Layers, layers_of
from pipeline.drafter.training.packing import RowStates

TOKENS_A_FORWARD = 4096
LAYER = re.compile(r"\blayers\.\d+\.")
PROBED = 16
"""Tokens that a target is probed with when it is loaded."""
TOLERANCE = 6e-5
"""Relative difference allowed between two passes of one model: experts add up in no fixed order."""
ROUNDINGS = 16
"""The same in roundings of the dtype, where that is coarser."""


class StatesError(Exception):
    """States that cannot be trained on."""


class StateSource(Protocol):
    """Rows with states: a running target, or a store."""

    @property
    def layers(self) -> Layers: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def training(self) -> Sequence[TrainingRow]:
        """The rows without states, for counts and frequencies."""
        ...

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each row."""
        ...

    def rows(self, indices: Sequence[int]) -> list[RowStates]:
        """Return these rows with their states, in this order."""
        ...


@dataclass(slots=True)
class Target:
    """A causal language model with frozen weights.

    `layers` are those whose outputs are read.
    """

    facts: TargetFacts
    model: Any
    layers: Layers
    tokens_a_forward: int = TOKENS_A_FORWARD
    _decoder: Any = field(init=False)
    _blocks: list[nn.Module] = field(init=False)

    def __post_init__(self) -> None:
        self.model.eval().requires_grad_(requires_grad=False)
        self._decoder = self.model.get_decoder()
        self._blocks = [*_blocks(self._decoder, self.facts)]
        self._probe()

    @property
    def config(self) -> Any:  # noqa: ANN401 - transformers' configs are untyped here
        return self.model.config.get_text_config()

    @property
    def embedding(self) -> torch.Tensor:
        """The embedding, [vocabulary, hidden]."""
        weight: torch.Tensor = self.model.get_input_embeddings().weight
        return weight

    @property
    def head(self) -> torch.Tensor:
        """The head, [vocabulary, hidden]; tied models share the embedding tensor."""
        weight: torch.Tensor = self.model.get_output_embeddings().weight
        return weight

    @property
    def device(self) -> torch.device:
        return self.head.device

    def states(self, rows: Sequence[TrainingRow], dtype: torch.dtype | None = None) -> list[RowStates]:
        """Return the rows with their states, in order.

        On the target's device, in `dtype` or as computed. Rows of like length run together: at most `tokens_a_forward`
        tokens, or one row. Raises StatesError.
        """
        found: list[RowStates | None] = [None] * len(rows)
        with torch.no_grad():  # not inference_mode: the drafter's autograd keeps these states
            for group in groups([row.length for row in rows], self.tokens_a_forward):
                for index, states in zip(group, self._forward([rows[index] for index in group], dtype), strict=True):
                    found[index] = states
        return [states for states in found if states is not None]

    @contextmanager
    def captured(self) -> Iterator[dict[int, torch.Tensor]]:
        """Collect the outputs of the layers, by layer.

        Each is [B, T, h], of what the model last ran inside the block.
        """
        found: dict[int, torch.Tensor] = {}

        def keep(layer: int) -> Any:  # noqa: ANN401 - a hook, as torch takes it
            def hook(_module: object, _given: object, output: Any) -> None:  # noqa: ANN401 - a tensor, or it comes first
                found[layer] = output[0] if isinstance(output, tuple) else output

            return hook

        with ExitStack() as stack:
            for layer in self.layers:
                stack.callback(self._blocks[layer].register_forward_hook(keep(layer)).remove)
            yield found

    def _forward(self, rows: Sequence[TrainingRow], dtype: torch.dtype | None) -> Iterator[RowStates]:
        """Yield the states of rows that run together. Raises StatesError."""
        # Padded on the right by token 0, without an attention mask: no earlier token attends to it.
        padded = nn.utils.rnn.pad_sequence([row.ids for row in rows], batch_first=True)
        aux, last = self._run(padded.to(self.device))
        for place, row in enumerate(rows):
            mask = row.mask.to(self.device)
            kept = dtype or last.dtype
            own = torch.cat([states[place, : row.length] for states in aux], dim=-1).to(kept)
            emitted = last[place, : row.length][mask].to(kept)
            if not (own.isfinite().all() and emitted.isfinite().all()):
                raise StatesError(
                    f"row {row.id!r}: the target's states are not finite as {str(kept).removeprefix('torch.')}. Take a "
                    "dtype with a larger range, to store or to compute in"
                )
            yield RowStates(row.id, row.ids.to(self.device), mask, own, emitted)

    def _run(self, ids: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return outputs of the layers, and the last state.

        Each is [B, T, h]; the last is after the final norm.
        """
        with self.captured() as outputs:
            last = self._decoder(input_ids=ids, use_cache=False).last_hidden_state
        return [outputs[layer] for layer in self.layers], last

    def _probe(self) -> None:
        """Check shapes, layer outputs and logits on a few tokens.

        Raises TargetError.
        """
        facts = self.facts
        for name, weight in (("embedding", self.embedding), ("head", self.head)):
            if list(weight.shape) != [facts.vocab_size, facts.hidden_size]:
                raise TargetError(
                    f"{facts.directory}: its {name} has the shape {list(weight.shape)}, and its config says vocab_size "
                    f"{facts.vocab_size} and hidden_size {facts.hidden_size}. It cannot be a target"
                )
        ids = torch.arange(min(PROBED, facts.vocab_size), device=self.device)[None]
        with torch.no_grad():
            aux, last = self._run(ids)
            ours = nn.functional.linear(last, self.head)
            theirs = self.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        if not self._are_states([*theirs.hidden_states], aux, last):
            raise TargetError(
                f"{facts.directory}: what the layers of a {facts.model_type} give is not what transformers calls its "
                "hidden states, so it is not known which they are. It cannot be a target yet"
            )
        if not _alike(theirs.logits, ours):
            raise TargetError(
                f"{facts.directory}: its logits are not its head's weight times its last state (a bias, a scale or a "
                "cap is between them), which the loss does not know. It cannot be a target yet"
            )

    def _are_states(self, theirs: Sequence[torch.Tensor], aux: Sequence[torch.Tensor], last: torch.Tensor) -> bool:
        """Whether transformers reports the same states.

        Its list begins with the embedding and ends with the normed state, so it lacks the last layer's output.
        """
        if len(theirs) != len(self._blocks) + 1 or not _alike(theirs[-1], last):
            return False
        known = [(theirs[n + 1], own) for n, own in zip(self.layers, aux, strict=True) if n + 1 < len(self._blocks)]
        return all(_alike(*pair) for pair in known)


@dataclass(slots=True)
class OnlineStates:
    """States that a target in this process computes on request."""

    target: Target
    training: Sequence[TrainingRow]
    dtype: torch.dtype | None = None
    lengths: Sequence[int] = field(init=False)

    def __post_init__(self) -> None:
        self.lengths = [row.length for row in self.training]

    @property
    def layers(self) -> Layers:
        return self.target.layers

    @property
    def hidden_size(self) -> int:
        return self.target.facts.hidden_size

    @property
    def vocab_size(self) -> int:
        return self.target.facts.vocab_size

    def rows(self, indices: Sequence[int]) -> list[RowStates]:
        return self.target.states([self.training[index] for index in indices], self.dtype)


def load_target(
    directory: Path,
    *,
    layers: Sequence[int] | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    facts: TargetFacts | None = None,
) -> Target:
    """Load a model from local files.

    It computes in `dtype`, by default that of `computing_dtype`. `layers` are outputs, 0-based; by default those of
    `aux_layers`. Raises TargetError, LayerError, OSError.

    Example:
        target = load_target(Path("models/qwen3"))
        [row] = target.states([training_row])
    """
    from transformers import AutoModelForCausalLM

    facts = facts or target_facts(directory)
    chosen = layers_of(facts.num_layers, layers)
    device = torch.device(device)
    say_logs_of_transformers()
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=dtype or computing_dtype(facts, device),
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        raise TargetError(f"{directory}: the model does not load ({first})") from None
    if beyond := [name for name in map(str, info["unexpected_keys"]) if LAYER.search(name)]:
        raise TargetError(
            f"{directory} holds weights of a layer that its config does not count: {min(beyond)}. The config is "
            f"not that of these weights (num_hidden_layers is {facts.num_layers})"
        )
    if lacking := sorted(map(str, {*info["missing_keys"], *info["mismatched_keys"]})):
        raise TargetError(f"{directory} lacks weights that its config names: {', '.join(lacking[:3])}")
    return Target(facts, model.to(device), chosen)


def computing_dtype(facts: TargetFacts, device: torch.device) -> torch.dtype:
    """Return the target's default dtype for computing.

    float32 on a CPU, the dtype of the weights on a GPU.
    """
    own = facts.config.get_text_config().dtype
    return own if device.type != "cpu" and isinstance(own, torch.dtype) else torch.float32


def device_named(name: str | None) -> torch.device:
    """Return the named device, or the best one.

    By default a GPU where there is one, else the CPU. Raises TargetError.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise TargetError(f"{name!r} is no device: give cpu or cuda with --device") from None
    if device.type not in {"cpu", "cuda"} or (device.type == "cuda" and not torch.cuda.is_available()):
        raise TargetError(f"there is no {name} here: give --device cpu")
    return device


def groups(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Group indices of rows by like length.

    A group has at most `most` padded tokens, or one row. Lengths alone decide.
    """
    found: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda place: (lengths[place], place)):
        if found and (len(found[-1]) + 1) * lengths[index] <= most:
            found[-1].append(index)
        else:
            found.append([index])
    return found


def _alike(expected: torch.Tensor, actual: torch.Tensor) -> bool:
    if expected.shape != actual.shape:
        return False
    most = max(TOLERANCE, ROUNDINGS * torch.finfo(expected.dtype).eps) * float(expected.abs().max())
    return bool((expected - actual).abs().max() <= most)


def _blocks(decoder: Any, facts: TargetFacts) -> Sequence[nn.Module]:  # noqa: ANN401 - torch's modules are untyped
    found = [part for part in decoder.children() if isinstance(part, nn.ModuleList) and len(part) == facts.num_layers]
    if len(found) != 1:
        raise TargetError(
            f"{facts.directory}: a {facts.model_type} keeps {len(found)} lists of {facts.num_layers} layers in its "
            "decoder, not one, so it is not known which are its layers"
        )
    blocks: Sequence[nn.Module] = found[0]
    return blocks
