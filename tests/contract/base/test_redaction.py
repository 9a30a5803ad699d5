"""Secrets out of a provider's words, by shape or name; the key in use out of what comes back."""

from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.base.redaction import MARK, Redaction, redact

pytestmark = pytest.mark.contract

USER = "user_2" + "abcdefghij0123456789xyz"
ORGANISATION = "org-" + "AbC123dEf456GhI7"
HEX = "0123456789abcdef" * 4
KEY = "sk-or-v1-" + HEX
ODD = "a-b_c/d" * 3 + "!~"


# A quotation is short, writable, and without secrets


def test_prose_is_quoted_as_it_is_up_to_its_length() -> None:
    assert "Provider returned error" == redact("Provider returned error", 200)
    assert "Provider" == redact("Provider returned error", 8)


def test_ids_of_users_and_organisations_are_not_repeated() -> None:
    assert f"Rate limit of {MARK} for {MARK}" == redact(f"Rate limit of {ORGANISATION} for {USER}", 200)


@pytest.mark.parametrize(
    "name, value",
    [
        *product(["user_id", "team_id", "api_key_id", "organization_id"], ["x", 'quo"ted', 12, ["c"]]),
        *product(["raw"], ["x", 'quo"ted', {"a": "b"}, ["c"]]),
    ],
)
def test_a_value_behind_a_secrets_name_goes_even_if_cut_off(name: str, value: object) -> None:
    whole = json.dumps({"error": {"code": 400}, name: value})
    cut = whole[: whole.index(name) + len(name) + 5]

    assert f'"{name}": {MARK}' in redact(whole, 200)
    assert f'"{name}": {MARK}' in redact(cut, 200)
    assert f'\\"{name}' not in redact(json.dumps(whole), 200)


@pytest.mark.parametrize(
    "said, expected",
    [
        ("key AKIA" + "IOSFODNN7EXAMPLE ends", f"key {MARK} ends"),
        ("AIza" + "SyA-1234567890abcdefghijklmnopqrstu", MARK),
        ("xoxb-" + "123456789012-abcdef", MARK),
        ("-----BEGIN RSA " + "PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----.", f"{MARK}."),
        ("Set-Cookie: sid=" + "abc123; Path=/", f"Set-Cookie: sid={MARK}; Path=/"),
        ("the cookie: name=value pair", "the cookie: name=value pair"),
        ("no cookie today, no AKIA either", "no cookie today, no AKIA either"),
    ],
    ids=["aws", "google", "slack", "private key", "set-cookie", "a cookie in prose", "names alone"],
)
def test_keys_of_other_houses_and_cookies_go(said: str, expected: str) -> None:
    assert expected == redact(said, 200)


def test_a_password_in_an_address_goes_and_the_address_stays() -> None:
    assert f"https://{MARK}@proxy.example" == redact("https://me:" + "secret" + "@proxy.example", 200)


def test_half_a_surrogate_pair_is_escaped() -> None:
    assert "no \\ud83d" == redact("no \ud83d", 200)


@given(st.text(max_size=300), st.integers(0, 300))
def test_whatever_is_quoted_is_short_and_has_utf8(text: str, most: int) -> None:
    found = redact(text, most)

    assert len(found) <= most
    assert found == found.encode().decode()


# The key goes in each form that a provider echoes it in, and nothing else with it


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


def test_a_key_behind_an_escaped_line_end_goes() -> None:
    assert f"see\\n{MARK}" == redact("see\\n" + "AK" + "IA" + "QX3T7ZLM2PWK9RVB", 200)


def test_a_risk_or_benefit_is_no_key() -> None:
    assert "a risk-or-benefit-analysis" == redact("a risk-or-benefit-analysis", 200)
