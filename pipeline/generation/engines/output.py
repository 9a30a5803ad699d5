"""What an engine of our own sampled, and the completion that shows it.

Guarantees: the completion carries the ids themselves; its texts are only their decoding. Tool markers stay in the
content, spelled out, for nothing is parsed here. Needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.formats.format import Opener
from pipeline.records import Completion, Ids, RefusedError, SpanKind, TokenLogprob, Usage

if TYPE_CHECKING:
    from pipeline.formats.format import Format
    from pipeline.formats.tokenizer import Tokenizer


class EngineError(Exception):
    """An engine that does not load, cannot take a prompt, or does not give the ids that it was asked for."""


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """One answer. `ids`, `logprobs` and `runner_up` are parallel, shape [n], the end token included if `finished`.

    Logprobs are nats under the model itself, whatever the temperature; `runner_up` is the likeliest other token.
    """

    ids: Ids
    logprobs: tuple[float, ...]
    runner_up: tuple[tuple[int, float], ...]
    finished: bool


def complete(
    prompt_ids: Ids, generation: EngineOutput, fmt: Format, *, thinking: bool, model: str, provider: str = "local"
) -> Completion:
    """The generation as a completion with `token_ids`; bytes that are no UTF-8 show as U+FFFD in its texts only."""
    ids = generation.ids
    reasoning, content = (_by_headers if fmt.is_headed else _by_close)(generation, fmt, thinking=thinking)
    return Completion(
        reasoning=None if reasoning is None else _shown(reasoning, fmt.tokenizer),
        content=_shown(content, fmt.tokenizer),
        finish_reason="stop" if generation.finished else "length",
        native_finish_reason="stop" if generation.finished else "length",
        usage=Usage(len(prompt_ids), len(ids), 0.0),
        provider=provider,
        model=model,
        logprobs=tuple(
            _token_logprob(token, logprob, fmt.tokenizer)
            for token, logprob in zip(ids, generation.logprobs, strict=True)
        ),
        prompt_ids=prompt_ids,
        token_ids=ids,
    )


def _by_close(generation: EngineOutput, fmt: Format, *, thinking: bool) -> tuple[Ids | None, Ids]:
    """The ids of the reasoning, None where it thought nothing, and of the content."""
    ids = generation.ids
    begin = fmt.opened_with(ids, thinking=thinking)
    thought = bool(begin) or fmt.opener(thinking=thinking) is Opener.PROMPT
    body = ids[len(begin) : -1] if generation.finished else ids[len(begin) :]
    close = body.index(fmt.think_close_id) if thought and fmt.think_close_id in body else None
    reasoning = (body if close is None else body[:close]) if thought else None
    return reasoning, () if thought and close is None else body if close is None else body[close + 1 :]


def _by_headers(generation: EngineOutput, fmt: Format, *, thinking: bool) -> tuple[Ids | None, Ids]:
    """The same where headers say what each text is; all is content where they are not those of an answer."""
    ids = generation.ids
    try:
        spans = fmt.layout(ids, thinking=thinking)
    except RefusedError:
        return None, ids
    reasoning, content = (
        tuple(token for span in spans if span.kind is kind for token in ids[span.start : span.stop])
        for kind in (SpanKind.REASONING, SpanKind.CONTENT)
    )
    return reasoning or None, content


def _shown(ids: Ids, tokenizer: Tokenizer) -> str:
    return tokenizer.decode_bytes(ids).decode("utf-8", errors="replace")


def _token_logprob(token: int, logprob: float, tokenizer: Tokenizer) -> TokenLogprob:
    data = tokenizer.token_bytes(token)
    return TokenLogprob(data.decode("utf-8", errors="replace"), data, logprob)
