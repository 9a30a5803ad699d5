"""Answers in harmony, for the suites to draw: one analysis and one final message, and all that text cannot tell.

Guarantees: every message that a model may write on its way is drawn, in each of the ways in which its header can be
written, so that an answer is proven by ids or refused.
"""

from __future__ import annotations

from hypothesis import strategies as st

from pipeline.formats.format import Format, Parts

Piece = str | int

_CALLS = (
    (" to=functions.f", "commentary ", True),
    (" to=functions.f", "commentary", False),
    (" to=functions.f", "commentary json", False),
    ("", "commentary to=functions.f ", True),
    ("", "commentary to=functions.f json", False),
    ("", "commentary to=functions.get_weather", False),
    ("", "analysis to=python code", False),
)
"""Headers of calls: behind the role, behind `<|channel|>`, and whether `<|constrain|>json` follows."""


def headed_completions(fmt: Format, text: st.SearchStrategy[str]) -> st.SearchStrategy[Parts]:
    """Whole answers with reasoning, empty at times: a final message in three of four, a call, with steps before."""
    plain = st.builds(_plain, text, text)
    return st.one_of(plain, plain, plain, st.builds(_stepped, st.just(fmt), text, _steps(text), _last(text)))


def is_told(parts: Parts) -> bool:
    """Whether text can tell the answer: one analysis message, one final message, or its beginning."""
    return bool(parts.reasoning) and not any(isinstance(piece, int) for piece in parts.body)


def _plain(reasoning: str, content: str) -> Parts:
    return Parts(reasoning, think_closed=True, body=(content,) if content else (), ended=True)


def _steps(text: st.SearchStrategy[str]) -> st.SearchStrategy[list[tuple[str, str]]]:
    return st.lists(st.tuples(st.sampled_from(["analysis", "commentary"]), text), max_size=2)


def _last(text: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[tuple[str, str, bool] | None, str]]:
    return st.tuples(st.none() | st.sampled_from(_CALLS), text)


def _stepped(
    fmt: Format, reasoning: str, steps: list[tuple[str, str]], last: tuple[tuple[str, str, bool] | None, str]
) -> Parts:
    call, said = last
    if not steps and call is None:
        return _plain(reasoning, said)
    body = [piece for channel, text in steps for piece in _message(fmt, "", channel, text)]
    body += _message(fmt, *(call or ("", "final", False))[:2], said, constrained=bool(call and call[2]))
    return Parts(reasoning, think_closed=False, body=tuple(body), ended=True)


def _message(fmt: Format, role: str, channel: str, text: str, *, constrained: bool = False) -> list[Piece]:
    """The message with the `<|end|>` of the one before it."""
    one = fmt.tokenizer.id_of
    typed: list[Piece] = [one("<|constrain|>"), "json"] if constrained else []
    header = [one("<|end|>"), one("<|start|>"), f"assistant{role}", one("<|channel|>"), channel, *typed]
    return [*header, one("<|message|>"), *([text] if text else [])]
