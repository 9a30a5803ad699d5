"""What a hosted API would show of true token ids.

Guarantees: a view never looks at anything but the ids and its profile, so a rebuild can be judged against ids that are
known. It takes any ids, also those outside the layout, as a provider must. The profiles are named for the providers
whose measured behaviour they imitate; they are not those providers.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from harness.views.harmony import HarmonyTexts, harmony_texts
from harness.views.parsers import tagged_calls
from pipeline.formats.format import Format
from pipeline.formats.kimi.format import THINK, TOOL_MARKERS
from pipeline.records import Delta, Ids, TokenLogprob, ToolCall

SHOWN_CONTROL = frozenset({*TOOL_MARKERS, THINK, "</think>"})
"""The control tokens that Kimi's config flags `special: false`: decoding with specials skipped leaves them in text."""
SHOWN_ELSEWHERE = frozenset(
    {f"<{close}{name}>" for close in ("", "/") for name in ("tool_call", "tool_response", "arg_key", "arg_value")}
    | {f"<|{name}|>" for name in ("fim_prefix", "fim_middle", "fim_suffix", "repo_name", "file_sep")}
    | {f"<｜tool▁{name}▁{end}｜>" for name in ("calls", "call", "outputs", "output") for end in ("begin", "end")}
    | {f"<｜{name}｜>" for name in ("User", "Assistant", "tool▁sep", "search▁begin", "search▁end")}
    | {"/nothink"}
)
"""Those of other families."""

_SECTION = re.compile(r"<\|tool_calls_section_begin\|>(.*?)<\|tool_calls_section_end\|>", re.DOTALL)
_CALL = re.compile(
    r"<\|tool_call_begin\|>(?P<id>[^<]*?)<\|tool_call_argument_begin\|>(?P<arguments>.*?)<\|tool_call_end\|>", re.DOTALL
)
_IDENTITY = re.compile(r"functions\.(?P<name>[\w.-]+):\d+")


class Seam(StrEnum):
    """What happens to white space beside control tokens."""

    KEPT = "kept"
    STRIPPED = "stripped"
    ADDED = "added"


class Deltas(StrEnum):
    """What one delta of a stream is."""

    TOKENS = "tokens"
    BATCHES = "batches"
    RECHUNKED = "rechunked"


@dataclass(frozen=True, slots=True)
class Profile:
    """How one provider shows an answer.

    Prices in USD a token.
    """

    slug: str
    name: str
    end_counted: bool = True
    seam: Seam = Seam.KEPT
    deltas: Deltas = Deltas.TOKENS
    recounts_stream: bool = False
    tool_ids: Literal["verbatim", "prefix_cut", "invented"] = "verbatim"
    tool_arguments: Literal["verbatim", "reserialised"] = "verbatim"
    returns_ids: bool = False
    returns_logprobs: bool = False
    prompt_price: float = 0.0000005
    completion_price: float = 0.000002


PROFILES: Mapping[str, Profile] = {
    profile.slug: profile
    for profile in (
        Profile("siliconflow", "SiliconFlow", end_counted=False, tool_arguments="reserialised", returns_logprobs=True),
        Profile("chutes", "Chutes", deltas=Deltas.BATCHES, returns_ids=True),
        Profile(
            "atlascloud",
            "AtlasCloud",
            seam=Seam.STRIPPED,
            deltas=Deltas.RECHUNKED,
            recounts_stream=True,
            tool_ids="prefix_cut",
            returns_logprobs=True,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Shown:
    """What a provider shows of an answer.

    `deltas` stand in order of arrival; `logprobs` has every emitted token.
    """

    reasoning: str | None
    content: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    native_finish_reason: str
    completion_tokens: int
    deltas: tuple[Delta, ...]
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class _Text:
    """The visible tokens of each field, as bytes."""

    reasoning: tuple[bytes, ...]
    content: tuple[bytes, ...]


def view(ids: Ids, profile: Profile, fmt: Format, *, thinking: bool, tools_sent: bool, stream: bool) -> Shown:
    """Return what `profile` shows of emitted `ids` (shape [n]).

    An answer without its end token was cut by length. Calls come back parsed where `tools_sent`.

        shown = view(ids, PROFILES["chutes"], fmt, thinking=True, tools_sent=False, stream=False)
        shown.reasoning, shown.content, shown.completion_tokens
    """
    ended = bool(fmt.end_ids.intersection(ids[-1:]))
    token_bytes = fmt.tokenizer.token_bytes
    headed = harmony_texts(ids, fmt, stream=stream) if fmt.is_headed else None
    visible = headed or _visible(ids, fmt, thinking=thinking, spaced=profile.seam is Seam.ADDED)
    reasoning, content = (_joined(field, profile, stream=stream) for field in (visible.reasoning, visible.content))
    calls, before = _parsed_calls(content, profile, fmt.name) if tools_sent and headed is None else ((), content)
    if headed is not None and tools_sent:
        calls = tuple(replace(call, arguments=_shown_arguments(call.arguments, profile)) for call in headed.calls)
    deltas = _deltas(visible, reasoning, before, calls, profile, fmt) if stream else ()
    return Shown(
        reasoning=reasoning or None,
        content=before or None if calls else before,
        tool_calls=calls,
        finish_reason="length" if not ended else "tool_calls" if calls else "stop",
        native_finish_reason="stop" if ended else "length",
        completion_tokens=_count(ids, reasoning, content, profile, fmt, ended=ended, stream=stream),
        deltas=deltas,
        logprobs=tuple(TokenLogprob(data.decode("utf-8", errors="replace"), data) for data in map(token_bytes, ids)),
    )


def _visible(ids: Ids, fmt: Format, *, thinking: bool, spaced: bool) -> _Text:
    close = fmt.think_close_id
    split = ids.index(close) if thinking and close in ids else len(ids) if thinking else -1
    reasoning, content = ids[: max(split, 0)], ids[split + 1 :]
    left, right = (tuple(_shown_bytes(part, fmt, spaced=spaced)) for part in (reasoning, content))
    if spaced and split >= 0:
        left, right = (*left, b" "), (b" ", *right)
    return _Text(left, right)


def _shown_bytes(ids: Ids, fmt: Format, *, spaced: bool) -> Iterator[bytes]:
    """Yield the bytes of tokens that stay in the text.

    `spaced` puts spaces round control tokens.
    """
    for token in ids:
        name = fmt.tokenizer.name_of(token)
        if name is None:
            yield fmt.tokenizer.token_bytes(token)
        elif name in SHOWN_CONTROL or name in SHOWN_ELSEWHERE:
            yield f" {name} ".encode() if spaced else name.encode()


def _joined(tokens: Sequence[bytes], profile: Profile, *, stream: bool) -> str:
    """Return the field as text.

    Half a character at the end is U+FFFD in a body, and never sent in a stream.
    """
    text = b"".join(tokens).decode("utf-8", errors="replace")
    if stream:
        text = "".join(_decoded(tokens))
    return text.strip() if profile.seam is Seam.STRIPPED else text


def _decoded(tokens: Sequence[bytes]) -> Iterator[str]:
    """Yield one text a token.

    Bytes of an unfinished character are held back for the token that ends it.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in tokens:
        yield decoder.decode(token)


def _parsed_calls(content: str, profile: Profile, family: str) -> tuple[tuple[ToolCall, ...], str]:
    """Return the first section's calls, and the text before.

    Text after the section is lost, as with real parsers.
    """
    section = _SECTION.search(content)
    if section is None:
        return tagged_calls(content, family)
    found = [(match["id"], match["arguments"]) for match in _CALL.finditer(section[1])]
    named = [_IDENTITY.fullmatch(identity) for identity, _ in found]
    if not found or not all(named):
        return (), content
    calls = [
        ToolCall(_shown_id(identity, index, profile), match["name"] if match else "", _shown_arguments(text, profile))
        for index, ((identity, text), match) in enumerate(zip(found, named, strict=True))
    ]
    return tuple(calls), content[: section.start()]


def _shown_id(identity: str, index: int, profile: Profile) -> str:
    if profile.tool_ids == "prefix_cut":
        return identity.removeprefix("functions.")
    return f"call_{index:08x}" if profile.tool_ids == "invented" else identity


def _shown_arguments(text: str, profile: Profile) -> str:
    if profile.tool_arguments == "verbatim":
        return text
    try:
        return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
    except ValueError:
        return text


def _count(ids: Ids, reasoning: str, content: str, profile: Profile, fmt: Format, *, ended: bool, stream: bool) -> int:
    end = 1 if ended else 0
    if not (stream and profile.recounts_stream):
        return len(ids) - (0 if profile.end_counted else end)
    encode = fmt.tokenizer.encode
    closed = 1 if fmt.think_close_id in ids else 0
    return len(encode(reasoning)) + closed + len(encode(content)) + (end if profile.end_counted else 0)


def _deltas(
    visible: _Text | HarmonyTexts,
    reasoning: str,
    content: str,
    calls: Sequence[ToolCall],
    profile: Profile,
    fmt: Format,
) -> tuple[Delta, ...]:
    deltas = [Delta("reasoning", text) for text in _chunks(visible.reasoning, reasoning, profile, fmt) if text]
    deltas += [Delta("content", text) for text in _chunks(visible.content, content, profile, fmt) if text]
    return (*deltas, *(Delta("tool_calls", call.arguments) for call in calls))


def _chunks(tokens: Sequence[bytes], text: str, profile: Profile, fmt: Format) -> Iterator[str]:
    """Yield the field as the profile streams it.

    The chunks add up to `text`.
    """
    if profile.deltas is Deltas.RECHUNKED or profile.seam is Seam.STRIPPED:
        yield from _decoded([fmt.tokenizer.token_bytes(token) for token in fmt.tokenizer.encode(text)])
        return
    left = len(text)
    for piece in _batched(_decoded(tokens), profile.deltas):
        if left > 0:
            yield piece[:left]
        left -= len(piece)


def _batched(pieces: Iterator[str], deltas: Deltas) -> Iterator[str]:
    sizes = (1, 3, 2, 4) if deltas is Deltas.BATCHES else (1,)
    batch: list[str] = []
    turn = 0
    for piece in pieces:
        batch.append(piece)
        if len(batch) == sizes[turn % len(sizes)]:
            yield "".join(batch)
            batch, turn = [], turn + 1
    yield "".join(batch)
