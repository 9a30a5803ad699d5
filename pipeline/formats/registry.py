"""The formats by name, each pinned to its vocabulary's hash.

Guarantees: a format is opened only on the tokenizer that it names, and a name that is taken stays what it is. A
vocabulary is looked for, in this order, in the directory that was given (`--tokenizer DIR`, or
`hub:REPOSITORY@REVISION`), in `$DRAFTER_GATE_TOKENIZERS`, and in the hub cache at the pinned revision.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import shorten
from types import MappingProxyType

from pipeline.formats import chatml, deepseek, deepseek_v32, glm, glm45, qwen, qwen35
from pipeline.formats.format import Format
from pipeline.formats.harmony import format as harmony
from pipeline.formats.kimi import format as kimi
from pipeline.formats.kimi import releases as kimi_releases
from pipeline.formats.tokenizer import KIMI_SHA256, Tokenizer, TokenizerError, load_tokenizer
from pipeline.formats.tokenizer_json import (
    DEEPSEEK_R1_SHA256,
    DEEPSEEK_V31_SHA256,
    DEEPSEEK_V32_SHA256,
    GLM_4_SHA256,
    GLM_5_SHA256,
    GPT_OSS_SHA256,
    QWEN_3_SHA256,
    QWEN_35_SHA256,
    SMOLLM_2_SHA256,
    load_tokenizer_json,
)

ROOT = Path(__file__).resolve().parents[2]
TINY_SHA256 = "6cdee0cf780e0e80dfd7eba76ee001892b8e613d97a9b83ab2dff2197f0f5009"
"""The committed tiny target's vocabulary."""
MOST_OF_A_HUB_ERROR = 240


@dataclass(frozen=True, slots=True)
class Family:
    """One entry: a format's loader and its vocabulary.

    `folder` is the subfolder of `$DRAFTER_GATE_TOKENIZERS` that holds `file` where none has the format's own name.
    """

    load: Callable[[str, Tokenizer], Format]
    sha256: str
    embedded: Path | None = None
    hub: tuple[str, str] | None = None
    file: str = "tiktoken.model"
    folder: str | None = None

    def read(self, directory: Path) -> Tokenizer:
        """Return the tokenizer in `directory`.

        TokenizerError where it is not the pinned one.
        """
        read = load_tokenizer if self.file == "tiktoken.model" else load_tokenizer_json
        return read(directory, expect_sha256=self.sha256)


_FORMATS: dict[str, Family] = {
    "kimi-k2": Family(
        partial(kimi.load, release=kimi_releases.K2), KIMI_SHA256, hub=("moonshotai/Kimi-K2-Instruct", "fd1984e2")
    ),
    "kimi-k2-0905": Family(
        partial(kimi.load, release=kimi_releases.K2_0905),
        KIMI_SHA256,
        hub=("moonshotai/Kimi-K2-Instruct-0905", "ac6c49f0"),
    ),
    "kimi-k2-thinking": Family(partial(kimi.load, release=kimi_releases.K2_THINKING), KIMI_SHA256),
    "kimi-k2.5": Family(kimi.load, KIMI_SHA256, hub=("moonshotai/Kimi-K2.5", "4d01dfe0")),
    "kimi-k2.6": Family(
        partial(kimi.load, release=kimi_releases.K26), KIMI_SHA256, hub=("moonshotai/Kimi-K2.6", "7eb5002f")
    ),
    "kimi-k2.6-preserve-thinking": Family(
        partial(kimi.load, release=kimi_releases.K26_PRESERVE), KIMI_SHA256, hub=("moonshotai/Kimi-K2.6", "7eb5002f")
    ),
    "deepseek-r1": Family(deepseek.load_r1, DEEPSEEK_R1_SHA256, file="tokenizer.json"),
    "deepseek-v3.1": Family(deepseek.load_v31, DEEPSEEK_V31_SHA256, file="tokenizer.json"),
    "deepseek-v3.2": Family(deepseek_v32.load, DEEPSEEK_V32_SHA256, file="tokenizer.json"),
    "glm-4.5": Family(glm45.load, GLM_4_SHA256, file="tokenizer.json"),
    "glm-4.6": Family(glm45.load, GLM_4_SHA256, file="tokenizer.json", folder="glm-4.5"),
    "glm-4.7": Family(glm.load, GLM_4_SHA256, file="tokenizer.json", folder="glm-4.5"),
    "glm-4.7-flash": Family(glm.load, GLM_5_SHA256, file="tokenizer.json"),
    "glm-5": Family(glm.load, GLM_5_SHA256, file="tokenizer.json"),
    "glm-5-nvfp4": Family(glm.load, GLM_5_SHA256, file="tokenizer.json", folder="glm-5"),
    "gpt-oss": Family(harmony.load_medium, GPT_OSS_SHA256, file="tokenizer.json"),
    "gpt-oss-low": Family(harmony.load_low, GPT_OSS_SHA256, file="tokenizer.json", folder="gpt-oss"),
    "gpt-oss-high": Family(harmony.load_high, GPT_OSS_SHA256, file="tokenizer.json", folder="gpt-oss"),
    "qwen3": Family(qwen.load, QWEN_3_SHA256, file="tokenizer.json"),
    "qwen3.5": Family(qwen35.load, QWEN_35_SHA256, file="tokenizer.json"),
    "smollm2": Family(chatml.load_smollm2, SMOLLM_2_SHA256, file="tokenizer.json"),
    "tiny-kimi": Family(kimi.load, TINY_SHA256, embedded=ROOT / "harness" / "tiny_target" / "weights"),
}


FORMATS: Mapping[str, Family] = MappingProxyType(_FORMATS)
"""Every family that can be opened; `register` adds to it.

`glm-5-nvfp4` is a profile of `glm-5`: other weights, the same layout and vocabulary, so that a job and its rows name
the checkpoint that answered.
"""


class FormatError(Exception):
    """A format name that is not registered, or cannot be."""


def register(name: str, family: Family) -> None:
    """Add a family from outside this package, for this process.

    FormatError where the name is taken, or cannot be a folder's. The gate knows it by its vocabulary's hash: no paid
    job runs on a vocabulary that the contract suite has not proven.
    """
    if re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name) is None:
        raise FormatError(f"{name!r} is no format name. Use small letters, digits, dots and hyphens.")
    if name in _FORMATS:
        raise FormatError(f"the format {name!r} exists already. Register yours under another name.")
    _FORMATS[name] = family


def family_of(name: str) -> Family:
    """Return the entry called `name`; FormatError names those known."""
    try:
        return FORMATS[name]
    except KeyError:
        raise FormatError(f"unknown format {name!r}; there are {', '.join(sorted(FORMATS))}") from None


def load_format(name: str, tokenizer: Tokenizer) -> Format:
    """Return the format called `name` on a loaded tokenizer.

    The caller answers for the tokenizer's hash.
    """
    return family_of(name).load(name, tokenizer)


def open_format(name: str, where: str | None = None) -> Format:
    """Return the format called `name` on its own tokenizer.

    FormatError or TokenizerError says what is missing.

    >>> fmt = open_format("tiny-kimi")
    >>> fmt.tokenizer.decode_text((*fmt.tokenizer.encode("Hello"), fmt.end_id))
    'Hello<|im_end|>'
    """
    family = family_of(name)
    directory = find_tokenizer(name, where)
    if directory is None:
        named = os.environ.get("DRAFTER_GATE_TOKENIZERS")
        looked = f"$DRAFTER_GATE_TOKENIZERS ({named or 'not set'}) or the hub's cache"
        raise TokenizerError(f"no tokenizer of {name} in {looked}. Give its directory with --tokenizer DIR.")
    return family.load(name, family.read(directory))


def find_tokenizer(name: str, where: str | None = None) -> Path | None:
    """Return the directory that holds the format's vocabulary.

    Nothing is fetched unless `where` names the hub.
    """
    if where is not None:
        return fetch(where) if where.startswith("hub:") else Path(where)
    return next((place for place in _places(name) if (place / family_of(name).file).is_file()), None)


def _places(name: str) -> Iterator[Path]:
    family = family_of(name)
    if family.embedded is not None:
        yield family.embedded
    for named in filter(None, os.environ.get("DRAFTER_GATE_TOKENIZERS", "").split(os.pathsep)):
        folders = (name, family.folder) if family.folder else (name,)
        yield from (*(Path(named) / folder for folder in folders), Path(named))
    if family.hub is not None:
        repository, revision = family.hub
        home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface") / "hub"
        cache = Path(os.environ.get("HF_HUB_CACHE") or home).expanduser()
        yield from sorted((cache / f"models--{repository.replace('/', '--')}" / "snapshots").glob(f"{revision}*"))


def fetch(where: str) -> Path:
    """Fetch `hub:REPOSITORY@REVISION` into the hub cache.

    The hash is checked by the caller as of any directory.
    """
    repository, _, revision = where.removeprefix("hub:").partition("@")
    if not repository or not revision:
        raise TokenizerError(f"{where!r} names no revision. Write hub:REPOSITORY@REVISION.")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise TokenizerError("the hub needs huggingface-hub. Run: pip install huggingface-hub") from None
    wanted = ["tiktoken.model", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=wanted))
    except Exception as error:  # noqa: BLE001 — the hub client raises its own, httpx's and OSError alike
        why = shorten(f"{type(error).__name__}: {error}", MOST_OF_A_HUB_ERROR, placeholder=" …")
        raise TokenizerError(f"{where}: not fetched ({why}). Or give a directory with --tokenizer DIR.") from None
