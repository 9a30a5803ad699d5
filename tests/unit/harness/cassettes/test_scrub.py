"""Secrets: out of headers, bodies and addresses, in both directions, and nothing else with them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cassettes.scrub import (
    KEPT_REQUEST,
    KEPT_RESPONSE,
    key_forms,
    scrub_body,
    scrub_headers,
    scrub_uri,
    secrets_in,
)
from pipeline.base.redaction import MARK

NAMES = (
    *(
        "client_secret",
        "password",
        "secret",
        "refresh_token",
        "session_id",
        "Set-Cookie",
        "x-api-key",
        "secretAccessKey",
    ),
    *("accessToken", "organization_id", "proxy-authorization", "private_key", "passwd", "apiKey"),
)
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
        ('{"cookie":["a=1","b=2"],"x":1}', f'{{"cookie":"{MARK}","x":1}}'),
        ('{"user\\u005fid":"me"}', f'{{"user\\u005fid":"{MARK}"}}'),
        ('{"a":"sk\\u002dor\\u002dv1-0123456789abcdef"}', f'{{"a":"{MARK}"}}'),
        ('{"a":"sk%2Dor%2Dv1%2D0123456789abcdef"}', f'{{"a":"{MARK}"}}'),
        ('{"a":"Authorization: Basic dXNlcjpwYXNz"}', f'{{"a":"Authorization: {MARK}"}}'),
        ('{"a":"{\\"authorization\\":\\"Basic dXNlcjpwYXNz\\"}"}', f'{{"a":"{{\\"authorization\\":\\"{MARK}\\"}}"}}'),
        ('{"a":"Bearer\\tabc123def456ghi"}', f'{{"a":"{MARK}"}}'),
        ("Bearer\tabc123def456ghi", MARK),
        ('{"a":"org-abc123 and org_AbCdEfGhIjKlMnOpQrStUvWx"}', f'{{"a":"{MARK} and {MARK}"}}'),
        (
            '{"a":"at https://me:pw@h.io/x?a=1&api-key=abcd1234&b"}',
            f'{{"a":"at https://{MARK}@h.io/x?a=1&api-key={MARK}&b"}}',
        ),
        (
            '{"error":{"message":"{\\"user_id\\": \\"u-8847abc\\", \\"team_id\\":7, \\"x\\":1}"}}',
            f'{{"error":{{"message":"{{\\"user_id\\": \\"{MARK}\\", \\"team_id\\":\\"{MARK}\\", \\"x\\":1}}"}}}}',
        ),
        (
            r'{"error":{"message":"{\"m\": \"{\\\"raw\\\":\\\"x\\\"}\"}"}}',
            rf'{{"error":{{"message":"{{\"m\": \"{{\\\"raw\\\":\\\"{MARK}\\\"}}\"}}"}}}}',
        ),
        (
            r'{"error":"{\u0022user_id\u0022:\u0022me\u0022}"}',
            rf'{{"error":"{{\u0022user_id\u0022:\u0022{MARK}\u0022}}"}}',
        ),
        *((f'{{"{name}":"x"}}', f'{{"{name}":"{MARK}"}}') for name in NAMES),
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
        '{"arguments":"{\\"user\\": \\"a\\", \\"raw\\": \\"b\\", \\"secret\\": {\\"type\\": \\"string\\"}}"}',
        '{"content":"see https://h.io/?key=value&page=2, org_chart, org-mode; the authorization is basic here"}',
        '{"logprobs":{"content":[{"token":"token"},{"token":" key"},{"token":" sig"}]}}',
        '{"logprobs":{"content":[{"token":" the","bytes":[32]}]}}',
        "a risk-assessment-framework-2026 for the bearer of this, sk-learn and hf_transfer",
        '{"user":"row-1","metadata":{"raw":null}}',
    ],
)
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert text.encode() == scrub_body(text.encode(), answer=True)
    assert [] == secrets_in(text.encode())


@pytest.mark.parametrize(
    "text, found",
    [
        (r'{"arguments":"{\"user_id\": \"a\"}"}', 'the field "user_id"'),
        (r'{"content":"{\"a\": \"{\\\"password\\\": \\\"x\\\"}\"}"}', 'the field "password"'),
        (r'{"error":{"message":"{\"user_id\": \"cut off"},"x":"y"}', 'the field "user_id"'),
    ],
)
def test_where_no_mark_may_stand_the_scan_objects(text: str, found: str) -> None:
    """A model's own words, and what is cut off within them: the cassette is not saved."""
    assert text.encode() == scrub_body(text.encode(), answer=True)
    assert [found] == secrets_in(text.encode())


def stream(*contents: str) -> bytes:
    chunks = [json.dumps({"id": "gen-1", "choices": [{"index": 0, "delta": {"content": text}}]}) for text in contents]
    return "".join(f"data: {chunk}\n\n" for chunk in chunks).encode() + b"data: [DONE]\n\n"


def calls(*pieces: tuple[int, str]) -> bytes:
    deltas = [{"tool_calls": [{"index": index, "function": {"arguments": text}}]} for index, text in pieces]
    return "".join(f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n" for delta in deltas).encode()


@pytest.mark.parametrize(
    "body, found",
    [
        (stream("key sk-o", "r-v1-01234", "56789abcdef end"), "OpenRouter key, in pieces"),
        (stream('{"pass', 'word": "x"}'), 'the field "password", in pieces'),
        (calls((0, "sk-or-"), (1, "{}"), (0, "v1-0123456789")), "OpenRouter key, in pieces"),
        (
            b'{"logprobs":{"content":[{"token":"sk-"},{"token":"or-"},{"token":"v1-01234567"}]}}',
            "OpenRouter key, in pieces",
        ),
    ],
    ids=["deltas", "a member", "interleaved calls", "tokens of a list"],
)
def test_a_secret_in_pieces_is_found_and_left(body: bytes, found: str) -> None:
    assert body == scrub_body(body, answer=True)
    assert found in secrets_in(body)


def test_a_stream_of_equal_words_holds_no_secret() -> None:
    assert [] == secrets_in(stream(*["the user ", "key ", "is org", "-wide ", "12345678 "] * 4))


def test_the_key_in_use_is_removed_also_without_its_prefix() -> None:
    """The key in use goes wherever it stands also without its prefix."""
    keys = key_forms({"Authorization": f"Bearer {KEY}", "Accept": "application/json-of-a-kind-0000"})
    tail = KEY.removeprefix("sk-or-v1-")
    body = f'{{"a":"{tail}","b":"v1-{tail.upper()}","c":"v1\\u002d{tail}","d":"{{\\"k\\":\\"{tail}\\"}}"}}'.encode()

    scrubbed = scrub_body(body, answer=True, keys=keys)

    expected = f'{{"a":"{MARK}","b":"{MARK}","c":"{MARK}","d":"{{\\"k\\":\\"{MARK}\\"}}"}}'.encode()
    assert {KEY, f"or-v1-{tail}", f"v1-{tail}", tail} == keys
    assert expected == scrubbed
    assert ["the key in use"] == secrets_in(body, keys=keys)
    assert [] == secrets_in(scrubbed, keys=keys)
    assert f"https://h.io/{MARK}?a={MARK}" == scrub_uri(f"https://h.io/{tail}?a={tail}", keys)


def test_a_short_piece_of_a_key_blots_out_nothing() -> None:
    assert frozenset({"emulator-needs-no-key"}) == key_forms({"authorization": "Bearer emulator-needs-no-key"})


def test_a_tool_argument_called_raw_stays_in_a_request() -> None:
    body = b'{"tools":[{"raw":"x"}]}'

    assert body == scrub_body(body, answer=False)


LURES = st.sampled_from(
    [
        '"user_id":',
        '\\"user_id\\":',
        '"x"',
        '\\"x\\"',
        '"message":"',
        '"',
        "\\",
        "sk-or-v1-0123456789",
        "bearer\t",
        "\\u005f",
    ]
)


@given(st.one_of(st.binary(), st.lists(LURES).map("".join).map(str.encode)))
def test_scrubbing_twice_changes_nothing(body: bytes) -> None:
    once = scrub_body(body, answer=True)

    assert once == scrub_body(once, answer=True)


def test_addresses_lose_users_and_keys() -> None:
    assert f"https://h.io/v1?id=gen-1&key={MARK}" == scrub_uri(f"https://me:pass@h.io/v1?id=gen-1&key={KEY}")


@pytest.mark.parametrize(
    "name",
    ["api-key", "api%2Dkey", "key", "token", "sig", "auth", "access_token", "X-Amz-Signature", "KEY", "client_secret"],
)
def test_a_secret_parameter_is_removed_whatever_its_value(name: str) -> None:
    """A parameter that is a secret by name goes whatever it is."""
    assert f"https://h.io/v1?a=b&{name}={MARK}&c=d" == scrub_uri(f"https://h.io/v1?a=b&{name}=x&c=d")


def test_a_secret_behind_escapes_is_found() -> None:
    assert "OpenRouter key" in secrets_in(b'{"a":"\\u0073k-or-v1-0123456789abcdef"}')
    assert "OpenRouter key" in secrets_in(b"key=sk%2Dor-v1-0123456789abcdef")
