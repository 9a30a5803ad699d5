"""The tiny target as other engines read it: its tokenizer.json, its template, its shape. Needs transformers."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random

import pytest
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from harness.tiny_target.__main__ import main
from harness.tiny_target.grammar import samples
from harness.tiny_target.layout import answer_ids, texts
from harness.tiny_target.prompts import PROMPTS
from harness.tiny_target.provenance import WEIGHTS, file_hashes
from harness.tiny_target.words import Split
from pipeline.base.prompts import read_prompts
from pipeline.formats.format import Format
from pipeline.formats.kimi.format import declare_tools
from pipeline.formats.registry import load_format
from pipeline.formats.tokenizer import load_tokenizer
from pipeline.records import Prompt


@pytest.fixture(scope="module")
def fmt() -> Format:
    return load_format("kimi-k2.5", load_tokenizer(WEIGHTS))


@pytest.fixture(scope="module")
def fast() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(WEIGHTS, local_files_only=True)


def unicode_texts(count: int) -> list[str]:
    rng = Random(4)
    ranges = ((32, 127), (9, 14), (0xA0, 0x3000), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF), (0, 0xD800))
    return ["".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randrange(1, 30))) for _ in range(count)]


def test_tokenizer_json_splits_as_our_class_does(fmt: Format, fast: PreTrainedTokenizerBase) -> None:
    corpus = [text for sample in islice(samples(9, Split.HELD_OUT), 300) for text in texts(sample)]
    for text in (*corpus, *unicode_texts(2000)):
        assert fmt.tokenizer.encode(text) == fast(text, add_special_tokens=False)["input_ids"], repr(text)


def test_tokenizer_json_knows_the_256_control_tokens(fmt: Format, fast: PreTrainedTokenizerBase) -> None:
    names = list(fmt.tokenizer.control_names)
    assert list(range(768, 1024)) == fast.convert_tokens_to_ids(names)


def test_skipping_special_tokens_drops_what_kimi_drops(fmt: Format, fast: PreTrainedTokenizerBase) -> None:
    one = fmt.tokenizer.id_of
    ids = [
        one("<think>"),
        *fmt.tokenizer.encode("a"),
        one("</think>"),
        one("<|tool_call_end|>"),
        one("<|im_end|>"),
        773,
    ]
    assert "<think>a</think><|tool_call_end|><|reserved_token_773|>" == fast.decode(ids, skip_special_tokens=True)


def test_the_template_renders_the_ids_of_the_format(fmt: Format, fast: PreTrainedTokenizerBase) -> None:
    shipped = [prompt for prompt in read_prompts(PROMPTS) if isinstance(prompt, Prompt)]
    for prompt in (*shipped, *(sample.prompt for sample in islice(samples(9, Split.TRAIN), 300))):
        told = {"tools_ts_str": declare_tools(prompt.tools)} if prompt.tools else {}
        rendered = fast.apply_chat_template(
            [dict(message) for message in prompt.messages],
            tools=[dict(tool) for tool in prompt.tools] or None,
            thinking=prompt.thinking,
            add_generation_prompt=True,
            tokenize=True,
            **told,
        )
        assert fmt.render(prompt) == tuple(rendered["input_ids"]), prompt.id


def test_a_finished_turn_renders_as_it_was_emitted(fmt: Format, fast: PreTrainedTokenizerBase) -> None:
    """A history with calls after the last plain answer keeps its reasoning, as Kimi's template does."""
    sample = next(s for s in samples(2, Split.TRAIN) if s.answer.calls and s.prompt.thinking and not s.answer.content)
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for c in sample.answer.calls
    ]
    turn = {"role": "assistant", "content": None, "reasoning_content": sample.answer.reasoning, "tool_calls": calls}
    rendered = fast.apply_chat_template(
        [*(dict(message) for message in sample.prompt.messages), turn],
        tools=[dict(tool) for tool in sample.prompt.tools],
        tools_ts_str=declare_tools(sample.prompt.tools),
        tokenize=True,
    )
    emitted = answer_ids(fmt.tokenizer, sample.answer, thinking=True)
    assert fmt.render(sample.prompt) + emitted == tuple(rendered["input_ids"])


def test_every_engine_can_serve_the_shape() -> None:
    config = AutoConfig.from_pretrained(WEIGHTS, local_files_only=True)
    assert ["LlamaForCausalLM"] == config.architectures
    assert (32, 1024, 770) == (config.head_dim, config.vocab_size, config.eos_token_id)
    layers = config.num_hidden_layers
    assert 8 <= layers
    assert 3 == len({2, layers // 2, layers - 3}), "EAGLE-3's default layer ids collide"


def test_two_runs_of_the_recipe_give_the_same_files(tmp_path: Path) -> None:
    """Three steps each; the committed weights are the same recipe, longer."""
    first, second = tmp_path / "first", tmp_path / "second"
    assert [0, 0] == [main(["train", "--out", str(out), "--steps", "3"]) for out in (first, second)]
    assert file_hashes(first) == file_hashes(second)
    assert set(file_hashes(first)) == set(file_hashes(WEIGHTS))
    vocabulary = ("tiktoken.model", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json")
    assert {name: file_hashes(WEIGHTS)[name] for name in vocabulary}.items() <= file_hashes(first).items()


def test_the_model_keeps_its_limits(capsys: pytest.CaptureFixture[str]) -> None:
    """At least 95 % valid and 0.5 to 5 % non-canonical, on the committed weights."""
    assert 0 == main(["check", "--count", "400"]), capsys.readouterr().err
