"""Cassettes of a probe's exchanges: their names, what is kept, and no secret in any of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.cassettes.cassette import read_cassette
from harness.live.cassettes import cassettes_of, folder_of, read_recorded, save_all
from pipeline.base.paths import ROOT
from pipeline.base.redaction import MARK
from pipeline.fingerprints.exchanges import ExchangesError
from pipeline.generation.engines.openrouter import KEY_VARIABLE
from pipeline.records import Json

KEY = "sk-or-v1-" + "0123456789abcdef" * 4
TAIL = "QuartzHarbour7Lantern"
ROUTE, MODEL = "openrouter/siliconflow", "moonshotai/kimi-k2.5"
NAME = "live/siliconflow--moonshotai--kimi-k2.5/echo.json"


def body(content: str = "ok", **changes: Json) -> str:
    message: Json = {"role": "assistant", "content": content}
    choices: Json = [{"finish_reason": "stop", "native_finish_reason": "stop", "message": message}]
    usage: Json = {"prompt_tokens": 5, "completion_tokens": 1}
    answer = {"id": "gen-1", "provider": "SiliconFlow", "model": MODEL, "choices": choices, "usage": usage}
    return json.dumps({**answer, **changes})


def line(**changes: Json) -> dict[str, Json]:
    source: Json = {"run": "r", "route": ROUTE, "row": "echo/json/1", "answered_at": "2026-11-30T01:02:03.9+00:00"}
    return {
        "id": "abc",
        "source": source,
        "fidelity": "verbatim",
        "endpoint": "openrouter.ai/api/v1/chat/completions",
        "provider": "SiliconFlow",
        "model": MODEL,
        "status": 200,
        "stream": False,
        "request": {"model": MODEL, "messages": [{"role": "user", "content": "é"}], "temperature": 1.0, "user": "u1"},
        "headers": {"content-type": "application/json"},
        "body": body(),
        **changes,
    }


def written(folder: Path, *lines: Mapping[str, Json]) -> Path:
    path = folder / "exchanges.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in lines), encoding="utf-8")
    return path


def test_a_cassette_has_the_bytes_the_day_and_the_route(tmp_path: Path) -> None:
    cassettes = cassettes_of(read_recorded(written(tmp_path, line())), ROOT)
    (path,) = save_all(cassettes, tmp_path / "cassettes")

    found = read_cassette(path)
    (interaction,) = found.interactions
    assert tmp_path / "cassettes" / f"{NAME}.yaml" == path
    assert ("2026-11-30T01:02:03Z", "live", ROUTE, MODEL, False) == (
        found.provenance.recorded_at,
        found.provenance.source,
        found.provenance.route,
        found.provenance.model,
        found.provenance.stream,
    )
    sent = f'{{"model":"{MODEL}","messages":[{{"role":"user","content":"é"}}],"temperature":1.0,"user":"u1"}}'
    assert (sent.encode(), body().encode()) == (interaction.request_body, interaction.body)
    assert "https://openrouter.ai/api/v1/chat/completions" == interaction.uri


def test_answers_to_one_question_share_the_oldest_date(tmp_path: Path) -> None:
    """Answers to one question stand in one cassette of the oldest day."""
    times = (("2", "2026-11-30T05:00:00+00:00"), ("1", "2026-11-30T03:00:00+00:00"))
    lines = [line(source={"run": "r", "route": ROUTE, "row": f"echo/json/{n}", "answered_at": at}) for n, at in times]

    cassettes = cassettes_of(read_recorded(written(tmp_path, *lines)), ROOT)

    assert [NAME] == list(cassettes)
    assert "2026-11-30T03:00:00Z" == cassettes[NAME].provenance.recorded_at
    assert 2 == len(cassettes[NAME].interactions)


def test_an_emulated_answer_says_so_and_drops_its_port(tmp_path: Path) -> None:
    """An emulated answer is called so and its port is not kept."""
    one = line(
        source={"run": "r", "route": "emulator/chutes", "row": "a/json/1", "answered_at": "2026-11-30T03:00:00+00:00"},
        endpoint="127.0.0.1:8123/api/v1/chat/completions",
    )

    (cassette,) = cassettes_of(read_recorded(written(tmp_path, one)), ROOT).values()

    assert "emulator" == cassette.provenance.source
    assert "http://emulator.invalid/api/v1/chat/completions" == cassette.interactions[0].uri


def test_a_model_and_a_provider_with_a_variant_make_one_folder() -> None:
    assert "live/siliconflow--fp8--a--b" == folder_of("openrouter/siliconflow/fp8", "a/b")


@pytest.mark.parametrize(
    "changes, why",
    [
        ({}, ""),
        ({"fidelity": "values edited"}, "the copy is no verbatim one (values edited)"),
        ({"body": body(provider="Novita")}, "Novita answered, SiliconFlow was asked"),
        ({"body": body(model="moonshotai/kimi-k2.5-0127")}, ""),
        ({"body": body(model="moonshotai/kimi-k2")}, f"moonshotai/kimi-k2 answered, {MODEL} was asked"),
        ({"body": "{"}, "no answer can be read in it (malformed_input: "),
    ],
)
def test_only_answers_of_what_was_asked_are_kept(changes: dict[str, Json], why: str, tmp_path: Path) -> None:
    (one,) = read_recorded(written(tmp_path, line(**changes)))

    assert one.why_not().startswith(why)
    assert bool(why) == bool(one.why_not())


def test_a_file_that_holds_something_else_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ExchangesError, match="line 2: no exchange of a probe"):
        read_recorded(written(tmp_path, line(), {"id": "x"}))
    with pytest.raises(ExchangesError, match="no exchanges can be read there"):
        read_recorded(tmp_path / "none.jsonl")


def test_no_part_of_an_exchange_leaks_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys by their shape, and the key in use also without its prefix."""
    monkeypatch.setenv(KEY_VARIABLE, f"sk-or-v1-{TAIL}")
    one = line(
        endpoint=f"me:{TAIL}@openrouter.ai/api/v1/chat/completions",
        request={"model": MODEL, "messages": [{"role": "user", "content": f"my key: {KEY}"}], "user_id": "account-17"},
        headers={"content-type": "application/json", "set-cookie": f"__cf_bm={TAIL}", "x-generation-id": TAIL},
        body=body(f"the key {KEY}", user_id="account-17", metadata={"raw": {"team": TAIL}}),
    )

    (path,) = save_all(cassettes_of(read_recorded(written(tmp_path, one)), ROOT), tmp_path / "cassettes")

    text = path.read_text("utf-8")
    assert [False] * 4 == [secret in text for secret in (KEY, TAIL, "account-17", "__cf_bm")]
    assert MARK in text


@pytest.mark.parametrize("cut", [9, 20, 40])
def test_a_key_in_pieces_is_not_kept(cut: int, tmp_path: Path) -> None:
    """No mark can stand there; and a mark on one piece alone would leave the other."""
    events = [
        {"provider": "SiliconFlow", "model": MODEL, "choices": [{"index": 0, "delta": {"content": part}}]}
        for part in (KEY[:cut], KEY[cut:])
    ]
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in (*events, last)) + "data: [DONE]\n\n"

    (one,) = read_recorded(written(tmp_path, line(stream=True, body=stream)))

    assert one.why_not().startswith("it spells a secret out, where no mark can stand (OpenRouter key, in pieces)")
