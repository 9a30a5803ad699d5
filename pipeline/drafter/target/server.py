"""Hidden states of a target behind two SGLang servers.

One server returns the states of the layers, the other the last state after the final norm, since SGLang returns only
either. Numbers come as JSON, several bytes each: this is for targets that no machine here can hold otherwise.

Guarantees: the numbers of a target in this process, as far as two programs round alike; a row's ids are sent exactly as
they lie in it. Every token but the last sampled one has a row of states: SGLang silently leaves out a cached prefix and
all chunks of a prompt but the last, and such answers are refused. So are servers with other layers, versions, dtypes or
weights than wanted, before anything is computed, and states that are not finite. Layers are named in the convention of
the model's family; a family whose convention is unknown is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import httpx2
import orjson
import torch

from pipeline.base.files import weights_sha256
from pipeline.base.json_lines import foreign_json
from pipeline.base.redaction import redact
from pipeline.drafter.rows import TrainingRow
from pipeline.drafter.target.files import TargetFacts
from pipeline.drafter.target.layers import Layers
from pipeline.drafter.training.packing import RowStates
from pipeline.records import Json

FLAGS: Final = ("--disable-radix-cache", "--chunked-prefill-size", "-1")
"""Without these flags the server leaves out rows."""
_REMEDY: Final = f"Start the server with {' '.join(FLAGS)}"
SECONDS: Final = 600.0
LAST_FLAGS: Final = ("--return-hidden-states-mode", "full", *FLAGS)
NUMBERS: Final = ("version", "device", "dtype", "attention_backend")
REPORTED: Final = (*NUMBERS, "model_path")
"""What decides the numbers: both servers must report it, and alike."""

BY_OUTPUT: Final = frozenset({"llama", "qwen2", "qwen3"})
"""Families where SGLang's id L means the output of layer L."""

BY_INPUT: Final = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25"})
"""Families where it means the input of layer L, unless the first id is 1, which adds one to each."""


class ServedStatesError(Exception):
    """States that cannot be requested, or that are incomplete."""


def layer_ids(model_type: str, outputs: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Return the server flag values for outputs of these layers.

    The flag is `--return-aux-hidden-state-layer-ids`; `outputs` count from 0.
    """
    if not outputs or min(outputs) < 0 or max(outputs) >= num_layers - 1:
        raise ServedStatesError(
            f"layers {[*outputs]} of {num_layers}: SGLang captures 0 to {num_layers - 2}, not the last"
        )
    if model_type in BY_OUTPUT:
        return tuple(outputs)
    if model_type not in BY_INPUT:
        raise ServedStatesError(f"how SGLang counts the layers of {model_type} is not known here, so none is asked for")
    if outputs[0] == 0:
        raise ServedStatesError(
            f"{model_type}: id 1 is read as a shift of all ids, so the output of layer 0 cannot be had"
        )
    return tuple(layer + 1 for layer in outputs)


def flags(model_type: str, outputs: Sequence[int], num_layers: int) -> tuple[str, ...]:
    """Return the server's flags for these layers.

    No drafter is loaded by them.
    """
    ids = map(str, layer_ids(model_type, outputs, num_layers))
    aux = ("--enable-return-aux-hidden-states", "--speculative-algorithm", "EAGLE3")
    return (*aux, "--return-aux-hidden-state-layer-ids", *ids, *FLAGS)


def rows_of(meta: Mapping[str, Json], prompt_tokens: int, width: int) -> list[list[float]]:
    """Return the states in an answer of `/generate`.

    Shape [prompt + completion - 1, width]. Raises ServedStatesError if a row is missing.
    """
    if meta.get("cached_tokens"):
        raise ServedStatesError(
            f"{meta['cached_tokens']} tokens came from the prefix cache and have no states. {_REMEDY}"
        )
    parts, made = meta.get("hidden_states"), meta.get("completion_tokens")
    if not isinstance(parts, list) or not parts or not isinstance(made, int):
        raise ServedStatesError(f"the server returned no states. {_REMEDY}")
    if not isinstance(parts[0], list) or not parts[0]:
        raise ServedStatesError("the prompt's states are no matrix")
    rows = [_vector(part) for part in [*parts[0], *parts[1:]]]
    if any(not math.isfinite(number) for row in rows for number in row):
        raise ServedStatesError("the server's states are not finite")
    if len(rows) != (wanted := prompt_tokens + made - 1):
        raise ServedStatesError(
            f"{len(rows)} rows of states for {wanted} tokens: a prompt was cut into chunks. {_REMEDY}"
        )
    if any(len(row) != width for row in rows):
        raise ServedStatesError(f"rows of {sorted({len(row) for row in rows})} numbers, {width} are wanted")
    return rows


def _vector(part: Json) -> list[float]:
    if not isinstance(part, list) or not all(isinstance(number, int | float) for number in part):
        raise ServedStatesError("a row of states is no list of numbers")
    try:
        return [float(number) for number in part if isinstance(number, int | float)]
    except OverflowError:
        raise ServedStatesError("a row of states holds a number that no float is") from None


class ServedTarget:
    """Two servers as a target; entering checks what they serve.

    Use it in a `with` statement, which raises ServedStatesError.
    """

    def __init__(self, facts: TargetFacts, layers: Layers, aux_url: str, last_url: str) -> None:
        self.facts, self.layers = facts, layers
        self.computed: Mapping[str, str] = {}
        self._aux_url, self._last_url = aux_url.rstrip("/"), last_url.rstrip("/")
        self._http = httpx2.Client(timeout=SECONDS, trust_env=False)

    def __enter__(self) -> Self:
        try:
            aux, last = (self._request("GET", f"{url}/server_info", None) for url in (self._aux_url, self._last_url))
            self._require(aux, last)
        except BaseException:
            self._http.close()
            raise
        engine = {name: str(aux.get(name)) for name in NUMBERS}
        self.computed = {"engine": f"sglang {engine.pop('version')}", **engine}
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def states(self, rows: Sequence[TrainingRow], dtype: torch.dtype | None = None) -> list[RowStates]:
        """Return the rows with their states, in order.

        In `dtype`, or float32. Raises ServedStatesError.
        """
        width, kept = self.facts.hidden_size, dtype or torch.float32
        found: list[RowStates] = []
        for row in rows:
            aux = self._row_states(self._aux_url, row, 3 * width).to(kept)
            last = self._row_states(self._last_url, row, width)[row.mask].to(kept)
            if not (aux.isfinite().all() and last.isfinite().all()):
                name = str(kept).removeprefix("torch.")
                raise ServedStatesError(f"row {row.id!r}: the server's states are not finite as {name}")
            found.append(RowStates(row.id, row.ids, row.mask, aux, last))
        return found

    def _row_states(self, url: str, row: TrainingRow, width: int) -> torch.Tensor:
        """Return states of all tokens of a row.

        Float32 [T, width]. One more token is sampled, which has no state.
        """
        ids = row.ids.tolist()
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True}}
        answer = self._request("POST", f"{url}/generate", orjson.dumps({**body, "return_hidden_states": True}))
        meta = answer.get("meta_info")
        if not isinstance(meta, dict) or (meta.get("prompt_tokens"), meta.get("completion_tokens")) != (len(ids), 1):
            raise ServedStatesError(
                f"{url} took another prompt than row {row.id!r}, or gave another number of tokens than 1"
            )
        return torch.tensor(rows_of(meta, len(ids), width), dtype=torch.float32)

    def _require(self, aux: Mapping[str, Any], last: Mapping[str, Any]) -> None:
        """Check what both servers report of themselves. Raises ServedStatesError."""
        for url, info in ((self._aux_url, aux), (self._last_url, last)):
            if absent := [name for name in REPORTED if not isinstance(info.get(name), str)]:
                raise ServedStatesError(f"{url} does not say its {absent[0]}: it is no SGLang of today")
        model_type, layers = self.facts.model_type, self.facts.num_layers
        wanted, there = layer_ids(model_type, self.layers, layers), aux.get("return_aux_hidden_state_layer_ids")
        if not isinstance(there, list) or tuple(there) != wanted:
            start = " ".join(flags(model_type, self.layers, layers))
            raise ServedStatesError(
                f"{self._aux_url} returns the layers {there}, wanted are {[*wanted]}. Start it with {start}"
            )
        if last.get("return_hidden_states_mode") != "full" or last.get("return_aux_hidden_state_layer_ids"):
            raise ServedStatesError(f"{self._last_url} returns no last states. Start it with {' '.join(LAST_FLAGS)}")
        if different := [name for name in REPORTED if aux.get(name) != last.get(name)]:
            raise ServedStatesError(f"the two servers differ in their {different[0]}: start both alike")
        self._require_weights(self._aux_url, aux)
        self._require_weights(self._last_url, last)

    def _require_weights(self, url: str, info: Mapping[str, Any]) -> None:
        """Compare the weights where the server's directory is here.

        Behind a tunnel it is not. Raises ServedStatesError.
        """
        folder = Path(str(info.get("model_path")))
        if folder.is_absolute() and folder.is_dir() and weights_sha256(folder) != self.facts.weights_sha256:
            raise ServedStatesError(f"{url} serves {folder}, whose weights are not those of {self.facts.directory}")

    def _request(self, method: str, url: str, body: bytes | None) -> dict[str, Any]:
        try:
            response = self._http.request(method, url, content=body, headers={"content-type": "application/json"})
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            raise ServedStatesError(
                f"{url} does not answer ({type(error).__name__}). Start it: nox -s engine"
            ) from None
        if response.status_code != httpx2.codes.OK:
            raise ServedStatesError(f"{url}: status {response.status_code}, {redact(response.text, 300)}")
        try:
            found = foreign_json(response.content)
        except ValueError as error:
            what = f"the answer is no JSON ({redact(str(error), 100)})"
            raise ServedStatesError(f"{url}: {what}") from None
        if not isinstance(found, dict):
            raise ServedStatesError(f"{url}: the answer is no JSON object")
        return found
