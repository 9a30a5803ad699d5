"""Goldens: written exactly, compared by tokens, and a difference told so that one sees what kind it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.goldens.cases import GOLDENS, SMALL
from harness.goldens.extension import TokenGolden, same_tokens
from harness.goldens.golden import Golden, GoldenError, GoldenToken, diff_lines, dump_golden, parse_golden, read_golden
from harness.goldens.refresh import remove_orphans, same_but_for_date
from pipeline.base.paths import ROOT
from pipeline.records import Prompt

pytest_plugins = ["pytester"]

GOLDEN = Golden(
    provenance={"recorded_at": "2026-11-29T20:36:25Z", "weights_sha256": "aa"},
    case="capital",
    features=("thinking",),
    prompt=Prompt("capital", ({"role": "user", "content": "Capital of France?"},)),
    prompt_ids=(1, 2),
    tokens=(
        GoldenToken(374, " is", -0.1, 375, -3.0),
        GoldenToken(12095, " Paris", -0.68, 279, -0.72),
        GoldenToken(9, "<|im_end|>", -0.01, 11, -5.0),
    ),
    text=b" is Paris<|im_end|>",
)


def received(*tokens: tuple[int, str]) -> Golden:
    text = "".join(piece for _, piece in tokens).encode()
    return replace(GOLDEN, tokens=tuple(GoldenToken(*token) for token in tokens), text=text)


# The difference, told


def test_the_same_tokens_have_no_difference() -> None:
    other_key = replace(GOLDEN, provenance={"recorded_at": "2030-01-01T00:00:00Z"})

    assert [] == [*diff_lines(other_key, GOLDEN)]
    assert same_tokens(other_key, GOLDEN)


def test_a_near_tie_shows_its_margin_and_the_runner_up() -> None:
    got = received((374, " is"), (279, " the"), (12095, " Paris"), (9, "<|im_end|>"))

    assert [
        "first difference at token 1 (golden 3 tokens, received 4)",
        "  after: ' is'",
        "  top-2 margin when recorded: 0.040 nats; the received token is the golden's runner-up",
        "-     1   12095  ' Paris'",
        "-     2       9  '<|im_end|>'",
        "+     1     279  ' the'",
        "+     2   12095  ' Paris'",
        "+     3       9  '<|im_end|>'",
    ] == [*diff_lines(got, GOLDEN)]


def test_the_same_text_under_another_id_is_named() -> None:
    """The fault that this project exists for: a control token, and text that spells it."""
    got = received((374, " is"), (12095, " Paris"), (27, "<|im_end|>"))

    lines = [*diff_lines(got, GOLDEN)]

    assert "  top-2 margin when recorded: 4.990 nats; the received token is not the golden's runner-up" in lines
    assert "  same text, other id: '<|im_end|>' is 9 in the golden and 27 here" in lines
    assert "the whole text is the same: another split of the same bytes" in lines


def test_another_split_of_the_same_text_is_named() -> None:
    got = received((374, " is"), (5, " P"), (6, "aris"), (9, "<|im_end|>"))

    assert "the whole text is the same: another split of the same bytes" == [*diff_lines(got, GOLDEN)][-1]


def test_a_shorter_answer_differs_where_it_ends() -> None:
    lines = [*diff_lines(received((374, " is")), GOLDEN)]

    assert "first difference at token 1 (golden 3 tokens, received 1)" == lines[0]
    assert not [line for line in lines if line.startswith("+")]


def test_another_prompt_is_told_first() -> None:
    got = replace(received((8, "x")), prompt_ids=(1, 3, 4))

    assert "prompt ids differ first at 1 (golden 2 ids, received 3); the tokens after it answer another prompt" == next(
        diff_lines(got, GOLDEN)
    )


# Files


def test_a_token_stands_on_a_line() -> None:
    text = dump_golden(GOLDEN)

    assert text.startswith('{\n  "provenance": {"recorded_at": "2026-11-29T20:36:25Z"')
    assert '\n    [12095, " Paris", -0.68, [279, -0.72]],\n' in text
    assert GOLDEN == parse_golden(text)


@given(st.binary(), st.text(st.characters(codec=None, exclude_categories=())))
def test_any_golden_writes_itself_again(data: bytes, piece: str) -> None:
    """Bytes that are no UTF-8 too, and text that an editor would change."""
    golden = replace(GOLDEN, text=data, tokens=(GoldenToken(1, piece),))
    text = dump_golden(golden)

    assert golden == parse_golden(text)
    assert text == dump_golden(parse_golden(text))
    assert text.isascii() or all(char.isprintable() or char == "\n" for char in text)
    assert 12 == len(text.split("\n"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"provenance": {}, "case": "x"}'])
def test_what_is_no_golden_is_an_error_that_names_the_command(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.tokens.json").write_text(text, "utf-8")

    with pytest.raises(GoldenError, match=r"x\.tokens\.json: no readable golden .*Run: nox -s goldens"):
        read_golden(tmp_path / "x.tokens.json")


def test_a_golden_is_rewritten_when_more_than_its_date_changes(tmp_path: Path) -> None:
    """A golden is written again only when more than its date changes."""
    path = tmp_path / "capital.tokens.json"
    path.write_text(dump_golden(GOLDEN), "utf-8")
    later = replace(GOLDEN, provenance={**GOLDEN.provenance, "recorded_at": "2027-01-01T00:00:00Z"})

    assert same_but_for_date(later, path)
    assert not same_but_for_date(replace(later, provenance={**later.provenance, "weights_sha256": "bb"}), path)
    assert not same_but_for_date(later, tmp_path / "absent")


def test_goldens_without_a_case_are_removed(tmp_path: Path) -> None:
    for name in ("thinking.tokens.json", "gone.tokens.json", "README.md"):
        (tmp_path / name).touch()

    remove_orphans(tmp_path)

    assert ["README.md", "thinking.tokens.json"] == sorted(path.name for path in tmp_path.iterdir())


def test_the_small_set_is_small() -> None:
    assert 6 == len(SMALL)
    assert {*SMALL} < {*GOLDENS}


# Under pytest


def test_a_difference_fails_the_test_and_is_shown(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens under another key pass; other tokens and a missing golden fail."""
    folder = pytester.path / "goldens" / "tiny_target"
    folder.mkdir(parents=True)
    (folder / "capital.tokens.json").write_text(dump_golden(GOLDEN), "utf-8")
    other_key = json.dumps(dump_golden(replace(GOLDEN, provenance={"recorded_at": "2030-01-01T00:00:00Z"})))
    other_tokens = json.dumps(dump_golden(received((374, " is"), (279, " the"))))
    pytester.makepyfile(
        f"""
        import pytest
        from harness.goldens.golden import parse_golden
        from harness.goldens.extension import TokenGolden

        @pytest.fixture
        def golden(snapshot):
            return snapshot.use_extension(TokenGolden)

        def test_other_key(golden):
            assert parse_golden({other_key}) == golden(name="capital")

        def test_other_tokens(golden):
            assert parse_golden({other_tokens}) == golden(name="capital")

        def test_missing(golden):
            assert parse_golden({other_key}) == golden(name="absent")
        """
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")

    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*first difference at token 1 (golden 3 tokens, received 2)*",
            "*top-2 margin when recorded: 0.040 nats; the received token is the golden's runner-up*",
            "*there is no golden. Run: nox -s goldens*",
        ]
    )
    assert ["capital.tokens.json"] == [path.name for path in folder.iterdir()]


def test_the_extension_serializes_what_it_compares() -> None:
    text = TokenGolden().serialize(GOLDEN)

    assert text == dump_golden(GOLDEN)
    assert TokenGolden().matches(serialized_data=text, snapshot_data=text)
