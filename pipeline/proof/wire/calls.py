"""The tool calls of a stream, put together from their fragments.

Guarantees: a fragment belongs to the call that its index names; a new id under an index in use begins another call, as
servers send that number every call 0. Refuses fragments that belong to no call, and a call that changes its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.proof.wire.fields import as_object, as_text
from pipeline.records import Json, Reason, RefusedError, ToolCall


@dataclass(slots=True)
class _Call:
    index: int
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Calls:
    """Calls as they grow, in the order in which they began."""

    begun: list[_Call] = field(default_factory=list)

    def add(self, fragment: dict[str, Json], position: int) -> str | None:
        """Add one fragment, `position` being its place in its delta; the arguments that it brought."""
        index = fragment.get("index")
        index = position if index is None else index
        if not isinstance(index, int) or isinstance(index, bool):
            raise _refused(f"a tool call's index is {index!r}")
        function = as_object(fragment.get("function") or {}, "function")
        identity, name = as_text(fragment, "id"), as_text(function, "name")
        call = self._call(index, identity, name)
        call.id = call.id or identity or ""
        if name and call.name not in ("", name):
            raise _refused(f"call {index} has two names: {call.name}, {name}")
        call.name = call.name or name or ""
        if arguments := as_text(function, "arguments"):
            call.arguments.append(arguments)
        return arguments

    def _call(self, index: int, identity: str | None, name: str | None) -> _Call:
        """The call that a fragment continues, or a new one."""
        known = next((call for call in reversed(self.begun) if call.index == index), None)
        if known is not None and (not identity or known.id in ("", identity)):
            return known
        if not identity and not name:
            raise _refused(f"a fragment of call {index} came before its id and name")
        self.begun.append(_Call(index))
        return self.begun[-1]

    def all(self) -> tuple[ToolCall, ...]:
        """The calls by index, those of one index in the order in which they began."""
        ordered = sorted(self.begun, key=lambda call: call.index)
        return tuple(ToolCall(call.id, call.name, "".join(call.arguments)) for call in ordered)


def _refused(detail: str) -> RefusedError:
    return RefusedError(Reason.STREAM_INCONSISTENT, detail, field="tool_calls")
