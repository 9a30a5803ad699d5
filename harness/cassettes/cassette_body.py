"""Bodies in a cassette: parsed where that gives the exact bytes back, else raw text, else base64.

Guarantees: `restore(load(dump(store(body)))) == body` for any bytes, because every candidate form is put through YAML
and compared before it is taken. Nothing is normalised: a body that no style reproduces stays the text that it was.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import yaml

Stored: TypeAlias = dict[str, Any]
"""One of `{json, style, before?, after?}`, `{sse: [events]}`, `{raw}` and `{base64}`."""

STYLES: Mapping[str, Callable[[Any], str]] = {
    "compact": partial(json.dumps, ensure_ascii=False, separators=(",", ":")),
    "spaced": partial(json.dumps, ensure_ascii=False),
    "compact ascii": partial(json.dumps, separators=(",", ":")),
    "spaced ascii": json.dumps,
    "indented": partial(json.dumps, ensure_ascii=False, indent=2),
}
"""How senders write JSON: OpenRouter, Python, Python told to be short, Python's default, people."""

SPACE = " \t\r\n"
DATA = "data: "
END = "\n\n"
UNSTORABLE = (yaml.YAMLError, ValueError, RecursionError, OverflowError)
"""What parsers and emitters raise for text that they cannot hold: lone surrogates, endless numbers, deep nesting."""


class Flow(dict[str, Any]):
    """A mapping that YAML writes on one line: an event of a stream."""


class FlowIds(list[int]):
    """A list that YAML writes on one line: token ids."""


class _Dumper(yaml.CSafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """libyaml's emitter, without anchors: equal events are written out."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


_MAP, _SEQ, _STR = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:str"
_ENDLESS = 2**31 - 1
_Dumper.add_representer(Flow, lambda dumper, data: dumper.represent_mapping(_MAP, data, flow_style=True))
_Dumper.add_representer(FlowIds, lambda dumper, data: dumper.represent_sequence(_SEQ, data, flow_style=True))
_Dumper.add_representer(str, lambda dumper, text: dumper.represent_scalar(_STR, text, '"' if "\n" in text else None))
_MAP, _SEQ, _STR = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:str"
_ENDLESS = 2**31 - 1


def dump(value: object) -> str:
    """YAML, one event a line, key order kept, never folded."""
    text: str = yaml.dump(value, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=_ENDLESS)
    return text


def load(text: str) -> Any:  # noqa: ANN401 - whatever the YAML says; callers check its shape
    """Plain YAML, no tags that make objects."""
    return yaml.load(text, Loader=yaml.CSafeLoader)


def store(body: bytes) -> Stored:
    """The most readable form that gives `body` back."""
    return next(form for form in _forms(body) if _survives(form, body))


def restore(form: Mapping[str, Any]) -> bytes:
    """The bytes of a stored body. Raises ValueError, KeyError or TypeError for what is no stored body."""
    if "base64" in form:
        return base64.b64decode(form["base64"], validate=True)
    return _text(form).encode("utf-8")


def _text(form: Mapping[str, Any]) -> str:
    if "raw" in form:
        return str(form["raw"])
    if "sse" in form:
        return END.join(_event_text(event) for event in form["sse"])
    return f"{form.get('before', '')}{STYLES[form['style']](form['json'])}{form.get('after', '')}"


def _event_text(event: Mapping[str, Any]) -> str:
    return str(event["raw"]) if "raw" in event else DATA + STYLES[event["style"]](event["json"])


def _forms(body: bytes) -> Iterator[Stored]:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    if text is not None:
        if (parsed := _parsed(text)) is not None:
            yield parsed
        if DATA in text:
            yield {"sse": [_event(piece) for piece in text.split(END)]}
        yield {"raw": text}
    yield {"base64": base64.b64encode(body).decode("ascii")}


def _parsed(text: str) -> Stored | None:
    """JSON with the white space round it, in the style that writes it so; keep-alives come before the JSON."""
    core = text.strip(SPACE)
    start = text.find(core)
    try:
        value = json.loads(core)
        style = next((name for name, write in STYLES.items() if write(value) == core), None)
    except UNSTORABLE:
        return None
    if style is None:
        return None
    space = {"before": text[:start], "after": text[start + len(core) :]}
    return {"json": value, "style": style, **{key: value for key, value in space.items() if value}}


def _event(piece: str) -> Flow:
    """One event of a stream: its JSON, or the piece as it stands (a comment, `[DONE]`, the empty end)."""
    parsed = _parsed(piece.removeprefix(DATA)) if piece.startswith(DATA) else None
    if parsed is not None and parsed.keys() == {"json", "style"} and _survives(parsed, piece[len(DATA) :].encode()):
        return Flow(parsed)
    return Flow(raw=piece)


def _survives(form: Stored, body: bytes) -> bool:
    try:
        return restore(load(dump(form))) == body
    except UNSTORABLE:
        return False
