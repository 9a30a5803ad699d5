"""How the engines' Kimi parsers lose parts of a completion.

Each rule is one way to lose something, with its reason. Guarantees: a difference is explained only if the rules,
applied to our own reading, give the parser's reading word for word. A reason is named only if its rule changed
something. Written from the parsers' behaviour, not from their code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.formats.format import Format, Parts
from pipeline.formats.kimi.format import ARGUMENT_BEGIN, CALL_BEGIN, CALL_END, SECTION_END


@dataclass(frozen=True, slots=True)
class Call:
    """One call as emitted.

    `arguments` is None where it was cut inside its id. `whole`: its end marker came.
    """

    id: str
    arguments: str | None
    whole: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """A completion: its texts, and its section's calls."""

    reasoning: str
    before: str
    calls: tuple[Call, ...]
    after: str


Rule = Callable[[Reading], Reading]


def reading_of(fmt: Format, parts: Parts) -> Reading:
    """Return our own reading, section included."""
    names = {token: name for name, token in fmt.tool_markers().items()}
    found = Reading(parts.reasoning or "", "", (), "")
    last = ""
    for piece in parts.body:
        if isinstance(piece, int):
            last = names[piece]
            found = _with_marker(found, last)
        elif last in (CALL_BEGIN, ARGUMENT_BEGIN):
            call = found.calls[-1]
            changed = replace(call, id=piece) if last == CALL_BEGIN else replace(call, arguments=piece)
            found = replace(found, calls=(*found.calls[:-1], changed))
        elif last == SECTION_END:
            found = replace(found, after=piece)
        else:
            found = replace(found, before=piece)
    return found


def _with_marker(found: Reading, name: str) -> Reading:
    if name == CALL_BEGIN:
        return replace(found, calls=(*found.calls, Call("", None, whole=False)))
    if name not in (ARGUMENT_BEGIN, CALL_END):
        return found
    changed = replace(found.calls[-1], **({"arguments": ""} if name == ARGUMENT_BEGIN else {"whole": True}))
    return replace(found, calls=(*found.calls[:-1], changed))


def summary(found: Reading) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """Return reasoning, content and calls."""
    calls = tuple((call.id, call.arguments or "") for call in found.calls)
    return found.reasoning, found.before + found.after, calls


def explained(ours: Reading, rules: Mapping[str, Rule], theirs: object) -> list[str] | None:
    """Return why theirs differs, or None.

    None where the rules do not lead to their reading.
    """
    reasons = []
    for reason, rule in rules.items():
        changed = rule(ours)
        if changed != ours:
            reasons.append(reason)
        ours = changed
    return reasons if summary(ours) == theirs else None


def _after(found: Reading) -> Reading:
    return replace(found, after="")


def _uncut(found: Reading) -> Reading:
    return replace(found, calls=tuple(call for call in found.calls if call.whole))


def _joined(found: Reading) -> Reading:
    """Join arguments that no closing brace ends with later calls.

    They begin with a brace and run to the next one before an end marker.
    """
    return replace(found, calls=tuple(_joined_calls(found.calls)))


def _joined_calls(calls: Sequence[Call]) -> Iterator[Call]:
    at = 0
    while at < len(calls):
        call, end = calls[at], at + 1
        text = call.arguments or ""
        if _has_plain_id(call) and text.lstrip().startswith("{"):
            while not text.rstrip().endswith("}") and end < len(calls):
                text += f"{CALL_END}{CALL_BEGIN}{calls[end].id}{ARGUMENT_BEGIN}{calls[end].arguments or ''}"
                end += 1
            if text.rstrip().endswith("}"):
                call, at = replace(call, arguments=text), end - 1
        yield call
        at += 1


def _has_plain_id(call: Call) -> bool:
    return re.fullmatch(r"[^\s<|]+", call.id.strip()) is not None


def _braced(found: Reading) -> Reading:
    def is_braced(call: Call) -> bool:
        text = (call.arguments or "").strip()
        return text.startswith("{") and text.endswith("}") and len(text) > 1

    return replace(found, calls=tuple(filter(is_braced, found.calls)))


_SGLANG_ID = re.compile(r"(?:functions\.)?([\w.\-]+):\d+")


def _sglang_named(found: Reading) -> Reading:
    kept = (call for call in found.calls if _has_plain_id(call) and _SGLANG_ID.fullmatch(call.id.strip()))
    return replace(found, calls=tuple(kept))


def _renumbered(found: Reading) -> Reading:
    def renamed(call: Call, place: int) -> Call:
        known = _SGLANG_ID.fullmatch(call.id.strip())
        return replace(call, id=f"functions.{known[1] if known else ''}:{place}")

    return replace(found, calls=tuple(renamed(call, place) for place, call in enumerate(found.calls)))


def _stripped(found: Reading) -> Reading:
    calls = (replace(call, arguments=call.arguments and call.arguments.strip()) for call in found.calls)
    return replace(found, calls=tuple(calls))


SGLANG: Mapping[str, Rule] = {
    "drops text after the section": _after,
    "drops a call that was cut before its end marker": _uncut,
    "reads arguments that end in no brace on into the next call": _joined,
    "drops a call whose arguments are not in braces": _braced,
    "drops a call whose id is no NAME:INDEX of word characters, dots and hyphens": _sglang_named,
    "names a call anew: functions., its name, its place": _renumbered,
    "strips white space around the arguments": _stripped,
}


def _rstripped(found: Reading) -> Reading:
    return replace(found, reasoning=found.reasoning.rstrip())


_VLLM_ID = re.compile(r".+:\d+")
MADE_UP = "made up"
"""What stands for an id that vLLM makes up, another each time."""


def _vllm_name(call: Call) -> str:
    """Return the name in the id; empty without one."""
    known = _VLLM_ID.match(call.id.strip())
    return known[0].partition(":")[0].removeprefix("functions.") if known else ""


def _made_up(found: Reading) -> Reading:
    def named(call: Call) -> Call:
        unnamed = not _vllm_name(call) and call.id.strip()
        return replace(call, id=MADE_UP) if unnamed and not call.arguments else call

    return replace(found, calls=tuple(map(named, found.calls)))


def _vllm_named(found: Reading) -> Reading:
    kept = (call for call in found.calls if call.id == MADE_UP or _vllm_name(call))
    return replace(found, calls=tuple(kept))


def _vllm_ids(found: Reading) -> Reading:
    def cut(call: Call) -> Call:
        known = _VLLM_ID.match(call.id.strip())
        return replace(call, id=known[0] if known else call.id)

    return replace(found, calls=tuple(map(cut, found.calls)))


def _filled(found: Reading) -> Reading:
    calls = (replace(call, arguments=call.arguments or "{}") for call in found.calls)
    return replace(found, calls=tuple(calls))


def _no_blank(found: Reading) -> Reading:
    return replace(found, before="") if found.calls and not found.before.strip() else found


VLLM: Mapping[str, Rule] = {
    "drops text after the section": _after,
    "strips white space at the end of the reasoning": _rstripped,
    "drops content that is white space alone before a section": _no_blank,
    "makes up an id for a call of which neither NAME:INDEX nor arguments came": _made_up,
    "drops a call whose id holds no NAME:INDEX": _vllm_named,
    "leaves out what stands around the id": _vllm_ids,
    "strips white space around the arguments": _stripped,
    "says {} where no arguments came": _filled,
}
RULES: Mapping[str, Mapping[str, Rule]] = {"sglang": SGLANG, "vllm": VLLM}
