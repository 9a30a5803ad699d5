"""Traits of a route, measured on answers with true ids.

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
class Observation:
    """One answer beside its truth.

    `reasoning` and `content` are the true texts; `think_tokens` counts their tags.
    """

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
    """Return one fingerprint for each (provider, streamed or not)."""
    groups: dict[tuple[str, bool], list[Observation]] = {}
    for exchange in exchanges:
        completion = exchange.completion
        if isinstance(completion, Completion):
            key = (exchange.trip.profile.name, exchange.trip.stream)
            groups.setdefault(key, []).append(observed(exchange, completion, fmt))
    return [fingerprint_of(key, observations, fmt) for key, observations in sorted(groups.items())]


def observed(exchange: SurveyedAnswer, completion: Completion, fmt: Format) -> Observation:
    """Return an answer with its true texts."""
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
    return Observation(exchange, completion, reasoning, text(body), in_section, closed, bool(begun) + closed)


def _shown_ids(fmt: Format) -> frozenset[int]:
    """Return the control tokens that a text shows."""
    shown = SHOWN_CONTROL | SHOWN_ELSEWHERE
    return frozenset(fmt.tokenizer.id_of(name) for name in fmt.tokenizer.control_names if name in shown)


def fingerprint_of(key: tuple[str, bool], observations: Sequence[Observation], fmt: Format) -> Fingerprint:
    """Return the fingerprint that these observations prove."""
    provider, stream = key
    end = _vote(end_votes(observations, in_section=False))
    traits: dict[str, Trait] = {
        TraitName.END_COUNTED: end,
        TraitName.END_COUNTED_TOOLS: _vote(end_votes(observations, in_section=True)),
        TraitName.THINK_CLOSE_COUNTED: _vote(close_votes(observations, end_counted=end.value is True)),
        TraitName.UNCLOSED: _vote(unclosed_votes(observations)),
        TraitName.COUNT_NATIVE: _vote(native_votes(observations, fmt, end_counted=end.value is True)),
        TraitName.PROMPT_PREFIX: _vote(prefix_votes(observations, fmt)),
        TraitName.SEAM: _vote(seam_votes(observations, fmt), worst=("added", "stripped", "kept")),
        TraitName.LINE_ENDS: _vote(line_end_votes(observations), worst=("changed", "kept")),
        TraitName.DELTAS: _vote(delta_votes(observations, fmt), worst=("rechunked", "batches", "tokens", "none")),
        TraitName.MARKERS: _vote(marker_votes(observations, fmt)),
        TraitName.TOOL_IDS: _vote(call_votes(observations, call_id_vote), worst=CALLS_FROM_WORST[TraitName.TOOL_IDS]),
        TraitName.TOOL_ARGUMENTS: _vote(
            call_votes(observations, call_argument_vote), worst=CALLS_FROM_WORST[TraitName.TOOL_ARGUMENTS]
        ),
        **turn_end(observations, fmt),
        **think_lead(observations, fmt),
    }
    found = Fingerprint(
        provider, observations[0].completion.model or "", stream, {str(k): v for k, v in traits.items()}
    )
    return Fingerprint(provider, found.model, stream, {**found.traits, **same_count_mismatch(found, observations, fmt)})


def _vote(votes: Iterable[Json], *, worst: Sequence[str] = ()) -> Trait:
    """Return the value that all votes name, as a trait.

    Where `worst` ranks the values, it is the worst that was observed.
    """
    cast = list(votes)
    counted = Counter(str(vote) for vote in cast)
    if not cast:
        return Trait(None, 0, proven=False)
    for value in worst:
        if counted[value]:
            return Trait(value, len(cast), proven=len(cast) >= ENOUGH)
    return Trait(cast[0], len(cast), proven=len(counted) == 1 and len(cast) >= ENOUGH)


def end_votes(observations: Sequence[Observation], *, in_section: bool) -> Iterator[Json]:
    """Vote whether the end token is counted.

    By whole canonical instant answers, shown whole: only the end token can make a difference to the count.
    """
    for one in observations:
        if one.in_section == in_section and not one.closed and _tells(one) and not one.exchange.truth.cut:
            yield _missing(one, 0)


def close_votes(observations: Sequence[Observation], *, end_counted: bool) -> Iterator[Json]:
    """Vote whether `</think>` is counted.

    By answers that thought, once it is known whether the end token counts.
    """
    for one in observations:
        if one.closed and not one.in_section and _tells(one) and not one.exchange.truth.cut:
            yield _missing(one, 0 if end_counted else 1, one.think_tokens)


def _tells(one: Observation) -> bool:
    """Return whether only control tokens can change the count."""
    calls = bool(one.completion.tool_calls)
    whole = calls or (one.reasoning, one.content) == (one.completion.reasoning or "", one.completion.content or "")
    return whole and not one.exchange.truth.noncanonical


def _missing(one: Observation, known: int, more: int = 1) -> Json:
    """Return how the count falls short of the true one.

    True where it lacks just the `known` tokens, False where it lacks `more` beside them.
    """
    lacks = one.tokens - known - one.counted
    return {0: True, more: False}.get(lacks, f"{lacks} tokens are not counted")


def unclosed_votes(observations: Sequence[Observation]) -> Iterator[str]:
    """Vote on the field that shows thinking without `</think>`."""
    for one in observations:
        if one.exchange.prompt.thinking and not one.closed and one.exchange.truth.cut and one.reasoning:
            yield "content" if one.completion.content else "reasoning"


def native_votes(observations: Sequence[Observation], fmt: Format, *, end_counted: bool) -> Iterator[bool]:
    """Vote whether the count is of the emitted tokens.

    By non-canonical answers whose text has another number of tokens when it is encoded again.
    """
    for one in observations:
        truth = one.exchange.truth
        again = (
            len(fmt.tokenizer.encode(one.reasoning))
            + body_length(one.content, fmt)
            + one.think_tokens
            + (not truth.cut)
        )
        if truth.noncanonical and again != one.tokens:
            yield one.counted == one.tokens - (0 if end_counted or truth.cut else 1)


def body_length(content: str, fmt: Format) -> int:
    """Return the tokens of a content, its markers included."""
    markers = fmt.tool_markers()
    total = 0
    for name in markers:
        total += content.count(name)
        content = content.replace(name, "\x00")
    return total + sum(len(fmt.tokenizer.encode(piece)) for piece in content.split("\x00") if piece)


def prefix_votes(observations: Sequence[Observation], fmt: Format) -> Iterator[Json]:
    """Vote on the ids that are served before the prompt."""
    for one in observations:
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


def seam_votes(observations: Sequence[Observation], fmt: Format) -> Iterator[str]:
    """Vote on what happens to white space at seams.

    By answers in the layout whose true text has white space at an end of a field; content with a section votes only
    where the section is shown.
    """
    for one in observations:
        if one.completion.tool_calls or one.exchange.truth.cut or not _readable(one, fmt):
            continue
        fields = [(one.reasoning, one.completion.reasoning or "")]
        if not one.in_section or _shows_markers(one, fmt):
            fields.append((one.content, one.completion.content or ""))
        for true, shown in fields:
            if true != true.strip():
                # At both ends, or at one: some engines strip the end of the reasoning alone.
                stripped = shown in (true.strip(), true.rstrip(), true.lstrip())
                yield "kept" if shown == true else "stripped" if stripped else "added"


def _shows_markers(one: Observation, fmt: Format) -> bool:
    return any(name in (one.completion.content or "") for name in fmt.tool_markers())


def line_end_votes(observations: Sequence[Observation]) -> Iterator[str]:
    """Vote whether carriage returns are kept.

    No count shows them.
    """
    for one in observations:
        if "\r" in one.reasoning + one.content and not one.completion.tool_calls and not one.exchange.truth.cut:
            fields = ((one.reasoning, one.completion.reasoning or ""), (one.content, one.completion.content or ""))
            same = all(true.strip().count("\r") == shown.strip().count("\r") for true, shown in fields)
            yield "kept" if same else "changed"


def delta_votes(observations: Sequence[Observation], fmt: Format) -> Iterator[str]:
    """Vote on what deltas are.

    The tokens of a whole answer, batches of them, or neither.
    """
    for one in observations:
        deltas = one.completion.deltas
        if deltas is None:
            yield "none"
        elif not one.completion.tool_calls and not one.exchange.truth.cut and _readable(one, fmt):
            yield delta_kind(one, fmt)


def _readable(one: Observation, fmt: Format) -> bool:
    """Return whether the answer is in the layout, as text.

    Each visible token then has its place.
    """
    try:
        fmt.parts(one.exchange.truth.output_ids, thinking=one.exchange.prompt.thinking)
    except RefusedError:
        return False
    return True


def delta_kind(one: Observation, fmt: Format) -> str:
    """Return what an answer's deltas can at best be."""
    shown = _shown_ids(fmt) - {fmt.think_close_id}
    tokens = [t for t in one.exchange.truth.output_ids if t in shown or not fmt.tokenizer.is_control(t)]
    texts = [delta.text for delta in one.completion.deltas or ()]
    if "".join(texts) != one.reasoning + one.content or crossed_boundary(fmt.tokenizer, tokens, texts) is not None:
        return "rechunked"
    visible, held = 0, b""
    for token in tokens:
        held += fmt.tokenizer.token_bytes(token)
        text = held.decode("utf-8", errors="ignore")
        held = held[len(text.encode()) :]
        visible += bool(text)
    return "tokens" if len(texts) == visible else "batches"


def marker_votes(observations: Sequence[Observation], fmt: Format) -> Iterator[str]:
    """Vote on what a route does to a raw section."""
    for one in observations:
        if not one.in_section or one.exchange.trip.tools_sent or not _readable(one, fmt):
            continue
        if _shows_markers(one, fmt):
            yield "raw"
        elif one.completion.tool_calls:
            yield "parsed"
        else:
            content = one.completion.content or ""
            starts = [at for name in fmt.tool_markers() if (at := one.content.find(name)) >= 0]
            yield "dropped" if len(content) <= min(starts, default=len(one.content)) else "stripped"


def turn_end(observations: Sequence[Observation], fmt: Format) -> dict[str, Trait]:
    """Return the trait of the end token.

    Nothing where the family has one end token; else proven by enough answers with calls and enough without.
    """
    if len(fmt.end_ids) == 1:
        return {}
    votes = [list(turn_end_votes(observations, fmt, in_section=in_section)) for in_section in (False, True)]
    trait = _vote(vote for cast in votes for vote in cast)
    proven = trait.proven and all(len(cast) >= ENOUGH for cast in votes)
    return {str(TraitName.TURN_END): replace(trait, proven=proven)}


def turn_end_votes(observations: Sequence[Observation], fmt: Format, *, in_section: bool) -> Iterator[str]:
    """Vote on the end token.

    `by_role` for the one that the format gives such an answer, else what was emitted last.
    """
    markers = tuple(fmt.tool_markers().values()) if in_section else ()
    for one in observations:
        if one.in_section == in_section and not one.exchange.truth.cut:
            last = one.exchange.truth.output_ids[-1]
            yield "by_role" if last == fmt.end_id_for(markers) else fmt.tokenizer.name_of(last) or "no control token"


def think_lead(observations: Sequence[Observation], fmt: Format) -> dict[str, Trait]:
    """Return the trait of what precedes `<think>`.

    Nothing where the family writes nothing before it, or a whole header.
    """
    if fmt.opener(thinking=True) is not Opener.MODEL or len(fmt.opening_ids) == 1 or fmt.is_headed:
        return {}
    return {str(TraitName.THINK_LEAD): _vote(think_lead_votes(observations, fmt))}


def think_lead_votes(observations: Sequence[Observation], fmt: Format) -> Iterator[str]:
    """Vote on what precedes `<think>`.

    `written` for answers that open their thinking as the template does, else what stands there.
    """
    for one in observations:
        ids = one.exchange.truth.output_ids
        if fmt.think_open_id in ids:
            before = fmt.tokenizer.decode_bytes(ids[: ids.index(fmt.think_open_id)])
            begun = fmt.opened_with(ids, thinking=one.exchange.prompt.thinking)
            yield "written" if begun else repr(before.decode("utf-8", errors="replace"))


def call_votes(observations: Sequence[Observation], vote: Callable[[Observation], str]) -> Iterator[str]:
    """Vote with each answer whose calls came back parsed."""
    for one in observations:
        if one.completion.tool_calls:
            yield vote(one)


def call_id_vote(one: Observation) -> str:
    """Say what the route did to the calls' ids."""
    ids = [call.id for call in one.completion.tool_calls]
    if all(f"<|tool_call_begin|>{identity}<|tool_call_argument_begin|>" in one.content for identity in ids):
        return "verbatim"
    if all(f"functions.{identity}<" in one.content for identity in ids):
        return "prefix_cut"
    unnumbered = (identity.rpartition(":")[0] for identity in ids)
    kept = all(head and f"<|tool_call_begin|>{head}:" in one.content for head in unnumbered)
    return "renumbered" if kept else "invented"


def call_argument_vote(one: Observation) -> str:
    """Say what the route did to the calls' arguments."""
    texts = [call.arguments for call in one.completion.tool_calls]
    verbatim = all(f"<|tool_call_argument_begin|>{text}<|tool_call_end|>" in one.content for text in texts)
    return "verbatim" if verbatim else "reserialised"


def same_count_mismatch(found: Fingerprint, observations: Sequence[Observation], fmt: Format) -> Mapping[str, Trait]:
    """Return how often `counted` accepts wrong ids.

    The accepted answer has the same text and count; resegmented answers are left out.
    """
    wrong = n = 0
    for one in observations:
        if one.exchange.truth.resegmented is not None:
            continue
        try:
            stop, limit = ended(one.completion), one.exchange.max_tokens
            answer = Answer(one.exchange.prompt, one.completion, fmt, found, stop, limit)
            require_text_evidence(answer)
            ids = by_count(answer).ids
        except RefusedError:
            continue
        n += 1
        wrong += ids != one.exchange.truth.output_ids
    if not n:
        return {}
    value: Json = {"wrong": wrong, "n": n, "upper95": round(clopper_pearson_upper(wrong, n), 6)}
    return {str(TraitName.SAME_COUNT_MISMATCH): Trait(value, n, proven=n >= ENOUGH)}
