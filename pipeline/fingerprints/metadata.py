"""Learn what answers say beside their text.

Guarantees: what was not asked for is not missed. A prompt that is served longer than it is rendered is explained only
by one control token, the family's own beginning; any other difference is a number, and proves nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from pipeline.fingerprints.exchanges import Fidelity
from pipeline.fingerprints.models import tokenizer_config
from pipeline.fingerprints.observations import Observation
from pipeline.fingerprints.votes import Learned, Vote, tally
from pipeline.formats.tokenizer import Tokenizer
from pipeline.proof.fingerprint import TraitName
from pipeline.records import Ids, Json


def metadata_traits(observations: Sequence[Observation]) -> dict[TraitName, Learned]:
    """Learn the traits that stand beside the text."""
    found = {
        TraitName.PROMPT_PREFIX: prefix_trait(observations, tools=False),
        TraitName.PROMPT_PREFIX_TOOLS: prefix_trait(observations, tools=True),
        TraitName.FINISH: tally(finish_votes(observations), worst=("hides_cut", "renamed", "same")),
        TraitName.IDS: tally(token_id_votes(observations)),
        TraitName.LOGPROBS: tally(logprob_votes(observations), worst=("junk", "text", "bytes", "none")),
        TraitName.TURN_END: tally(turn_end_votes(observations)),
        TraitName.THINK_LEAD: tally(think_lead_votes(observations)),
        TraitName.REASONING_TOKENS: tally(reasoning_votes(observations)),
    }
    return {name: learned for name, learned in found.items() if learned is not None}


# The prompt as it was served


def prefix_trait(observations: Sequence[Observation], *, tools: bool) -> Learned | None:
    """Learn what the route puts before a rendered prompt.

    Votes are as long as the prompt. Where all prompts have as many messages, a token more may also be what each message
    costs, so nothing is proven.
    """
    chosen = [one for one in observations if one.tools_sent == tools and one.carries(Fidelity.TEXT)]
    votes = [vote for one in chosen if (vote := prefix_vote(one)) is not None]
    learned = tally(sorted(votes, key=lambda vote: isinstance(vote.value, int)))
    if learned is None:
        return None
    lists = [one.request.get("messages") for one in chosen]
    shapes = {len(messages) if isinstance(messages, list) else 0 for messages in lists}
    lacks = []
    if isinstance(learned.value, int):
        lacks.append("no control token explains the difference")
    elif len(shapes) == 1 and learned.value:
        lacks.append("all prompts have as many messages, so each may cost a token")
    return learned.lacking(lacks)


def prefix_vote(one: Observation) -> Vote | None:
    """Vote for the control tokens before our rendering.

    The value is a list of their names, or the number of tokens more where no name explains it.
    """
    usage, ours, returned = one.completion.usage, one.prompt_ids, one.completion.prompt_ids
    if ours is None or (returned is None and (usage is None or usage.prompt_tokens is None)):
        return None
    tokenizer = one.fmt.tokenizer
    served = len(returned) if returned is not None else (usage.prompt_tokens or 0) if usage else 0
    more = served - len(ours)
    value: Json = None if returned is None else _names_before(tokenizer, ours, returned)
    if value is None:
        begin = begin_name(tokenizer)
        is_begin = more == 1 and begin is not None and tokenizer.id_of(begin) not in ours[:1]
        value = [] if more == 0 else [begin] if is_begin else more
    why = f"{served} served, {len(ours)} rendered"
    return Vote(one.exchange.id, value, len(ours), why, certain=returned is not None)


def _names_before(tokenizer: Tokenizer, ours: Ids, returned: Ids) -> list[Json] | None:
    """Return the control tokens before our rendering in returned ids.

    None where the ids do not end in our rendering, or other tokens stand before it.
    """
    more = len(returned) - len(ours)
    if returned[more:] != ours:
        return None
    names = [tokenizer.name_of(token) for token in returned[:more]]
    return [*names] if None not in names else None


def begin_name(tokenizer: Tokenizer) -> str | None:
    """Return the control token that `bos_token` names, if any."""
    begin = tokenizer_config(tokenizer.directory).get("bos_token")
    name = begin.get("content") if isinstance(begin, dict) else begin
    return name if isinstance(name, str) and name in tokenizer.control_names else None


# Finish reasons, ids and logprobs

_SAME_FINISH: Mapping[str, frozenset[str]] = {
    "stop": frozenset({"stop", "completed", "end_turn", "eos"}),
    "tool_calls": frozenset({"tool_calls", "tool_use", "stop"}),
    "length": frozenset({"length", "max_tokens", "max_output_tokens"}),
}
"""Native finish reasons that mean the same as OpenAI's."""


def finish_votes(observations: Sequence[Observation]) -> Iterator[Vote]:
    """Vote on whether finish reasons are the engine's own."""
    for one in observations:
        finish, native = one.completion.finish_reason, one.completion.native_finish_reason
        if finish is None or native is None:
            continue
        why = f"{finish}, natively {native}"
        if finish != "length" and native.lower() in _SAME_FINISH["length"]:
            yield one.vote("hides_cut", why, certain=True)
        elif finish == native.lower():
            yield one.vote("same", why, certain=True)
        elif native.lower() in _SAME_FINISH.get(finish, ()):
            yield one.vote("renamed", why, certain=True)


def token_id_votes(observations: Sequence[Observation]) -> Iterator[Vote]:
    """Vote on whether token ids are returned."""
    for one in observations:
        returned = one.completion.token_ids is not None
        if returned or one.request.get("return_token_ids"):
            yield one.vote(returned, ", ".join(one.completion.ids_from) or "asked for", certain=True)


def logprob_votes(observations: Sequence[Observation]) -> Iterator[Vote]:
    """Vote on what logprobs hold: bytes, text, junk, or nothing."""
    for one in observations:
        entries = one.completion.logprobs
        if entries is not None:
            whole = all(entry.data is not None for entry in entries)
            yield one.vote("bytes" if whole else "text", f"{len(entries)} entries", certain=True)
        elif junk := _junk_logprobs(one):
            yield one.vote("junk", junk, certain=True)
        elif one.request.get("logprobs"):
            yield one.vote("none", "asked for", certain=True)


def _junk_logprobs(one: Observation) -> str:
    """Return what stands under `logprobs` and cannot be read."""
    for value in one.exchange.objects():
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            logprobs = choice.get("logprobs") if isinstance(choice, dict) else None
            if logprobs is not None:
                return f"logprobs is {json.dumps(logprobs)[:40]}"
    return ""


def turn_end_votes(observations: Sequence[Observation]) -> Iterator[Vote]:
    """Vote on the end token where a family has several."""
    for one in observations:
        ids, ends = one.completion.token_ids, one.fmt.end_ids
        if ids and len(ends) > 1 and ids[-1] in ends:
            body = [token for token in ids[:-1] if token in one.fmt.tool_markers().values()]
            by_role = ids[-1] == one.fmt.end_id_for(body)
            yield one.vote("by_role" if by_role else "other", one.fmt.tokenizer.name_of(ids[-1]) or "", certain=True)


def think_lead_votes(observations: Sequence[Observation]) -> Iterator[Vote]:
    """Vote on what a model writes before `<think>`."""
    for one in observations:
        ids, begin = one.completion.token_ids, one.fmt.opening_ids
        if ids and len(begin) > 1 and one.fmt.think_open_id in ids:
            written = ids[: len(begin)] == begin
            yield one.vote("written" if written else "other", "ids came", certain=True)


# Reasoning tokens


def reasoning_votes(observations: Sequence[Observation]) -> Iterator[Vote]:
    """Vote on whether `reasoning_tokens` is a count or an estimate."""
    for one in observations:
        reasoning, reported = one.completion.reasoning, reasoning_tokens(one)
        if not reasoning or reported is None or one.sum is None:
            continue
        own = len(one.fmt.tokenizer.encode(reasoning))
        is_own, is_estimate = reported in (own, own + 1), reported in estimates(reasoning)
        if is_own != is_estimate:
            why = f"{reported} where the reasoning has {own}"
            yield one.vote("native" if is_own else "estimate", why, certain=True)
        elif not is_own:
            yield one.vote("other", f"{reported} where the reasoning has {own}", certain=True)


def reasoning_tokens(one: Observation) -> int | None:
    """Return the last `reasoning_tokens` of the usage."""
    found: int | None = None
    for value in one.exchange.objects():
        usage = value.get("usage")
        details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
        reported = details.get("reasoning_tokens") if isinstance(details, dict) else None
        if isinstance(reported, int) and not isinstance(reported, bool):
            found = reported
    return found


def estimates(text: str) -> frozenset[int]:
    """Return what OpenRouter's estimate of a text may be.

    A quarter of each line's characters or bytes, rounded up, and its line ends, where a run of them counts one by one
    or as one.
    """
    found = set()
    for lengths in ([len(line) for line in text.split("\n")], [len(line.encode()) for line in text.split("\n")]):
        quarters = sum(-(-length // 4) for length in lengths)
        breaks = text.count("\n")
        runs = sum(1 for at, char in enumerate(text) if char == "\n" and text[at - 1 : at] != "\n")
        found |= {quarters + breaks, quarters + runs}
    return frozenset(found)
