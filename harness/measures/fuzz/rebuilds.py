"""One mutated answer, and whether its outcome can be right.

Guarantees: the mutant goes as one line of the verb `reconstruct` goes, up to the bytes that are written. A refusal is
right unless it says `internal_error`. An accepted row is checked by code that shares none with the proof: a plain
reading of the mutated bytes (`second_readings`) must say, field by field and call by call, what a view shows of the
row's ids, and so must its counts and its way of ending. So ids that do not decode to the mutated text exactly are
found, and so is an answer that was taken though a part of it says otherwise. Where the route's way of showing ids is
not known (THINK_CLOSE not counted, an engine's own cassette), the ids must be those of the answer before it was
changed. What cannot be found so is another tokenisation of the same text and length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from random import Random
from typing import Any

from harness.measures.fuzz.answers import SeedAnswer, digest
from harness.measures.fuzz.mutants import Material, Node, edit, edit_stream, joined, split_events, spoil, written
from harness.measures.second_readings import read
from harness.views.roundtrip import shown_of
from pipeline.cli.reconstruct import dumped, rebuilt
from pipeline.records import Evidence, Reason

KINDS = ("golden", "golden", "golden", "family", "family", "cassette", "recorded")
"""What is mutated how often."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutated line, and what was done to it.

    `answer` is the answer in it, as sent; `is_asked_alike`: whether the prompt is untouched.
    """

    line: bytes
    answer: str
    is_asked_alike: bool
    done: tuple[str, ...]


class Rebuilds:
    """Cases of mutated answers, each by its number."""

    def __init__(self, seeds: Sequence[SeedAnswer], seed: int) -> None:
        self.seeds = {kind: [one for one in seeds if one.name.startswith(kind)] for kind in KINDS}
        self.seed, self.digest = seed, digest(seeds)

    def drawn(self, number: int) -> tuple[SeedAnswer, Mutant]:
        """Return the answer and the mutant of a case."""
        rng = Random(f"{self.seed}:{number}")
        kinds = [kind for kind in KINDS if self.seeds[kind]]
        one = rng.choice(self.seeds[rng.choice(kinds)])
        donor = rng.choice(self.seeds[rng.choice(kinds)])
        return one, mutant(one, donor, rng)

    def case(self, number: int) -> tuple[str, str]:
        """Return a case's outcome, and what is wrong with it."""
        one, made = self.drawn(number)
        (raw,) = [*dumped(rebuilt([made.line], one.fmt, one.known, oracle=number % 2 == 0))] or [b"null"]
        result = json.loads(raw)
        if result is None:
            return "blank", ""
        if result["status"] == "refused":
            reason = result["reason"]
            return reason, result["detail"] if reason == Reason.INTERNAL_ERROR else ""
        return f"accepted {result['evidence']}", wrong(one, made, result)

    def told(self, number: int) -> str:
        """Return a case in words, with its line."""
        one, made = self.drawn(number)
        return f"{one.name}: {'; '.join(made.done)}\n{made.line.decode('utf-8', 'backslashreplace')}\n"


def mutant(one: SeedAnswer, donor: SeedAnswer, rng: Random) -> Mutant:
    """Return the answer, changed in one to four places."""
    done: list[str] = []
    asked, asked_alike = one.line, True
    material = Material(_json_of(donor), [*one.fmt.tokenizer.control_names])
    if rng.random() < 1 / 16:
        done.append(f"line: {edit(asked, rng, material)}")
        asked_alike = False
    rounds = rng.choice((1, 1, 1, 2, 2, 3, 4))
    if one.stream:
        events = split_events(one.raw.decode("utf-8", "surrogatepass"))
        done += [edit_stream(events, rng, material) for _ in range(rounds)]
        answer = joined(events, rng)
    else:
        body = json.loads(one.raw)
        done += [edit(body, rng, material) for _ in range(rounds)]
        answer = written(body, rng)
    if rng.random() < 1 / 10:
        done.append("bytes")
        answer = spoil(answer.encode("utf-8", "surrogatepass"), rng).decode("utf-8", "surrogateescape")
    member = f'"sse":{json.dumps(answer)}' if one.stream else f'"response":{answer}'
    line = f"{written(asked, rng)[:-1]},{member}}}".encode("utf-8", "surrogatepass")
    if rng.random() < 1 / 20:
        done.append("bytes of the line")
        line, asked_alike = spoil(line, rng), False
    return Mutant(line, answer, asked_alike, tuple(done))


def _json_of(one: SeedAnswer) -> Node:
    """Return an answer's JSON, of a stream all its chunks."""
    if not one.stream:
        return json.loads(one.raw)
    chunks = [event.removeprefix("data: ") for event in split_events(one.raw.decode("utf-8", "surrogatepass"))]
    return [json.loads(chunk) for chunk in chunks[:3] + chunks[-4:] if chunk.startswith("{")]


def wrong(one: SeedAnswer, made: Mutant, result: Mapping[str, Any]) -> str:
    """Return what a row says otherwise than its answer."""
    prompt_ids, ids = tuple(result["prompt_ids"]), tuple(result["output_ids"])
    if one.trip is None:
        return "accepted, and nothing tells how its ids are shown" if one.truth != (prompt_ids, ids) else ""
    if not made.is_asked_alike:
        return ""
    try:
        said = read(_plain(made.answer, stream=one.stream))
    except Exception as error:  # noqa: BLE001 — whatever it is, the plain reading finds no answer here
        return f"accepted, and a plain reading ends in {error!r}"
    shown = shown_of(ids, one.prompt, one.trip, one.fmt)
    given = result["evidence"] in (Evidence.ENGINE_IDS, Evidence.LOGPROBS)
    spaced = _whole if one.trip.keeps_text else _unspaced
    content, came = spaced(shown.content or ""), spaced(said.content)
    if given and _is_left_out(content, came, [spaced(marker) for marker in one.fmt.tool_markers()]):
        came = content
    recounted = one.trip.stream and one.trip.profile.recounts_stream
    unnamed = given or one.trip.profile.tool_ids == "invented"
    facts: dict[str, tuple[object, object]] = {
        "prompt": (len(prompt_ids), _or(said.usage[0], len(prompt_ids))),
        "reasoning": (spaced(shown.reasoning or ""), spaced(said.reasoning)),
        "content": (content, came),
        "calls": (_calls(map(astuple, shown.tool_calls), unnamed=unnamed), _calls(said.calls, unnamed=unnamed)),
        "count": (0, 0) if recounted else (shown.completion_tokens, _or(said.usage[1], shown.completion_tokens)),
        "cut": (shown.finish_reason == "length", said.finish == "length"),
        "error": (False, said.error),
        "done": (one.stream, said.done),
    }
    return "; ".join(f"{name}: ids say {ours!r}, it says {its!r}" for name, (ours, its) in facts.items() if ours != its)


def _is_left_out(content: str, came: str, markers: Sequence[str]) -> bool:
    """Return whether a content lacks just what parsers hold back.

    From a tool marker on, or a part of one.
    """
    rest = content.removeprefix(came) if content.startswith(came) else ""
    return any(rest.startswith(marker) or marker.startswith(rest) for marker in markers)


def _calls(calls: Iterable[Sequence[str]], *, unnamed: bool) -> list[tuple[str, ...]]:
    """Return calls to compare.

    Where ids are given, calls' ids are a provider's own, and arguments are JSON.
    """
    if not unnamed:
        return [tuple(call) for call in calls]
    return [(name, _canonical(arguments)) for _, name, arguments in calls]


def _canonical(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _or(value: object, default: int) -> object:
    """Return a count; what is none says nothing."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else default


def _whole(text: str) -> str:
    """Return the text with halves of a character joined."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unspaced(text: str) -> str:
    """Return the text without white space."""
    return "".join(_whole(text).split())


def _plain(answer: str, *, stream: bool) -> bytes:
    """Return the answer with each event's data on one line."""
    if not stream:
        return answer.encode("utf-8", "replace")
    events = re.split(r"\n\n", re.sub(r"\r\n|\r", "\n", answer.removeprefix("\ufeff")))
    data = ["\n".join(line[5:] for line in event.split("\n") if line.startswith("data:")) for event in events]
    return "\n\n".join("data:" + one.replace("\n", " ") for one in data if one).encode("utf-8", "surrogatepass")
