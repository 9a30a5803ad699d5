"""A provider's words in a message: short, writable, and without what is a secret by shape or by name."""

from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.base.redaction import MARK, redact

USER = "user_2" + "abcdefghij0123456789xyz"
ORGANISATION = "org-" + "AbC123dEf456GhI7"


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
def test_what_stands_behind_a_secrets_name_goes_also_where_it_is_cut_off(name: str, value: object) -> None:
    whole = json.dumps({"error": {"code": 400}, name: value})
    cut = whole[: whole.index(name) + len(name) + 5]

    assert f'"{name}": {MARK}' in redact(whole, 200)
    assert f'"{name}": {MARK}' in redact(cut, 200)
    assert f'\\"{name}' not in redact(json.dumps(whole), 200)


def test_a_password_in_an_address_goes_and_the_address_stays() -> None:
    assert f"https://{MARK}@proxy.example" == redact("https://me:" + "secret" + "@proxy.example", 200)


def test_half_a_surrogate_pair_is_written_as_a_question_mark() -> None:
    assert "no ?" == redact("no \ud83d", 200)


@given(st.text(max_size=300), st.integers(0, 300))
def test_whatever_is_quoted_is_short_and_has_utf8(text: str, most: int) -> None:
    found = redact(text, most)

    assert len(found) <= most
    assert found == found.encode().decode()
