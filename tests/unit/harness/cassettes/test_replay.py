"""Cassettes: bodies byte for byte, nothing saved that should not be, no recording by a test."""

from __future__ import annotations

import base64
import gzip
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.cassettes.cassette import (
    STYLES,
    Cassette,
    CassetteError,
    Interaction,
    Oracle,
    Provenance,
    dump,
    dump_cassette,
    leaks,
    load,
    parse_cassette,
    read_cassette,
    restore,
    save_cassette,
    store,
)
from harness.cassettes.replay import EMULATOR_URL, _keyless, recording, replaying
from pipeline.base.paths import ROOT
from pipeline.base.redaction import MARK

pytest_plugins = ["pytester"]

KEY = "sk-or-v1-" + "0123456789abcdef" * 4
IN_PIECES = b"".join(
    b'data: {"choices":[{"delta":{"content":"' + piece + b'"}}]}\n\n' for piece in (b"sk-or-v1-", KEY[9:].encode())
)
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))

PROVENANCE = Provenance(
    recorded_at="2026-11-29T20:36:25Z",
    source="emulator",
    route="emulator/chutes",
    model="drafter-gate/tiny-kimi",
    stream=False,
    versions={"openai": "3.57.0"},
    digests={"emulator": "aa", "lock": "bb"},
    oracle=Oracle((1, 2), (3,)),
)
INTERACTION = Interaction(
    method="POST",
    uri="http://emulator.invalid/api/v1/chat/completions",
    request_headers={"content-type": ["application/json"]},
    request_body=b'{"a":1}',
    status=200,
    reason="OK",
    headers={"content-type": ["application/json"]},
    body=b'{"b": 2}',
)


# Bodies


@pytest.mark.parametrize(
    "body, form",
    [
        (b'{"a":1,"b":"\xc3\xa9"}', "json"),
        (b'{"a": 1, "b": "\\u00e9"}', "json"),
        (b'\n         \n\n         \n{"a":[1.5,null,true]}', "json"),
        (b'{"a":1}\n', "json"),
        (b'{\n  "a": 1\n}', "json"),
        (b'{"a" :1}', "raw"),
        (b'{"a":1.10}', "raw"),
        (b'{"a":1,"a":2}', "raw"),
        (b'{"a":"\\ud83d"}', "raw"),
        (b'{"a":1e999}', "raw"),
        (b'\xef\xbb\xbf{"a":1}', "raw"),
        (b"line\r\nline\r\n", "raw"),
        ("nel\x85 ls\u2028 ps\u2029 bom\ufeff zwj\u200d end  \n\n".encode(), "raw"),
        (b"", "raw"),
        (b"\x00\x01", "raw"),
        (b"\xff\xfe", "base64"),
        (b'data: {"a":"\xf0\x9f"}\n\n', "base64"),
    ],
)
def test_body_is_parsed_only_where_that_gives_the_bytes_back(body: bytes, form: str) -> None:
    stored = load(dump(store(body)))

    assert form in stored
    assert body == restore(stored)


def test_stream_is_kept_event_by_event_with_its_comments() -> None:
    body = b': OPENROUTER PROCESSING\n\ndata: {"a":1}\n\ndata: {"a": "\\ud83d"}\n\ndata: [DONE]\n\n'

    stored = store(body)

    assert [
        {"raw": ": OPENROUTER PROCESSING"},
        {"json": {"a": 1}, "style": "compact"},
        {"raw": 'data: {"a": "\\ud83d"}'},
        {"raw": "data: [DONE]"},
        {"raw": ""},
    ] == stored["sse"]
    assert body == restore(load(dump(stored)))


@given(st.binary() | ANY_TEXT.map(lambda text: text.encode("utf-8", "surrogatepass")))
@example("\ud83d".encode("utf-8", "surrogatepass"))
@example(b'{"=": 1, "<<": {"y": "no"}, "1": 1e-7, "0x1": -0.0}')
@example(b"[" * 20_000)
@example(b'{"a":' + b"9" * 5000 + b"}")
@example(b"data: ")
@example(b'\ndata: {"a":1}\n\n\n\ndata: 2')
def test_any_body_comes_back(body: bytes) -> None:
    assert body == restore(load(dump(store(body))))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(JSON, st.sampled_from(sorted(STYLES)), st.booleans())
def test_any_json_comes_back_in_its_style(value: object, style: str, streamed: bool) -> None:
    text = STYLES[style](value)
    body = (f"data: {text}\n\n" if streamed else text).encode("utf-8", "surrogatepass")

    assert body == restore(load(dump(store(body))))


# Files


@given(st.lists(st.binary(min_size=1), min_size=1, max_size=3), ANY_TEXT)
def test_a_cassette_writes_itself_again(bodies: list[bytes], header: str) -> None:
    value = header.encode("utf-8", "replace").decode()
    interactions = tuple(replace(INTERACTION, body=body, headers={"retry-after": [value]}) for body in bodies)
    text = dump_cassette(Cassette(PROVENANCE, interactions))

    again = parse_cassette(text)

    assert interactions == again.interactions
    assert PROVENANCE == again.provenance
    assert text == dump_cassette(again)


def test_provenance_stands_first() -> None:
    """The gate and the attestation read no further than the head of the file."""
    text = dump_cassette(Cassette(PROVENANCE, (INTERACTION,)))

    assert text.startswith("provenance:\n  recorded_at: '2026-11-29T20:36:25Z'\n  source: emulator\n")
    assert "    prompt_ids: [1, 2]\n    output_ids: [3]\n" in text


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    "interactions, objection",
    [
        ((), "nothing was recorded"),
        ((replace(INTERACTION, status=429),), "answer 0 has the status 429"),
        ((INTERACTION, replace(INTERACTION, body=b" \n")), "answer 1 has an empty body"),
        *(
            ((replace(INTERACTION, body=packed(b'{"a": "some text of an answer"}')),), "answer 0 is no text")
            for packed in (gzip.compress, zlib.compress, raw_deflate)
        ),
        ((replace(INTERACTION, request_body=gzip.compress(b"{}")),), "request 0 is no text"),
        ((replace(INTERACTION, body=f'{{"b":"{KEY}"}}'.encode()),), "answer body of 0 holds a secret .OpenRouter key"),
        ((replace(INTERACTION, request_body=b'{"user_id":"x"}'),), "request body of 0 holds a secret"),
        ((replace(INTERACTION, reason=f"OK {KEY}"),), "answer status of 0 holds a secret"),
        ((replace(INTERACTION, headers={"x": ["Bearer abcdefgh12345678"]}),), "answer headers of 0 holds a secret"),
        (
            (replace(INTERACTION, body=b'{"a":"{\\"password\\":\\"x\\"}"}'),),
            r'answer body of 0 holds a secret .the field "password"',
        ),
        *(
            ((replace(INTERACTION, body=b'{"a":"' + encoded + b'"}'),), r"holds a secret .OpenRouter key, encoded")
            for encoded in (base64.b64encode(KEY.encode()), KEY.encode().hex().encode())
        ),
        ((replace(INTERACTION, uri=f"http://e.invalid/?q={KEY.encode().hex()}"),), "address of 0 holds a secret"),
        ((replace(INTERACTION, body=IN_PIECES),), "answer body of 0 holds a secret .OpenRouter key, in pieces"),
        ((replace(INTERACTION, uri="http://e.invalid/?q=hf%5FabcdefABCDEF0123456789"),), "address of 0 holds a secret"),
    ],
)
def test_what_must_not_be_saved_is_not(tmp_path: Path, interactions: tuple[Interaction, ...], objection: str) -> None:
    with pytest.raises(CassetteError, match=objection):
        save_cassette(tmp_path / "case.yaml", Cassette(PROVENANCE, interactions))

    assert [] == list(tmp_path.iterdir())


def test_an_error_is_saved_where_it_is_asked_for(tmp_path: Path) -> None:
    save_cassette(tmp_path / "c.yaml", Cassette(PROVENANCE, (replace(INTERACTION, status=402),)), errors_wanted=True)

    assert 402 == read_cassette(tmp_path / "c.yaml").interactions[0].status
    assert ["c.yaml"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize("text", ["", "[]", "a: 1", "{version: 2}", "\t", "version: 1\nprovenance: {source: here}\n"])
def test_what_is_no_cassette_is_an_error_that_names_the_command(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(text, "utf-8")

    with pytest.raises(CassetteError, match=r"(?s)c\.yaml: .*Run: nox -s cassettes"):
        read_cassette(tmp_path / "c.yaml")


# Recording, over a real socket


@contextmanager
def server(body: bytes = b'{"ok":true}', asked: list[str] | None = None, **headers: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            if asked is not None:
                asked.append(self.path)
            self.send_response(200)
            sent = {"content-length": str(len(body)), "content-type": "application/json", **headers}
            for name, value in sent.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}/api/v1"
        finally:
            http.shutdown()
            thread.join()


def post(url: str, content: bytes = b'{"q":1}') -> bytes:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", "X-Stainless-Lang": "python"}
    with httpx2.Client() as client:
        return client.post(f"{url}/chat/completions", content=content, headers=headers).content


@pytest.mark.parametrize("encode", [base64.b64encode, bytes.hex], ids=["base64", "hex"])
def test_an_answer_with_the_key_in_use_encoded_is_not_kept(encode: Callable[[bytes], bytes | str]) -> None:
    said = encode(f"Bearer {KEY}".encode())
    body = b'{"a":"%b"}' % (said if isinstance(said, bytes) else said.encode())

    with pytest.raises(CassetteError, match="the key in use, encoded"), server(body=body) as url, recording():
        post(url)


def test_the_key_in_use_leaves_the_phrase_of_a_status() -> None:
    own = "no-shape-that-anybody-knows"

    assert f"No {MARK}" == _keyless(replace(INTERACTION, reason=f"No {own}"), frozenset({own})).reason


@pytest.mark.parametrize(
    "encoding, body",
    [
        ("GZIP", gzip.compress(b'{"a":"some text of an answer"}')),
        ("gzip, gzip", gzip.compress(gzip.compress(b'{"a":"some text of an answer"}'))),
        ("identity, gzip", gzip.compress(b'{"a":"some text of an answer"}')),
        ("deflate", raw_deflate(b'{"a":"some text of an answer"}')),
        ("Deflate", zlib.compress(b'{"a":"some text of an answer"}')),
    ],
    ids=["capitals", "twice", "identity too", "raw", "a capital"],  # a body would name the second it was packed in
)
def test_an_encoding_is_undone_or_nothing_is_kept(encoding: str, body: bytes, tmp_path: Path) -> None:
    with server(body=body, content_encoding=encoding) as url, recording() as tape:
        post(url)
    try:
        save_cassette(tmp_path / "c.yaml", Cassette(PROVENANCE, tape.interactions))
    except CassetteError as error:
        assert "is no text" in str(error)  # noqa: PT017 - either is right, and nothing else is
        assert not (tmp_path / "c.yaml").exists()
    else:
        assert b'{"a":"some text of an answer"}' == read_cassette(tmp_path / "c.yaml").interactions[0].body


def test_what_is_recorded_is_replayed_at_a_fixed_address(tmp_path: Path) -> None:
    """The caller of the recording sees the answer as it came; the file and the replay have it scrubbed."""
    body = b'{"user_id":"user_2abcdefghijklmnopqrstuvwxyz"}'
    with server(body=gzip.compress(body), content_encoding="gzip", set_cookie="a=b") as url, recording() as tape:
        live = post(url)
    save_cassette(tmp_path / "c.yaml", Cassette(PROVENANCE, tape.interactions))

    text = (tmp_path / "c.yaml").read_text("utf-8")
    with replaying(tmp_path / "c.yaml"):
        again = post(EMULATOR_URL)

    assert body == live
    assert f'{{"user_id":"{MARK}"}}'.encode() == again
    assert "uri: http://emulator.invalid/api/v1/chat/completions" in text
    hidden = ("sk-or", "user_2", "127.0.0.1", "cookie", "gzip", "stainless")
    assert [] == [secret for secret in hidden if secret in text]
    assert [] == list(leaks(read_cassette(tmp_path / "c.yaml")))


def test_the_key_in_use_is_taken_out_also_without_its_prefix() -> None:
    tail = KEY.removeprefix("sk-or-v1-")
    body = f'{{"a":"no credit on {tail}","b":"{KEY}"}}'.encode()
    with server(body=body, x_generation_id=tail) as url, recording() as tape:
        post(url, f'{{"q":"{tail}"}}'.encode())
    (each,) = tape.interactions

    assert f'{{"a":"no credit on {MARK}","b":"{MARK}"}}'.encode() == each.body
    assert (f'{{"q":"{MARK}"}}'.encode(), [MARK]) == (each.request_body, each.headers["x-generation-id"])


def test_an_answer_with_the_key_in_pieces_is_not_kept() -> None:
    """An answer that spells the key in use in pieces is not kept."""
    tail = KEY.removeprefix("sk-or-v1-")
    pieces = (tail[:30], tail[30:])
    body = "".join(f'data: {{"choices":[{{"delta":{{"content":"{piece}"}}}}]}}\n\n' for piece in pieces).encode()
    with server(body=body) as url, pytest.raises(CassetteError, match="the key in use, in pieces"), recording() as tape:
        post(url)

    assert () == tape.interactions


def test_the_same_json_in_other_bytes_is_another_request(tmp_path: Path) -> None:
    with server() as url, recording() as tape:
        post(url)
    save_cassette(tmp_path / "c.yaml", Cassette(PROVENANCE, tape.interactions))

    with pytest.raises(Exception, match="the same JSON in other bytes"), replaying(tmp_path / "c.yaml"):
        post(EMULATOR_URL, b'{"q": 1}')


def test_a_recording_answers_once(tmp_path: Path) -> None:
    with server() as url, recording() as tape:
        post(url)
    save_cassette(tmp_path / "c.yaml", Cassette(PROVENANCE, tape.interactions))

    with replaying(tmp_path / "c.yaml"):
        post(EMULATOR_URL)
        with pytest.raises(Exception, match=r"c\.yaml"):
            post(EMULATOR_URL)


def test_no_marker_and_no_option_makes_a_test_record(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marker that asks for recording, a variable that asks for it, and a cassette that is not there."""
    pytester.makeini("[pytest]\nmarkers = vcr: what pytest-recording reads\n")
    pytester.makepyfile(
        """
        import httpx2, pytest
        from harness.cassettes.replay import cassette

        @pytest.mark.vcr(record_mode="once")
        @pytest.mark.parametrize("name", ["there", "absent"])
        def test_it(cassette, name, url):
            cassette(name)
            httpx2.post(url, content=b"{}")
        """
    )
    library = pytester.mkdir("cassettes")
    save_cassette(library / "there.yaml", Cassette(PROVENANCE, (INTERACTION,)))
    asked: list[str] = []
    with server(asked=asked) as url:
        pytester.makeconftest(f"import pytest\n@pytest.fixture\ndef url(): return {url!r}\n")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setenv("VCR_RECORD_MODE", "all")
        result = pytester.runpytest_subprocess("-p", "no:cacheprovider")

    result.assert_outcomes(failed=2, errors=0)
    result.stdout.fnmatch_lines(["*CannotOverwriteExistingCassetteException*", "*absent.yaml: no cassette there*"])
    assert ["there.yaml"] == [path.name for path in library.iterdir()]
    assert [] == asked
