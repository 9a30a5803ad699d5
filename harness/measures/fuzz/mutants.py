"""What is done to JSON, streams and bytes.

Guarantees: everything is drawn from the random numbers that are given. Values that no writer of JSON can write (a
member twice, numbers beyond a double, raw line feeds) are put in as text: a stand-in is written, then replaced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from random import Random
from typing import Any, TypeAlias

Node: TypeAlias = Any
"""A JSON value, being changed in place."""
Edit: TypeAlias = Callable[[Random, Node, Any, "Material"], None]
"""Changes the member of a list or an object that its key names."""

RAW, AGAIN = "\x00raw:", "\x00again:"
LITERALS = (
    *("NaN", "-Infinity", "1e999", "-0", "-0.0", "1E2", "1.0", "0.1", "1e-400", "9" * 400, "18446744073709551616"),
    *("01", "undefined", "'x'", "{,}", '"\t"', '"\x00"', '"\\ud800"', '"\\udc00\\ud800"', '"\\x41"', "[1,]", "// x\n1"),
)
NUMBERS = (0, 1, -1, 2, 7, 2**31, 2**53 + 1, 2**64, 10**30, -(2**63), 0.5, 1.5, 1e300)
VALUES: tuple[Node, ...] = (
    *(None, True, False, 0, 1, -1, 0.5, "", " ", "x", "null", "stop", "length", [], {}, [None], [[]], {"": None}),
    *([1, 2, 3], {"type": "text", "text": "x"}, [{"type": "text", "text": "x"}], {"message": "x", "code": 500}, "0"),
)
NAMES = (
    *("error", "refusal", "audio", "function_call", "token_ids", "prompt_token_ids", "output_ids", "reasoning"),
    *("reasoning_content", "reasoning_details", "logprobs", "matched_stop", "stop_reason", "choices", "delta"),
    *("message", "usage", "content", "tool_calls", "finish_reason", "native_finish_reason", "provider", "model", "id"),
    *("index", "annotations", "meta_info", "prompt_logprobs", "__proto__", "Content", "role", "text", "images"),
)
CHARACTERS = (
    *(" ", "  ", "\n", "\r\n", "\r", "\t", "\x00", "\x1b", "\x7f", "\u2028", "\ufeff", "\ufffd", "\u200d", "\xa0"),
    *("é", "e\u0301", "\N{GRINNING FACE}", "\ud83d", "\ude00", "\ud800", "\U0001fae9", "\u1c89", "\u202e", "中", "한"),
    *("</think>", "<think>", "<tool_call>", "</tool_call>", "<|im_end|>", "<|endoftext|>", '"', "\\", "\\u0000", "{}"),
)
DEPTHS = (40, 200, 700, 3000)
MOST_SHOWN = 3
"""Places of one long list that are considered."""


class Material:
    """What a mutation may take from elsewhere.

    `donor` is another answer's JSON, `markers` the names of the format's control tokens.
    """

    def __init__(self, donor: Node, markers: Sequence[str]) -> None:
        self.donor = donor
        self.markers = markers


def places(root: Node, rng: Random) -> list[tuple[Node, Any]]:
    """Return every member of a value, with its holder.

    Of long lists, some.
    """
    found: list[tuple[Node, Any]] = []
    waiting = [root]
    for node in waiting:  # grows while it is read
        keys: Sequence[Any] = [*node] if isinstance(node, dict) else range(len(node))
        if isinstance(node, list) and len(node) > MOST_SHOWN:
            keys = rng.sample(keys, MOST_SHOWN)
        for key in keys:
            found.append((node, key))
            if isinstance(node[key], dict | list):
                waiting.append(node[key])
    return found


def edit(root: Node, rng: Random, material: Material) -> str:
    """Change one member somewhere; return what was done."""
    found = places(root, rng)
    if not found:
        return "nothing"
    node, key = rng.choice(found)
    name = rng.choices([*EDITS], [WEIGHTS.get(name, 1) for name in EDITS])[0]
    EDITS[name](rng, node, key, material)
    return f"{name} {key}"


def _drop(_: Random, node: Node, key: Any, __: Material) -> None:  # noqa: ANN401 — a key or an index
    del node[key]


def _twice(rng: Random, node: Node, key: Any, _: Material) -> None:  # noqa: ANN401
    other = deepcopy(rng.choice((node[key], rng.choice(VALUES))))
    if isinstance(node, list):
        node.insert(rng.choice((key, len(node))), other)
    else:
        node[AGAIN + key] = other


def _retype(rng: Random, node: Node, key: Any, _: Material) -> None:  # noqa: ANN401
    node[key] = deepcopy(rng.choice(VALUES))


def _null(_: Random, node: Node, key: Any, __: Material) -> None:  # noqa: ANN401
    node[key] = None


def _reorder(rng: Random, node: Node, _: Any, __: Material) -> None:  # noqa: ANN401
    if isinstance(node, list):
        rng.shuffle(node)
        return
    items = [*node.items()]
    rng.shuffle(items)
    node.clear()
    node.update(items)


def _swap(rng: Random, node: Node, key: Any, material: Material) -> None:  # noqa: ANN401
    """Take another answer's value, of the same name if any."""
    found = places(material.donor, rng) if isinstance(material.donor, dict | list) else []
    alike = [holder[other] for holder, other in found if other == key] or [holder[other] for holder, other in found]
    if alike:
        node[key] = deepcopy(rng.choice(alike))


def _literal(rng: Random, node: Node, key: Any, _: Material) -> None:  # noqa: ANN401
    node[key] = RAW + rng.choice(LITERALS)


def _deep(rng: Random, node: Node, key: Any, _: Material) -> None:  # noqa: ANN401
    depth, (begin, end) = rng.choice(DEPTHS), rng.choice((("[", "]"), ('{"a":', "}")))
    node[key] = RAW + begin * depth + "1" + end * depth


def _value(rng: Random, node: Node, key: Any, material: Material) -> None:  # noqa: ANN401
    """Change a value a little, whatever it is."""
    value = node[key]
    if isinstance(value, str):
        node[key] = text(value, rng, material)
    elif isinstance(value, bool) or value is None:
        node[key] = not value
    elif isinstance(value, int | float):
        node[key] = rng.choice((value + 1, value - 1, -value, f"{RAW}{value}.0", str(value), rng.choice(NUMBERS)))
    elif isinstance(value, list):
        node[key] = rng.choice((value[:-1], value[1:], value + value[:1], value * 2, {"0": value}, value[::-1]))
    else:
        node[key] = [value]


def _more(rng: Random, node: Node, _: Any, material: Material) -> None:  # noqa: ANN401
    name = rng.choice(NAMES)
    found = [holder[key] for holder, key in places(material.donor, rng) if key == name] if material.donor else []
    value = deepcopy(rng.choice((*found, rng.choice(VALUES))))
    if isinstance(node, dict):
        node[name] = value
    else:
        node.append({name: value})


def _rename(rng: Random, node: Node, key: Any, _: Material) -> None:  # noqa: ANN401
    if isinstance(node, dict):
        node[rng.choice((rng.choice(NAMES), str(key).upper(), f" {key}"))] = node.pop(key)


EDITS: Mapping[str, Edit] = {
    "drop": _drop,
    "twice": _twice,
    "retype": _retype,
    "null": _null,
    "reorder": _reorder,
    "swap": _swap,
    "literal": _literal,
    "deep": _deep,
    "value": _value,
    "more": _more,
    "rename": _rename,
}


WEIGHTS: Mapping[str, float] = {"literal": 0.3, "deep": 0.2, "twice": 0.5, "value": 3}
"""How much oftener than others: what mostly makes no JSON at all, less."""


def text(value: str, rng: Random, material: Material) -> str:
    """Return the text with one change."""
    at, stop = sorted((rng.randint(0, len(value)), rng.randint(0, len(value))))
    new = rng.choice((*CHARACTERS, rng.choice(material.markers or ("x",))))
    return rng.choice(
        (
            value[:at] + new + value[at:],
            value[:at] + new + value[at + 1 :],
            value[:at] + value[stop:],
            value[:at],
            value[at:],
            value.strip(),
            f" {value}",
            f"{value}\n",
            value + value[at:stop],
            value[at:stop] * 3,
            value.upper(),
            value.replace("\n", "\r\n"),
            value.encode("utf-16", "surrogatepass").decode("utf-16-le", "replace"),
            new + value,
            value + new,
        )
    )


def written(root: Node, rng: Random) -> str:
    """Return one of the JSON texts of the value."""
    told = json.dumps(root, separators=rng.choice(((",", ":"), (", ", ": "))), ensure_ascii=rng.random() < 1 / 2)
    if "\\u0000" not in told:
        return told
    told = told.replace(json.dumps(AGAIN)[:-1], '"')
    while (at := told.find(json.dumps(RAW)[:-1])) >= 0:
        value, length = json.JSONDecoder().raw_decode(told[at:])
        told = told[:at] + value.removeprefix(RAW) + told[at + length :]
    return told


# Streams


def split_events(raw: str) -> list[str]:
    """Return a stream's events without the blank lines between them."""
    return [event for event in raw.split("\n\n") if event]


def edit_stream(events: list[str], rng: Random, material: Material) -> str:
    """Change events in place; return what was done."""
    if not events:
        return "nothing"
    name = rng.choice([*STREAM_EDITS])
    at = rng.randrange(len(events))
    STREAM_EDITS[name](rng, events, at, material)
    return f"{name} {at}"


def _inside(rng: Random, events: list[str], at: int, material: Material) -> None:
    """Change the JSON of an event."""
    root = _json_of(events[at])
    if root is not None:
        edit(root, rng, material)
        events[at] = f"data: {written(root, rng)}"


def _json_of(event: str) -> Node | None:
    try:
        root = json.loads(event.removeprefix("data:"))
    except (ValueError, RecursionError):
        return None
    return root if isinstance(root, dict) else None


def _texts_of(root: Node) -> tuple[Node, str] | None:
    """Return the holder and the name of a chunk's text."""
    choices = root.get("choices") if isinstance(root, dict) else None
    delta = choices[0].get("delta") if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    names = [name for name in ("content", "reasoning") if isinstance(delta, dict) and isinstance(delta.get(name), str)]
    return (delta, names[0]) if names else None


def _split_text(rng: Random, events: list[str], at: int, _: Material) -> None:
    """Send one delta as two, perhaps within a character."""
    first, second = _json_of(events[at]), _json_of(events[at])
    if first is None or second is None or (told := _texts_of(first)) is None or (again := _texts_of(second)) is None:
        return
    units = told[0][told[1]].encode("utf-16-le", "surrogatepass")
    cut = 2 * rng.randint(0, len(units) // 2)
    told[0][told[1]] = units[:cut].decode("utf-16-le", "surrogatepass")
    again[0][again[1]] = units[cut:].decode("utf-16-le", "surrogatepass")
    events[at : at + 1] = [f"data: {json.dumps(first)}", f"data: {json.dumps(second)}"]


def _join_texts(_: Random, events: list[str], at: int, __: Material) -> None:
    """Send two deltas as one."""
    if at + 1 >= len(events):
        return
    first, second = _json_of(events[at]), _json_of(events[at + 1])
    if first is None or second is None or (told := _texts_of(first)) is None or (again := _texts_of(second)) is None:
        return
    if told[1] == again[1]:
        told[0][told[1]] += again[0][again[1]]
        events[at : at + 2] = [f"data: {json.dumps(first, ensure_ascii=False)}"]


def _other_id(rng: Random, events: list[str], at: int, _: Material) -> None:
    if (root := _json_of(events[at])) is not None:
        root[rng.choice(("id", "model", "provider"))] = rng.choice(("gen-other", "", None, 7))
        events[at] = f"data: {json.dumps(root)}"


def _move(rng: Random, events: list[str], at: int, _: Material) -> None:
    events.insert(rng.randint(0, len(events) - 1), events.pop(at))


def _two_data_lines(rng: Random, events: list[str], at: int, _: Material) -> None:
    """Break an event's data into two lines between members."""
    event = events[at]
    cuts = [position + 1 for position, letter in enumerate(event) if letter == ","]
    if cuts:
        cut = rng.choice(cuts)
        events[at] = f"{event[:cut]}\ndata: {event[cut:]}"


LINES = (
    *(": PING", ": OPENROUTER PROCESSING", "data: : PROCESSING", "event: message", "event: error", "id: 7", "retry: 1"),
    *("data:", "data: ", "data", "data: [DONE]", "data:[DONE]", "data: null", "data: {}", 'data: {"choices":[]}', "\t"),
    *("data: {", "data: [DONE] ", "event: error\ndata: x", 'data: {"error":{"message":"x"}}', "junk", "\ufeff"),
)

StreamEdit: TypeAlias = Callable[[Random, list[str], int, Material], None]
STREAM_EDITS: Mapping[str, StreamEdit] = {
    "inside": _inside,
    "inside again": _inside,
    "inside once more": _inside,
    "split text": _split_text,
    "join texts": _join_texts,
    "other id": _other_id,
    "move": _move,
    "data lines": _two_data_lines,
    "drop": lambda _, events, at, __: events.__delitem__(at),
    "twice": lambda _, events, at, __: events.insert(at, events[at]),
    "later": lambda _, events, at, __: events.append(events[at]),
    "line": lambda rng, events, at, _: events.insert(at, rng.choice(LINES)),
    "last line": lambda rng, events, _, __: events.append(rng.choice(LINES)),
    "in event": lambda rng, events, at, _: events.__setitem__(at, f"{events[at]}\n{rng.choice(LINES)}"),
    "merge": lambda _, events, at, __: events.__setitem__(slice(at, at + 2), ["\n".join(events[at : at + 2])]),
    "no space": lambda _, events, at, __: events.__setitem__(at, events[at].replace("data: ", "data:", 1)),
    "spaces": lambda _, events, at, __: events.__setitem__(at, events[at].replace("data: ", "data:  ", 1) + " "),
    "cut": lambda rng, events, at, _: events.__setitem__(slice(at, None), [events[at][: rng.randrange(99)]]),
}


def joined(events: Sequence[str], rng: Random) -> str:
    """Return the stream of these events, spelled somehow."""
    raw = "\n\n".join(events) + "\n\n"
    draw = rng.random()
    if draw < 1 / 4:
        odd = (
            raw.replace("\n", "\r\n"),
            raw.replace("\n", "\r"),
            f"\ufeff{raw}",
            raw[:-1],
            raw[:-2],
            raw.replace("\n\n", "\n\n\n"),
            f"\n\n{raw}",
            raw.replace("\n\n", "\r\n\n", 1),
        )
        return rng.choice(odd)
    return raw


# Bytes


def spoil(raw: bytes, rng: Random) -> bytes:
    """Return the bytes with one change anywhere."""
    if not raw:
        return raw
    at, length = rng.randrange(len(raw)), rng.randint(1, 9)
    return rng.choice(
        (
            raw[:at],
            raw[at:],
            raw[:at] + raw[at + length :],
            raw[:at] + raw[at : at + length] + raw[at:],
            raw[:at] + bytes([raw[at] ^ (1 << rng.randrange(8))]) + raw[at + 1 :],
            raw[:at] + rng.randbytes(length) + raw[at:],
            raw[:at]
            + rng.choice((b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\r", b"\n\n", b'"', b"\\", b"{"))
            + raw[at:],
        )
    )
