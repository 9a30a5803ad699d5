"""Secrets: out of headers, bodies and addresses, in both directions, and nothing else with them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.scrub import KEPT_REQUEST, KEPT_RESPONSE, MARK, scrub_body, scrub_headers, scrub_uri, secrets_in

KEY = "sk-or-v1-" + "0123456789abcdef" * 4


def test_only_listed_headers_are_kept_whatever_their_case() -> None:
    sent = {"AUTHORIZATION": ["Bearer x"], "X-Api-Key": ["x"], "cookie": ["x"], "Content-Type": ["application/json"]}
    came = {"Set-Cookie": ["a", "b"], "CF-Ray": ["x"], "Retry-After": ["3"], "X-Generation-Id": ["gen-1"]}

    assert {"content-type": ["application/json"]} == scrub_headers(sent, KEPT_REQUEST)
    assert {"retry-after": ["3"], "x-generation-id": ["gen-1"]} == scrub_headers(came, KEPT_RESPONSE)


@pytest.mark.parametrize(
    "before, after",
    [
        (f'{{"a":"key {KEY} end"}}', f'{{"a":"key {MARK} end"}}'),
        (f'{{"a":"{KEY.upper()}"}}', f'{{"a":"{MARK}"}}'),
        ('{"error":{},"user_id" : "me"}', f'{{"error":{{}},"user_id" : "{MARK}"}}'),
        ('{"User_ID":17}', f'{{"User_ID":"{MARK}"}}'),
        ('{"org_id":"\\"}"}', f'{{"org_id":"{MARK}"}}'),
        ('{"metadata":{"raw":"{\\"team\\":1}","x":2}}', f'{{"metadata":{{"raw":"{MARK}","x":2}}}}'),
        ('{"metadata":{"raw":{"team":[1,{}]},"x":2}}', f'{{"metadata":{{"raw":"{MARK}","x":2}}}}'),
        ('{"a":"hf_abcdefghijklmnopqrst"}', f'{{"a":"{MARK}"}}'),
        ('{"a":"authorization: BEARER abc123def456ghi"}', f'{{"a":"authorization: {MARK}"}}'),
        ("user_2abcdefghijklmnopqrstuvwxyz é", f"{MARK} é"),
        ('{"user_id":"cut of', f'{{"user_id":"{MARK}"'),
    ],
)
def test_secrets_leave_bodies_and_nothing_else_changes(before: str, after: str) -> None:
    scrubbed = scrub_body(before.encode(), answer=True)

    assert after.encode() == scrubbed
    assert scrubbed == scrub_body(scrubbed, answer=True)
    assert [] == secrets_in(scrubbed)


@pytest.mark.parametrize(
    "text",
    [
        '{"properties":{"user_id":{"type":"string"},"api_key":{"type":"string"}}}',
        '{"arguments":"{\\"user_id\\": \\"a\\", \\"raw\\": \\"b\\"}"}',
        '{"logprobs":{"content":[{"token":" the","bytes":[32]}]}}',
        "a risk-assessment-framework-2026 for the bearer of this, sk-learn and hf_transfer",
        '{"user":"row-1","metadata":{"raw":null}}',
    ],
)
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert text.encode() == scrub_body(text.encode(), answer=True)
    assert [] == secrets_in(text.encode())


def test_a_tool_argument_called_raw_stays_in_a_request() -> None:
    body = b'{"tools":[{"raw":"x"}]}'

    assert body == scrub_body(body, answer=False)


@given(st.binary())
def test_scrubbing_twice_changes_nothing(body: bytes) -> None:
    once = scrub_body(body, answer=True)

    assert once == scrub_body(once, answer=True)


def test_addresses_lose_users_and_keys() -> None:
    assert f"https://h.io/v1?id=gen-1&key={MARK}" == scrub_uri(f"https://me:pass@h.io/v1?id=gen-1&key={KEY}")


def test_a_secret_behind_escapes_is_found() -> None:
    assert "OpenRouter key" in secrets_in(b'{"a":"\\u0073k-or-v1-0123456789abcdef"}')
    assert "OpenRouter key" in secrets_in(b"key=sk%2Dor-v1-0123456789abcdef")
