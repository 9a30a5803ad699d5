"""One answer to be proven, and the facts about it.

Guarantees: text is taken as it came, and what takes work is computed once. Whether the answer ended is what both of its
finish reasons say; where they disagree, it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pipeline.formats.format import Opener, Parts
from pipeline.proof.fingerprint import TraitName
from pipeline.records import Reason, RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.formats.format import Format
    from pipeline.proof.fingerprint import Fingerprint
    from pipeline.records import Completion, Evidence, Ids, Json, Prompt, Span

_STOPPED = {None, "stop", "completed", "end_turn", "eos"}
_CUT = {None, "length", "max_tokens", "max_output_tokens"}


@dataclass(frozen=True, slots=True)
class Proof:
    """Proven ids, shape [n], their spans, and the evidence."""

    ids: Ids
    spans: tuple[Span, ...]
    evidence: Evidence
    detail: str = ""


@dataclass(frozen=True)
class Answer:
    """One answer to be proven, and its facts.

    `fmt` is the format as served. `ended` says that the end token was emitted. `max_tokens` is the limit that the
    request named, if it is known.
    """

    prompt: Prompt
    completion: Completion
    fmt: Format
    fingerprint: Fingerprint | None
    ended: bool
    max_tokens: int | None = None

    # What the answer shows

    @property
    def reasoning(self) -> str:
        """The reasoning as text; an absent field is empty."""
        return self.completion.reasoning or ""

    @property
    def content(self) -> str:
        """The content as text; an absent field is empty."""
        return self.completion.content or ""

    @property
    def texts(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Reasoning and content, each with its field."""
        return ("reasoning", self.reasoning), ("content", self.content)

    def delta_texts(self, field: str) -> list[str]:
        """Return the texts of one field's deltas, in order."""
        return delta_texts(self.completion, field)

    @property
    def completion_tokens(self) -> int:
        """The provider's count; RefusedError(USAGE_MISSING) without one."""
        usage = self.completion.usage
        if usage is None or usage.completion_tokens is None:
            message = "usage.completion_tokens is absent"
            raise RefusedError(Reason.USAGE_MISSING, message, field="usage.completion_tokens")
        return usage.completion_tokens

    @cached_property
    def opener(self) -> Opener:
        """Who opened the reasoning of this answer."""
        return self.fmt.opener(thinking=self.prompt.thinking)

    @cached_property
    def markers(self) -> Mapping[str, int]:
        """The ids of the format's tool markers by name."""
        return self.fmt.tool_markers()

    # What the route is known to do

    def proven(self, name: TraitName) -> Json:
        """Return a proven trait's value, otherwise None."""
        return None if self.fingerprint is None else self.fingerprint.proven(name)

    def require(self, name: TraitName) -> Json:
        """Return a proven trait's value; RefusedError(ROUTE_UNPROVEN) otherwise."""
        if self.fingerprint is None:
            raise RefusedError(Reason.ROUTE_UNPROVEN, "this route has no fingerprint", field=str(name))
        return self.fingerprint.require(name)

    @property
    def raw_markers(self) -> bool:
        """Whether the route provably shows tool markers in the text."""
        return self.proven(TraitName.MARKERS) == "raw"

    @cached_property
    def shows_close(self) -> bool:
        """Whether the fields show where the thinking was closed.

        They need text on both sides of it: a parser that failed shows thinking and answer as one content. Behind
        headers the route must also be proven to show thinking that was never closed as reasoning, because there a
        second thinking is as long as the content.
        """
        if not self.reasoning or not (self.content or self.completion.tool_calls):
            return False
        return not self.fmt.is_headed or self.proven(TraitName.UNCLOSED) == "reasoning"

    # What the route counts

    def counts(self, name: TraitName) -> bool:
        """Return whether the route counts a trait's token.

        RefusedError(ROUTE_UNPROVEN) where that is not proven, or the route was seen to count in a third way.
        """
        value = self.require(name)
        if not isinstance(value, bool):
            raise RefusedError(Reason.ROUTE_UNPROVEN, f"{name} is {value!r} on this route", field=str(name))
        return value

    def count_of(self, parts: Parts, emitted: int) -> int:
        """Return the route's `completion_tokens` for `emitted` ids of these parts.

        -1 where the parts say something and no id was emitted.
        """
        if not emitted and (parts.ended or parts.think_closed or parts.body):
            return -1
        uncounted = self.fmt.hidden_count(self.opener, parts)
        if uncounted and self.counts(TraitName.THINK_CLOSE_COUNTED):
            uncounted = 0
        if parts.ended:
            uncounted += not self.counts(end_trait(has_calls=parts.has_markers))
        return emitted - uncounted


def end_trait(*, has_calls: bool) -> TraitName:
    """Return the trait about counting the end token."""
    return TraitName.END_COUNTED_TOOLS if has_calls else TraitName.END_COUNTED


def texts(completion: Completion) -> tuple[str, str]:
    """Return reasoning and content; an absent field is empty.

    Providers use null and "" interchangeably.
    """
    return completion.reasoning or "", completion.content or ""


def delta_texts(completion: Completion, field: str) -> list[str]:
    """Return the texts of one field's deltas, in order.

    Empty where the answer was not streamed.
    """
    return [delta.text for delta in completion.deltas or () if delta.field == field]


def ended(completion: Completion) -> bool:
    """Return whether the answer says that it ended.

    That is: that its end token was emitted. A stop text ends an answer without that token. RefusedError where the two
    finish reasons disagree, or do not say.
    """
    if isinstance(completion.stopped_by, str):
        message = f"the stop text {completion.stopped_by[:40]!r} ended the answer, not its end token"
        raise RefusedError(Reason.FINISH_CONTRADICTS, message, field="stop_reason")
    finish, native = completion.finish_reason, completion.native_finish_reason
    lowered = native.lower() if native else None
    stopped = finish == "stop" and lowered in _STOPPED
    called = finish == "tool_calls" and lowered in _STOPPED | {"tool_calls", "tool_use"}
    if stopped or called:
        if bool(completion.tool_calls) != called:
            message = f"finish_reason {finish} with {len(completion.tool_calls)} tool calls"
            raise RefusedError(Reason.CALLS_LOST, message, field="tool_calls")
        return True
    if finish == "length" and lowered in _CUT:
        return False
    reason = Reason.FINISH_CONTRADICTS if finish in ("stop", "tool_calls", "length") else Reason.FINISH_UNKNOWN
    raise RefusedError(reason, f"finish_reason {finish}, native {native}", field="finish_reason")


def says_stop(completion: Completion) -> bool:
    """Return whether the native finish reason says stop."""
    native = completion.native_finish_reason
    return native is not None and native.lower() in _STOPPED
