"""What real exchanges teach of real routes, held against what the whole corpus shows.

The corpus has 4,455 exchanges and this part of it 1,106, so no route has the twenty votes of a proof here; what a
route's votes name must still be what the corpus names. `wire.md` §4 and §5 have the numbers.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from pipeline.fingerprints.counts import count_traits, counting_of, native_traits
from pipeline.fingerprints.exchanges import read_exchanges
from pipeline.fingerprints.harvest import Harvest, harvest
from pipeline.fingerprints.learn import LearnedFingerprint, learn
from pipeline.fingerprints.models import formats_on
from pipeline.fingerprints.observations import Observation
from pipeline.formats.format import Format
from pipeline.formats.registry import open_format
from pipeline.proof.fingerprint import TraitName
from pipeline.records import Json

COUNTED = {"Moonshot AI", "Chutes", "BaseTen", "Fireworks", "Together", "Parasail", "Groq", "WandB"}
UNCOUNTED = {"SiliconFlow", "DeepInfra"}


@pytest.fixture(scope="module")
def gathered(shared: Path, kimi_format: Format) -> Harvest:
    """Every exchange, with Kimi's vocabulary."""
    formats = formats_on({"kimi-k2.5": kimi_format})
    return harvest(read_exchanges(shared / "recordings" / "exchanges.jsonl"), formats)


@pytest.fixture(scope="module")
def kimi(gathered: Harvest) -> list[LearnedFingerprint]:
    return learn(gathered)


def family(name: str) -> list[LearnedFingerprint]:
    """Fingerprints of another family, where `$DRAFTER_GATE_TOKENIZERS` holds its vocabulary."""
    held = [Path(place) / name for place in os.environ.get("DRAFTER_GATE_TOKENIZERS", "").split(os.pathsep) if place]
    if not any((place / "tokenizer.json").is_file() for place in held):
        pytest.skip(f"$DRAFTER_GATE_TOKENIZERS holds no {name}.")
    formats = formats_on({name: open_format(name)})
    path = Path(os.environ["DRAFTER_GATE_SHARED"]) / "recordings" / "exchanges.jsonl"
    return learn(harvest(read_exchanges(path), formats))


def votes(found: Iterable[LearnedFingerprint], trait: TraitName) -> dict[str, Counter[Json]]:
    """By provider, how many votes each value has over all of its models, dissenting ones too."""
    told: dict[str, Counter[Json]] = {}
    for one in found:
        if (learned := one.traits.get(trait)) is not None:
            counter = told.setdefault(one.route[0], Counter())
            counter[_name(learned.value)] += learned.trait.n
            counter.update(_name(ballot.value) for ballot in learned.against)
    return {provider: counter - Counter({None: counter[None]}) for provider, counter in told.items()}


def _name(value: Json) -> Json:
    return str(value) if isinstance(value, list | dict) else value


def of_models(found: Sequence[LearnedFingerprint], part: str) -> list[LearnedFingerprint]:
    return [one for one in found if part in one.route[1]]


def test_every_line_is_accounted_for(gathered: Harvest) -> None:
    assert (1106, 0) == (gathered.lines, len(gathered.bad))
    assert 0 < len(gathered.answers) < 1106


def test_nothing_is_proven_by_fewer_than_twenty_answers(kimi: Sequence[LearnedFingerprint]) -> None:
    traits = [trait.trait for one in kimi for trait in one.traits.values()]

    assert 20 > max(trait.n for trait in traits)
    assert {False} == {trait.proven for trait in traits}


def test_the_end_token_is_counted_where_the_corpus_says_so(kimi: Sequence[LearnedFingerprint]) -> None:
    """§4.1: +1 on eight providers, 0 on two."""
    told = votes(of_models(kimi, "kimi-k2-0905"), TraitName.END_COUNTED)

    assert {provider: {True} for provider in COUNTED & told.keys()} == {
        provider: set(told[provider]) for provider in COUNTED & told.keys()
    }
    assert {"SiliconFlow": {False: 4}, "DeepInfra": {False: 5}} == {
        name: told[name] for name in sorted(UNCOUNTED, reverse=True)
    }
    assert 6 <= len(COUNTED & told.keys())


def test_novita_counts_in_both_ways(kimi: Sequence[LearnedFingerprint]) -> None:
    """§4.1: 77 of 82. Two deltas that are two tokens, of which two are counted, leave no doubt of the other way."""
    (stream,) = (one for one in kimi if one.route == ("Novita", "moonshotai/kimi-k2-0905", True))
    trait = stream.traits[TraitName.END_COUNTED]

    assert (True, 1) == (trait.value, trait.trait.n)
    assert [(False, True)] == [(ballot.value, ballot.certain) for ballot in trait.against]


def test_answers_of_providers_that_count_alike_prove_it_together(gathered: Harvest) -> None:
    """As one route they would have more than twenty votes over all lengths."""
    direct = {"api.groq.com", "router.huggingface.co"}
    counted, uncounted = (pooled(gathered.answers, providers) for providers in (COUNTED | direct, UNCOUNTED))
    ends = [count_traits(seen)[TraitName.END_COUNTED] for seen in (counted, uncounted)]
    native = native_traits(counted, counting_of(count_traits(counted)), end_proven=True)[TraitName.COUNT_NATIVE]

    assert [(True, True), (False, False)] == [(end.value, end.trait.proven) for end in ends]
    assert (True, True) == (native.value, native.trait.proven)
    assert native.trait.n > ends[0].trait.n


def pooled(answers: Sequence[Observation], providers: set[str]) -> list[Observation]:
    return [one for one in answers if one.route[0] in providers and one.model.format.startswith("kimi-k2")]


def test_turns_with_tools_are_counted_as_the_corpus_says(kimi: Sequence[LearnedFingerprint]) -> None:
    """§4.2: 0 on Moonshot and Novita, +1 on Fireworks, WandB and BaseTen."""
    told = votes(of_models(kimi, "kimi-k2-0905"), TraitName.END_COUNTED_TOOLS)
    expected = {"Moonshot AI": False, "Novita": False, "Fireworks": True, "WandB": True, "BaseTen": True}

    assert {name: {value} for name, value in expected.items()} == {name: set(told[name]) for name in expected}


def test_ids_of_calls_are_what_the_corpus_says(kimi: Sequence[LearnedFingerprint]) -> None:
    """§5.3: the prefix is cut on Moonshot and Novita, ids are kept on five and invented on two."""
    told = votes(of_models(kimi, "kimi-k2"), TraitName.TOOL_IDS)
    expected = {
        **dict.fromkeys(("Moonshot AI", "Novita"), "prefix_cut"),
        **dict.fromkeys(("Chutes", "Fireworks", "Groq", "WandB", "BaseTen"), "verbatim"),
        **dict.fromkeys(("Together", "Nebius"), "invented"),
    }

    assert {name: {value} for name, value in expected.items()} == {name: set(told[name]) for name in expected}


def test_arguments_are_written_anew_where_the_corpus_says_so(kimi: Sequence[LearnedFingerprint]) -> None:
    """§5.3: compact on Groq, whose counts are of the spaced ones; verbatim elsewhere."""
    told = votes(of_models(kimi, "kimi-k2"), TraitName.TOOL_ARGUMENTS)
    verbatim = ("Moonshot AI", "Novita", "Fireworks", "WandB", "BaseTen")

    assert {"reserialised"} == set(told["Groq"])
    assert {name: {"verbatim"} for name in verbatim} == {name: set(told[name]) for name in verbatim}


def test_deltas_are_tokens_where_the_corpus_says_so(kimi: Sequence[LearnedFingerprint]) -> None:
    """§4.6: canonical tokens, one a delta."""
    told = votes((one for one in of_models(kimi, "kimi-k2") if one.route[2]), TraitName.DELTAS)
    names = ("Novita", "Chutes", "BaseTen", "Together", "Groq")

    assert {name: {"tokens"} for name in names} == {name: set(told[name]) for name in names}


def test_a_beginning_is_served_where_the_corpus_says_so(kimi: Sequence[LearnedFingerprint]) -> None:
    """§4.5, without tools: as rendered on three, `[BOS]` before it on three others."""
    told = votes(of_models(kimi, "kimi-k2-0905"), TraitName.PROMPT_PREFIX)

    assert [{"[]"}] * 3 == [set(told[name]) for name in ("Moonshot AI", "Fireworks", "WandB")]
    assert [{"['[BOS]']"}] * 3 == [set(told[name]) for name in ("AtlasCloud", "SiliconFlow", "Together")]


def test_thinking_of_kimi_k25_is_counted_as_the_corpus_says(kimi: Sequence[LearnedFingerprint]) -> None:
    """§4.3, §4.4, §5.2: two beside the text on Chutes, a space kept there and stripped by AtlasCloud.

    None beside it on ModelRun, whose thinking has a space at both ends: perhaps they are not the model's.
    """
    thinking = of_models(kimi, "kimi-k2.5-0127")
    close, seam = (votes(thinking, name) for name in (TraitName.THINK_CLOSE_COUNTED, TraitName.SEAM))
    own = votes(thinking, TraitName.REASONING_TOKENS)

    assert ({True: 2}, {}) == (close["Chutes"], close["ModelRun"])
    assert ["0 beside the text, or 2 if its white space was added"] == [
        ballot.why
        for one in thinking
        if one.route[0] == "ModelRun"
        for ballot in one.traits[TraitName.END_COUNTED].against
    ]
    assert ({"kept"}, {"kept"}, {"stripped"}) == tuple(set(seam[name]) for name in ("Chutes", "ModelRun", "AtlasCloud"))
    assert ({"native"}, {"estimate"}) == (set(own["Chutes"]), set(own["AtlasCloud"]))


def test_qwen_counts_as_the_corpus_says() -> None:
    """§4.1: +1 on Chutes, Google and GMICloud; 0 on BaseTen."""
    told = votes(of_models(family("qwen3"), "qwen/"), TraitName.END_COUNTED)

    assert [{True}, {True}, {True}, {False}] == [
        set(told[name]) for name in ("Chutes", "Google", "GMICloud", "BaseTen")
    ]


def test_deepseek_counts_and_leaks_as_the_corpus_says() -> None:
    """§4.1: +1, which a recount with the tokenizer's own beginning would give too. §5.1: a marker on Chutes."""
    found = family("deepseek-v3.1")
    told: Mapping[str, Counter[Json]] = votes(found, TraitName.END_COUNTED)
    native = [one.traits[TraitName.COUNT_NATIVE] for one in found if one.route[0] == "Novita"]
    leaks = votes(found, TraitName.LEAKS)

    assert ({True}, {True}) == (set(told["DeepInfra"]), set(told["Novita"]))
    assert all(not ballot.trait.proven for ballot in native)
    assert leaks["Chutes"][True] == 1


def test_the_headers_of_gpt_oss_are_counted_as_the_corpus_says() -> None:
    """§4.3: ten beside the text on most, nine on DeepInfra, none on SiliconFlow."""
    found = of_models(family("gpt-oss"), "openai/")
    ends, closes = (votes(found, name) for name in (TraitName.END_COUNTED, TraitName.THINK_CLOSE_COUNTED))
    ten = ("GMICloud", "Google", "Groq", "InferenceNet", "NCompass", "Nebius", "Parasail", "Phala", "WandB")

    assert [({True}, {True})] * len(ten) == [(set(ends[name]), set(closes[name])) for name in ten]
    assert ({False}, {True}) == (set(ends["DeepInfra"]), set(closes["DeepInfra"]))
    assert ({False}, {False}) == (set(ends["SiliconFlow"]), set(closes["SiliconFlow"]))
