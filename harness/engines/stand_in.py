"""A stand-in for an engine's server, without a model.

Guarantees: SGLang's and vLLM's answers by ids, in the shapes that they sent. An answer depends on the prompt's ids
alone. `spoil` can make any answer wrong, and `delay` keeps it in flight.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, TypeAlias, cast

from pipeline.generation.engines.vllm import DEV_INFO

Name = Literal["sglang", "vllm"]
Answers: TypeAlias = Callable[[list[int]], list[int]]
Json: TypeAlias = dict[str, Any]
OWN, OTHER = -0.25, -1.5
"""Each token's logprob, and that of the one behind it."""


@dataclass(slots=True)
class StandIn:
    """What the stand-in serves, and the requests it received.

    `answers` returns an answer's ids, with the end token. After `dies_after` requests it answers none and accepts no
    connection. The next `turns_away` requests get the status `turned_away_with`. For the next `cuts` the connection is
    closed without an answer, and with `closes` after each answer. `served_as` is the model's name where that is not its
    path.
    """

    name: Name
    answers: Answers
    end_id: int
    spoil: Callable[[Json], object] = lambda body: body
    delay: float = 0.0
    context: int = 2048
    weights: str = "/models/tiny"
    status: int = 200
    url: str = ""
    dies_after: int = 0
    turns_away: int = 0
    turned_away_with: int = 503
    cuts: int = 0
    closes: bool = False
    served_as: str = ""
    pages: dict[str, Json] = field(default_factory=dict)
    asked: list[Json] = field(default_factory=list)
    flying: int = 0
    most: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        told = {"sglang": _SGLANG_PAGES, "vllm": _VLLM_PAGES}[self.name]
        self.pages = self.pages or {path: dict(page) for path, page in told.items()}

    def page(self, path: str) -> Json | None:
        """Return what a GET gets, secrets as in real pages."""
        models: Json = {
            "data": [{"id": self.served_as or self.weights, "root": self.weights, "max_model_len": self.context}]
        }
        if path == "/v1/models":
            return models
        room: Json = {"max_req_input_len": self.context - 6} if path == "/server_info" else {}
        page = self.pages.get(path)
        return None if page is None else room | page

    def answer(self, body: Json) -> Json:
        """Return what a POST gets."""
        most = body["sampling_params"]["max_new_tokens"] if self.name == "sglang" else body["max_tokens"]
        prompt = body["input_ids"] if self.name == "sglang" else body["prompt"]
        ids = self.answers(prompt)[:most]
        made = answered(self.name, prompt, ids, self.end_id)
        self.spoil(made)
        return made


@contextmanager
def standing_in(stand_in: StandIn, port: int = 0) -> Iterator[StandIn]:
    """Serve the stand-in at its `url` within the block."""
    handler = type("Handler", (_Handler,), {"stand_in": stand_in})
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        server.daemon_threads = True
        stand_in.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield stand_in
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    stand_in: StandIn
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        page = self.stand_in.page(self.path)
        self._say(404 if page is None else 200, page or {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.stand_in.lock:
            self.stand_in.asked.append(body)
            self.stand_in.flying += 1
            self.stand_in.most = max(self.stand_in.most, self.stand_in.flying)
        if not self._fails():
            time.sleep(self.stand_in.delay)
            with self.stand_in.lock:
                self.stand_in.flying -= 1
            self._say(self.stand_in.status, self.stand_in.answer(body))

    def _fails(self) -> bool:
        dead = 0 < self.stand_in.dies_after < len(self.stand_in.asked)
        if dead:
            cast("ThreadingHTTPServer", self.server).socket.close()  # so that nobody is let in any more
        if dead or self.stand_in.cuts:
            self.stand_in.cuts = max(self.stand_in.cuts - 1, 0)
            self.close_connection = True
            return True
        if self.stand_in.turns_away:
            self.stand_in.turns_away -= 1
            self._say(self.stand_in.turned_away_with, {"error": {"message": "turned away"}})
            return True
        return False

    def _say(self, status: int, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.close_connection = self.close_connection or self.stand_in.closes
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


def answered(name: Name, prompt: list[int], ids: list[int], end_id: int) -> Json:
    """Return the engine's body for these ids.

    The answer ended by itself if its last id is `end_id`.
    """
    return (_sglang if name == "sglang" else _vllm)(prompt, ids, end_id)


def _sglang(prompt: list[int], ids: list[int], end_id: int) -> Json:
    ended = ids[-1:] == [end_id]
    reason = {"type": "stop", "matched": end_id} if ended else {"type": "length", "length": len(ids)}
    return {
        "text": "not read",
        "output_ids": ids,
        "meta_info": {
            "finish_reason": reason,
            "prompt_tokens": len(prompt),
            "completion_tokens": len(ids),
            "output_token_logprobs": [[OWN, token, None] for token in ids],
            "output_top_logprobs": [[[OWN, token, None], [OTHER, token + 1, None]] for token in ids],
        },
    }


def _vllm(prompt: list[int], ids: list[int], end_id: int) -> Json:
    top = [{f"token_id:{token}": OWN, f"token_id:{token + 1}": OTHER} for token in ids]
    logprobs = {"tokens": [f"token_id:{token}" for token in ids], "token_logprobs": [OWN] * len(ids)}
    choice = {
        "text": "not read",
        "logprobs": logprobs | {"top_logprobs": top},
        "finish_reason": "stop" if ids[-1:] == [end_id] else "length",
        "stop_reason": None,
        "token_ids": ids,
        "prompt_token_ids": prompt,
    }
    return {"choices": [choice], "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}}


_SGLANG_PAGES: Mapping[str, Json] = {
    "/server_info": {
        "version": "0.5.23",
        "model_path": "/models/tiny",
        "device": "cpu",
        "dtype": "float32",
        "attention_backend": "torch_native",
        "api_key": "sk-not-to-be-kept",
    }
}
_VLLM_PAGES: Mapping[str, Json] = {
    "/version": {"version": "0.32.0"},
    DEV_INFO: {
        "vllm_config": {
            "device_config": {"device": "cpu"},
            "model_config": {"dtype": "torch.float32"},
            "attention_config": {"backend": "CPU_ATTN"},
        },
        "vllm_env": {"VLLM_SECRET": "sk-not-to-be-kept"},
    },
}
