"""A target behind two SGLang servers: one returns the states of its layers, the other the last after its final norm.

Guarantees: the same numbers of the same rows as a target in this process has, as far as two programs round alike; a
row's ids are sent exactly as they lie in it. Servers of other layers, versions, dtypes or weights than are wanted are
refused before anything is computed, and so is an answer that lacks a row of states or holds one that is not finite.
Two servers, since SGLang returns either the layers' states or the last one. Numbers come as JSON, several bytes each:
this is for targets that no machine here holds otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import httpx2
import orjson
import torch

from pipeline.base.quoting import quoted
from pipeline.drafter.rows import TrainingRow
from pipeline.drafter.target.files import TargetFacts
from pipeline.drafter.target.layers import Layers
from pipeline.drafter.target.served_states import FLAGS, StatesError, flags, layer_ids, rows_of
from pipeline.drafter.training.packing import RowStates
from pipeline.generation.plan import weights_sha256

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
            raise StatesError(f"row {row.id!r}: the server's states are not finite as {str(dtype)[len('torch.') :]}")
        return RowStates(row.id, row.ids, row.mask, aux, last)

    def _asked(self, url: str, row: TrainingRow, width: int) -> torch.Tensor:
        """States of all tokens of a row, float32 [T, width]: one token is sampled after it, which has none."""
        ids = row.ids.tolist()
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True}}
        answer = self._sent("POST", f"{url}/generate", orjson.dumps({**body, "return_hidden_states": True}))
        meta = answer.get("meta_info")
        if not isinstance(meta, dict) or (meta.get("prompt_tokens"), meta.get("completion_tokens")) != (len(ids), 1):
            raise StatesError(f"{url} took another prompt than row {row.id!r}, or gave another number of tokens than 1")
        return torch.tensor(rows_of(meta, len(ids), width), dtype=torch.float32)

    def _require(self, aux: Mapping[str, Any], last: Mapping[str, Any]) -> None:
        for url, info in ((self._aux_url, aux), (self._last_url, last)):
            if absent := [name for name in TOLD if not isinstance(info.get(name), str)]:
                raise StatesError(f"{url} does not say its {absent[0]}: it is no SGLang of today")
        self._require_layers(aux)
        if last.get("return_hidden_states_mode") != "full" or last.get("return_aux_hidden_state_layer_ids"):
            raise StatesError(f"{self._last_url} returns no last states. Start it with {' '.join(LAST_FLAGS)}")
        if different := [name for name in TOLD if aux.get(name) != last.get(name)]:
            raise StatesError(f"the two servers differ in their {different[0]}: start both alike")
        self._require_weights(self._aux_url, aux)
        self._require_weights(self._last_url, last)

    def _require_layers(self, info: Mapping[str, Any]) -> None:
        model_type, layers = self.facts.model_type, self.facts.num_layers
        wanted, there = layer_ids(model_type, self.layers, layers), info.get("return_aux_hidden_state_layer_ids")
        if not isinstance(there, list) or tuple(there) != wanted:
            start = " ".join(flags(model_type, self.layers, layers))
            raise StatesError(
                f"{self._aux_url} returns the layers {there}, wanted are {[*wanted]}. Start it with {start}"
            )

    def _require_weights(self, url: str, info: Mapping[str, Any]) -> None:
        """Where the server's own directory lies on this machine, as it does but behind a tunnel."""
        folder = Path(str(info.get("model_path")))
        if folder.is_absolute() and folder.is_dir() and weights_sha256(folder) != self.facts.weights_sha256:
            raise StatesError(f"{url} serves {folder}, whose weights are not those of {self.facts.directory}")

    def _page(self, url: str) -> Mapping[str, Any]:
        return self._sent("GET", f"{url}/server_info", None)

    def _sent(self, method: str, url: str, body: bytes | None) -> dict[str, Any]:
        try:
            response = self._http.request(method, url, content=body, headers={"content-type": "application/json"})
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            raise StatesError(f"{url} does not answer ({type(error).__name__}). Start it: nox -s engine") from None
        if response.status_code != httpx2.codes.OK:
            raise StatesError(f"{url}: status {response.status_code}, {quoted(response.text, 300)}")
        try:
            found = orjson.loads(response.content)
        except orjson.JSONDecodeError:
            raise StatesError(f"{url}: the answer is no JSON") from None
        if not isinstance(found, dict):
            raise StatesError(f"{url}: the answer is no JSON object")
        return found
