"""Whether a refusal was needless, judged by the true ids and by what the route really does.

Guarantees: a refusal is called needful only where the loss that it names is there: other ids that the route would have
shown alike, text that it really strips, counts that it really takes from the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from harness.emulator.survey import Exchange
from harness.views.roundtrip import shown_of
from harness.views.view import SHOWN_CONTROL, SHOWN_ELSEWHERE, Shown
from pipeline.formats.format import Format, end_ids
from pipeline.records import Completion, Ids, Reason, Refusal, RefusedError


def needless(exchange: Exchange, refusal: Refusal, fmt: Format) -> bool:
    """Whether the answer leaves but one sequence of ids open: it is canonical, in the layout, and shown whole."""
    if exchange.truth.noncanonical or not _in_layout(exchange, fmt):
        return False
    loses = _LOSSES.get(refusal.reason)
    return loses is None or not loses(exchange, fmt)


def _in_layout(exchange: Exchange, fmt: Format) -> bool:
    try:
        fmt.parse(exchange.truth.output_ids, thinking=exchange.prompt.thinking)
    except RefusedError:
        return False
    return True


def _text_alone(exchange: Exchange) -> bool:
    return not exchange.trip.ids and not exchange.trip.logprobs


def _strips(exchange: Exchange, _: Format) -> bool:
    return _text_alone(exchange) and not exchange.trip.keeps_text


def _recounts(exchange: Exchange, _: Format) -> bool:
    return _text_alone(exchange) and exchange.trip.stream and exchange.trip.profile.recounts_stream


def _holds_replacement(exchange: Exchange, _: Format) -> bool:
    answer = exchange.completion
    return isinstance(answer, Completion) and "\ufffd" in (answer.reasoning or "") + (answer.content or "")


def _rewrites_calls(exchange: Exchange, _: Format) -> bool:
    """Calls came parsed, and the server wrote them anew, or may have: for what came before, or for a cut."""
    profile = exchange.trip.profile
    verbatim = (profile.tool_ids, profile.tool_arguments) == ("verbatim", "verbatim")
    earlier = any(message.get("tool_calls") for message in exchange.prompt.messages)
    return exchange.trip.tools_sent and _text_alone(exchange) and (not verbatim or earlier or exchange.truth.cut)


def _has_twin(exchange: Exchange, fmt: Format) -> bool:
    """Whether the route shows other ids exactly alike, deltas and count and all."""
    ids = exchange.truth.output_ids
    shown = _shown(ids, exchange, fmt)
    return any(other != ids and _shown(other, exchange, fmt) == shown for other in neighbours(ids, fmt))


def _shown(ids: Ids, exchange: Exchange, fmt: Format) -> Shown:
    shown = shown_of(ids, exchange.prompt, exchange.trip, fmt)
    return shown if exchange.trip.logprobs else replace(shown, logprobs=())


def neighbours(ids: Ids, fmt: Format) -> Iterator[Ids]:
    """Ids with another token at one place: none that shows for a control token, half a character more at the end."""
    tokenizer = fmt.tokenizer
    names = tokenizer.control_names
    hidden = [tokenizer.id_of(name) for name in names if name not in SHOWN_CONTROL | SHOWN_ELSEWHERE]
    unseen = next((token for token in hidden if token not in end_ids(fmt)), None)
    for position, token in enumerate(ids):
        if tokenizer.is_control(token):
            others = end_ids(fmt) if token in end_ids(fmt) else {unseen} - {None}
            yield from ((*ids[:position], other, *ids[position + 1 :]) for other in others if other is not None)
    if ids and not tokenizer.is_control(ids[-1]):
        last = tokenizer.token_bytes(ids[-1])
        yield from ((*ids[:-1], token) for token in tokenizer.base_ids if tokenizer.token_bytes(token).startswith(last))


_LOSSES: Mapping[Reason, Callable[[Exchange, Format], bool]] = {
    Reason.SEAM_LOSSY: _strips,
    Reason.STRUCTURED_CALLS: _rewrites_calls,
    Reason.COUNT_NOT_NATIVE: _recounts,
    Reason.REPLACEMENT_CHAR: _holds_replacement,
    Reason.AMBIGUOUS_LAYOUT: _has_twin,
}
"""What each reason claims of the answer; every other reason claims that its ids are none that could be proven."""
