"""Count needless refusals of recorded answers, by reason.

`python -m harness refusals [EXCHANGES.jsonl]`

Guarantees: every recorded chat completion of a model whose vocabulary is found is read, and is accepted or refused as
`reconstruct` would. Fingerprints are those that `python -m pipeline fingerprint` learns from the same file. So few
answers prove no trait: what was learned is taken for proven, and what was not learned has its kindest value, with which
most answers of a faithful route are accepted (`KINDEST`). So what is still refused is refused for what the answer says.

A refusal is needless where the answer is well-formed and its counts agree: it says how it ended, its text holds no
U+FFFD and no marker that may be text, and the tokens of its text in the family's layout are as many as were counted,
as are those of its prompt. Of such an answer another reading exists only where two faults cancel. This is judged by the
sums of the fingerprints' votes (`TokenSum`), not by the proof. An answer to a prompt that is not rendered here, or with
calls that do not show how the model wrote them, has no such sum: its refusal is not called needless, and is counted.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.screen import say, show, show_json, show_text
from pipeline.fingerprints.exchanges import ExchangesError
from pipeline.fingerprints.harvest import Harvest, harvest_of_file
from pipeline.fingerprints.learn import LearnedFingerprint, learn
from pipeline.fingerprints.observations import Observation, requested_prompt
from pipeline.formats.registry import FORMATS, find_tokenizer, open_format
from pipeline.proof.fingerprint import Fingerprint, Trait, TraitName
from pipeline.proof.reconstruct import Expected, reconstruct
from pipeline.records import Json, Prompt, Reason, RefusedError, TokenRow

RECORDINGS = Path("recordings") / "exchanges.jsonl"
MANY = 1000
"""Answers that a trait is said to be proven on."""
KINDEST: Mapping[TraitName, Json] = {
    TraitName.END_COUNTED: True,
    TraitName.END_COUNTED_TOOLS: True,
    TraitName.THINK_CLOSE_COUNTED: True,
    TraitName.UNCLOSED: "reasoning",
    TraitName.COUNT_NATIVE: True,
    TraitName.PROMPT_PREFIX: [],
    TraitName.PROMPT_PREFIX_TOOLS: [],
    TraitName.SEAM: "kept",
    TraitName.LINE_ENDS: "kept",
    TraitName.MARKERS: "raw",
    TraitName.LEAKS: False,
    TraitName.TOOL_IDS: "verbatim",
    TraitName.TOOL_ARGUMENTS: "verbatim",
    TraitName.TURN_END: "by_role",
    TraitName.THINK_LEAD: "written",
}
"""Values of a route that shows and counts everything; a stream's deltas are whole tokens or prove nothing."""


@dataclass(frozen=True, slots=True)
class RefusalVerdict:
    """What became of one recorded answer; None is accepted."""

    id: str
    family: str
    reason: Reason | None
    needless: bool = False
    detail: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 2 where there is nothing to read."""
    parser = argparse.ArgumentParser(prog="python -m harness refusals", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("exchanges", type=Path, nargs="?", help=f"default: $DRAFTER_GATE_SHARED/{RECORDINGS}")
    parser.add_argument("--against", type=Path, metavar="FILE", help="what --json printed before; prints both")
    parser.add_argument("--needless", action="store_true", help="list the needless refusals")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    path = options.exchanges or Path(os.environ.get("DRAFTER_GATE_SHARED", "")) / RECORDINGS
    try:
        before = json.loads(options.against.read_bytes()) if options.against else {}
        found = harvested(path)
    except (ExchangesError, OSError, ValueError) as error:
        say(f"error: {error}")
        return 2
    verdicts = [verdict(one, prompt, fingerprint) for one, prompt, fingerprint in cases(found)]
    report = tally(verdicts)
    if options.json:
        show_json(report)
    else:
        show_text(table(report, before))
    if options.needless:
        show(*(f"{one.id} {one.family}: {one.reason} ({one.detail})" for one in verdicts if one.needless))
    return 0


def harvested(path: Path) -> Harvest:
    """Return the answers of a file in every family whose vocabulary is found.

    Raises ExchangesError.
    """
    return harvest_of_file(path, {name: open_format(name) for name in FORMATS if find_tokenizer(name) is not None})


def cases(found: Harvest) -> Iterator[tuple[Observation, Prompt, Fingerprint]]:
    """Yield each answer with its prompt and its kindest fingerprint.

    An answer to what makes no prompt is left out.
    """
    routes = {one.route: kindest(one) for one in learn(found)}
    for one in found.answers:
        try:
            prompt = requested_prompt(one.exchange.id, one.request, one.model)
        except RefusedError:
            continue
        yield one, prompt, routes[one.route]


def kindest(learned: LearnedFingerprint) -> Fingerprint:
    """Return what was learned as proven, and the rest as kind as can be.

    A prefix that no control token explains was learned of another prompt than ours, and is no trait.
    """
    values: dict[TraitName, Json] = dict(KINDEST)
    for name, one in learned.traits.items():
        is_number = isinstance(one.value, int) and not isinstance(one.value, bool)
        if one.value is not None and not is_number:
            values[name] = one.value
    provider, model, stream = learned.route
    return Fingerprint(
        provider, model, stream, {str(name): Trait(value, MANY, proven=True) for name, value in values.items()}
    )


def verdict(one: Observation, prompt: Prompt, fingerprint: Fingerprint) -> RefusalVerdict:
    """Reconstruct one answer and say whether its refusal is needless."""
    expected = Expected(max_tokens=one.max_tokens, stop=bool(one.request.get("stop")))
    row = reconstruct(prompt, one.completion, one.fmt, fingerprint, expected)
    if isinstance(row, TokenRow):
        return RefusalVerdict(one.exchange.id, one.model.format, None)
    return RefusalVerdict(one.exchange.id, one.model.format, row.reason, agrees(one, fingerprint), row.detail)


def agrees(one: Observation, fingerprint: Fingerprint) -> bool:
    """Return whether an answer is well-formed and its counts agree."""
    found, usage, prompt_ids = one.sum, one.completion.usage, one.prompt_ids
    if found is None or usage is None or prompt_ids is None:
        return False
    end = fingerprint.proven(TraitName.END_COUNTED_TOOLS if found.section else TraitName.END_COUNTED)
    think = found.think if fingerprint.proven(TraitName.THINK_CLOSE_COUNTED) else 0
    prefix = fingerprint.proven(TraitName.PROMPT_PREFIX_TOOLS if one.tools_sent else TraitName.PROMPT_PREFIX)
    served = len(prompt_ids) + (len(prefix) if isinstance(prefix, list) else 0)
    return found.extra == think + (found.ended if end else 0) and usage.prompt_tokens == served


def tally(verdicts: Sequence[RefusalVerdict]) -> dict[str, dict[str, dict[str, int]]]:
    """Return accepted, refused and needless answers of each family.

    `kimi` is all of Kimi's releases together.
    """
    found: dict[str, dict[str, Counter[str]]] = {}
    for one in verdicts:
        families = [one.family, *(["kimi"] if one.family.startswith("kimi") else []), "all"]
        for family in families:
            counts = found.setdefault(family, {"answers": Counter(), "refused": Counter(), "needless": Counter()})
            counts["answers"]["accepted" if one.reason is None else "refused"] += 1
            if one.reason is not None:
                counts["refused"][str(one.reason)] += 1
                counts["needless"][str(one.reason)] += one.needless
    return {
        family: {kind: {name: n for name, n in sorted(counter.items()) if n} for kind, counter in counts.items()}
        for family, counts in sorted(found.items())
    }


def table(
    report: Mapping[str, Mapping[str, Mapping[str, int]]], before: Mapping[str, Mapping[str, Mapping[str, int]]]
) -> str:
    """Return a family a paragraph, with what was before in brackets."""
    lines: list[str] = []
    for family, counts in report.items():
        old = before.get(family, {})

        def told(
            kind: str,
            name: str,
            counts: Mapping[str, Mapping[str, int]] = counts,
            old: Mapping[str, Mapping[str, int]] = old,
        ) -> str:
            number, was = counts[kind].get(name, 0), old.get(kind, {}).get(name, 0)
            return f"{number}" + (f" (before {was})" if before else "")

        total, needless = sum(counts["answers"].values()), sum(counts["needless"].values())
        was = f" (before {sum(old.get('needless', {}).values())})" if before else ""
        lines.append(
            f"{family}: {total} answers, accepted {told('answers', 'accepted')}, needlessly refused {needless}{was}"
        )
        reasons = sorted({*counts["refused"], *old.get("refused", {})})
        lines += [f"  {name:20} {told('refused', name)}, needless {told('needless', name)}" for name in reasons]
    return "\n".join(lines) + "\n"
