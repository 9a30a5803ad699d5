"""The answers that are mutated, and their true ids.

Guarantees: each is accepted or refused for a known reason before it is mutated. They are the goldens by every way to
ask, the committed cassettes, a few answers of each family whose vocabulary is found, and the recorded exchanges where
`$DRAFTER_GATE_SHARED` holds them. Which ones are there is part of a campaign's identity (`digest`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.cassettes.cassette import Cassette, read_cassette
from harness.goldens.golden import SUFFIX, parse_golden
from harness.measures.refusals import RECORDINGS, cases, harvested
from harness.views.roundtrip import RoundTrip, raw_of, trips, true_fingerprint
from harness.views.view import PROFILES, Profile, Seam
from pipeline.base.paths import ROOT
from pipeline.base.prompts import prompt_of
from pipeline.formats.format import Format, Parts
from pipeline.formats.registry import FORMATS, find_tokenizer, open_format
from pipeline.proof.fingerprint import Fingerprint, TraitName, committed_fingerprints
from pipeline.records import Ids, Json, JsonObject, Prompt, RefusedError, ToolCall

TINY = "tiny-kimi"
SIBLINGS = frozenset({"gpt-oss-low", "gpt-oss-high", "glm-5-nvfp4", "kimi-k2.6-preserve-thinking"})
"""Formats that differ from another in what prompts say alone."""
MOST_BYTES = 60_000
"""Of a seed: what a longer answer does, a shorter one does too."""


@dataclass(frozen=True, slots=True)
class SeedAnswer:
    """An answer as sent, and the way it was shown.

    `truth` are the prompt's ids and the emitted ones, where they are known. `trip` is None where it is not known how
    the ids were shown.
    """

    name: str
    fmt: Format
    prompt: Prompt
    raw: bytes
    stream: bool
    known: Sequence[Fingerprint]
    trip: RoundTrip | None = None
    truth: tuple[Ids, Ids] | None = None
    max_tokens: int | None = None
    provider: str | None = None

    @property
    def line(self) -> dict[str, Json]:
        """Return the members of its line beside the answer."""
        prompt: dict[str, Json] = {"messages": [*map(dict, self.prompt.messages)]}
        if self.prompt.tools:
            prompt["tools"] = [*map(dict, self.prompt.tools)]
        asked: dict[str, Json] = {"id": self.prompt.id, "prompt": {**prompt, "thinking": self.prompt.thinking}}
        if self.max_tokens is not None:
            asked["max_tokens"] = self.max_tokens
        if self.provider is not None:
            asked["provider"] = self.provider
        return asked


def seed_answers() -> list[SeedAnswer]:
    """Return all that are found here, in one order."""
    found = [*goldens(), *recorded_cassettes("*"), *_families(), *_recorded()]
    return [one for one in found if len(one.raw) <= MOST_BYTES]


def digest(seeds: Iterable[SeedAnswer]) -> str:
    """Return what identifies these answers."""
    hashed = hashlib.sha256()
    for one in seeds:
        hashed.update(one.name.encode() + one.raw)
    return hashed.hexdigest()[:16]


def goldens() -> Iterator[SeedAnswer]:
    """Yield the goldens, each by every way to ask."""
    fmt, known = open_format(TINY), _true_fingerprints(open_format(TINY))
    for path in sorted((ROOT / "goldens" / "tiny_target").glob(f"*{SUFFIX}")):
        golden = parse_golden(path.read_text(encoding="utf-8"))
        prompt = replace(golden.prompt, id=golden.case)
        for trip in trips():
            yield _shown(f"golden {golden.case} {trip.name}", fmt, prompt, golden.ids, trip, known)


def _shown(
    name: str, fmt: Format, prompt: Prompt, ids: Ids, trip: RoundTrip, known: Sequence[Fingerprint]
) -> SeedAnswer:
    prompt_ids = fmt.render(prompt)
    raw = raw_of(ids, prompt, prompt_ids, trip, fmt)
    return SeedAnswer(name, fmt, prompt, raw, trip.stream, known, trip, (prompt_ids, ids))


def _true_fingerprints(fmt: Format) -> list[Fingerprint]:
    return [
        true_fingerprint(profile, stream=stream, fmt=fmt) for profile in PROFILES.values() for stream in (False, True)
    ]


def recorded_cassettes(source: str) -> Iterator[SeedAnswer]:
    """Yield recorded answers of the emulator and of engines.

    Requests with a role of the scripted engine's own are left out.
    """
    fmt, known = open_format(TINY), committed_fingerprints(ROOT)
    for path in sorted((ROOT / "cassettes").glob(f"{source}/*/*.yaml")):
        cassette = read_cassette(path)
        if cassette.provenance.source == "live":
            continue
        for number, one in enumerate(cassette.interactions):
            request = json.loads(one.request_body)
            mode = request.get("reasoning", request.get("chat_template_kwargs", {}))
            asked = {
                "id": f"{path.stem}-{number}",
                "messages": request["messages"],
                "tools": request.get("tools") or [],
            }
            with suppress(RefusedError):
                prompt = prompt_of({**asked, "thinking": mode.get("enabled", mode.get("thinking", True))})
                trip, truth = _way_of(cassette, request)
                name, most = f"cassette {'/'.join(path.parts[-3:])} {number}", request.get("max_tokens")
                stream = cassette.provenance.stream
                yield SeedAnswer(name, fmt, prompt, one.body, stream, known, trip, truth, most)


def _way_of(cassette: Cassette, request: Mapping[str, Any]) -> tuple[RoundTrip | None, tuple[Ids, Ids] | None]:
    """Return how an answer was shown, and its ids.

    None where they are not known.
    """
    told = cassette.provenance
    if told.oracle is None:
        return None, None
    ids, logprobs = bool(request.get("return_token_ids")), bool(request.get("logprobs"))
    profile = PROFILES[told.route.rpartition("/")[2]]
    trip = RoundTrip(profile, told.stream, bool(request.get("tools")), ids=ids, logprobs=logprobs)
    return trip, (told.oracle.prompt_ids, told.oracle.output_ids)


CALLS = (ToolCall("functions.seek:0", "seek", '{"x": 1, "y": "é"}'), ToolCall("functions.seek:1", "seek", "{}"))
TOOL: JsonObject = {"type": "function", "function": {"name": "seek", "parameters": {"type": "object"}}}


def _families() -> Iterator[SeedAnswer]:
    """Yield a few answers of each family.

    By every way to ask.
    """
    for name in sorted(FORMATS.keys() - SIBLINGS - {TINY}):
        if find_tokenizer(name) is None:
            continue
        fmt = open_format(name)
        known = _true_fingerprints(fmt)
        for number, parts in enumerate(_parts(fmt)):
            try:
                ids = fmt.assemble(parts).ids
            except RefusedError:
                continue
            for trip in trips():
                tools = (TOOL,) if trip.tools_sent else ()
                prompt = Prompt("r", ({"role": "user", "content": "Hi?"},), tools, parts.reasoning is not None)
                try:
                    yield _shown(f"family {name} {number} {trip.name}", fmt, prompt, ids, trip, known)
                except RefusedError:
                    continue


def _parts(fmt: Format) -> Iterator[Parts]:
    yield Parts(None, think_closed=False, body=("Yes, and no.\n",), ended=True)
    yield Parts("So it is.", think_closed=True, body=("It is 42 \u2013 \N{GRINNING FACE}.",), ended=True)
    yield Parts("So it", think_closed=True, body=("It is, as",), ended=False)
    for before, calls in (("", CALLS[:1]), ("Look.", CALLS)):
        if (body := fmt.structured_body(before, calls)) is not None:
            yield Parts("So I call.", think_closed=True, body=body, ended=True)


def _recorded() -> Iterator[SeedAnswer]:
    """Yield the recorded exchanges, each on its own route."""
    path = Path(os.environ.get("DRAFTER_GATE_SHARED", "")) / RECORDINGS
    if not os.environ.get("DRAFTER_GATE_SHARED") or not path.is_file():
        return
    for one, prompt, fingerprint in cases(harvested(path)):
        profile = _profile_of(fingerprint)
        trip = RoundTrip(profile, one.exchange.stream, one.tools_sent)
        provider = fingerprint.provider if one.completion.provider is None else None
        yield SeedAnswer(
            f"recorded {one.exchange.id}",
            one.fmt,
            prompt,
            one.exchange.body.encode("utf-8", "surrogatepass"),
            one.exchange.stream,
            [fingerprint],
            None if fingerprint.proven(TraitName.THINK_CLOSE_COUNTED) is False else trip,
            None,
            one.max_tokens,
            provider,
        )


def _profile_of(fingerprint: Fingerprint) -> Profile:
    ids = fingerprint.proven(TraitName.TOOL_IDS)
    return Profile(
        "recorded",
        fingerprint.provider,
        end_counted=fingerprint.proven(TraitName.END_COUNTED) is not False,
        seam=Seam(str(fingerprint.proven(TraitName.SEAM))),
        tool_ids="verbatim" if ids == "verbatim" else "prefix_cut" if ids == "prefix_cut" else "invented",
        tool_arguments="reserialised" if fingerprint.proven(TraitName.TOOL_ARGUMENTS) == "reserialised" else "verbatim",
    )
