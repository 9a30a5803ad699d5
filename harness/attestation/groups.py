"""Groups of contract tests: what a test needs beyond the repository, and whether that is here.

A group whose material is absent is not collected, so that nothing is skipped, and the attestation does not name it;
one that is collected must pass whole. The folder of a test says which group it belongs to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path, PurePosixPath

from pipeline.base.paths import ROOT
from pipeline.formats.registry import family_of, find_tokenizer
from pipeline.formats.tokenizer import KIMI_SHA256
from pipeline.formats.tokenizer_json import (
    DEEPSEEK_R1_SHA256,
    DEEPSEEK_V31_SHA256,
    DEEPSEEK_V32_SHA256,
    GLM_4_SHA256,
    GLM_5_SHA256,
    GPT_OSS_SHA256,
    QWEN_3_SHA256,
    QWEN_35_SHA256,
)

CONTRACT = "tests/contract"
BASE = "base"
TOKENIZERS = {
    "tokenizer_kimi": ("kimi-k2.5", KIMI_SHA256),
    "tokenizer_deepseek_r1": ("deepseek-r1", DEEPSEEK_R1_SHA256),
    "tokenizer_deepseek_v31": ("deepseek-v3.1", DEEPSEEK_V31_SHA256),
    "tokenizer_deepseek_v32": ("deepseek-v3.2", DEEPSEEK_V32_SHA256),
    "tokenizer_glm45": ("glm-4.5", GLM_4_SHA256),
    "tokenizer_glm5": ("glm-5", GLM_5_SHA256),
    "tokenizer_gpt_oss": ("gpt-oss", GPT_OSS_SHA256),
    "tokenizer_qwen3": ("qwen3", QWEN_3_SHA256),
    "tokenizer_qwen35": ("qwen3.5", QWEN_35_SHA256),
}
"""Folder of the group's tests: format, and sha256 of the tokenizer that they were written for."""
LIVE = "live"
"""Tests of a paid route lie in `live/<api>--<provider>/`: their material is live cassettes, which are committed, and
the vocabularies of the formats that they are in."""
TABLE = "cassettes.json"
"""Beside them: each cassette of the route, its format, and what it gave when it was recorded."""


def group_of(nodeid: str) -> str:
    """`base`, `tokenizer:<sha256>` or `live:<route>`, by the folder below tests/contract."""
    parts = PurePosixPath(nodeid.partition("::")[0]).parts[len(PurePosixPath(CONTRACT).parts) :]
    if parts and parts[0] in TOKENIZERS:
        return f"tokenizer:{TOKENIZERS[parts[0]][1]}"
    if len(parts) > 1 and parts[0] == LIVE:
        return f"live:{parts[1].replace('--', '/')}"
    return BASE


def absent_groups(root: Path = ROOT) -> dict[str, str]:
    """Groups whose material is not here, and why."""
    wanted = {f"tokenizer:{sha256}": _why_absent(name, sha256) for name, sha256 in TOKENIZERS.values()}
    live = (path.parent for path in sorted((root / CONTRACT / LIVE).glob(f"*/{TABLE}")))
    wanted |= {group_of(f"{CONTRACT}/{LIVE}/{folder.name}/"): _why_not_live(folder, root) for folder in live}
    return {group: why for group, why in wanted.items() if why}


def is_absent(path: Path, root: Path) -> bool:
    """Whether this folder or file belongs to a group whose material is not here."""
    try:
        relative = path.relative_to(root).as_posix()
    except ValueError:
        return False
    return group_of(relative) in absent_groups(root)


def by_group(nodeids: Iterable[str]) -> dict[str, frozenset[str]]:
    """Node ids of each group that has any."""
    ids = frozenset(nodeids)
    return {group: frozenset(i for i in ids if group_of(i) == group) for group in {group_of(i) for i in ids}}


def _why_not_live(folder: Path, root: Path) -> str:
    entries = json.loads((folder / TABLE).read_bytes())["cassettes"]
    if not any((root / "cassettes" / f"{name}.yaml").is_file() for name in entries):
        return "its cassettes are not here"
    needed = ((entry["format"], family_of(entry["format"]).sha256) for entry in entries.values())
    return next((why for name, sha256 in dict.fromkeys(needed) if (why := _why_absent(name, sha256))), "")


@cache
def _why_absent(name: str, sha256: str) -> str:
    directory = find_tokenizer(name)
    if directory is None:
        return f"no {name} tokenizer was found; set DRAFTER_GATE_TOKENIZERS"
    found = hashlib.sha256((directory / family_of(name).file).read_bytes()).hexdigest()
    return "" if found == sha256 else f"{directory} holds the tokenizer {found[:12]}, wanted {sha256[:12]}"
