"""Traits of a route, measured on answers whose true ids are known.

Guarantees: an answer votes on a trait only where its own bytes can tell the values apart; a trait is proven when at
least twenty answers voted and all of them the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.emulator.survey import SurveyedAnswer
from harness.views.view import SHOWN_CONTROL, SHOWN_ELSEWHERE
from pipeline.base.binomial import clopper_pearson_upper
from pipeline.formats.format import Format, Opener
from pipeline.proof.answer import Answer, ended
from pipeline.proof.counted import by_count
from pipeline.proof.fingerprint import Fingerprint, Trait, TraitName
from pipeline.proof.stream_deltas import crossed_boundary
from pipeline.proof.text_guards import require_text_evidence
from pipeline.records import Completion, Json, RefusedError

ENOUGH = 20
CALLS_FROM_WORST: Mapping[str, Sequence[str]] = {
    TraitName.TOOL_IDS: ("invented", "renumbered", "prefix_cut", "verbatim"),
    TraitName.TOOL_ARGUMENTS: ("reserialised", "verbatim"),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer beside its truth. `reasoning` and `content` are the true texts, `think_tokens` counts their tags."""

    exchange: SurveyedAnswer
    completion: Completion
    reasoning: str
    content: str
    in_section: bool
    closed: bool
    think_tokens: int

    @property
    def tokens(self) -> int:
        return len(self.exchange.truth.output_ids)

    @property
    def counted(self) -> int:
        usage = self.completion.usage
        return usage.completion_tokens or 0 if usage else 0


def measured(exchanges: Iterable[SurveyedAnswer], fmt: Format) -> list[Fingerprint]:
    """One fingerprint for each (provider, streamed or not) among the exchanges."""
    groups: dict[tuple[str, bool], list[Seen]] = {}
    for exchange in exchanges:
        completion = exchange.completion
        if isinstance(completion, Completion):
            key = (exchange.trip.profile.name, exchange.trip.stream)
            groups.setdefault(key, []).append(_seen(exchange, completion, fmt))
    return [_fingerprint(key, seen, fmt) for key, seen in sorted(groups.items())]


def _seen(exchange: SurveyedAnswer, completion: Completion, fmt: Format) -> Seen:
    ids, close = exchange.truth.output_ids, fmt.think_close_id
    begun = len(fmt.opened_with(ids, thinking=exchange.prompt.thinking))
    thought = fmt.opener(thinking=exchange.prompt.thinking) is Opener.PROMPT or bool(begun)
    closed = thought and close in ids
    split = ids.index(close) if closed else len(ids) if thought else -1
    shown = _shown_ids(fmt)

    def text(part: Sequence[int]) -> str:
        kept = [token for token in part if token in shown or not fmt.tokenizer.is_control(token)]
        return fmt.tokenizer.decode_bytes(kept).decode("utf-8", errors="replace")

    body = ids[split + 1 :]
    in_section = any(token in fmt.tool_markers().values() for token in body)
    reasoning = text(ids[begun : max(split, 0)])
    return Seen(exchange, completion, reasoning, text(body), in_section, closed, bool(begun) + closed)


def _shown_ids(fmt: Format) -> frozenset[int]:
    """The control tokens that a text shows by name."""
    shown = SHOWN_CONTROL | SHOWN_ELSEWHERE
    return frozenset(fmt.tokenizer.id_of(name) for name in fmt.tokenizer.control_names if name in shown)


def _fingerprint(key: tuple[str, bool], seen: Sequence[Seen], fmt: Format) -> Fingerprint:
    provider, stream = key
    end = _vote(_end_votes(seen, in_section=False))
    traits: dict[str, Trait] = {
        TraitName.END_COUNTED: end,
        TraitName.END_COUNTED_TOOLS: _vote(_end_votes(seen, in_section=True)),
        TraitName.THINK_CLOSE_COUNTED: _vote(_close_votes(seen, end_counted=end.value is True)),
        TraitName.UNCLOSED: _vote(_unclosed_votes(seen)),
        TraitName.COUNT_NATIVE: _vote(_native_votes(seen, fmt, end_counted=end.value is True)),
        TraitName.PROMPT_PREFIX: _vote(_prefix_votes(seen, fmt)),
        TraitName.SEAM: _vote(_seam_votes(seen, fmt), worst=("added", "stripped", "kept")),
        TraitName.LINE_ENDS: _vote(_line_end_votes(seen), worst=("changed", "kept")),
        TraitName.DELTAS: _vote(_delta_votes(seen, fmt), worst=("rechunked", "batches", "tokens", "none")),
        TraitName.MARKERS: _vote(_marker_votes(seen, fmt)),
        TraitName.TOOL_IDS: _vote(_call_votes(seen, _id_vote), worst=CALLS_FROM_WORST[TraitName.TOOL_IDS]),
        TraitName.TOOL_ARGUMENTS: _vote(
            _call_votes(seen, _argument_vote), worst=CALLS_FROM_WORST[TraitName.TOOL_ARGUMENTS]
        ),
        **_turn_end(seen, fmt),
        **_think_lead(seen, fmt),
    }
    found = Fingerprint(provider, seen[0].completion.model or "", stream, {str(k): v for k, v in traits.items()})
    return Fingerprint(provider, found.model, stream, {**found.traits, **_same_count(found, seen, fmt)})


def _vote(votes: Iterable[Json], *, worst: Sequence[str] = ()) -> Trait:
    """The one value that all votes name; where `worst` ranks the values, the worst that was seen."""
    cast = list(votes)
    counted = Counter(str(vote) for vote in cast)
    if not cast:
        return Trait(None, 0, proven=False)
    for value in worst:
        if counted[value]:
            return Trait(value, len(cast), proven=len(cast) >= ENOUGH)
    return Trait(cast[0], len(cast), proven=len(counted) == 1 and len(cast) >= ENOUGH)


def _end_votes(seen: Sequence[Seen], *, in_section: bool) -> Iterator[Json]:
    """Whole canonical instant answers, shown whole: only the end token can make a difference to the count."""
    for one in seen:
        if one.in_section == in_section and not one.closed and _tells(one) and not one.exchange.truth.cut:
            yield _missing(one, 0)


def _close_votes(seen: Sequence[Seen], *, end_counted: bool) -> Iterator[Json]:
    """The same of answers that thought, once it is known whether the end token counts."""
    for one in seen:
        if one.closed and not one.in_section and _tells(one) and not one.exchange.truth.cut:
            yield _missing(one, 0 if end_counted else 1, one.think_tokens)


def _tells(one: Seen) -> bool:
    """Whether the answer's count can differ from the true one by control tokens alone."""
    calls = bool(one.completion.tool_calls)
    whole = calls or (one.reasoning, one.content) == (one.completion.reasoning or "", one.completion.content or "")
    return whole and not one.exchange.truth.noncanonical


def _missing(one: Seen, known: int, more: int = 1) -> Json:
    """True where the count lacks just the `known` tokens, False where it lacks so many more."""
    lacks = one.tokens - known - one.counted
    return {0: True, more: False}.get(lacks, f"{lacks} tokens are not counted")


def _unclosed_votes(seen: Sequence[Seen]) -> Iterator[str]:
    """Answers that were cut before `</think>`: in which field their thinking is shown."""
    for one in seen:
        if one.exchange.prompt.thinking and not one.closed and one.exchange.truth.cut and one.reasoning:
            yield "content" if one.completion.content else "reasoning"


def _native_votes(seen: Sequence[Seen], fmt: Format, *, end_counted: bool) -> Iterator[bool]:
    """Non-canonical answers whose text has another number of tokens when it is encoded again."""
    for one in seen:
        truth = one.exchange.truth
        again = (
            len(fmt.tokenizer.encode(one.reasoning))
            + _body_length(one.content, fmt)
            + one.think_tokens
            + (not truth.cut)
        )
        if truth.noncanonical and again != one.tokens:
            yield one.counted == one.tokens - (0 if end_counted or truth.cut else 1)


def _body_length(content: str, fmt: Format) -> int:
    markers = fmt.tool_markers()
    total = 0
    for name in markers:
        total += content.count(name)
        content = content.replace(name, "\x00")
    return total + sum(len(fmt.tokenizer.encode(piece)) for piece in content.split("\x00") if piece)


def _prefix_votes(seen: Sequence[Seen], fmt: Format) -> Iterator[Json]:
    for one in seen:
        served, rendered = one.exchange.truth.prompt_ids, fmt.render(one.exchange.prompt)
        usage = one.completion.usage
        if (
            usage is not None
            and usage.prompt_tokens == len(served)
            and served[len(served) - len(rendered) :] == rendered
        ):
            yield [fmt.tokenizer.name_of(token) for token in served[: len(served) - len(rendered)]]
        else:
            yield "other"


def _seam_votes(seen: Sequence[Seen], fmt: Format) -> Iterator[str]:
    """Answers in the layout whose true text has white space at an end of a field; a section is shown, or no vote."""
    for one in seen:
        if one.completion.tool_calls or one.exchange.truth.cut or not _readable(one, fmt):
            continue
        fields = [(one.reasoning, one.completion.reasoning or "")]
        if not one.in_section or _shows_markers(one, fmt):
            fields.append((one.content, one.completion.content or ""))
        for true, shown in fields:
            if true != true.strip():
                yield "kept" if shown == true else "stripped" if _is_stripped(true, shown) else "added"


def _shows_markers(one: Seen, fmt: Format) -> bool:
    return any(name in (one.completion.content or "") for name in fmt.tool_markers())


def _is_stripped(true: str, shown: str) -> bool:
    """At both ends, or at one, as engines do that strip the end of the reasoning alone."""
    return shown in (true.strip(), true.rstrip(), true.lstrip())


def _line_end_votes(seen: Sequence[Seen]) -> Iterator[str]:
    """Answers whose true text has a carriage return, which no count shows."""
    for one in seen:
        if "\r" in one.reasoning + one.content and not one.completion.tool_calls and not one.exchange.truth.cut:
            fields = ((one.reasoning, one.completion.reasoning or ""), (one.content, one.completion.content or ""))
            same = all(true.strip().count("\r") == shown.strip().count("\r") for true, shown in fields)
            yield "kept" if same else "changed"


def _delta_votes(seen: Sequence[Seen], fmt: Format) -> Iterator[str]:
    """What the deltas of a whole answer can at best be: its tokens, batches of them, or neither."""
    for one in seen:
        deltas = one.completion.deltas
        if deltas is None:
            yield "none"
        elif not one.completion.tool_calls and not one.exchange.truth.cut and _readable(one, fmt):
            yield _delta_kind(one, fmt)


def _readable(one: Seen, fmt: Format) -> bool:
    """Whether the answer is in the layout and its bytes are text, so that each visible token has its place."""
    try:
        fmt.parts(one.exchange.truth.output_ids, thinking=one.exchange.prompt.thinking)
    except RefusedError:
        return False
    return True


def _delta_kind(one: Seen, fmt: Format) -> str:
    shown = _shown_ids(fmt) - {fmt.think_close_id}
    tokens = [t for t in one.exchange.truth.output_ids if t in shown or not fmt.tokenizer.is_control(t)]
    texts = [delta.text for delta in one.completion.deltas or ()]
    if "".join(texts) != one.reasoning + one.content or crossed_boundary(fmt.tokenizer, tokens, texts) is not None:
        return "rechunked"
    visible = sum(1 for text in _streamed(tokens, fmt) if text)
    return "tokens" if len(texts) == visible else "batches"


def _streamed(tokens: Sequence[int], fmt: Format) -> Iterator[str]:
    held = b""
    for token in tokens:
        held += fmt.tokenizer.token_bytes(token)
        text = held.decode("utf-8", errors="ignore")
        held = held[len(text.encode()) :]
        yield text


def _marker_votes(seen: Sequence[Seen], fmt: Format) -> Iterator[str]:
    for one in seen:
        if not one.in_section or one.exchange.trip.tools_sent or not _readable(one, fmt):
            continue
        if _shows_markers(one, fmt):
            yield "raw"
        elif one.completion.tool_calls:
            yield "parsed"
        else:
            content = one.completion.content or ""
            yield "dropped" if len(content) <= _section_start(one.content, fmt) else "stripped"


def _section_start(content: str, fmt: Format) -> int:
    """Where the first marker stands in a true text that has one."""
    return min((at for name in fmt.tool_markers() if (at := content.find(name)) >= 0), default=len(content))


def _turn_end(seen: Sequence[Seen], fmt: Format) -> dict[str, Trait]:
    """Nothing where the family has one end token; else proven by enough answers with calls and enough without."""
    if len(fmt.end_ids) == 1:
        return {}
    votes = [list(_turn_end_votes(seen, fmt, in_section=in_section)) for in_section in (False, True)]
    trait = _vote(vote for cast in votes for vote in cast)
    proven = trait.proven and all(len(cast) >= ENOUGH for cast in votes)
    return {str(TraitName.TURN_END): replace(trait, proven=proven)}


def _turn_end_votes(seen: Sequence[Seen], fmt: Format, *, in_section: bool) -> Iterator[str]:
    """`by_role` for the end token that the format gives such an answer, else what was emitted last."""
    markers = tuple(fmt.tool_markers().values()) if in_section else ()
    for one in seen:
        if one.in_section == in_section and not one.exchange.truth.cut:
            last = one.exchange.truth.output_ids[-1]
            yield "by_role" if last == fmt.end_id_for(markers) else fmt.tokenizer.name_of(last) or "no control token"


def _think_lead(seen: Sequence[Seen], fmt: Format) -> dict[str, Trait]:
    """Nothing where the family writes nothing before its `<think>`, or a whole header."""
    if fmt.opener(thinking=True) is not Opener.MODEL or len(fmt.opening_ids) == 1 or fmt.is_headed:
        return {}
    return {str(TraitName.THINK_LEAD): _vote(_think_lead_votes(seen, fmt))}


def _think_lead_votes(seen: Sequence[Seen], fmt: Format) -> Iterator[str]:
    """`written` for answers that open their thinking as the template does, else what stands there."""
    for one in seen:
        ids = one.exchange.truth.output_ids
        if fmt.think_open_id in ids:
            before = fmt.tokenizer.decode_bytes(ids[: ids.index(fmt.think_open_id)])
            begun = fmt.opened_with(ids, thinking=one.exchange.prompt.thinking)
            yield "written" if begun else repr(before.decode("utf-8", errors="replace"))


def _call_votes(seen: Sequence[Seen], vote: Callable[[Seen], str]) -> Iterator[str]:
    for one in seen:
        if one.completion.tool_calls:
            yield vote(one)


def _id_vote(one: Seen) -> str:
    ids = [call.id for call in one.completion.tool_calls]
    if all(f"<|tool_call_begin|>{identity}<|tool_call_argument_begin|>" in one.content for identity in ids):
        return "verbatim"
    if all(f"functions.{identity}<" in one.content for identity in ids):
        return "prefix_cut"
    unnumbered = (identity.rpartition(":")[0] for identity in ids)
    kept = all(head and f"<|tool_call_begin|>{head}:" in one.content for head in unnumbered)
    return "renumbered" if kept else "invented"


def _argument_vote(one: Seen) -> str:
    texts = [call.arguments for call in one.completion.tool_calls]
    verbatim = all(f"<|tool_call_argument_begin|>{text}<|tool_call_end|>" in one.content for text in texts)
    return "verbatim" if verbatim else "reserialised"


def _same_count(found: Fingerprint, seen: Sequence[Seen], fmt: Format) -> Mapping[str, Trait]:
    """How often `counted` takes an answer for another with the same text and count, resegmented ones left out."""
    wrong = n = 0
    for one in seen:
        if one.exchange.truth.resegmented is None and (ids := _counted_ids(found, one, fmt)) is not None:
            n += 1
            wrong += ids != one.exchange.truth.output_ids
    if not n:
        return {}
    value: Json = {"wrong": wrong, "n": n, "upper95": round(clopper_pearson_upper(wrong, n), 6)}
    return {str(TraitName.SAME_COUNT_MISMATCH): Trait(value, n, proven=n >= ENOUGH)}


def _counted_ids(found: Fingerprint, one: Seen, fmt: Format) -> tuple[int, ...] | None:
    try:
        answer = Answer(one.exchange.prompt, one.completion, fmt, found, ended(one.completion), one.exchange.max_tokens)
        require_text_evidence(answer)
        return by_count(answer).ids
    except RefusedError:
        return None
