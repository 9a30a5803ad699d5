"""A Llama that repeats its prompt, and scripts for it.

An engine that serves it emits any ids that we choose, through its real parsers. The scripts are awkward completions:
what parsers of text lose, keep or make up.

Guarantees: after a prompt of exactly `SPAN` tokens, greedy decoding emits the prompt from its first token on, whatever
the ids are. One attention head looks `SPAN - 1` tokens back, which its rotary positions make exact; the MLPs are zero.
Tokenizer and control tokens are the tiny target's. The template writes the last message and fills up with `[PAD]`. A
script is text with control tokens by name, or plain ids where that text would be read otherwise. Whole scripts end with
the end token, cut ones at their length. Writing the weights needs torch.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.strategies.texts import ids_of_text
from harness.tiny_target.tools import CLOCK, WEATHER
from pipeline.base.paths import ROOT
from pipeline.formats.format import Format
from pipeline.formats.kimi.format import ARGUMENT_BEGIN, CALL_BEGIN, CALL_END, SECTION_BEGIN, SECTION_END
from pipeline.records import Ids, JsonObject, Prompt

if TYPE_CHECKING:
    import torch


SPAN: Final = 128
"""How many tokens the prompt of the scripted model has."""

PAD: Final = "[PAD]"


CALLED: Final[tuple[JsonObject, ...]] = (
    {"role": "user", "content": "Time in Oslo, and in Rome?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "functions.get_time:0", "type": "function", "function": {"name": "get_time", "arguments": "{}"}},
            {"id": "functions.get_time:1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "functions.get_time:0", "content": "9"},
    {"role": "tool", "tool_call_id": "functions.get_time:1", "content": "9"},
)
"""A history of two calls."""


@dataclass(frozen=True, slots=True)
class Script:
    """One completion to emit.

    `cut`: the length ends it. `spelled`: names in it are text, not control tokens.
    """

    name: str
    text: str
    thinking: bool = True
    cut: bool = False
    spelled: bool = False
    history: bool = False
    ids: Ids | None = None

    @property
    def prompt(self) -> Prompt:
        """The prompt for which the script stands.

        The model reads the script instead of it.
        """
        before = CALLED if self.history else ({"role": "user", "content": "hi"},)
        return Prompt(self.name, before, (WEATHER, CLOCK), self.thinking)

    def emitted(self, fmt: Format) -> Ids:
        """Return the ids that the model must emit."""
        tokenizer = fmt.tokenizer
        ids = self.ids or (tuple(tokenizer.encode(self.text)) if self.spelled else ids_of_text(tokenizer, self.text))
        return ids if self.cut else (*ids, fmt.end_id)

    def is_text(self) -> bool:
        """Whether the script's text gives its ids.

        Judged for a tokenizer that reads control tokens by name.
        """
        return self.ids is None and not self.spelled


def call(identity: str = "functions.get_time:0", arguments: str = '{"city": "Oslo"}') -> str:
    """Return one call with its markers."""
    return f"{CALL_BEGIN}{identity}{ARGUMENT_BEGIN}{arguments}{CALL_END}"


def section(*calls: str) -> str:
    """Return a section of calls."""
    return SECTION_BEGIN + "".join(calls or (call(),)) + SECTION_END


def _scripts() -> Iterator[Script]:
    thought = "So.</think>"
    yield Script("plain", f"{thought}Yes.")
    yield Script("instant", "Yes.", thinking=False)
    yield Script("white_space", "\n So. \n</think>\n\n Yes. \n")
    yield Script("line_ends", f"{thought}a\r\nb")
    yield Script("empty_thinking", "</think>Yes.")
    yield Script("unclosed", "So it ends.")
    yield Script("nothing", "", thinking=False)
    yield Script("characters", "é😀.</think>São 中文 👩‍👩‍👧")
    yield Script("ends_in_opener", f"{thought}a <|")
    yield Script("repeats", f"{thought}ha ha ha ha")
    yield Script("one_call", f"{thought}Wait.{section()}")
    yield Script("only_call", section(), thinking=False)
    yield Script("two_calls", f"{thought}{section(call(), call('functions.get_weather:1'))}")
    yield Script("other_number", f"{thought}{section(call('functions.get_time:3'))}")
    yield Script("history", f"{thought}{section(call('functions.get_time:0'))}", history=True)
    yield Script("text_after", f"{thought}{section()}Done.")
    yield Script("text_around", f"{thought}Wait.\n{section()}\nDone.")
    yield Script("empty_section", f"{thought}Wait.{SECTION_BEGIN}{SECTION_END}Done.")
    yield Script("section_in_thinking", f"So.{section()}")
    yield Script("blank_before", f"{thought}\n{section()}")
    for name, arguments in _ARGUMENTS.items():
        yield Script(f"arguments_{name}", f"{thought}{section(call(arguments=arguments))}")
    for name, identity in _IDS.items():
        yield Script(f"id_{name}", f"{thought}{section(call(identity))}")
    yield Script("cut_thinking", "So it", cut=True)
    yield Script("cut_content", f"{thought}Ye", cut=True)
    yield Script("cut_at_close", thought, cut=True)
    yield Script("cut_in_character", "So.</think>", cut=True, ids=(50, 791, 65, 195))
    yield Script("cut_at_section", f"{thought}Wait.{SECTION_BEGIN}", cut=True)
    yield Script("cut_in_id", f"{thought}{SECTION_BEGIN}{CALL_BEGIN}functions.get", cut=True)
    yield Script("cut_in_arguments", f"{thought}{section()[:-60]}", cut=True)
    yield Script("cut_after_arguments", f"{thought}{section().removesuffix(CALL_END + SECTION_END)}", cut=True)
    yield Script("cut_after_call", f"{thought}{section().removesuffix(SECTION_END)}", cut=True)
    yield Script("cut_after_section", f"{thought}{section()}", cut=True)
    yield Script("spelled_section", f"{section()}", thinking=False, spelled=True)
    yield Script("spelled_close", "So.</think>Yes.", spelled=True)
    yield Script("other_split", "So.</think>", ids=(83, 111, 46, 791, 578, 50))


_ARGUMENTS: Mapping[str, str] = {
    "blank_around": ' {"city": "Oslo"} ',
    "none": "",
    "array": "[1]",
    "more": '{"a": 1} x',
    "unclosed": '{"a": 1',
    "no_json": "{city}",
    "spaced": '{ "a":1,  "a":2 }',
    "escaped": '{"a": "\\u00e9é\\n"}',
    "number_as_text": '{"city": 5}',
}
_IDS: Mapping[str, str] = {
    "no_prefix": "get_time:0",
    "no_index": "functions.get_time",
    "counter": "3",
    "spaces": " functions.get_time:0 ",
    "unknown": "functions.fly:0",
}
SCRIPTS: Final[Mapping[str, Script]] = {script.name: script for script in _scripts()}


WEIGHTS: Final = ROOT / "harness" / "tiny_target" / "weights"
TEMPLATE: Final = (
    "{{ messages[-1].content }}{% for _ in range(fill or 0) %}" + PAD + "{% endfor %}"
    "<think>{% if thinking is defined and not thinking %}</think>{% endif %}"
)
"""`fill` comes in `chat_template_kwargs`: how many tokens the script lacks."""

CODE, HEAD, HIDDEN, THETA = 48, 64, 128, 10_000.0
SHARPNESS: Final = 40.0
"""The next best place scores lower by more than this: nothing of it is left after the softmax."""

LOUDNESS: Final = 4.0


def write_scripted(folder: Path) -> Path:
    """Write the model's directory, which both engines load; return it.

    The config is the tiny target's, of one layer and untied.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tiktoken.model", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(WEIGHTS / name, folder / name)
    config = json.loads((WEIGHTS / "config.json").read_text("utf-8"))
    own = {
        **config,
        "dtype": "float32",
        "head_dim": HEAD,
        "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_theta": THETA, "rope_type": "default"},
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(own, indent=1) + "\n", "utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    save_file(tensors(own["vocab_size"]), str(folder / "model.safetensors"), {"format": "pt"})
    return folder


def tensors(vocabulary: int) -> dict[str, torch.Tensor]:
    """Return the weights: codes in, a backward head, codes out."""
    import torch

    codes = _codes(vocabulary)
    embedding = torch.zeros(vocabulary, HIDDEN)
    embedding[:, :CODE] = codes
    embedding[:, CODE] = 1.0  # what queries and keys are made of, the same at every place
    rms = math.sqrt((CODE + 1) / HIDDEN)
    head = torch.zeros(vocabulary, HIDDEN)
    head[:, HEAD : HEAD + CODE] = codes * LOUDNESS
    layer = "model.layers.0"
    zero = torch.zeros(HIDDEN, HIDDEN)
    return {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": head,
        "model.norm.weight": torch.ones(HIDDEN),
        f"{layer}.input_layernorm.weight": torch.full((HIDDEN,), rms),
        f"{layer}.post_attention_layernorm.weight": torch.ones(HIDDEN),
        **_attention(f"{layer}.self_attn"),
        **{f"{layer}.mlp.{name}_proj.weight": zero.clone() for name in ("gate", "up", "down")},
    }


def _codes(vocabulary: int) -> torch.Tensor:
    """Return a row of signs for each token.

    Rows are so far apart that the right one always scores best.
    """
    import torch

    drawn = torch.randint(0, 2, (vocabulary, CODE), generator=torch.Generator().manual_seed(7))
    return drawn.float() * 2 - 1


def _attention(name: str) -> dict[str, torch.Tensor]:
    """Return constant queries and keys: only distance decides the score.

    The distance enters through the rotary positions.
    """
    import torch

    half = HEAD // 2
    angles = (SPAN - 1) * THETA ** (-torch.arange(half).double() / half)
    query, key, value, output = (torch.zeros(HIDDEN, HIDDEN) for _ in range(4))
    scale = math.sqrt(SHARPNESS * math.sqrt(HEAD))
    query[:half, CODE], query[half:HEAD, CODE] = scale * angles.cos().float(), -scale * angles.sin().float()
    key[:half, CODE] = scale
    value[:CODE, :CODE] = torch.eye(CODE)
    output[HEAD : HEAD + CODE, :CODE] = torch.eye(CODE)
    names = {"q": query, "k": key, "v": value, "o": output}
    return {f"{name}.{one}_proj.weight": tensor for one, tensor in names.items()}
