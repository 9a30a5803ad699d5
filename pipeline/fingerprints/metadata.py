"""What answers say beside their text: finish reasons, ids and logprobs, their own count of the reasoning, the prompt's.

Guarantees: what was not asked for is not missed. A prompt that is served longer than it is rendered is named only where
one control token, the family's own beginning, explains it; any other difference is a number, and proves nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from pipeline.fingerprints.exchanges import Fidelity
from pipeline.fingerprints.observations import Observation, named
from pipeline.fingerprints.votes import Learned, Vote, tally
from pipeline.formats.tokenizer import Tokenizer
from pipeline.proof.fingerprint import TraitName
from pipeline.records import Ids, Json


def aside_traits(seen: Sequence[Observation]) -> dict[TraitName, Learned]:
    """The traits that stand beside the text, each with what was learned."""
    found = {
        TraitName.PROMPT_PREFIX: _prefix(seen, tools=False),
        TraitName.PROMPT_PREFIX_TOOLS: _prefix(seen, tools=True),
        TraitName.FINISH: tally(_finish_ballots(seen), worst=("hides_cut", "renamed", "same")),
        TraitName.IDS: tally(_id_ballots(seen)),
        TraitName.LOGPROBS: tally(_logprob_ballots(seen), worst=("junk", "text", "bytes", "none")),
        TraitName.TURN_END: tally(_turn_end_ballots(seen)),
        TraitName.THINK_LEAD: tally(_think_lead_ballots(seen)),
        TraitName.REASONING_TOKENS: tally(reasoning_ballots(seen)),
    }
    return {name: learned for name, learned in found.items() if learned is not None}


def _prefix(seen: Sequence[Observation], *, tools: bool) -> Learned | None:
    """Ballots are as long as the prompt. Prompts of one shape alone leave room for what each message costs."""
    asked = [one for one in seen if one.tools_sent == tools and one.carries(Fidelity.TEXT)]
    ballots = [ballot for one in asked if (ballot := _prefix_ballot(one)) is not None]
    learned = tally(sorted(ballots, key=lambda ballot: isinstance(ballot.value, int)))
    if learned is None:
        return None
    lacks = []
    if isinstance(learned.value, int):
        lacks.append("no control token explains the difference")
    elif len({_messages(one) for one in asked}) == 1 and learned.value:
        lacks.append("all prompts have as many messages, so each may cost a token")
    return learned.lacking(lacks)


def _messages(one: Observation) -> int:
    messages = one.request.get("messages")
    return len(messages) if isinstance(messages, list) else 0


def _prefix_ballot(one: Observation) -> Vote | None:
    usage, ours, returned = one.completion.usage, one.prompt_ids, one.completion.prompt_ids
    if ours is None or (returned is None and (usage is None or usage.prompt_tokens is None)):
        return None
    served = len(returned) if returned is not None else (usage.prompt_tokens or 0) if usage else 0
    value: Json = _returned_prefix(one.fmt.tokenizer, ours, returned)
    if value is None:
        value = _named_prefix(one.fmt.tokenizer, ours, served - len(ours))
    why = f"{served} served, {len(ours)} rendered"
    return Vote(one.exchange.id, value, len(ours), why, certain=returned is not None)


def _named_prefix(tokenizer: Tokenizer, ours: Ids, more: int) -> Json:
    """None, the family's beginning where the rendering has none, or a number that names nothing."""
    begin = begin_name(tokenizer)
    if more == 0:
        return []
    return [begin] if more == 1 and begin is not None and tokenizer.id_of(begin) not in ours[:1] else more


def _returned_prefix(tokenizer: Tokenizer, ours: Ids, returned: Ids | None) -> list[Json] | None:
    """The control tokens before our rendering in the ids that the engine returned; None where they are not that."""
    if returned is None or returned[len(returned) - len(ours) :] != ours:
        return None
    names = [tokenizer.name_of(token) for token in returned[: len(returned) - len(ours)]]
    return [*names] if None not in names else None


@cache
def begin_name(tokenizer: Tokenizer) -> str | None:
    """The control token that the family's `tokenizer_config.json` calls its beginning; None where it has none."""
    try:
        config = json.loads((tokenizer.directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    told = config.get("bos_token") if isinstance(config, dict) else None
    name = told.get("content") if isinstance(told, dict) else told
    return name if isinstance(name, str) and name in tokenizer.control_names else None


_SAME_FINISH: Mapping[str, frozenset[str]] = {
    "stop": frozenset({"stop", "completed", "end_turn", "eos"}),
    "tool_calls": frozenset({"tool_calls", "tool_use", "stop"}),
    "length": frozenset({"length", "max_tokens", "max_output_tokens"}),
}


def _finish_ballots(seen: Sequence[Observation]) -> Iterator[Vote]:
    for one in seen:
        finish, told = one.completion.finish_reason, one.completion.native_finish_reason
        if finish is None or told is None:
            continue
        native, why = told.lower(), f"{finish}, natively {told}"
        if finish != "length" and native in _SAME_FINISH["length"]:
            yield named(one, "hides_cut", why, certain=True)
        elif finish == native:
            yield named(one, "same", why, certain=True)
        elif native in _SAME_FINISH.get(finish, ()):
            yield named(one, "renamed", why, certain=True)


def _id_ballots(seen: Sequence[Observation]) -> Iterator[Vote]:
    for one in seen:
        returned = one.completion.token_ids is not None
        if returned or one.request.get("return_token_ids"):
            yield named(one, returned, ", ".join(one.completion.ids_from) or "asked for", certain=True)


def _logprob_ballots(seen: Sequence[Observation]) -> Iterator[Vote]:
    for one in seen:
        asked, entries = bool(one.request.get("logprobs")), one.completion.logprobs
        if entries is not None:
            whole = all(entry.data is not None for entry in entries)
            yield named(one, "bytes" if whole else "text", f"{len(entries)} entries", certain=True)
        elif junk := _junk(one):
            yield named(one, "junk", junk, certain=True)
        elif asked:
            yield named(one, "none", "asked for", certain=True)


def _junk(one: Observation) -> str:
    """What stands under `logprobs` and is none."""
    for value in one.exchange.objects():
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            told = choice.get("logprobs") if isinstance(choice, dict) else None
            if told is not None:
                return f"logprobs is {json.dumps(told)[:40]}"
    return ""


def _turn_end_ballots(seen: Sequence[Observation]) -> Iterator[Vote]:
    """Answers whose ids came, in families with several end tokens."""
    for one in seen:
        ids, ends = one.completion.token_ids, one.fmt.end_ids
        if ids and len(ends) > 1 and ids[-1] in ends:
            body = [token for token in ids[:-1] if token in one.fmt.tool_markers().values()]
            by_role = ids[-1] == one.fmt.end_id_for(body)
            yield named(one, "by_role" if by_role else "other", one.fmt.tokenizer.name_of(ids[-1]) or "", certain=True)


def _think_lead_ballots(seen: Sequence[Observation]) -> Iterator[Vote]:
    """Answers whose ids came, in families whose model writes text before its `<think>`."""
    for one in seen:
        ids, begin = one.completion.token_ids, one.fmt.opening_ids
        if ids and len(begin) > 1 and one.fmt.think_open_id in ids:
            written = ids[: len(begin)] == begin
            yield named(one, "written" if written else "other", "ids came", certain=True)


def reasoning_ballots(seen: Sequence[Observation]) -> Iterator[Vote]:
    """Answers that tell their own count of the reasoning from OpenRouter's estimate."""
    for one in seen:
        reasoning, told = one.completion.reasoning, reasoning_tokens(one)
        if not reasoning or told is None or one.sum is None:
            continue
        own = len(one.fmt.tokenizer.encode(reasoning))
        is_own, is_guess = told in (own, own + 1), told in estimates(reasoning)
        if is_own != is_guess:
            why = f"{told} where the reasoning has {own}"
            yield named(one, "native" if is_own else "estimate", why, certain=True)
        elif not is_own:
            yield named(one, "other", f"{told} where the reasoning has {own}", certain=True)


def reasoning_tokens(one: Observation) -> int | None:
    """The last `reasoning_tokens` of the usage."""
    found: int | None = None
    for value in one.exchange.objects():
        usage = value.get("usage")
        details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
        told = details.get("reasoning_tokens") if isinstance(details, dict) else None
        if isinstance(told, int) and not isinstance(told, bool):
            found = told
    return found


def estimates(text: str) -> frozenset[int]:
    """OpenRouter's estimates: a quarter of each line, rounded up, and line ends, runs of them one by one or as one."""
    found = set()
    for lengths in ([len(line) for line in text.split("\n")], [len(line.encode()) for line in text.split("\n")]):
        quarters = sum(-(-length // 4) for length in lengths)
        breaks = text.count("\n")
        runs = sum(1 for at, char in enumerate(text) if char == "\n" and text[at - 1 : at] != "\n")
        found |= {quarters + breaks, quarters + runs}
    return frozenset(found)
