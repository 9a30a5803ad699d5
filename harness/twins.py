r"""The twin of a real answer that was not tokenised as its text is: `.` and `\n\n` where one token is both.

Guarantees: 306 tokens as the original had them, 223 of reasoning, 81 of content, `</think>` and the end token; the text
is our own, and encoded again it has 80 tokens of content. Seen once in a stream of DeepSeek-V3.1.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from harness.roundtrips import Trip, raw_of, read, true_fingerprint
from harness.views import Profile
from pipeline.formats.parts import Format
from pipeline.reconstruct import reconstruct
from pipeline.records import Completion, Ids, Prompt, Refusal, TokenRow
from pipeline.routes import Fingerprint, Trait, TraitName

REASONING, CONTENT, TOTAL = 223, 81, 306
PROMPT = Prompt("twin", ({"role": "user", "content": "Which of the two kettles boils first?"},))
TRIP = Trip(Profile("twin", "Twin"), stream=True, tools_sent=False)
SENTENCES = tuple(
    f"The {first} kettle holds {more} cups and the {second} one holds {less}"
    for first, second in (("tin", "copper"), ("old", "new"), ("blue", "grey"))
    for more, less in (("nine", "four"), ("six", "five"))
)


def twin_ids(fmt: Format) -> Ids:
    """The emitted ids, shape [306]."""
    encode = fmt.tokenizer.encode
    before, after = encode(SENTENCES[0]), encode("So" + _padding())
    rest = CONTENT - len(before) - 2
    content = (*before, *encode("."), *encode("\n\n"), *after[:rest])
    return (*encode("First" + _padding())[:REASONING], fmt.think_close_id, *content, fmt.end_id)


def _padding() -> str:
    """Text that has enough tokens in any vocabulary; each of its prefixes is tokenised as it is in the whole."""
    return "".join(accumulate(f" {sentence}." for sentence in SENTENCES))


def twin(fmt: Format) -> Completion:
    """The answer as it came over the wire, a delta a token."""
    return read(raw_of(twin_ids(fmt), PROMPT, fmt.render(PROMPT), TRIP, fmt), stream=True)


def rebuilt(fmt: Format, *, by_deltas: bool) -> TokenRow | Refusal:
    """The answer rebuilt on a route whose counts are native, and whose deltas are proven to be tokens or are not."""
    return reconstruct(PROMPT, twin(fmt), fmt, _route(by_deltas=by_deltas))


def _route(*, by_deltas: bool) -> Fingerprint:
    known = true_fingerprint(TRIP.profile, stream=True)
    deltas = Trait("tokens", 19, proven=by_deltas)
    return replace(known, traits={**known.traits, str(TraitName.DELTAS): deltas})
