"""The contract tests that must pass, by group: `tests/contract/REQUIRED`.

    python -m harness required [--write]

Guarantees: the file is compared in both directions, so that a test that is removed, renamed or added is a diff that
someone reviews. The folder of a test says which group it belongs to. A group whose material is absent is not
collected, so that nothing is skipped, and the attestation does not name it; a group that is collected must pass whole.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import pytest

from pipeline.base.paths import ROOT
from pipeline.base.screen import say, show
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
    SMOLLM_2_SHA256,
)
from pipeline.gate.gate import DRAFTER, PROVE_DRAFTER
from pipeline.records import PROVE, Objection

CONTRACT = "tests/contract"
REQUIRED = f"{CONTRACT}/REQUIRED"
WRITE = "python -m harness required --write"
HEADER = f"# The contract tests that an attestation needs, by group. Written by: {WRITE}\n"
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
    "tokenizer_smollm2": ("smollm2", SMOLLM_2_SHA256),
}
"""Folder of the group's tests: format, and sha256 of the tokenizer that they were written for."""
LIVE = "live"
"""Tests of a paid route lie in `live/<api>--<provider>/`: their material is live cassettes, which are committed, and
the vocabularies of the formats that they are in."""
TABLE = "cassettes.json"
"""Beside them: each cassette of the route, its format, and what it gave when it was recorded."""


Required = Mapping[str, frozenset[str]]


class RequiredError(Exception):
    """REQUIRED is missing or cannot be read."""


def group_of(nodeid: str) -> str:
    """Return the group of a test, by its folder.

    `base`, `drafter`, `tokenizer:<sha256>` or `live:<route>`.
    """
    parts = PurePosixPath(nodeid.partition("::")[0]).parts[len(PurePosixPath(CONTRACT).parts) :]
    if parts and parts[0] in TOKENIZERS:
        return f"tokenizer:{TOKENIZERS[parts[0]][1]}"
    if parts and parts[0] == DRAFTER:
        return DRAFTER
    if len(parts) > 1 and parts[0] == LIVE:
        return f"live:{parts[1].replace('--', '/')}"
    return BASE


def absent_groups(root: Path = ROOT) -> dict[str, str]:
    """Return the groups whose material is absent, with the reason."""
    wanted = {f"tokenizer:{sha256}": _why_absent(name, sha256) for name, sha256 in TOKENIZERS.values()}
    wanted[DRAFTER] = "" if find_spec("torch") else f"torch is not installed here; {PROVE_DRAFTER} has it"
    live = (path.parent for path in sorted((root / CONTRACT / LIVE).glob(f"*/{TABLE}")))
    wanted |= {group_of(f"{CONTRACT}/{LIVE}/{folder.name}/"): _why_not_live(folder, root) for folder in live}
    return {group: why for group, why in wanted.items() if why}


def is_absent(path: Path, root: Path) -> bool:
    """Return whether a path belongs to an absent group."""
    try:
        relative = path.relative_to(root).as_posix()
    except ValueError:
        return False
    return group_of(relative) in absent_groups(root)


def by_group(nodeids: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the node ids of each group that has any."""
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


def read_required(path: Path) -> Required:
    """Return the node ids by group.

    Raises RequiredError, naming the line.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequiredError(f"{path} cannot be read ({error}): {WRITE}") from error
    groups: dict[str, frozenset[str]] = {}
    group = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1]
            groups.setdefault(group, frozenset())
        elif group is None or group_of(line) != group or line in groups[group]:
            raise RequiredError(f"{path}, line {number}: {line!r} is listed twice or in the wrong group")
        else:
            groups[group] |= {line}
    return groups


def format_required(groups: Required) -> str:
    """Return the file's text.

    `base` comes first, then the other groups by name, ids sorted.
    """
    order = sorted((group for group in groups if groups[group]), key=lambda group: (group != BASE, group))
    return HEADER + "".join(f"\n[{group}]\n" + "".join(f"{i}\n" for i in sorted(groups[group])) for group in order)


def differences(required: Required, passed: Iterable[str], accounted: Iterable[str] = ()) -> Iterator[Objection]:
    """Yield the differences between REQUIRED and the tests that passed.

    Groups that are absent here are left aside. `accounted` are tests that did not pass and that another objection
    names.
    """
    ids = frozenset(passed)
    wanted = frozenset().union(*(members for group, members in required.items() if group not in absent_groups()))
    if lacking := sorted(wanted - ids - frozenset(accounted)):
        what = f"tests of REQUIRED did not pass ({len(lacking)}): {few(lacking)}"
        yield Objection(what, f"{PROVE} without selecting tests, or {WRITE} if they are gone on purpose")
    if extra := sorted(ids - wanted):
        yield Objection(
            f"tests passed that REQUIRED does not list ({len(extra)}): {few(extra)}", f"{WRITE}, then {PROVE}"
        )


def few(names: list[str], most: int = 3) -> str:
    """Name the first few, and count the rest."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def main(arguments: list[str] | None = None) -> int:
    """Compare or write REQUIRED.

    Exit 0 when it lists what is collected, 1 when it does not, 2 when nothing is collected.
    """
    parser = argparse.ArgumentParser(prog="python -m harness required", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the file anew")
    options = parser.parse_args(arguments)
    collected = _collected()
    if not collected:
        say(f"nothing was collected in {CONTRACT}. Run: python -m pytest {CONTRACT} --collect-only")
        return 2
    path = ROOT / REQUIRED
    old = read_required(path) if path.exists() else {}
    kept = {group: members for group, members in old.items() if group in absent_groups()}
    new = {**kept, **by_group(collected)}
    _print_difference(old, new)
    if options.write:
        path.write_text(format_required(new), "utf-8")
        return 0
    return int(_all(old) != _all(new))


class _Collector:
    """Keep the node ids of a collection without errors."""

    def __init__(self) -> None:
        self.ids: tuple[str, ...] = ()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if not session.testsfailed:
            self.ids = tuple(item.nodeid for item in session.items)


def _collected() -> tuple[str, ...]:
    collector = _Collector()
    arguments = ["--collect-only", "-qq", "--no-summary", f"--rootdir={ROOT}", str(ROOT / CONTRACT)]
    status = pytest.main(["-p", "harness.attestation.plugin", *arguments], plugins=[collector])
    return collector.ids if status == pytest.ExitCode.OK else ()


def _all(groups: Required) -> frozenset[str]:
    return frozenset().union(*groups.values())


def _print_difference(old: Required, new: Required) -> None:
    for mark, ids in (("-", _all(old) - _all(new)), ("+", _all(new) - _all(old))):
        for nodeid in sorted(ids):
            show(f"{mark} {nodeid}")
    groups = ", ".join(f"{group} {len(members)}" for group, members in new.items())
    show(f"{REQUIRED}: {groups}")
