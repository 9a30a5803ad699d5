"""From what came over the wire to the ids that the model emitted, with the evidence that says so.

Guarantees: a TokenRow is returned only with a proof of its completion ids and of its prompt; everything else is a
Refusal. The strongest evidence that the answer carries is used, and where it contradicts the answer's own text the row
is refused and not tried again with weaker evidence. Nothing is trimmed, normalised or guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.formats.format import Format, is_dated
from pipeline.proof.answer import Answer, ended, prompt_prefix
from pipeline.proof.engine_ids import Proof, by_counts, by_deltas, by_engine_ids, by_logprobs
from pipeline.proof.fingerprint import Fingerprint, TraitName, is_model
from pipeline.proof.locations import rendered, special_text
from pipeline.records import Completion, Ids, Prompt, Reason, Refusal, RefusedError, TokenRow


@dataclass(frozen=True, slots=True)
class Expected:
    """What was asked for, where the caller knows it: an answer from elsewhere is refused.

    `stop`: texts were named at which the answer ends without its end token.
    """

    provider: str | None = None
    model: str | None = None
    max_tokens: int | None = None
    stop: bool = False


def reconstruct(
    prompt: Prompt,
    completion: Completion,
    fmt: Format,
    fingerprint: Fingerprint | None,
    asked: Expected | None = None,
) -> TokenRow | Refusal:
    """The proven row of one answer, or why there is none.

    `fingerprint` may be None only where the engine returned its ids: they need no knowledge of the route.
    """
    try:
        return _row(prompt, completion, fmt, fingerprint, asked or Expected())
    except RefusedError as error:
        return error.refusal


def _row(
    prompt: Prompt, completion: Completion, fmt: Format, fingerprint: Fingerprint | None, asked: Expected
) -> TokenRow:
    _require_route(completion, asked)
    fmt = _as_served(fmt, completion, fingerprint)
    prompt_ids = rendered(fmt, prompt)
    case = Answer(prompt, completion, fmt, fingerprint, ended(completion), asked.max_tokens)
    if case.ended and asked.stop:
        raise RefusedError(Reason.FINISH_UNKNOWN, "a stop text was asked for, and may have ended it", field="stop")
    proof = _proof(case)
    _require_same_stop(case, proof.ids)
    served = _served_prompt(case, prompt_ids)
    return TokenRow(prompt.id, served, proof.ids, proof.spans, proof.evidence, proof.detail)


def _require_route(completion: Completion, asked: Expected) -> None:
    if asked.provider is not None and completion.provider != asked.provider:
        message = f"{completion.provider} answered, {asked.provider} was asked"
        raise RefusedError(Reason.WRONG_PROVIDER, message, field="provider")
    if asked.model is not None and completion.model is not None and not is_model(asked.model, completion.model):
        raise RefusedError(Reason.WRONG_MODEL, f"{completion.model} answered, {asked.model} was asked", field="model")


def _require_same_stop(case: Answer, ids: Ids) -> None:
    """An end token that the answer names is the one that the ids end with."""
    told = case.completion.stopped_by
    if told is not None and (not case.ended or ids[-1:] != (told,)):
        message = f"the answer says that {told} stopped it, the ids end with {ids[-1:]}"
        raise RefusedError(Reason.FINISH_CONTRADICTS, message, field="stop_reason")


def _as_served(fmt: Format, completion: Completion, fingerprint: Fingerprint | None) -> Format:
    """The format with what only the served prompt says: from its ids, else as the route is proven to write it."""
    if not is_dated(fmt):
        return fmt
    if completion.prompt_ids is not None:
        return fmt.as_served(completion.prompt_ids)
    if fingerprint is None:
        where = str(TraitName.PROMPT_SETTINGS)
        raise RefusedError(Reason.ROUTE_UNPROVEN, "neither prompt ids nor the route say the prompt's day", field=where)
    return fmt.as_settled(fingerprint.require(TraitName.PROMPT_SETTINGS))


def _proof(case: Answer) -> Proof:
    if case.completion.token_ids is not None:
        return by_engine_ids(case)
    if case.fingerprint is None:
        raise RefusedError(
            Reason.ROUTE_UNPROVEN, "the answer carries no ids and its route has no fingerprint", field="provider"
        )
    if case.completion.logprobs is not None:
        return by_logprobs(case)
    return by_deltas(case) or by_counts(case)


def _served_prompt(case: Answer, ours: Ids) -> Ids:
    """The prompt ids as served: equal to those returned, or closed by their count."""
    returned = case.completion.prompt_ids
    if returned is not None:
        return _equal_prompt(ours, returned)
    if (found := special_text(case.fmt, case.prompt)) is not None:
        raise RefusedError.of(found)
    ids = prompt_prefix(case) + ours
    counted = case.completion.usage.prompt_tokens if case.completion.usage else None
    if counted is None:
        raise RefusedError(Reason.USAGE_MISSING, "usage.prompt_tokens is absent", field="usage.prompt_tokens")
    if counted != len(ids):
        message = f"the prompt has {len(ids)} tokens as rendered and {counted} as served"
        raise RefusedError(Reason.PROMPT_MISMATCH, message, field="usage.prompt_tokens")
    return ids


def _equal_prompt(rendered: Ids, returned: Ids) -> Ids:
    if rendered == returned:
        return returned
    pairs = enumerate(zip(rendered, returned, strict=False))
    at = next((i for i, (ours, theirs) in pairs if ours != theirs), min(len(rendered), len(returned)))
    message = f"prompt ids differ at token {at} ({len(rendered)} rendered, {len(returned)} served)"
    raise RefusedError(Reason.PROMPT_MISMATCH, message, field="prompt_token_ids", token_position=at)
