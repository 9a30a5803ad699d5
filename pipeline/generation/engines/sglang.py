"""SGLang's dialect: `POST /generate` with `input_ids`.

As SGLang 0.5 answers it. Guarantees: `output_ids` and the ids that stand beside the logprobs are the same, as many as
`completion_tokens` says. The prompt was as long as the one sent. An answer that ended by itself ends with the token
that the engine names.
"""

from __future__ import annotations

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

ABSENT = "0.0.0"


class SGLang:
    """`EngineDialect` of SGLang's own endpoint.

    It names no prompt ids, so their number is what shows that they arrived.
    """

    name = "sglang"
    path = "/generate"
    fact_paths: Sequence[str] = ("/server_info", "/v1/models")

    def body(self, request: ServerRequest, model: str) -> dict[str, Json]:  # noqa: ARG002 - the protocol's; one server, one model
        """Return the request's JSON.

        Every knob of sampling is named: the server would otherwise take them from the model's own settings.
        """
        sampling: dict[str, Json] = {
            "max_new_tokens": request.sampling.max_tokens,
            "temperature": request.sampling.temperature,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "skip_special_tokens": False,
            "no_stop_trim": True,
        }
        sampling |= {"stop_token_ids": [*request.stop_ids]} if request.stop_ids else {}
        # Heard by a server with --enable-deterministic-inference; others draw afresh.
        sampling |= {} if request.sampling.seed is None else {"sampling_seed": request.sampling.seed}
        logprobs: dict[str, Json] = {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": 2}
        return {"input_ids": [*request.prompt], "sampling_params": sampling, **logprobs, "stream": False}

    def generation(self, request: ServerRequest, answer: Mapping[str, Any]) -> EngineOutput:
        """Return the answer's ids, where all places agree."""
        ids = ids_of(answer.get("output_ids"), "sglang output_ids")
        meta = answer.get("meta_info")
        require_count(ids, member(meta, "completion_tokens", "sglang meta_info"), "sglang output_ids")
        require_count(request.prompt, member(meta, "prompt_tokens", "sglang meta_info"), "the prompt as sglang took it")
        chosen = _entries(member(meta, "output_token_logprobs", "sglang meta_info"), "output_token_logprobs")
        if tuple(token for token, _ in chosen) != ids:
            raise EngineError("sglang output_token_logprobs name other ids than output_ids")
        top = member(meta, "output_top_logprobs", "sglang meta_info")
        if not isinstance(top, list) or len(top) != len(ids):
            raise EngineError("sglang output_top_logprobs are not as many as output_ids")
        second = tuple(
            runner_up(token, _entries(entries, "output_top_logprobs"), "output_top_logprobs")
            for token, entries in zip(ids, top, strict=True)
        )
        finished = _finished(ids, member(meta, "finish_reason", "sglang meta_info"))
        return EngineOutput(ids, tuple(logprob for _, logprob in chosen), second, finished)

    def facts(self, pages: Mapping[str, Mapping[str, Any] | None]) -> EngineFacts:
        """Pick the facts from /server_info, which also holds keys."""
        info, models = pages["/server_info"], pages["/v1/models"]
        if info is None or models is None or text_of(info.get("version")) in (None, ABSENT):
            raise EngineError("this server tells neither its version nor its model: it is no SGLang of today")
        data = models.get("data")
        if not isinstance(data, list) or not data or not isinstance(served := data[0], dict):
            raise EngineError("the server lists no model at /v1/models")
        return EngineFacts(
            engine=self.name,
            version=str(info["version"]),
            model=str(served.get("id")),
            weights=text_of(info.get("model_path")),
            context=_room(info, whole(served.get("max_model_len"), "sglang max_model_len")),
            device=text_of(info.get("device")),
            dtype=text_of(info.get("dtype")),
            attention_backend=text_of(info.get("attention_backend")),
        )


def _room(info: Mapping[str, Any], context: int) -> int:
    """Return the tokens that SGLang does not cut short.

    It shortens, without a word, what exceeds its context less one and its cache less one, and says of that only what
    the longest prompt may be: five tokens less (0.5.23, scheduler.py and tp_worker.py).
    """
    longest = info.get("max_req_input_len")
    return min(context - 2, longest + 4) if type(longest) is int and longest > 0 else context - 2


def _entries(value: object, what: str) -> list[tuple[int, float]]:
    """Read SGLang's list of `[logprob, id, text]`."""
    if not isinstance(value, list) or not all(isinstance(entry, list) and len(entry) > 1 for entry in value):
        raise EngineError(f"sglang {what} is no list of [logprob, id, text]")
    ids = ids_of([entry[1] for entry in value], f"sglang {what}")
    return [(token, number(entry[0], what)) for token, entry in zip(ids, value, strict=True)]


def _finished(ids: Ids, reason: object) -> bool:
    kind, matched = member(reason, "type", "sglang finish_reason"), member(reason, "matched", "sglang finish_reason")
    if kind == "length":
        return False
    if kind == "stop" and type(matched) is int and ids[-1:] == (matched,):
        return True
    raise EngineError(f"sglang ended the answer by {kind!r} {matched!r}, and the ids end with {ids[-1:]}")
