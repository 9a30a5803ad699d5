"""What a local engine sampled, and the completion that shows it.

Guarantees: the completion carries the ids themselves; its texts are only their decoding. Tool markers stay in the
content, spelled out, for nothing is parsed here. Needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.formats.parts import Opener
from pipeline.records import Completion, Ids, TokenLogprob, Usage

if TYPE_CHECKING:
    from pipeline.formats.parts import Format
    from pipeline.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer. `ids`, `logprobs` and `runner_up` are parallel, shape [n], the end token included if `finished`.

    Logprobs are nats under the model itself, whatever the temperature; `runner_up` is the likeliest other token.
    """

    ids: Ids
    logprobs: tuple[float, ...]
    runner_up: tuple[tuple[int, float], ...]
    finished: bool


def complete(prompt_ids: Ids, generation: Generation, fmt: Format, *, thinking: bool, model: str) -> Completion:
    """The generation as a completion with `token_ids`; bytes that are no UTF-8 show as U+FFFD in its texts only."""
    ids = generation.ids
    opener = fmt.opener(thinking=thinking)
    opened = opener is Opener.MODEL and ids[:1] == (fmt.think_open_id,)
    thought = opened or opener is Opener.PROMPT
    body = ids[int(opened) : -1] if generation.finished else ids[int(opened) :]
    close = body.index(fmt.think_close_id) if thought and fmt.think_close_id in body else None
    reasoning = (body if close is None else body[:close]) if thought else None
    content = () if thought and close is None else body if close is None else body[close + 1 :]
    return Completion(
        reasoning=None if reasoning is None else _shown(reasoning, fmt.tokenizer),
        content=_shown(content, fmt.tokenizer),
        finish_reason="stop" if generation.finished else "length",
        native_finish_reason="stop" if generation.finished else "length",
        usage=Usage(len(prompt_ids), len(ids), 0.0),
        provider="local",
        model=model,
        logprobs=tuple(
            _token_logprob(token, logprob, fmt.tokenizer)
            for token, logprob in zip(ids, generation.logprobs, strict=True)
        ),
        prompt_ids=prompt_ids,
        token_ids=ids,
    )


def _shown(ids: Ids, tokenizer: Tokenizer) -> str:
    return tokenizer.decode_bytes(ids).decode("utf-8", errors="replace")


def _token_logprob(token: int, logprob: float, tokenizer: Tokenizer) -> TokenLogprob:
    data = tokenizer.token_bytes(token)
    return TokenLogprob(data.decode("utf-8", errors="replace"), data, logprob)
