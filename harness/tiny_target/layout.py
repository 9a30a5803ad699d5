"""Samples as text and ids, as the model is taught.

Guarantees: text is encoded segment by segment with specials off, control tokens are added by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.views.resplit import resplit
from pipeline.formats.kimi.format import declare_tools

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from harness.tiny_target.samples import Answer, Sample
    from pipeline.formats.tokenizer import Tokenizer
    from pipeline.records import Ids


def answer_ids(tokenizer: Tokenizer, answer: Answer, *, thinking: bool) -> Ids:
    """Return everything the model emits after the prompt.

    `<|im_end|>` included.
    """
    ids: list[int] = []
    if thinking:
        ids += [*tokenizer.encode(answer.reasoning), tokenizer.id_of("</think>")]
    ids += tokenizer.encode(answer.content)
    if answer.calls:
        ids.append(tokenizer.id_of("<|tool_calls_section_begin|>"))
        for call in answer.calls:
            ids += [tokenizer.id_of("<|tool_call_begin|>"), *tokenizer.encode(call.id)]
            ids += [tokenizer.id_of("<|tool_call_argument_begin|>"), *tokenizer.encode(call.arguments)]
            ids.append(tokenizer.id_of("<|tool_call_end|>"))
        ids.append(tokenizer.id_of("<|tool_calls_section_end|>"))
    return (*ids, tokenizer.id_of("<|im_end|>"))


def taught_ids(tokenizer: Tokenizer, sample: Sample, rng: Random, *, loose: float) -> Ids:
    """Return the answer as it is taught.

    A share `loose` is re-split at one place, half of those with the same count.
    """
    ids = answer_ids(tokenizer, sample.answer, thinking=sample.prompt.thinking)
    if rng.random() >= loose:
        return ids
    return resplit(tokenizer, ids, rng, same_count=rng.random() < 0.5) or ids  # noqa: PLR2004  # even odds


def texts(sample: Sample) -> Iterator[str]:
    """Yield every text that is encoded apart.

    In the sample's prompt and answer.
    """
    prompt, answer = sample.prompt, sample.answer
    yield from ("assistant", answer.reasoning, answer.content)
    for call in answer.calls:
        yield from (call.id, call.arguments)
    if prompt.tools:
        yield from ("tool_declare", declare_tools(prompt.tools))
    for message in prompt.messages:
        yield str(message["role"])
        yield f"{message['content']}"
        if message["role"] == "tool":
            yield f"## Return of {message['tool_call_id']}\n"
