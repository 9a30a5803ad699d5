"""A golden: one model's tokens after a prompt, with provenance.

Guarantees: `dump_golden(parse_golden(text)) == text` for every text that `dump_golden` wrote; one token a line, so that
a diff of two goldens reads token by token. What is compared is ids; the rest explains a difference.

A near tie at the first difference points at numerics, a wide margin at a change of the model or of the code; the same
text under other ids is the fault that this project exists for. What follows a difference is not compared: greedy text
never comes together again in a meaningful way.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pipeline.formats.tokenizer import Tokenizer
from pipeline.records import Ids, Json, Prompt

REFRESH = "nox -s goldens"
SUFFIX = ".tokens.json"
BEFORE, SHOWN = 8, 4
"""Tokens that a diff shows before the first difference, and from it on."""


class GoldenError(Exception):
    """A golden that is unreadable, or no longer reproduced."""


@dataclass(frozen=True, slots=True)
class GoldenToken:
    """One emitted token.

    `piece` is its text, other bytes escaped in hex; logprobs in nats, None where unknown.
    """

    id: int
    piece: str
    logprob: float | None = None
    runner_up: int | None = None
    runner_up_logprob: float | None = None

    @property
    def margin(self) -> float | None:
        """Return by how much the token beat the likeliest other.

        In nats; negative where the other was likelier.
        """
        if self.logprob is None or self.runner_up_logprob is None:
            return None
        return self.logprob - self.runner_up_logprob


@dataclass(frozen=True, slots=True)
class Golden:
    """The tokens, and what decided them.

    `provenance` says which model, engine and sampling; `text` is what the ids decode to.
    """

    provenance: Mapping[str, Json]
    case: str
    features: tuple[str, ...]
    prompt: Prompt
    prompt_ids: Ids
    tokens: tuple[GoldenToken, ...]
    text: bytes

    @property
    def ids(self) -> Ids:
        """Return the emitted ids, shape [n]."""
        return tuple(token.id for token in self.tokens)


def tokens_of(ids: Ids, tokenizer: Tokenizer) -> tuple[GoldenToken, ...]:
    """Return tokens of which only the ids are known."""
    return tuple(GoldenToken(token, piece(token, tokenizer)) for token in ids)


def piece(token: int, tokenizer: Tokenizer) -> str:
    """Return the token's text for people.

    Not unique, as half a character has none.
    """
    return tokenizer.token_bytes(token).decode("utf-8", errors="backslashreplace")


def dump_golden(golden: Golden) -> str:
    """Return the file's text.

    Provenance comes first, where the attestation looks for it.
    """
    prompt: dict[str, Json] = {"messages": [dict(message) for message in golden.prompt.messages]}
    if golden.prompt.tools:
        prompt["tools"] = [dict(tool) for tool in golden.prompt.tools]
    prompt["thinking"] = golden.prompt.thinking
    head: dict[str, Json] = {
        "provenance": dict(golden.provenance),
        "case": golden.case,
        "features": list(golden.features),
        "prompt": prompt,
        "prompt_ids": list(golden.prompt_ids),
    }
    members = [f"  {_json(name)}: {_json(value)}" for name, value in head.items()]
    lines = ",\n".join(f"    {_json(_token(token))}" for token in golden.tokens)
    try:
        text = f'"text": {_json(golden.text.decode("utf-8"))}'
    except UnicodeDecodeError:
        text = f'"text_base64": "{base64.b64encode(golden.text).decode("ascii")}"'
    members += [f'  "tokens": [\n{lines}\n  ]', f"  {text}"]
    return "{\n" + ",\n".join(members) + "\n}\n"


def parse_golden(text: str) -> Golden:
    """Return the golden of a file's text.

    Raises GoldenError for anything else.
    """
    try:
        entries = json.loads(text)
        return Golden(
            provenance=dict(entries["provenance"]),
            case=entries["case"],
            features=tuple(entries["features"]),
            prompt=Prompt(
                entries["case"],
                tuple(entries["prompt"]["messages"]),
                tuple(entries["prompt"].get("tools", ())),
                entries["prompt"]["thinking"],
            ),
            prompt_ids=tuple(entries["prompt_ids"]),
            tokens=tuple(map(_read_token, entries["tokens"])),
            text=_read_text(entries),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise GoldenError(f"no readable golden ({type(error).__name__}: {error}). Run: {REFRESH}") from error


def read_golden(path: Path) -> Golden:
    """Return the golden at `path`.

    Raises GoldenError, naming the file.
    """
    try:
        return parse_golden(path.read_bytes().decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise GoldenError(f"{path}: no golden there ({error}). Run: {REFRESH}") from error
    except GoldenError as error:
        raise GoldenError(f"{path}: {error}") from error


def _json(value: Json) -> str:
    """Return spaced JSON, everything unprintable escaped.

    No editor changes it then.
    """
    text = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def _token(token: GoldenToken) -> list[Json]:
    if token.runner_up is None:
        return [token.id, token.piece, token.logprob]
    return [token.id, token.piece, token.logprob, [token.runner_up, token.runner_up_logprob]]


def _read_token(entry: list[Any]) -> GoldenToken:
    token, text, logprob, *rest = entry
    runner_up, runner_up_logprob = rest[0] if rest else (None, None)
    return GoldenToken(token, text, logprob, runner_up, runner_up_logprob)


def _read_text(entries: Mapping[str, Any]) -> bytes:
    if "text_base64" in entries:
        return base64.b64decode(entries["text_base64"], validate=True)
    return str(entries["text"]).encode("utf-8")


def diff_lines(received: Golden, golden: Golden) -> Iterator[str]:
    """Yield how two goldens differ, for people.

    Nothing where prompt and tokens are the same.
    """
    if received.prompt_ids != golden.prompt_ids:
        at = _first_difference(received.prompt_ids, golden.prompt_ids)
        lengths = f"golden {len(golden.prompt_ids)} ids, received {len(received.prompt_ids)}"
        yield f"prompt ids differ first at {at} ({lengths}); the tokens after it answer another prompt"
    if received.ids != golden.ids:
        yield from token_lines(received, golden)


def token_lines(received: Golden, golden: Golden) -> Iterator[str]:
    """Yield where tokens differ first, and what stands there."""
    at = _first_difference(received.ids, golden.ids)
    yield f"first difference at token {at} (golden {len(golden.tokens)} tokens, received {len(received.tokens)})"
    yield f"  after: {''.join(token.piece for token in golden.tokens[max(0, at - BEFORE) : at])!r}"
    recorded = golden.tokens[at] if at < len(golden.tokens) else None
    other = received.tokens[at] if at < len(received.tokens) else None
    if recorded is not None:
        yield from margin_lines(recorded, other)
    for mark, tokens in (("-", golden.tokens), ("+", received.tokens)):
        for position, token in enumerate(tokens[at : at + SHOWN], at):
            yield f"{mark} {position:>5}  {token.id:>6}  {token.piece!r}"
    if received.text == golden.text:
        yield "the whole text is the same: another split of the same bytes"


def margin_lines(recorded: GoldenToken, other: GoldenToken | None) -> Iterator[str]:
    """Yield how close the choice was."""
    if recorded.margin is not None:
        is_runner_up = other is not None and other.id == recorded.runner_up
        which = "the golden's runner-up" if is_runner_up else "not the golden's runner-up"
        yield f"  top-2 margin when recorded: {recorded.margin:.3f} nats; the received token is {which}"
    if other is not None and other.piece == recorded.piece:
        yield f"  same text, other id: {recorded.piece!r} is {recorded.id} in the golden and {other.id} here"


def _first_difference(first: Ids, second: Ids) -> int:
    pairs = enumerate(zip_longest(first, second))
    return next(at for at, (one, other) in pairs if one != other)
