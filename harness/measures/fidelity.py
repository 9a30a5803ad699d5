"""Compare accepted rows with the ids that were sampled.

`python -m harness fidelity`

Guarantees: judged by the committed fingerprints, on answers on which they were not measured. Exit 1 if a row of any
grade but `counted` is wrong, or if a wrong `counted` row is anything else than a re-split of the same length. A refusal
counts as needless unless the loss that it names is there: other ids that the route would have shown alike, text that it
really strips, counts that it really takes from the text.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.emulator.survey import SurveyedAnswer, SurveyError, questions, survey
from harness.strategies.properties import is_counted_risk
from harness.views.roundtrip import shown_of, trips
from harness.views.view import SHOWN_CONTROL, SHOWN_ELSEWHERE, Shown
from pipeline.base.binomial import clopper_pearson_upper
from pipeline.base.paths import ROOT
from pipeline.base.screen import say, show_text
from pipeline.formats.format import Format
from pipeline.formats.registry import open_format
from pipeline.proof.fingerprint import Fingerprint, TraitName, committed_fingerprints, fingerprint_of
from pipeline.proof.oracle import OracleTally, judged
from pipeline.proof.reconstruct import Expected, reconstruct
from pipeline.records import Completion, Evidence, Ids, Reason, Refusal, RefusedError, TokenRow

EACH = 60
RESEGMENT = 0.05
SEED = 70_000_000


@dataclass(frozen=True, slots=True)
class FidelityVerdict:
    """One exchange, its row, and what the oracle says."""

    exchange: SurveyedAnswer
    row: TokenRow | Refusal
    oracle: str | None = None

    @property
    def wrong(self) -> bool:
        """Whether ids were accepted that were not sampled."""
        return self.exchange.is_wrong(self.row)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 1 for a wrong row, 2 where nothing answered.

    The stated risk of `counted` is not wrong.
    """
    parser = argparse.ArgumentParser(prog="python -m harness fidelity", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--each", type=int, default=EACH, metavar="N", help=f"answers a way to ask (default {EACH})")
    parser.add_argument("--resegment", type=float, default=RESEGMENT, metavar="P", help="share of answers re-split")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        verdicts = measure(options.each, options.resegment, options.seed)
    except SurveyError as error:
        say(f"error: {error}")
        return 2
    result = report(verdicts)
    show_text(json.dumps(result) if options.json else table(result))
    return 1 if result["wrong"] else 0


def measure(each: int, resegment: float, seed: int) -> list[FidelityVerdict]:
    """Survey every way to ask, and reconstruct each answer."""
    fmt = open_format("tiny-kimi")
    known = committed_fingerprints(ROOT)
    exchanges = survey(list(questions(trips(), each, seed=seed)), fmt, resegment=resegment)
    return [_verdict(exchange, fmt, known) for exchange in exchanges]


def _verdict(exchange: SurveyedAnswer, fmt: Format, known: Sequence[Fingerprint]) -> FidelityVerdict:
    row, completion = _rebuilt(exchange, fmt, known), exchange.completion
    if not isinstance(completion, Completion) or completion.token_ids is None or not isinstance(row, TokenRow):
        return FidelityVerdict(exchange, row)
    asked = Expected(max_tokens=exchange.max_tokens)
    return FidelityVerdict(exchange, row, judged(row, exchange.prompt, completion, fmt, known, asked))


def _rebuilt(exchange: SurveyedAnswer, fmt: Format, known: Sequence[Fingerprint]) -> TokenRow | Refusal:
    completion = exchange.completion
    if not isinstance(completion, Completion):
        return completion.refusal
    try:
        fingerprint = fingerprint_of(completion, known)
    except RefusedError as error:
        return error.refusal
    asked = Expected(exchange.trip.profile.name, fingerprint.model, exchange.max_tokens)
    return reconstruct(exchange.prompt, completion, fmt, fingerprint, asked)


def report(verdicts: Sequence[FidelityVerdict]) -> dict[str, object]:
    """Return counts by grade and by reason.

    `wrong` lists rows beyond the stated risk.
    """
    fmt = open_format("tiny-kimi")
    accepted = [verdict for verdict in verdicts if isinstance(verdict.row, TokenRow)]
    refused = [verdict for verdict in verdicts if isinstance(verdict.row, Refusal)]
    grades: dict[str, list[FidelityVerdict]] = {str(grade): [] for grade in Evidence}
    for verdict in accepted:
        if isinstance(verdict.row, TokenRow):
            grades[str(verdict.row.evidence)].append(verdict)
    wrong = [verdict for verdict in accepted if verdict.wrong and not _stated(verdict, fmt)]
    return {
        "answers": len(verdicts),
        "non_canonical": sum(verdict.exchange.truth.noncanonical for verdict in verdicts),
        "accepted": {name: {"rows": len(rows), "wrong": sum(v.wrong for v in rows)} for name, rows in grades.items()},
        "wrong": [
            {
                "asked": verdict.exchange.prompt.id,
                "true": verdict.exchange.truth.output_ids,
                "rebuilt": getattr(verdict.row, "output_ids", None),
            }
            for verdict in wrong
        ],
        "counted": _counted(grades[Evidence.COUNTED]),
        "refused": _refusals(refused, fmt),
        "oracle": _oracle(verdicts),
    }


def _oracle(verdicts: Iterable[FidelityVerdict]) -> dict[str, object]:
    """Return rebuilds from text alone, by grade and reason.

    Of the answers with returned ids.
    """
    tally = OracleTally(Counter(verdict.oracle for verdict in verdicts if verdict.oracle is not None))
    rates = {name: f"{equal}/{total}" for name, (equal, total) in tally.rates().items()}
    return {"answers": tally.verdicts.total(), "equal": rates, "refused": tally.refusals()}


def _stated(verdict: FidelityVerdict, fmt: Format) -> bool:
    """Whether a wrong row is the risk that `counted` states."""
    row, exchange = verdict.row, verdict.exchange
    truth, thinking = exchange.truth, exchange.prompt.thinking
    return (
        isinstance(row, TokenRow)
        and row.prompt_ids == truth.prompt_ids
        and is_counted_risk(fmt, row, truth.output_ids, exchange.trip, thinking=thinking)
    )


def _counted(rows: Sequence[FidelityVerdict]) -> dict[str, object]:
    wrong = sum(verdict.wrong for verdict in rows)
    natural = [verdict for verdict in rows if verdict.exchange.truth.resegmented is None]
    missed = sum(verdict.wrong for verdict in natural)
    stated = {
        f"{one.provider} {'stream' if one.stream else 'json'}": one.proven(TraitName.SAME_COUNT_MISMATCH)
        for one in committed_fingerprints(ROOT)
        if one.proven(TraitName.SAME_COUNT_MISMATCH) is not None
    }
    return {
        "wrong_with_resplits": f"{wrong}/{len(rows)}",
        "wrong_as_sampled": f"{missed}/{len(natural)}",
        "upper95_as_sampled": round(clopper_pearson_upper(missed, len(natural)), 6) if natural else None,
        "stated_by_manifests": stated,
    }


def _refusals(refused: Sequence[FidelityVerdict], fmt: Format) -> dict[str, dict[str, int]]:
    """Return refused rows by reason, and how many were provable.

    Provable: their own text, canonical, in the layout.
    """
    rows: dict[str, Counter[str]] = {}
    for verdict in refused:
        if isinstance(verdict.row, Refusal):
            counter = rows.setdefault(str(verdict.row.reason), Counter())
            counter["rows"] += 1
            counter["provable"] += needless(verdict.exchange, verdict.row, fmt)
    return {reason: {"rows": count["rows"], "provable": count["provable"]} for reason, count in sorted(rows.items())}


def table(result: dict[str, object]) -> str:
    """Return the report as lines."""
    lines = [f"answers {result['answers']}, sampled non-canonically {result['non_canonical']}", ""]
    for key in ("accepted", "refused"):
        value = result[key]
        lines.append(key)
        lines += [f"  {name:22} {counts}" for name, counts in value.items()] if isinstance(value, dict) else []
    lines.append("counted")
    counted = result["counted"]
    lines += [f"  {name:22} {value}" for name, value in counted.items()] if isinstance(counted, dict) else []
    lines.append("oracle")
    oracle = result["oracle"]
    lines += [f"  {name:22} {value}" for name, value in oracle.items()] if isinstance(oracle, dict) else []
    lines.append(f"wrong beyond the stated risk: {result['wrong']}")
    return "\n".join(lines) + "\n"


def needless(exchange: SurveyedAnswer, refusal: Refusal, fmt: Format) -> bool:
    """Whether the answer leaves one sequence of ids open.

    It is canonical, in the layout, and shown whole.
    """
    if exchange.truth.noncanonical:
        return False
    try:
        fmt.parse(exchange.truth.output_ids, thinking=exchange.prompt.thinking)
    except RefusedError:
        return False
    loses = _LOSSES.get(refusal.reason)
    return loses is None or not loses(exchange, fmt)


def _text_alone(exchange: SurveyedAnswer) -> bool:
    return not exchange.trip.ids and not exchange.trip.logprobs


def _strips(exchange: SurveyedAnswer, _: Format) -> bool:
    return _text_alone(exchange) and not exchange.trip.keeps_text


def _recounts(exchange: SurveyedAnswer, _: Format) -> bool:
    return _text_alone(exchange) and exchange.trip.stream and exchange.trip.profile.recounts_stream


def _holds_replacement(exchange: SurveyedAnswer, _: Format) -> bool:
    answer = exchange.completion
    return isinstance(answer, Completion) and "\ufffd" in (answer.reasoning or "") + (answer.content or "")


def _rewrites_calls(exchange: SurveyedAnswer, _: Format) -> bool:
    """Whether parsed calls may have been written anew.

    For what came before them, or for a cut.
    """
    profile = exchange.trip.profile
    verbatim = (profile.tool_ids, profile.tool_arguments) == ("verbatim", "verbatim")
    earlier = any(message.get("tool_calls") for message in exchange.prompt.messages)
    return exchange.trip.tools_sent and _text_alone(exchange) and (not verbatim or earlier or exchange.truth.cut)


def _has_twin(exchange: SurveyedAnswer, fmt: Format) -> bool:
    """Whether the route shows other ids exactly alike.

    With the same deltas and the same count.
    """
    ids = exchange.truth.output_ids
    shown = _shown(ids, exchange, fmt)
    return any(other != ids and _shown(other, exchange, fmt) == shown for other in neighbours(ids, fmt))


def _shown(ids: Ids, exchange: SurveyedAnswer, fmt: Format) -> Shown:
    shown = shown_of(ids, exchange.prompt, exchange.trip, fmt)
    return shown if exchange.trip.logprobs else replace(shown, logprobs=())


def neighbours(ids: Ids, fmt: Format) -> Iterator[Ids]:
    """Yield ids that differ in one token.

    A control token becomes one that does not show, the last token one that begins with its bytes.
    """
    tokenizer = fmt.tokenizer
    names = tokenizer.control_names
    hidden = [tokenizer.id_of(name) for name in names if name not in SHOWN_CONTROL | SHOWN_ELSEWHERE]
    unseen = next((token for token in hidden if token not in fmt.end_ids), None)
    for position, token in enumerate(ids):
        if tokenizer.is_control(token):
            others = fmt.end_ids if token in fmt.end_ids else {unseen} - {None}
            yield from ((*ids[:position], other, *ids[position + 1 :]) for other in others if other is not None)
    if ids and not tokenizer.is_control(ids[-1]):
        last = tokenizer.token_bytes(ids[-1])
        yield from ((*ids[:-1], token) for token in tokenizer.base_ids if tokenizer.token_bytes(token).startswith(last))


_LOSSES: Mapping[Reason, Callable[[SurveyedAnswer, Format], bool]] = {
    Reason.SEAM_LOSSY: _strips,
    Reason.STRUCTURED_CALLS: _rewrites_calls,
    Reason.COUNT_NOT_NATIVE: _recounts,
    Reason.REPLACEMENT_CHAR: _holds_replacement,
    Reason.AMBIGUOUS_LAYOUT: _has_twin,
}
"""What each reason claims of the answer; every other reason claims that its ids are none that could be proven."""
