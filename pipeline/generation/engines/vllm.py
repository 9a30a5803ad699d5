"""vLLM's dialect: `POST /v1/completions` with a prompt of ids.

As vLLM 0.32 answers it. Guarantees: `token_ids` and the ids that stand beside the logprobs are the same, as many as
`usage` counts. `prompt_token_ids` are those that were sent. Where a stop id is named, the ids end with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.generation.engines.output import EngineError, EngineOutput
from pipeline.generation.engines.server import (
    EngineFacts,
    ServerRequest,
    ids_of,
    member,
    number,
    require_count,
    runner_up,
    text_of,
    whole,
)
from pipeline.records import Ids, Json

AS_TEXT = re.compile(r"token_id:(\d{1,9})")
DEV_INFO = "/server_info?config_format=json"


class VLLM:
    """`EngineDialect` of vLLM's completions endpoint.

    Only a server in developer's mode tells device, dtype and backend.
    """

    name = "vllm"
    path = "/v1/completions"
    fact_paths: Sequence[str] = ("/version", "/v1/models", DEV_INFO)

    def body(self, request: ServerRequest, model: str) -> dict[str, Json]:
        """Return the request's JSON.

        Every knob of sampling is named: the server would otherwise take them from the model's own settings.
        """
        more: dict[str, Json] = {"stop_token_ids": [*request.stop_ids]} if request.stop_ids else {}
        more |= {} if request.sampling.seed is None else {"seed": request.sampling.seed}
        return {
            "model": model,
            "prompt": [*request.prompt],
            "max_tokens": request.sampling.max_tokens,
            "temperature": request.sampling.temperature,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "skip_special_tokens": False,
            "logprobs": 2,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "stream": False,
            **more,
        }

    def generation(self, request: ServerRequest, answer: Mapping[str, Any]) -> EngineOutput:
        """Return the answer's ids, where all places agree."""
        choice = _only(answer.get("choices"))
        ids = ids_of(choice.get("token_ids"), "vllm token_ids")
        require_count(ids, member(answer.get("usage"), "completion_tokens", "vllm usage"), "vllm token_ids")
        prompt_ids = answer.get("prompt_token_ids", choice.get("prompt_token_ids"))
        if ids_of(prompt_ids, "vllm prompt_token_ids") != request.prompt:
            raise EngineError("vllm prompt_token_ids are not the prompt that was sent")
        logprobs = choice.get("logprobs")
        spelled = member(logprobs, "tokens", "vllm logprobs")
        if not isinstance(spelled, list) or tuple(map(_spelled, spelled)) != ids:
            raise EngineError("vllm logprobs name other ids than token_ids")
        values = member(logprobs, "token_logprobs", "vllm logprobs")
        top = member(logprobs, "top_logprobs", "vllm logprobs")
        if not isinstance(values, list) or not isinstance(top, list) or not len(values) == len(top) == len(ids):
            raise EngineError("vllm logprobs are not as many as token_ids")
        second = tuple(runner_up(token, _top(each), "vllm top_logprobs") for token, each in zip(ids, top, strict=True))
        own = tuple(number(value, "vllm token_logprobs") for value in values)
        return EngineOutput(ids, own, second, _finished(ids, choice))

    def facts(self, pages: Mapping[str, Mapping[str, Any] | None]) -> EngineFacts:
        """Pick the facts from three pages.

        The developer's page, where it is there, says how numbers are computed.
        """
        version, models = pages["/version"], pages["/v1/models"]
        if version is None or models is None or text_of(version.get("version")) is None:
            raise EngineError("this server tells neither its version nor its model: it is no vLLM of today")
        served = _only(models.get("data"))
        config = (pages[DEV_INFO] or {}).get("vllm_config")
        config = config if isinstance(config, dict) else {}
        settings = {}
        for part, (fact, key) in _WHERE.items():
            value = found.get(key) if isinstance(found := config.get(part), dict) else None
            # `float32` of `torch.float32`, and a backend's own name of its whole path.
            settings[fact] = text_of(value.rpartition(".")[2] if isinstance(value, str) else value)
        return EngineFacts(
            engine=self.name,
            version=str(version["version"]),
            model=str(served.get("id")),
            weights=text_of(served.get("root")),
            context=whole(served.get("max_model_len"), "vllm max_model_len"),
            **settings,
        )


_WHERE: Mapping[str, tuple[str, str]] = {
    "device_config": ("device", "device"),
    "model_config": ("dtype", "dtype"),
    "attention_config": ("attention_backend", "backend"),
}
"""Where vLLM's settings say what `EngineFacts` keeps: part to fact and key."""


def _only(value: object) -> Mapping[str, Any]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        return value[0]
    raise EngineError("vllm: one was asked for, and the list holds another number")


def _spelled(token: object) -> int:
    found = AS_TEXT.fullmatch(str(token))
    if found is None:
        raise EngineError("vllm logprobs hold a text where an id was asked for")
    return int(found[1])


def _top(entry: object) -> list[tuple[int, float]]:
    if not isinstance(entry, dict):
        raise EngineError("vllm top_logprobs is no object of logprobs")
    return [(_spelled(token), number(value, "vllm top_logprobs")) for token, value in entry.items()]


def _finished(ids: Ids, choice: Mapping[str, Any]) -> bool:
    """Whether the answer ended by itself.

    vLLM names a stop id in `stop_reason`, and the model's own end token not at all.
    """
    reason, stop = choice.get("finish_reason"), choice.get("stop_reason")
    if reason == "length":
        return False
    if reason == "stop" and (stop is None or (type(stop) is int and ids[-1:] == (stop,))):
        return True
    raise EngineError(f"vllm ended the answer by {reason!r} {stop!r}, and the ids end with {ids[-1:]}")
