"""Exchanges in own words on the tiny target's vocabulary, for tests to vary: lengths, shapes of prompts, profiles.

Guarantees: the same number gives the same exchange, and each number another length; every id is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random

from harness.recorded import Told, recorded
from harness.resplits import resplit
from harness.roundtrips import Trip
from harness.views import Profile
from pipeline.formats.parts import Parts
from pipeline.formats.registry import open_format
from pipeline.learning.ballots import Learned
from pipeline.learning.exchanges import exchange_of
from pipeline.learning.fingerprints import LearnedFingerprint, learn
from pipeline.learning.harvest import harvest
from pipeline.learning.models import formats_on
from pipeline.records import Ids, Json, Prompt

FORMAT = open_format("tiny-kimi")
FORMATS = formats_on({"tiny-kimi": FORMAT})
TOKENIZER = FORMAT.tokenizer
WORDS = ("tin", "kettle", "hums", "while", "rain", "drums", "on", "slate", "and", "geese", "argue", "over", "bread")
PLAIN = Profile("plain", "Plain")
UNCOUNTED = replace(PLAIN, end_counted=False)
TOOL: dict[str, Json] = {
    "type": "function",
    "function": {"name": "seek", "description": "Seek.", "parameters": {"type": "object", "properties": {}}},
}


def words(number: int, least: int = 3) -> str:
    """A sentence of its own length for each number: 3 to 50 words."""
    rng = Random(number)
    return " ".join(rng.choice(WORDS) for _ in range(least + number * 7 % 48)) + "."


def asked(number: int, *, thinking: bool = False, tools: bool = False) -> Prompt:
    said = [{"role": "user", "content": words(number)}]
    if number % 3 == 0:
        said.insert(0, {"role": "system", "content": "Be brief."})
    return Prompt(f"p{number}", tuple(said), tools=(TOOL,) if tools else (), thinking=thinking)


def text_ids(number: int, text: str | None = None) -> Ids:
    body = words(number) if text is None else text
    return FORMAT.assemble(Parts(None, think_closed=False, body=(body,), ended=True)).ids


def thought_ids(reasoning: str, content: str) -> Ids:
    return FORMAT.assemble(Parts(reasoning, think_closed=True, body=(content,), ended=True)).ids


def arguments_of(number: int) -> str:
    """Arguments whose keys are out of order, and that have other counts in other spellings."""
    return json.dumps({"b": words(number), "a": [number, number + 1, number + 2]})


def call_ids(number: int, arguments: str, identity: str = "functions.seek:0", *, text: str | None = None) -> Ids:
    ids = FORMAT.tool_markers()
    body: Sequence[str | int] = (
        words(number) if text is None else text,
        ids["<|tool_calls_section_begin|>"],
        ids["<|tool_call_begin|>"],
        identity,
        ids["<|tool_call_argument_begin|>"],
        arguments,
        ids["<|tool_call_end|>"],
        ids["<|tool_calls_section_end|>"],
    )
    return FORMAT.assemble(Parts(None, think_closed=False, body=tuple(body), ended=True)).ids


def line(
    number: int,
    ids: Ids,
    profile: Profile = PLAIN,
    *,
    stream: bool = False,
    tools: bool | None = None,
    thinking: bool = False,
    told: Told | None = None,
    returns: bool = False,
) -> dict[str, Json]:
    """`tools`: sent as `tools` (True), declared in a message (False), or none at all (None).

    `returns`: ids and logprobs are asked for, and come.
    """
    prompt = asked(number, thinking=thinking, tools=tools is not None)
    way = Trip(profile, stream, tools_sent=tools is True, ids=returns, logprobs=returns)
    return recorded(number, ids, prompt, way, FORMAT, told or Told())


def cut_line(number: int, ids: Ids, *, stream: bool = False) -> dict[str, Json]:
    """An instant answer that was cut at its limit, on a route that counts no end token."""
    return line(number, ids, UNCOUNTED, stream=stream, told=Told(max_tokens=len(ids)))


def spaced_ids(number: int) -> Ids:
    """An answer with a token of white space before its thinking, and one before its content."""
    return thought_ids(f"\n\n{words(number)}", f"\n\n{words(number + 1)}")


def edged_ids(number: int) -> Ids:
    """An answer with white space at both ends of its thinking and of its content; that at the ends costs no token."""
    return thought_ids(f"\n\n{words(number)}\n", f"\n\n{words(number + 1)}\n")


def edited(one: Mapping[str, Json], **fields: Json) -> dict[str, Json]:
    """The same exchange of one body, with these fields of its message instead."""
    body = json.loads(str(one["body"]))
    body["choices"][0]["message"].update(fields)
    return {**one, "body": json.dumps(body)}


def message_of(one: Mapping[str, Json]) -> dict[str, Json]:
    """The message of an exchange of one body."""
    message: dict[str, Json] = json.loads(str(one["body"]))["choices"][0]["message"]
    return message


def split_one(ids: Ids) -> Ids:
    """The same bytes in one token more."""
    found = resplit(TOKENIZER, ids, Random(7), same_count=False)
    if found is None:
        raise ValueError(f"no token of {len(ids)} can be cut in two")
    return found


def with_count(one: Mapping[str, Json], more: int) -> dict[str, Json]:
    """The same exchange, with so many tokens more counted."""
    key, body = '"completion_tokens":', str(one["body"])
    before, _, after = body.partition(key)
    number = after.split(",", maxsplit=1)[0]
    return {**one, "body": f"{before}{key}{int(number) + more}{after[len(number) :]}"}


def learned(lines: Iterable[Mapping[str, Json]]) -> LearnedFingerprint:
    """The one fingerprint that these lines give."""
    (only,) = learn(harvest(map(exchange_of, lines), FORMATS))
    return only


def shown(trait: Learned) -> tuple[Json, int, bool]:
    """Value, votes, and whether it is proven."""
    return trait.value, trait.trait.n, trait.trait.proven
