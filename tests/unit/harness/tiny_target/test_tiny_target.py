"""The tiny target's grammar, vocabulary and committed files, as far as they need no torch."""

from __future__ import annotations

import json
from itertools import islice
from random import Random

import pytest

from harness.tiny_target.grammar import samples
from harness.tiny_target.layout import answer_ids, taught_ids, texts
from harness.tiny_target.prompts import COUNT, FEATURES, PROMPTS, line, shipped
from harness.tiny_target.provenance import NAME, WEIGHTS, file_hashes, recipe_digest
from harness.tiny_target.samples import Answer, call
from harness.tiny_target.vocabulary import NAMED, NOT_SPECIAL, merge_word, tokenizer_config, train_ranks
from harness.tiny_target.words import Split
from harness.views.resplit import is_canonical
from pipeline.base.prompts import read_prompts
from pipeline.formats.format import Format
from pipeline.formats.registry import load_format
from pipeline.formats.tokenizer import Tokenizer, load_tokenizer
from pipeline.records import Prompt

REMAKE = "run: python -m harness tiny-target train"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(WEIGHTS)


@pytest.fixture(scope="module")
def fmt(tokenizer: Tokenizer) -> Format:
    return load_format("kimi-k2.5", tokenizer)


def test_the_same_seed_gives_the_same_samples() -> None:
    first, second = (list(islice(samples(3, Split.TRAIN), 50)) for _ in range(2))
    assert first == second


def test_no_last_question_of_one_split_occurs_in_the_other() -> None:
    taught, held = (
        {str([m for m in sample.prompt.messages if m["role"] == "user"][-1]["content"]) for sample in drawn}
        for drawn in (islice(samples(5, Split.TRAIN), 6000), islice(samples(5, Split.HELD_OUT), 1500))
    )
    assert set() == taught & held


@pytest.mark.parametrize("feature", sorted(FEATURES))
def test_the_grammar_speaks_of_every_feature(feature: str) -> None:
    prompts = [sample.prompt for sample in islice(samples(1, Split.HELD_OUT), 300)]
    assert any(FEATURES[feature](prompt) for prompt in prompts)


def test_the_first_merge_is_the_most_frequent_smallest_pair() -> None:
    """The first merge is the most frequent pair and ties go to the smaller."""
    ranks = train_ranks(["ab ab ab", "cd cd cd", "ef"], 259)
    assert [b"ab", b"cd", b" ab"] == list(ranks)[256:]


def test_a_vocabulary_larger_than_its_texts_is_refused() -> None:
    with pytest.raises(ValueError, match="hold only 257 tokens, 300 are wanted"):
        train_ranks(["ab"], 300)


def test_merging_goes_from_the_left() -> None:
    assert (b"aa", b"a") == merge_word((b"a", b"a", b"a"), (b"a", b"a"))


def test_control_tokens_stand_in_kimis_order_with_kimis_flags() -> None:
    added = tokenizer_config(768)["added_tokens_decoder"]
    assert isinstance(added, dict)
    assert 23 == len(added)
    assert {"<|im_end|>": 770, "<think>": 790, "</think>": 791, "[PAD]": 1023} == {
        entry["content"]: int(token)
        for token, entry in added.items()
        if isinstance(entry, dict) and entry["content"] in {"<|im_end|>", "<think>", "</think>", "[PAD]"}
    }
    plain = {NAMED[place] for place in NOT_SPECIAL}
    assert plain == {e["content"] for e in added.values() if isinstance(e, dict) and not e["special"]}


def test_an_answer_is_laid_out_with_control_tokens_by_id(tokenizer: Tokenizer) -> None:
    ids = answer_ids(tokenizer, Answer("</think>", "", (call(0, "add", {"a": 1}),)), thinking=True)
    assert (
        b"</think></think><|tool_calls_section_begin|><|tool_call_begin|>functions.add:0"
        b'<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'
    ) == tokenizer.decode_bytes(ids)
    assert 1 == ids.count(tokenizer.id_of("</think>"))


def test_what_is_taught_is_what_the_format_assembles(fmt: Format) -> None:
    for sample in islice(samples(8, Split.TRAIN), 300):
        thinking = sample.prompt.thinking
        ids = answer_ids(fmt.tokenizer, sample.answer, thinking=thinking)
        assert ids == fmt.assemble(fmt.parse(ids, thinking=thinking)).ids


def test_a_share_of_the_taught_answers_is_resplit(tokenizer: Tokenizer) -> None:
    drawn = list(islice(samples(8, Split.TRAIN), 200))
    loose = [taught_ids(tokenizer, sample, Random(number), loose=0.5) for number, sample in enumerate(drawn)]
    assert 60 < sum(not is_canonical(tokenizer, ids) for ids in loose) < 140


def test_the_vocabulary_is_the_one_that_the_recipe_makes(tokenizer: Tokenizer) -> None:
    run = json.loads((WEIGHTS / NAME).read_text(encoding="utf-8"))["recipe"]
    taught = islice(samples(run["seed"], Split.TRAIN), run["spelled"])
    ranks = train_ranks(text for sample in taught for text in texts(sample))
    assert ranks == {token: tokenizer.id_of_bytes(token) for token in ranks}, REMAKE


def test_provenance_names_every_file_and_its_hash() -> None:
    told = json.loads((WEIGHTS / NAME).read_text(encoding="utf-8"))["files"]
    assert told == file_hashes(WEIGHTS), REMAKE


def test_provenance_names_the_recipe_as_it_stands() -> None:
    told = json.loads((WEIGHTS / NAME).read_text(encoding="utf-8"))
    assert told["recipe_sha256"] == recipe_digest(), REMAKE


def test_the_weights_are_small() -> None:
    assert (WEIGHTS / "model.safetensors").stat().st_size <= 4_000_000


def test_the_shipped_prompts_are_the_ones_that_the_grammar_gives() -> None:
    assert "".join(map(line, shipped())) == PROMPTS.read_text(encoding="utf-8"), (
        "run: python -m harness tiny-target prompts"
    )


def test_the_shipped_prompts_cover_every_feature_and_render(fmt: Format) -> None:
    prompts = [prompt for prompt in read_prompts(PROMPTS) if isinstance(prompt, Prompt)]
    assert COUNT == len(prompts) == len({prompt.id for prompt in prompts})
    assert set(FEATURES) == {name for name, has in FEATURES.items() if sum(map(has, prompts)) > 1}
    assert all(fmt.special_text(prompt) is None and fmt.render(prompt) for prompt in prompts)
