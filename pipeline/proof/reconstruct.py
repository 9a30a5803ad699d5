"""One answer and its prompt, proven or refused.

Guarantees: a TokenRow is returned only with a proof of its completion ids and of its prompt; everything else is a
Refusal. The strongest evidence that the answer carries is used, and where it contradicts the answer's own text the row
is refused and not tried again with weaker evidence. The prompt has evidence of its own: as ids it came back, or it was
counted, and then another prompt of as many tokens would pass. An answer that was cut in a loop is refused however well
its ids are proven. Nothing is trimmed, normalised or guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.base.loops import is_looping
from pipeline.base.prompts import texts_of
from pipeline.formats.format import Format
from pipeline.formats.tokenizer import TokenizerError
from pipeline.formats.unicode_tables import first_changed
from pipeline.proof.answer import Answer, Proof, ended
from pipeline.proof.counted import by_count
from pipeline.proof.engine_ids import by_engine_ids, by_logprobs
from pipeline.proof.fingerprint import Fingerprint, TraitName, is_model
from pipeline.proof.locations import rendered, special_text
from pipeline.proof.stream_deltas import by_stream_deltas
from pipeline.proof.text_guards import changed_character, require_text_evidence
from pipeline.records import Completion, Evidence, Ids, Prompt, Reason, Refusal, RefusedError, TokenRow


@dataclass(frozen=True, slots=True)
class Expected:
    """What the caller requested, where known.

    `stop`: texts were named at which the answer ends without its end token.
    """

    provider: str | None = None
    model: str | None = None
    max_tokens: int | None = None
    stop: bool = False


ANY = Expected()
"""Nothing is known of the request."""


def reconstruct(
    prompt: Prompt,
    completion: Completion,
    fmt: Format,
    fingerprint: Fingerprint | None,
    expected: Expected = ANY,
) -> TokenRow | Refusal:
    """Return one answer's proven row, or why there is none.

    `fingerprint` may be None only where the engine returned its ids: they need no knowledge of the route. An answer
    from elsewhere than `expected` is refused.

    >>> from pipeline.formats.registry import open_format
    >>> from pipeline.records import Usage
    >>> fmt = open_format("tiny-kimi")
    >>> prompt = Prompt("row-1", ({"role": "user", "content": "Hi"},), thinking=False)
    >>> ids = (*fmt.tokenizer.encode("Hello"), fmt.end_id)
    >>> usage = Usage(len(fmt.render(prompt)), len(ids))
    >>> answer = Completion(None, "Hello", finish_reason="stop", token_ids=ids, usage=usage)
    >>> str(reconstruct(prompt, answer, fmt, None).evidence)
    'engine_ids'
    """
    try:
        require_route(completion, expected)
        served = as_served(fmt, completion, fingerprint)
        rendered_ids = rendered(served, prompt)
        answer = Answer(prompt, completion, served, fingerprint, ended(completion), expected.max_tokens)
        require_no_stop_text(answer, expected)
        proof = prove_completion(answer)
        require_named_stop(answer, proof.ids)
        prompt_ids, grade = prove_prompt(answer, rendered_ids)
        row = TokenRow(prompt.id, prompt_ids, proof.ids, proof.spans, proof.evidence, proof.detail, grade)
        require_no_loop(row)
    except RefusedError as error:
        return error.refusal
    return row


def require_route(completion: Completion, expected: Expected) -> None:
    """Refuse an answer of another provider or model."""
    if expected.provider is not None and completion.provider != expected.provider:
        message = f"{completion.provider} answered, {expected.provider} was asked"
        raise RefusedError(Reason.WRONG_PROVIDER, message, field="provider")
    model = completion.model
    if expected.model is not None and model is not None and not is_model(expected.model, model):
        raise RefusedError(Reason.WRONG_MODEL, f"{model} answered, {expected.model} was asked", field="model")


def as_served(fmt: Format, completion: Completion, fingerprint: Fingerprint | None) -> Format:
    """Return the format with what only the served prompt says.

    From returned prompt ids, otherwise as the route is proven to write it.
    """
    if not fmt.is_dated:
        return fmt
    if completion.prompt_ids is not None:
        return fmt.as_served(completion.prompt_ids)
    if fingerprint is None:
        where = str(TraitName.PROMPT_SETTINGS)
        raise RefusedError(Reason.ROUTE_UNPROVEN, "neither prompt ids nor the route say the prompt's day", field=where)
    return fmt.as_settled(fingerprint.require(TraitName.PROMPT_SETTINGS))


def require_no_stop_text(answer: Answer, expected: Expected) -> None:
    """Refuse an end that may have been a stop text's."""
    if answer.ended and expected.stop:
        raise RefusedError(Reason.FINISH_UNKNOWN, "a stop text was asked for, and may have ended it", field="stop")


def prove_completion(answer: Answer) -> Proof:
    """Return the proof by the strongest evidence that came.

    A contradiction is refused, and never tried again with less.
    """
    if answer.completion.token_ids is not None:
        return by_engine_ids(answer)
    if answer.fingerprint is None:
        message = "the answer carries no ids and its route has no fingerprint"
        raise RefusedError(Reason.ROUTE_UNPROVEN, message, field="provider")
    if answer.completion.logprobs is not None:
        return by_logprobs(answer)
    require_text_evidence(answer)
    return by_stream_deltas(answer) or by_count(answer)


def require_named_stop(answer: Answer, ids: Ids) -> None:
    """Refuse an end token that the answer does not name."""
    named = answer.completion.stopped_by
    if named is not None and (not answer.ended or ids[-1:] != (named,)):
        message = f"the answer says that {named} stopped it, the ids end with {ids[-1:]}"
        raise RefusedError(Reason.FINISH_CONTRADICTS, message, field="stop_reason")


def require_no_loop(row: TokenRow) -> None:
    """Refuse an answer that was cut in a loop.

    One that ended may be what was asked for (a table of zeros), so it stays a proven row; training leaves it out.
    """
    if row.is_cut and is_looping(row.output_ids, ((span.start, span.stop) for span in row.spans), ended=False):
        message = f"the answer was cut after {len(row.output_ids)} tokens, the last of them one stretch again and again"
        raise RefusedError(Reason.LOOPING, message, field="content")


def prove_prompt(answer: Answer, rendered_ids: Ids) -> tuple[Ids, Evidence]:
    """Return the prompt ids as served, and their evidence.

    They equal the ids that were returned; or, with the route's prefix, they are as many as were counted. Returned ids
    beside another count are a contradiction, unless the route is not proven to count ids.
    """
    returned, usage = answer.completion.prompt_ids, answer.completion.usage
    if returned is not None:
        require_same_prompt(rendered_ids, returned)
        counted = usage.prompt_tokens if usage else None
        is_native = answer.fingerprint is None or answer.proven(TraitName.COUNT_NATIVE) is True
        if is_native and counted not in (None, len(returned)):
            message = f"{len(returned)} prompt ids were returned and {counted} counted"
            raise RefusedError(Reason.PROMPT_MISMATCH, message, field="usage.prompt_tokens")
        return returned, Evidence.ENGINE_IDS
    if (found := special_text(answer.fmt, answer.prompt)) is not None:
        raise RefusedError.of(found)
    for place, text in texts_of(answer.prompt):
        if (at := first_changed(text)) is not None:
            raise changed_character(text, at, place)
    ids = prompt_prefix(answer) + rendered_ids
    if usage is None or usage.prompt_tokens is None:
        raise RefusedError(Reason.USAGE_MISSING, "usage.prompt_tokens is absent", field="usage.prompt_tokens")
    if usage.prompt_tokens != len(ids):
        message = f"the prompt has {len(ids)} tokens as rendered and {usage.prompt_tokens} as served"
        raise RefusedError(Reason.PROMPT_MISMATCH, message, field="usage.prompt_tokens")
    return ids, Evidence.COUNTED


def require_same_prompt(ours: Ids, returned: Ids) -> None:
    """Refuse returned prompt ids that differ from our rendering."""
    if ours == returned:
        return
    pairs = enumerate(zip(ours, returned, strict=False))
    at = next((i for i, (one, other) in pairs if one != other), min(len(ours), len(returned)))
    message = f"prompt ids differ at token {at} ({len(ours)} rendered, {len(returned)} served)"
    raise RefusedError(Reason.PROMPT_MISMATCH, message, field="prompt_token_ids", token_position=at)


def prompt_prefix(answer: Answer) -> Ids:
    """Return the ids that the route puts before the prompt.

    There are none without a fingerprint.
    """
    names = answer.fingerprint.proven(TraitName.PROMPT_PREFIX) if answer.fingerprint else []
    where = str(TraitName.PROMPT_PREFIX)
    if not isinstance(names, list):
        raise RefusedError(Reason.ROUTE_UNPROVEN, f"{where} is not proven", field=where)
    try:
        return tuple(answer.fmt.tokenizer.id_of(str(name)) for name in names)
    except TokenizerError as error:
        raise RefusedError(Reason.ROUTE_UNPROVEN, f"{where}: {error}", field=where) from None
