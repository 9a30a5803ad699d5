"""A target behind two servers, in the shapes SGLang sends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.tiny_target.provenance import WEIGHTS
from pipeline.drafter.rows import TrainingRow
from pipeline.drafter.target.hidden_states import Target, load_target
from pipeline.drafter.target.server import ServedStatesError, ServedTarget, flags, layer_ids, rows_of
from pipeline.records import Evidence, Json

Page = dict[str, Any]
LAYERS = (1, 3, 4)
INFO: Page = {
    "version": "0.5.23",
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "model_path": str(WEIGHTS),
    "return_hidden_states_mode": "full",
    "api_key": "sk-not-to-be-kept",
}
AUX: Page = INFO | {"return_aux_hidden_state_layer_ids": [*LAYERS]}


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target(WEIGHTS, layers=LAYERS)


def row(name: str, ids: Sequence[int], emitted: int) -> TrainingRow:
    mask = torch.arange(len(ids)) >= len(ids) - emitted
    return TrainingRow(name, torch.tensor(ids), mask, Evidence.ENGINE_IDS, "")


ROWS = [row("a", [768, 5, 9, 12, 770], 3), row("b", [768, 31, 770], 1)]


@contextmanager
def serving(target: Target, info: Page, spoil: Any = None) -> Iterator[str]:  # noqa: ANN401 - a function of a page
    """Serve /server_info and /generate like SGLang.

    One row of states for each token of the prompt, and none for the sampled one.
    """
    aux = "return_aux_hidden_state_layer_ids" in info

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(info)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            ids = body["input_ids"]
            (states,) = target.states([row("asked", ids, len(ids))])
            rows = (states.aux if aux else states.last).tolist()
            meta: Page = {"prompt_tokens": len(ids), "completion_tokens": 1, "cached_tokens": 0}
            answer: Page = {"output_ids": [1], "meta_info": meta | {"hidden_states": [rows]}}
            if spoil is not None:
                spoil(answer["meta_info"])
            self._say(answer)

        def _say(self, page: Page) -> None:
            data = json.dumps(page).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def entered(target: Target, aux: Page = AUX, last: Page = INFO) -> ServedTarget:
    with served_by(target, aux, last) as served:
        return served


@contextmanager
def served_by(target: Target, aux: Page, last: Page, spoil: Any = None) -> Iterator[ServedTarget]:  # noqa: ANN401
    with (
        serving(target, aux, spoil) as one,
        serving(target, last) as other,
        ServedTarget(target.facts, LAYERS, one, other) as served,
    ):
        yield served


def test_states_are_those_of_the_same_target_in_this_process(target: Target) -> None:
    with served_by(target, AUX, INFO) as served:
        found = served.states(ROWS)

    for ours, theirs in zip(target.states(ROWS), found, strict=True):
        assert ours.id == theirs.id
        for name in ("ids", "mask", "aux", "last"):
            # Rows of another length in the batch move the last bit.
            torch.testing.assert_close(getattr(theirs, name), getattr(ours, name), rtol=0, atol=2e-5)


def test_what_computes_is_told_without_the_servers_secrets(target: Target) -> None:
    assert {
        "engine": "sglang 0.5.23",
        "device": "cpu",
        "dtype": "float32",
        "attention_backend": "torch_native",
    } == entered(target).computed


@pytest.mark.parametrize(
    "aux, last, why",
    [
        (INFO, INFO, r"returns the layers None, wanted are \[1, 3, 4\]\. Start it with --enable-return-aux"),
        (AUX | {"return_aux_hidden_state_layer_ids": [1, 3, 5]}, INFO, r"returns the layers \[1, 3, 5\]"),
        (AUX, AUX, "returns no last states. Start it with --return-hidden-states-mode full"),
        (AUX, INFO | {"return_hidden_states_mode": "last"}, "returns no last states"),
        (AUX, INFO | {"dtype": "bfloat16"}, "the two servers differ in their dtype"),
        (AUX, INFO | {"model_path": "/another"}, "the two servers differ in their model_path"),
        (AUX | {"version": None}, INFO, "does not say its version: it is no SGLang of today"),
    ],
)
def test_other_servers_than_are_wanted_are_refused(aux: Page, last: Page, why: str, target: Target) -> None:
    with pytest.raises(ServedStatesError, match=why):
        entered(target, aux, last)


@pytest.mark.parametrize(
    "spoil, why",
    [
        (lambda meta: meta["hidden_states"][0].pop(), "2 rows of states for 3 tokens"),
        (lambda meta: meta.update(cached_tokens=2), "came from the prefix cache"),
        (lambda meta: meta["hidden_states"][0][0].__setitem__(0, 1e39), "states are not finite"),
        (lambda meta: meta.update(prompt_tokens=2), "took another prompt than row 'b'"),
        (lambda meta: meta.update(completion_tokens=2), "or gave another number of tokens than 1"),
        (lambda meta: meta["hidden_states"][0][0].__setitem__(0, 10**400), "a number that no float is|no JSON"),
    ],
)
def test_an_answer_that_lacks_states_is_refused(spoil: Any, why: str, target: Target) -> None:  # noqa: ANN401
    with served_by(target, AUX, INFO, spoil) as served, pytest.raises(ServedStatesError, match=why):
        served.states(ROWS[1:])


def test_servers_of_other_weights_are_refused(target: Target, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"other")
    there = {"model_path": str(tmp_path)}

    with pytest.raises(ServedStatesError, match="whose weights are not those of"):
        entered(target, AUX | there, INFO | there)


def test_where_nobody_listens_it_is_said(target: Target) -> None:
    with serving(target, AUX) as gone:
        pass

    with pytest.raises(ServedStatesError, match="does not answer"), ServedTarget(target.facts, LAYERS, gone, gone):
        pass


META: dict[str, Json] = {
    "completion_tokens": 3,
    "cached_tokens": 0,
    "hidden_states": [[[1.0, 2.0], [3.0, 4.0]], [5.0, 6.0], [7, 8]],
}


@pytest.mark.parametrize(
    "family, outputs, expected",
    [("llama", (1, 3, 4), (1, 3, 4)), ("llama", (0, 3, 4), (0, 3, 4)), ("deepseek_v3", (1, 3, 4), (2, 4, 5)),
     ("kimi_k25", (2, 29, 57), (3, 30, 58))],
)  # fmt: skip
def test_each_family_counts_its_layers_in_its_own_way(
    family: str, outputs: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert expected == layer_ids(family, outputs, 61)


@pytest.mark.parametrize(
    "family, outputs, why",
    [("kimi_k2", (0, 3, 4), "output of layer 0"), ("gpt_oss", (1, 3, 4), "is not known here"),
     ("llama", (1, 3, 7), "not the last"), ("llama", (), "not the last")],
)  # fmt: skip
def test_layers_that_cannot_be_had_are_refused(family: str, outputs: tuple[int, ...], why: str) -> None:
    with pytest.raises(ServedStatesError, match=why):
        layer_ids(family, outputs, 8)


def test_the_server_is_told_to_leave_nothing_out() -> None:
    assert (
        "--enable-return-aux-hidden-states --speculative-algorithm EAGLE3 --return-aux-hidden-state-layer-ids 1 3 4 "
        "--disable-radix-cache --chunked-prefill-size -1"
    ) == " ".join(flags("llama", (1, 3, 4), 8))


def test_there_is_a_row_for_every_token_but_the_last() -> None:
    assert [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]] == rows_of(META, prompt_tokens=2, width=2)


@pytest.mark.parametrize(
    "change, prompt_tokens, width, why",
    [({}, 3, 2, "4 rows of states for 5 tokens"), ({"cached_tokens": 7}, 2, 2, "7 tokens came from the prefix cache"),
     ({"hidden_states": None}, 2, 2, "returned no states"), ({}, 2, 3, r"rows of \[2\] numbers, 3 are wanted"),
     ({"hidden_states": [[1.0], [2.0]]}, 2, 1, "no list of numbers")],
)  # fmt: skip
def test_a_missing_row_is_never_passed_over(change: dict[str, Json], prompt_tokens: int, width: int, why: str) -> None:
    with pytest.raises(ServedStatesError, match=why):
        rows_of({**META, **change}, prompt_tokens, width)
