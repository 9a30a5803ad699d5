"""A target behind two SGLang servers: one returns the states of its layers, the other the last after its final norm.

Guarantees: the same numbers of the same rows as a target in this process has, as far as two programs round alike; a
row's ids are sent exactly as they lie in it. Servers of other layers, versions, dtypes or weights than are wanted are
refused before anything is computed, and so is an answer that lacks a row of states or holds one that is not finite.
Two servers, since SGLang returns either the layers' states or the last one. Numbers come as JSON, several bytes each:
this is for targets that no machine here holds otherwise.

States that a served SGLang returns, as rows of numbers: which layers to ask it for, and that no row is missing.

Guarantees: a row of states for every token of `prompt + completion` but the last sampled one, or StatesError: a prefix
that came from the cache and all chunks of a prompt but the last have none, without a word of warning. Layers are asked
for by the convention of the model's family, and a family whose convention is not known is refused. Needs no torch.
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
from pipeline.base.redaction import redact
from pipeline.drafter.rows import TrainingRow
from pipeline.drafter.target.files import TargetFacts
from pipeline.drafter.target.layers import Layers
from pipeline.drafter.training.packing import RowStates
from pipeline.records import Json

FLAGS: Final = ("--disable-radix-cache", "--chunked-prefill-size", "-1")
"""Without these the server leaves out rows."""

BY_OUTPUT: Final = frozenset({"llama", "qwen2", "qwen3"})
"""Families in which SGLang's id L means the output of layer L."""

BY_INPUT: Final = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25"})
"""Families in which it means the input of layer L, unless the first id is 1, which adds one to each."""


class ServedStatesError(Exception):
    """States that cannot be asked for, or that did not all come."""


def layer_ids(model_type: str, outputs: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """What `--return-aux-hidden-state-layer-ids` takes for the outputs of these layers, counted from 0."""
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
    """The server's flags for these layers; no drafter is loaded by them."""
    ids = map(str, layer_ids(model_type, outputs, num_layers))
    aux = ("--enable-return-aux-hidden-states", "--speculative-algorithm", "EAGLE3")
    return (*aux, "--return-aux-hidden-state-layer-ids", *ids, *FLAGS)


def rows_of(meta: Mapping[str, Json], prompt_tokens: int, width: int) -> list[list[float]]:
    """The states of an answer of `/generate`, shape [prompt + completion - 1, width]; StatesError if one is missing."""
    if meta.get("cached_tokens"):
        raise ServedStatesError(
            f"{meta['cached_tokens']} tokens came from the prefix cache and have no states. {_MEND}"
        )
    parts, made = meta.get("hidden_states"), meta.get("completion_tokens")
    if not isinstance(parts, list) or not parts or not isinstance(made, int):
        raise ServedStatesError(f"the server returned no states. {_MEND}")
    rows = [*_matrix(parts[0]), *[_vector(part) for part in parts[1:]]]
    if any(not math.isfinite(number) for row in rows for number in row):
        raise ServedStatesError("the server's states are not finite")
    if len(rows) != (wanted := prompt_tokens + made - 1):
        raise ServedStatesError(
            f"{len(rows)} rows of states for {wanted} tokens: a prompt was cut into chunks. {_MEND}"
        )
    if any(len(row) != width for row in rows):
        raise ServedStatesError(f"rows of {sorted({len(row) for row in rows})} numbers, {width} are wanted")
    return rows


_MEND = f"Start the server with {' '.join(FLAGS)}"


def _matrix(part: Json) -> list[list[float]]:
    if not isinstance(part, list) or not part:
        raise ServedStatesError("the prompt's states are no matrix")
    return [_vector(row) for row in part]


def _vector(part: Json) -> list[float]:
    if not isinstance(part, list) or not all(isinstance(number, int | float) for number in part):
        raise ServedStatesError("a row of states is no list of numbers")
    try:
        return [float(number) for number in part if isinstance(number, int | float)]
    except OverflowError:
        raise ServedStatesError("a row of states holds a number that no float is") from None


SECONDS: Final = 600.0
LAST_FLAGS: Final = ("--return-hidden-states-mode", "full", *FLAGS)
NUMBERS: Final = ("version", "device", "dtype", "attention_backend")
TOLD: Final = (*NUMBERS, "model_path")
"""What decides the numbers, as both servers must say it, and alike."""


class ServedTarget:
    """Use as `with`; entering asks both servers what they are. Raises StatesError."""

    def __init__(self, facts: TargetFacts, layers: Layers, aux_url: str, last_url: str) -> None:
        self.facts, self.layers = facts, layers
        self.computed: Mapping[str, str] = {}
        self._aux_url, self._last_url = aux_url.rstrip("/"), last_url.rstrip("/")
        self._http = httpx2.Client(timeout=SECONDS, trust_env=False)

    def __enter__(self) -> Self:
        try:
            aux, last = self._page(self._aux_url), self._page(self._last_url)
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
        """The rows with their states, in the order given; in `dtype`, or float32. Raises StatesError."""
        return [self._of_one(row, dtype or torch.float32) for row in rows]

    def _of_one(self, row: TrainingRow, dtype: torch.dtype) -> RowStates:
        width = self.facts.hidden_size
        aux = self._asked(self._aux_url, row, 3 * width).to(dtype)
        last = self._asked(self._last_url, row, width)[row.mask].to(dtype)
        if not (aux.isfinite().all() and last.isfinite().all()):
            raise ServedStatesError(
                f"row {row.id!r}: the server's states are not finite as {str(dtype)[len('torch.') :]}"
            )
        return RowStates(row.id, row.ids, row.mask, aux, last)

    def _asked(self, url: str, row: TrainingRow, width: int) -> torch.Tensor:
        """States of all tokens of a row, float32 [T, width]: one token is sampled after it, which has none."""
        ids = row.ids.tolist()
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True}}
        answer = self._sent("POST", f"{url}/generate", orjson.dumps({**body, "return_hidden_states": True}))
        meta = answer.get("meta_info")
        if not isinstance(meta, dict) or (meta.get("prompt_tokens"), meta.get("completion_tokens")) != (len(ids), 1):
            raise ServedStatesError(
                f"{url} took another prompt than row {row.id!r}, or gave another number of tokens than 1"
            )
        return torch.tensor(rows_of(meta, len(ids), width), dtype=torch.float32)

    def _require(self, aux: Mapping[str, Any], last: Mapping[str, Any]) -> None:
        for url, info in ((self._aux_url, aux), (self._last_url, last)):
            if absent := [name for name in TOLD if not isinstance(info.get(name), str)]:
                raise ServedStatesError(f"{url} does not say its {absent[0]}: it is no SGLang of today")
        self._require_layers(aux)
        if last.get("return_hidden_states_mode") != "full" or last.get("return_aux_hidden_state_layer_ids"):
            raise ServedStatesError(f"{self._last_url} returns no last states. Start it with {' '.join(LAST_FLAGS)}")
        if different := [name for name in TOLD if aux.get(name) != last.get(name)]:
            raise ServedStatesError(f"the two servers differ in their {different[0]}: start both alike")
        self._require_weights(self._aux_url, aux)
        self._require_weights(self._last_url, last)

    def _require_layers(self, info: Mapping[str, Any]) -> None:
        model_type, layers = self.facts.model_type, self.facts.num_layers
        wanted, there = layer_ids(model_type, self.layers, layers), info.get("return_aux_hidden_state_layer_ids")
        if not isinstance(there, list) or tuple(there) != wanted:
            start = " ".join(flags(model_type, self.layers, layers))
            raise ServedStatesError(
                f"{self._aux_url} returns the layers {there}, wanted are {[*wanted]}. Start it with {start}"
            )

    def _require_weights(self, url: str, info: Mapping[str, Any]) -> None:
        """Where the server's own directory lies on this machine, as it does but behind a tunnel."""
        folder = Path(str(info.get("model_path")))
        if folder.is_absolute() and folder.is_dir() and weights_sha256(folder) != self.facts.weights_sha256:
            raise ServedStatesError(f"{url} serves {folder}, whose weights are not those of {self.facts.directory}")

    def _page(self, url: str) -> Mapping[str, Any]:
        return self._sent("GET", f"{url}/server_info", None)

    def _sent(self, method: str, url: str, body: bytes | None) -> dict[str, Any]:
        try:
            response = self._http.request(method, url, content=body, headers={"content-type": "application/json"})
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            raise ServedStatesError(
                f"{url} does not answer ({type(error).__name__}). Start it: nox -s engine"
            ) from None
        if response.status_code != httpx2.codes.OK:
            raise ServedStatesError(f"{url}: status {response.status_code}, {redact(response.text, 300)}")
        try:
            found = orjson.loads(response.content)
        except orjson.JSONDecodeError:
            raise ServedStatesError(f"{url}: the answer is no JSON") from None
        if not isinstance(found, dict):
            raise ServedStatesError(f"{url}: the answer is no JSON object")
        return found
