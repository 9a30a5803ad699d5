"""The key out of what comes back, in the forms that a provider echoes it in, and nothing else with it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.base.redaction import Redaction

HEX = "0123456789abcdef" * 4
KEY = "sk-or-v1-" + HEX
ODD = "a-b_c/d" * 3 + "!~"


@pytest.mark.parametrize(
    "echoed",
    [
        KEY,
        HEX,
        f"v1-{HEX}",
        KEY.upper(),
        KEY.replace("-", "\\u002d"),
        KEY.replace("-", "\\u002D"),
        KEY.replace("-", "%2D"),
        KEY.replace("-", "\\\\u002d"),
    ],
)
def test_an_echo_goes_in_whatever_form(echoed: str) -> None:
    assert b'{"message": "No auth for [key removed]."}' == Redaction(KEY).of(
        f'{{"message": "No auth for {echoed}."}}'.encode()
    )


def test_a_key_with_characters_that_are_escaped_goes_too() -> None:
    escaped = json.dumps(f"no {ODD}").replace("/", "\\/").encode()

    assert b'"no [key removed]"' == Redaction(ODD).of(escaped)


@given(st.binary())
def test_what_holds_no_key_is_the_same_bytes(raw: bytes) -> None:
    assert raw == Redaction(KEY).of(raw)


@given(st.binary())
def test_where_there_is_no_key_nothing_goes(raw: bytes) -> None:
    assert raw == Redaction(None).of(raw)


def test_a_header_that_is_absent_stays_absent() -> None:
    assert Redaction(KEY).of_header(None) is None
    assert "gen-[key removed]" == Redaction(KEY).of_header(f"gen-{HEX}")
