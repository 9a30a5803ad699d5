"""An engine's sampled ids, and the Completion that shows them.

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
    """An engine that does not answer with ids.

    It does not load, cannot take a prompt, or gives other ids than the request needs.
    """


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """One answer of an engine.

    `ids`, `logprobs` and `runner_up` are parallel, shape [n], the end token included if `finished`. Logprobs are nats
    under the model itself, whatever the temperature; `runner_up` is the likeliest other token.
    """

    ids: Ids
    logprobs: tuple[float, ...]
    runner_up: tuple[tuple[int, float], ...]
    finished: bool


def complete(
    prompt_ids: Ids, output: EngineOutput, fmt: Format, *, thinking: bool, model: str, provider: str = "local"
) -> Completion:
    """Return the output as a Completion with `token_ids`.

    Bytes that are no UTF-8 show as U+FFFD in its texts only.
    """
    ids = output.ids
    reasoning, content = (_by_headers if fmt.is_headed else _by_close)(output, fmt, thinking=thinking)
    return Completion(
        reasoning=None if reasoning is None else _shown(reasoning, fmt.tokenizer),
        content=_shown(content, fmt.tokenizer),
        finish_reason="stop" if output.finished else "length",
        native_finish_reason="stop" if output.finished else "length",
        usage=Usage(len(prompt_ids), len(ids), 0.0),
        provider=provider,
        model=model,
        logprobs=tuple(
            TokenLogprob((data := fmt.tokenizer.token_bytes(token)).decode("utf-8", errors="replace"), data, logprob)
            for token, logprob in zip(ids, output.logprobs, strict=True)
        ),
        prompt_ids=prompt_ids,
        token_ids=ids,
    )


def _by_close(output: EngineOutput, fmt: Format, *, thinking: bool) -> tuple[Ids | None, Ids]:
    """Split the ids into reasoning and content.

    The reasoning is None where there was no thinking.
    """
    ids = output.ids
    begin = fmt.opened_with(ids, thinking=thinking)
    thought = bool(begin) or fmt.opener(thinking=thinking) is Opener.PROMPT
    body = ids[len(begin) : -1] if output.finished else ids[len(begin) :]
    close = body.index(fmt.think_close_id) if thought and fmt.think_close_id in body else None
    reasoning = (body if close is None else body[:close]) if thought else None
    return reasoning, () if thought and close is None else body if close is None else body[close + 1 :]


def _by_headers(output: EngineOutput, fmt: Format, *, thinking: bool) -> tuple[Ids | None, Ids]:
    """Split the ids by the headers of the messages.

    All is content where the headers are not those of an answer.
    """
    ids = output.ids
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
