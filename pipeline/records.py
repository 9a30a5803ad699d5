"""The values that pass between stages, each frozen.

Guarantees: a value is plain data; it renders nothing, sends nothing and repairs nothing. A row that cannot be proven is
a `Refusal` with one `Reason` from a closed list, never a doubtful row. In order: evidence, refusals, prompts, what came
back, proven rows, routes, and the gate's objections.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonObject: TypeAlias = Mapping[str, Json]
Ids: TypeAlias = tuple[int, ...]


class Evidence(StrEnum):
    """Why the ids of a row are believed, strongest first."""

    ENGINE_IDS = "engine_ids"
    LOGPROBS = "logprobs"
    STREAM_DELTAS = "stream_deltas"
    COUNTED = "counted"


STRENGTH: Mapping[str, int] = {str(grade): len(Evidence) - rank for rank, grade in enumerate(Evidence)}
"""The strength of each grade by its name; more is stronger."""


def weak_evidence(output: str, prompt: str, least: Evidence, least_prompt: Evidence | None) -> str:
    """Return which evidence is too weak, else "".

    A row is worth the weaker of its two grades, unless prompts have a limit of their own.
    """
    if STRENGTH[output] < STRENGTH[str(least)]:
        return "weak_evidence"
    return "weak_prompt_evidence" if STRENGTH[prompt] < STRENGTH[str(least_prompt or least)] else ""


class Reason(StrEnum):
    """Why a row is refused; `MEANINGS` explains each."""

    MALFORMED_INPUT = "malformed_input"
    INTERNAL_ERROR = "internal_error"
    NO_PROMPT = "no_prompt"
    UNCOVERED = "uncovered"
    UPSTREAM_ERROR = "upstream_error"
    EMPTY_ANSWER = "empty_answer"
    STREAM_CUT = "stream_cut"
    STREAM_INCONSISTENT = "stream_inconsistent"
    FINISH_UNKNOWN = "finish_unknown"
    FINISH_CONTRADICTS = "finish_contradicts"
    WRONG_PROVIDER = "wrong_provider"
    WRONG_MODEL = "wrong_model"
    ROUTE_UNPROVEN = "route_unproven"
    SEAM_LOSSY = "seam_lossy"
    USAGE_MISSING = "usage_missing"
    PROMPT_UNSUPPORTED = "prompt_unsupported"
    PROMPT_MISMATCH = "prompt_mismatch"
    SPECIAL_TEXT = "special_text"
    SECRET_SHAPE = "secret_shape"  # noqa: S105 - the name of a reason
    COUNT_MISMATCH = "count_mismatch"
    COUNT_NOT_NATIVE = "count_not_native"
    DELTAS_CONTRADICT = "deltas_contradict"
    AMBIGUOUS_LAYOUT = "ambiguous_layout"
    AMBIGUOUS_MARKER = "ambiguous_marker"
    LEAKED_CONTROL = "leaked_control"
    STRUCTURED_CALLS = "structured_calls"
    CALLS_LOST = "calls_lost"
    LAYOUT_INVALID = "layout_invalid"
    NOT_CANONICAL = "not_canonical"
    REPLACEMENT_CHAR = "replacement_char"
    LONE_SURROGATE = "lone_surrogate"
    NOT_NFC = "not_nfc"
    UNICODE_VERSION = "unicode_version"
    UNENCODABLE = "unencodable"
    UNKNOWN_ID = "unknown_id"
    IDS_CONTRADICT = "ids_contradict"
    LOGPROBS_HOLE = "logprobs_hole"
    LOGPROBS_CONTRADICT = "logprobs_contradict"
    LOOPING = "looping"


MEANINGS: Mapping[Reason, str] = {
    Reason.MALFORMED_INPUT: "the line or body is not the JSON that the schema names",
    Reason.INTERNAL_ERROR: "a bug of this program, not of the input; the detail says where, so that it can be reported",
    Reason.NO_PROMPT: "the dataset's adapter makes no prompt of the row; detail has its own reason",
    Reason.UNCOVERED: "the prompt uses what no contract covers on this route, so it was set aside and not sent",
    Reason.UPSTREAM_ERROR: "the provider sent an error, in the body, in the stream or beside an answer",
    Reason.EMPTY_ANSWER: "no choice, or neither reasoning nor content nor calls were delivered",
    Reason.STREAM_CUT: "the stream ended before its finish reason or its [DONE]",
    Reason.STREAM_INCONSISTENT: "the stream's chunks contradict each other (two generations, a repeated text)",
    Reason.FINISH_UNKNOWN: "the finish reason is absent or not one that says how the answer ended",
    Reason.FINISH_CONTRADICTS: "finish_reason, the native one, the stop reason or the limit disagree about the end",
    Reason.WRONG_PROVIDER: "another provider answered than the one pinned",
    Reason.WRONG_MODEL: "another model answered than the one asked",
    Reason.ROUTE_UNPROVEN: "no fingerprint of this route proves a trait that the proof needs",
    Reason.SEAM_LOSSY: "the route strips or adds white space beside control tokens, so text was lost",
    Reason.USAGE_MISSING: "the answer carries no token counts, so nothing closes the proof",
    Reason.PROMPT_UNSUPPORTED: "the prompt uses something that the format cannot render (an image, an unknown role)",
    Reason.PROMPT_MISMATCH: "the prompt as served is not the prompt as rendered, by ids or by count",
    Reason.SPECIAL_TEXT: "the prompt spells a control token, which engines read differently",
    Reason.SECRET_SHAPE: "the prompt holds what has the shape of a key, and was not sent (--allow-secret-shapes)",
    Reason.COUNT_MISMATCH: "the rebuilt completion has another number of tokens than the provider counted",
    Reason.COUNT_NOT_NATIVE: "the route's counts are not proven to be the engine's own, so equality proves nothing",
    Reason.DELTAS_CONTRADICT: "the rebuilt tokens cross a boundary that the stream's deltas show",
    Reason.AMBIGUOUS_LAYOUT: "more than one layout of control tokens closes the count",
    Reason.AMBIGUOUS_MARKER: "a marker in the text can be read as a control token and as text, or as neither",
    Reason.LEAKED_CONTROL: "a control token stands in the text of a route that is not proven to send markers raw",
    Reason.STRUCTURED_CALLS: "tool calls came parsed, on a route not proven to keep their ids and arguments verbatim",
    Reason.CALLS_LOST: "the answer says tool_calls but carries none, or carries calls and says otherwise",
    Reason.LAYOUT_INVALID: "the ids or the text are not a completion that the format can express",
    Reason.NOT_CANONICAL: "the ids are not what the tokenizer makes of their own text",
    Reason.REPLACEMENT_CHAR: "the text holds U+FFFD, so bytes may be lost",
    Reason.LONE_SURROGATE: "the text holds half a surrogate pair and has no UTF-8",
    Reason.NOT_NFC: "NFC changes the text, and the model's tokenizer applies it, so the text is not what was emitted",
    Reason.UNICODE_VERSION: "a character is newer than some engines' Unicode tables, so its text is split in two ways",
    Reason.UNENCODABLE: "the tokenizer cannot encode the text (it gives up on very long runs)",
    Reason.UNKNOWN_ID: "an id is not in the vocabulary",
    Reason.IDS_CONTRADICT: "the returned ids do not say what the returned text says",
    Reason.LOGPROBS_HOLE: "an entry of logprobs has no bytes, or bytes that are no single token",
    Reason.LOGPROBS_CONTRADICT: "the tokens in logprobs do not say what the returned text says",
    Reason.LOOPING: "the answer was cut in a loop: one stretch of tokens again and again, up to the limit",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a row is not proven, and where it shows."""

    reason: Reason
    detail: str
    field: str | None = None
    char_offset: int | None = None
    token_position: int | None = None


class RefusedError(Exception):
    """Carries a `Refusal` up to a caller that returns it."""

    def __init__(self, reason: Reason, detail: str, **where: str | int | None) -> None:
        self.refusal = Refusal(reason, detail, **where)  # type: ignore[arg-type]  # keywords are fields of Refusal
        super().__init__(f"{reason}: {detail}")

    def inside(self, place: str) -> RefusedError:
        """Return the same, with its field put inside `place`.

        `content` inside `messages[2]` is `messages[2].content`.
        """
        inner = self.refusal.field
        return self.of(replace(self.refusal, field=f"{place}.{inner}" if inner else place))

    def after(self, tokens: int) -> RefusedError:
        """Return the same, its token position `tokens` higher."""
        at = self.refusal.token_position
        return self.of(replace(self.refusal, token_position=None if at is None else at + tokens))

    @staticmethod
    def of(refusal: Refusal) -> RefusedError:
        """Return the error that carries `refusal`."""
        error = RefusedError(refusal.reason, refusal.detail)
        error.refusal = refusal
        return error


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request before rendering: messages, tools, and thinking mode.

    Messages and tools are in the OpenAI schema.
    """

    id: str
    messages: tuple[JsonObject, ...]
    tools: tuple[JsonObject, ...] = ()
    thinking: bool = True
    dataset: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call; `arguments` is the text, never parsed JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the provider gave them; `cost` in USD."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One entry of `logprobs.content`.

    `token` is display text, `data` its bytes where the provider gave them.
    """

    token: str
    data: bytes | None
    logprob: float | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """One non-empty text delta of a stream."""

    field: Literal["reasoning", "content", "tool_calls"]
    text: str


@dataclass(frozen=True, slots=True)
class Completion:
    """What one API call returned.

    `deltas` is None where it was no stream. `ids_from` names the places where ids were found. `stopped_by` is what an
    engine says ended the answer: a stop text, or the id of an end token.
    """

    reasoning: str | None
    content: str | None
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    usage: Usage | None = None
    provider: str | None = None
    model: str | None = None
    generation_id: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_ids: Ids | None = None
    token_ids: Ids | None = None
    ids_from: tuple[str, ...] = ()
    deltas: tuple[Delta, ...] | None = None
    stopped_by: str | int | None = None


class SpanKind(StrEnum):
    """What a range of output ids is."""

    THINK_OPEN = "think_open"
    REASONING = "reasoning"
    THINK_CLOSE = "think_close"
    CONTENT = "content"
    TOOL_SECTION = "tool_section"
    END = "end"


@dataclass(frozen=True, slots=True)
class Span:
    """The kind of `output_ids[start:stop]`."""

    kind: SpanKind
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A proven row: prompt ids as served, ids as emitted.

    `evidence` is of the output ids, `prompt_evidence` of the prompt ids: the one may be returned without the other.
    """

    id: str
    prompt_ids: Ids
    output_ids: Ids
    spans: tuple[Span, ...]
    evidence: Evidence
    detail: str = ""
    prompt_evidence: Evidence = Evidence.COUNTED

    @property
    def is_cut(self) -> bool:
        """Whether the output stops without its end token."""
        return all(span.kind is not SpanKind.END for span in self.spans)


class ToolMode(StrEnum):
    """How tools travel: in the prompt text, or as `tools`."""

    NONE = "none"
    RAW = "raw"
    STRUCTURED = "structured"


@dataclass(frozen=True, slots=True)
class Route:
    """How a completion was got; two routes share no contract.

    `api` is `local` (transformers in this process), `sglang` or `vllm` (a server on this machine, ids in and ids out),
    `emulator` (loopback) or `openrouter`. `provider` is the slug that pins the provider (`siliconflow`); it is empty
    where a model of ours answers.
    """

    api: Literal["local", "sglang", "vllm", "emulator", "openrouter"]
    model: str
    provider: str = ""
    stream: bool = False

    @property
    def name(self) -> str:
        """The route as the command line takes it, `api/provider`."""
        return f"{self.api}/{self.provider}" if self.provider else self.api


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings of a request."""

    temperature: float = 1.0
    max_tokens: int = 256
    seed: int | None = None
    logprobs: bool = False
    return_token_ids: bool = False
    extra: JsonObject = field(default_factory=dict)


OWN_APIS: Mapping[str, Literal["local", "sglang", "vllm"]] = {"local": "local", "sglang": "sglang", "vllm": "vllm"}
"""Routes to a model of ours, which have no provider."""
SERVED_APIS = frozenset({"sglang", "vllm"})
"""Those of them that are a server on this machine."""


class RouteError(Exception):
    """A name is no route; the message lists them."""


def parse_route(name: str, *, model: str, stream: bool) -> Route:
    """Parse a route's name. Raises RouteError.

    >>> parse_route("emulator/chutes", model="m/k", stream=True).provider
    'chutes'
    """
    api, _, provider = name.partition("/")
    if not provider and (own := OWN_APIS.get(name)):
        return Route(own, model, "", stream=False)
    if api in ("emulator", "openrouter") and re.fullmatch(r"[a-z0-9][a-z0-9._/-]*", provider):
        return Route("emulator" if api == "emulator" else "openrouter", model, provider, stream)
    there = ", ".join(OWN_APIS)
    raise RouteError(f"{name!r} is no route; there are {there}, emulator/PROVIDER and openrouter/PROVIDER")


@dataclass(frozen=True, slots=True)
class Objection:
    """What is in the way, and what mends it.

    `what` is one sentence without its full stop; `mend` is empty where no command helps.
    """

    what: str
    mend: str

    def __str__(self) -> str:
        return f"{self.what}. Run: {self.mend}" if self.mend else f"{self.what}."


PROVE = "nox -s contract"
"""The command for whatever a fresh run of the contract suite mends."""
