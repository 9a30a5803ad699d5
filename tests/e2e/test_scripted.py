"""The scripted model says again what its prompt says, whatever the ids are. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from harness.engines.scripted_model import PAD, SCRIPTS, SPAN, write_scripted
from pipeline.formats.registry import load_format
from pipeline.formats.tokenizer import load_tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted(tmp_path_factory.mktemp("scripted"))


Says = Callable[[list[int], int], list[int]]
"""What greedy decoding emits after a prompt that holds the script and is filled up with an id."""


@pytest.fixture(scope="module")
def says(folder: Path) -> Iterator[Says]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def emitted(script: list[int], pad: int) -> list[int]:
        prompt = torch.tensor([[*script, *[pad] * (SPAN - len(script))]])
        mask = torch.ones_like(prompt)
        found = model.generate(prompt, attention_mask=mask, max_new_tokens=len(script), do_sample=False)
        return [int(token) for token in found[0][SPAN:]]

    yield emitted
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ["two_calls", "repeats", "cut_in_character", "spelled_section"])
def test_a_script_is_said_word_for_word(folder: Path, says: Says, name: str) -> None:
    fmt = load_format("tiny-kimi", load_tokenizer(folder))
    script = list(SCRIPTS[name].emitted(fmt))

    assert script == says(script, fmt.tokenizer.id_of(PAD))


def test_any_ids_are_said_and_the_same_one_as_often_as_it_comes(says: Says) -> None:
    drawn = Random(3)
    script = [drawn.choice([779, 781, 46, drawn.randrange(768)]) for _ in range(SPAN - 2)]

    assert script == says(script, 1023)
