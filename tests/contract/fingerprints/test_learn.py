"""Fingerprints learned from recorded exchanges: what proves a trait, and what speaks against it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.fixtures import harmony_bytes as bytewise
from harness.fixtures.exchanges import (
    arguments_of,
    call_ids,
    edged_ids,
    learned,
    line,
    shown,
    text_ids,
    thought_ids,
    with_count,
    words,
)
from harness.views.roundtrip import MODEL
from harness.views.view import PROFILES
from pipeline.fingerprints.exchanges import exchange_of
from pipeline.fingerprints.harvest import harvest
from pipeline.fingerprints.learn import counterexamples, learn
from pipeline.proof.fingerprint import Trait, TraitName, read_fingerprints
from pipeline.records import Json

pytestmark = pytest.mark.contract

UNSPOKEN = ("no answer says anything of it",)

# Thresholds


def test_twenty_answers_spread_over_lengths_prove_a_trait() -> None:
    found = learned(line(n, text_ids(n)) for n in range(20))

    assert ("Plain", MODEL, False) == found.route
    assert (True, 20, True) == shown(found.traits[TraitName.END_COUNTED])
    assert ([], 20, True) == shown(found.traits[TraitName.PROMPT_PREFIX])
    assert ("none", 20, True) == shown(found.traits[TraitName.DELTAS])


def test_nineteen_answers_print_a_value_and_prove_nothing() -> None:
    found = learned(line(n, text_ids(n)) for n in range(19))

    assert (True, 19, False) == shown(found.traits[TraitName.END_COUNTED])
    assert {False} == {trait.trait.proven for trait in found.traits.values()}


def test_answers_of_one_length_prove_nothing() -> None:
    lines = (line(n, text_ids(n, "It hums.")) for n in range(40))
    trait = learned(lines).traits[TraitName.END_COUNTED]

    assert (True, 40, False) == shown(trait)
    assert ("the lengths span 1 of 3 octaves",) == trait.lacks


def test_a_copied_exchange_has_one_say() -> None:
    found = learned([line(n, text_ids(n)) for n in range(10)] * 5)

    assert (True, 10, False) == shown(found.traits[TraitName.END_COUNTED])


# Dissent


def test_a_dissenter_by_count_alone_is_reported_without_a_vote() -> None:
    lines = [line(n, text_ids(n)) for n in range(25)]
    lines[3] = with_count(lines[3], +4)
    lines[4] = with_count(lines[4], -1)
    trait = learned(lines).traits[TraitName.END_COUNTED]

    assert (True, 23, True) == shown(trait)
    assert [(lines[3]["id"], None), (lines[4]["id"], False)] == [(one.id, one.value) for one in trait.against]


def test_more_dissent_than_one_in_ten_proves_nothing() -> None:
    lines = [line(n, text_ids(n)) for n in range(30)]
    for n in (3, 4, 5):
        lines[n] = with_count(lines[n], -1)
    trait = learned(lines).traits[TraitName.END_COUNTED]

    assert (True, 27, False) == shown(trait)
    assert ("3 of 30 name another value",) == trait.lacks


def test_one_dissenter_whose_deltas_show_it_proves_nothing() -> None:
    """Its deltas are as many tokens as were counted: no other text explains that its end token was not."""
    lines = [line(n, text_ids(n), stream=True) for n in range(40)]
    lines[3] = with_count(lines[3], -1)
    trait = learned(lines).traits[TraitName.END_COUNTED]

    assert (True, 39, False) == shown(trait)
    assert ("1 show another value by their bytes",) == trait.lacks


@pytest.mark.parametrize(
    "text, why",
    [
        ("half a \ufffd character", "U+FFFD stands in its text"),
        ("a <|tool_call_begin|> in words", "a tool marker stands in its text"),
        ("", "nothing was delivered"),
    ],
)
def test_an_answer_that_its_own_bytes_explain_is_no_dissenter(text: str, why: str) -> None:
    lines = [line(n, text_ids(n)) for n in range(20)]
    odd = json.loads(str(line(20, text_ids(20), tools=True)["body"]))
    odd["choices"][0]["message"]["content"] = text
    lines.append({**line(20, text_ids(20), tools=True), "body": json.dumps(odd)})
    trait = learned(lines).traits[TraitName.END_COUNTED]

    assert (True, 20, True) == shown(trait)
    assert [why] == [one.why for one in trait.against]


def test_what_is_learned_reads_as_a_fingerprint(tmp_path: Path) -> None:
    found = learned(line(n, edged_ids(n), thinking=True) for n in range(25))
    path = tmp_path / "fingerprint.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in found.lines()), encoding="utf-8")
    (read,) = read_fingerprints(path)

    assert ["provider", "model", "stream", "trait", "value", "n", "proven", "counterexamples"] == list(found.lines()[0])
    assert ("Plain", MODEL, False, "kept") == (read.provider, read.model, read.stream, read.require(TraitName.SEAM))


def test_needed_traits_that_no_answer_spoke_of_have_no_value(tmp_path: Path) -> None:
    """Harmony has two ends of a turn, a header before its thinking, and a prompt that says the day."""
    plain = learned(line(n, text_ids(n)) for n in range(2))
    sent: Json = {"model": "openai/gpt-oss-20b", "messages": [{"role": "user", "content": "hi"}]}
    lines: list[dict[str, Json]] = [{**line(n, text_ids(n)), "request": sent} for n in range(2)]
    bodies: list[dict[str, Json]] = [
        {**one, "body": str(one["body"]).replace(MODEL, "openai/gpt-oss-20b")} for one in lines
    ]
    (headed,) = learn(harvest(map(exchange_of, bodies), {"gpt-oss": bytewise.FORMAT}))
    path = tmp_path / "fingerprint.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in headed.lines()), encoding="utf-8")
    (read,) = read_fingerprints(path)

    assert [TraitName.UNCLOSED] == [name for name, one in plain.traits.items() if one.lacks[:1] == UNSPOKEN]
    needed = [TraitName.UNCLOSED, TraitName.TURN_END, TraitName.THINK_LEAD, TraitName.PROMPT_SETTINGS]
    assert needed == [name for name, one in headed.traits.items() if one.lacks == UNSPOKEN]
    assert [Trait(None, 0, proven=False)] * 4 == [read.traits[name] for name in needed]
    assert [{"id": None, "value": None, "why": UNSPOKEN[0]}] == counterexamples(headed.traits[TraitName.TURN_END])


@pytest.mark.parametrize("slug", ["siliconflow", "chutes"])
@pytest.mark.parametrize("stream", [True, False])
def test_the_emulated_routes_are_learned_without_their_ids(slug: str, *, stream: bool) -> None:
    profile = PROFILES[slug]
    lines = [line(n, text_ids(n, words(n, least=9)), profile, stream=stream) for n in range(25)]
    lines += [line(n, edged_ids(n), profile, stream=stream, thinking=True) for n in range(25, 50)]
    lines += [line(n, thought_ids(words(n), words(n)), profile, stream=stream, thinking=True) for n in range(50, 60)]
    lines += [line(n, call_ids(n, arguments_of(n)), profile, stream=stream, tools=True) for n in range(60, 85)]
    found = learned(lines)
    names = (TraitName.END_COUNTED, TraitName.THINK_CLOSE_COUNTED, TraitName.SEAM, TraitName.TOOL_IDS)

    assert [profile.end_counted, True, "kept", "verbatim"] == [found.traits[name].value for name in names]
    assert (profile.deltas.value if stream else "none") == found.traits[TraitName.DELTAS].value
    assert profile.tool_arguments == found.traits[TraitName.TOOL_ARGUMENTS].value
    assert {True} == {found.traits[name].trait.proven for name in names}
