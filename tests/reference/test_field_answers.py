"""Faults of the field in answers: the given files come out as they should."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.cli.reconstruct import rebuilt
from pipeline.formats.registry import open_format
from pipeline.formats.tokenizer import TokenizerError
from pipeline.proof.fingerprint import read_fingerprints

pytestmark = pytest.mark.reference

PROVEN, COUNTED = "stream_deltas", "counted"
FILES = [
    ("a3-all-in-content", "kimi-k2.5", "fp-kimi", [("split", PROVEN), ("all-in-content", "ambiguous_layout")]),
    (
        "a4-true-is-1",
        "kimi-k2.5",
        "fp-kimi",
        [(name, "ids_contradict") for name in ("true-for-1", "0-for-false", "string-for-NaN", "string-for-number")],
    ),
    (
        "a5-other-call-qwen3",
        "qwen3",
        "fp-calls-qwen3",
        [("same", "engine_ids"), *((name, "ids_contradict") for name in ("other-name", "other-args", "two-calls"))],
    ),
    ("b1-done-twice", "kimi-k2.5", "fp-kimi", [("ok", PROVEN), ("done-twice", PROVEN)]),
    (
        "b4-other-release-kimi-k2",
        "kimi-k2",
        "fp-kimi-k2-hf",
        [("Kimi-K2-Instruct", COUNTED), ("Kimi-K2-Instruct-0905", "route_unproven")],
    ),
    (
        "f1-unicode-tables",
        "deepseek-v3.1",
        "fp-ds",
        [
            ("prompt-same-count", "unicode_version"),
            ("answer-same-count", "unicode_version"),
            ("emoji-old-count", "unicode_version"),
        ],
    ),
]


@pytest.mark.parametrize("name, family, fingerprint, expected", FILES, ids=[name for name, *_ in FILES])
def test_answers_of_the_field_are_proven_or_refused(
    name: str, family: str, fingerprint: str, expected: list[tuple[str, str]], shared: Path
) -> None:
    folder = shared / "faults" / "field"
    try:
        fmt = open_format(family)
    except TokenizerError as error:
        pytest.skip(str(error))
    with (folder / f"{name}.jsonl").open("rb") as lines:
        rows = list(rebuilt(lines, fmt, read_fingerprints(folder / f"{fingerprint}.jsonl")))

    assert expected == [(row["id"], row.get("reason", row.get("evidence"))) for row in rows]
