"""Whole runs through the routes `sglang` and `vllm`, against a server that answers as those engines do."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from harness.engines.stand_in import Name, StandIn, standing_in
from harness.fixtures.manifests import edit_manifest
from harness.fixtures.runs import MODEL, ROWS, World, prompt_line
from pipeline.base.files import weights_sha256
from pipeline.base.paths import ROOT
from pipeline.base.prompts import prompt_of
from pipeline.formats.format import Format
from pipeline.formats.registry import open_format
from pipeline.generation.outcome import BUDGET_SPENT, TRIPPED, StopError
from pipeline.generation.plan import Caps, Plan, RetryPolicy
from pipeline.records import Route, Sampling

NAMES: tuple[Name, ...] = ("sglang", "vllm")
WEIGHTS = ROOT / "harness" / "tiny_target" / "weights"


@pytest.fixture(scope="module")
def fmt() -> Format:
    return open_format("tiny-kimi")


def engine(name: Name, fmt: Format, **settings: Any) -> StandIn:  # noqa: ANN401 - StandIn's own fields
    """One that thinks a little and says a number, another one for each prompt."""
    encode = fmt.tokenizer.encode

    def answers(prompt: list[int]) -> list[int]:
        return [*encode("A sum."), fmt.think_close_id, *encode(f"It is {sum(prompt)}."), fmt.end_id]

    return StandIn(name, answers, fmt.end_id, **settings)


def plan_for(world: World, server: StandIn, **changes: object) -> Plan:
    ours = {"concurrency": 4, "sampling": Sampling(seed=5), "patience": RetryPolicy(3, 0.01, 0.05), **changes}
    return world.plan(route=Route(server.name, MODEL), base_url=server.url, **ours)


@pytest.mark.parametrize("name", NAMES)
def test_rows_come_by_engine_ids_and_a_run_goes_on(name: Name, world: World) -> None:
    """Requests in flight are bounded."""
    with standing_in(engine(name, world.fmt, delay=0.05)) as server:
        first = world.run(plan_for(world, server, limit=10))
        second = world.run(plan_for(world, server, limit=16))

    assert [10, 6] == [first.rows["asked"], second.rows["asked"]]
    assert (16, {"engine_ids"}, "0.0000", 0) == (
        second.rows["accepted"],
        set(second.by_evidence),
        second.cost["usd"],
        second.code,
    )
    assert 4 == server.most
    for row in world.rows():
        prompt = prompt_of(json.loads(prompt_line(int(str(row["id"])[4:]))))
        ids = list(world.fmt.render(prompt))
        assert (ids, server.answers(ids), name) == (row["prompt_ids"], row["output_ids"], row["route"])


@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_its_own_seed_and_the_formats_end_token(name: Name, world: World) -> None:
    with standing_in(engine(name, world.fmt)) as server:
        world.run(plan_for(world, server, limit=8))

    settings = [body["sampling_params"] if name == "sglang" else body for body in server.asked]
    assert 8 == len({each["sampling_seed" if name == "sglang" else "seed"] for each in settings})
    assert [[world.fmt.end_id]] * 8 == [each["stop_token_ids"] for each in settings]


@pytest.mark.parametrize("name", NAMES)
def test_the_manifest_says_what_computed_the_rows(name: Name, world: World) -> None:
    """It holds nothing secret."""
    with standing_in(engine(name, world.fmt, weights=str(WEIGHTS))) as server:
        if name == "sglang":
            server.pages["/server_info"]["model_path"] = str(WEIGHTS)
        world.run(plan_for(world, server, limit=1))
        text = (world.out / "manifest.json").read_text()

    version, backend = {"sglang": ("0.5.23", "torch_native"), "vllm": ("0.32.0", "CPU_ATTN")}[name]
    told = {"engine": name, "version": version, "device": "cpu", "dtype": "float32", "attention_backend": backend}
    settings = json.loads(text)["settings"]
    assert (told, weights_sha256(WEIGHTS)) == (settings["engine"], settings["weights_sha256"])
    assert "sk-not-to-be-kept" not in text


def test_another_version_does_not_go_on_with_a_folder(world: World) -> None:
    with standing_in(engine("sglang", world.fmt)) as server:
        world.run(plan_for(world, server, limit=2))
        server.pages["/server_info"]["version"] = "0.5.24"

        with pytest.raises(StopError, match="engine"):
            world.run(plan_for(world, server, limit=4))


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_server_stops_before_anything_is_written(name: Name, world: World) -> None:
    server = engine(name, world.fmt)
    with standing_in(server):
        pass

    with pytest.raises(StopError, match=f"does not answer.*nox -s engine -- {name} --model DIR"):
        world.run(plan_for(world, server))
    assert not world.out.exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_server_that_dies_loses_no_row_and_none_is_there_twice(name: Name, world: World) -> None:
    """Rows in flight are asked again, and those in the shards are not."""
    with standing_in(engine(name, world.fmt)) as server:
        server.dies_after = 15
        first = world.run(plan_for(world, server))
    with standing_in(engine(name, world.fmt)) as again:
        second = world.run(plan_for(world, again))

    assert 1 == first.code
    assert "does not answer" in str(first.message)
    assert "start it again" in str(first.message)
    assert "nothing that was answered is asked again" in str(first.message)
    assert (0, ROWS) == (second.code, len(world.rows()))
    assert {f"row-{number}" for number in range(ROWS)} == {str(row["id"]) for row in world.rows()}
    assert ROWS - first.rows["accepted"] == len(again.asked)


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_without_ids_stops_the_run_and_is_no_row(name: Name, world: World) -> None:
    def no_ids(body: dict[str, Any]) -> None:
        body.pop("output_ids", None)
        for choice in body.get("choices", ()):
            choice["token_ids"] = None

    with standing_in(engine(name, world.fmt, spoil=no_ids)) as server:
        summary = world.run(plan_for(world, server))
        server.spoil = lambda _: None
        mended = world.run(plan_for(world, server))

    assert 1 == summary.code
    assert "asked for token ids and returned none" in str(summary.message)
    assert str(summary.message).startswith("row row-")
    assert (0, ROWS) == (mended.code, len(world.rows()))


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("name", NAMES)
def test_a_row_that_is_turned_away_for_now_is_asked_again(name: Name, status: int, world: World) -> None:
    with standing_in(engine(name, world.fmt)) as server:
        server.turns_away, server.turned_away_with = 3, status
        summary = world.run(plan_for(world, server, limit=8))

    assert (0, 8, 11) == (summary.code, summary.rows["accepted"], len(server.asked))


@pytest.mark.parametrize("name", NAMES)
def test_a_row_turned_away_for_good_keeps_the_engines_words(name: Name, world: World) -> None:
    """It is set aside."""
    with standing_in(engine(name, world.fmt)) as server:
        server.turns_away, server.turned_away_with = 1, 400
        world.run(plan_for(world, server, limit=8))

    (refused,) = world.quarantine()
    assert ("upstream_error", "400: turned away") == (refused["reason"], refused["detail"])


def test_nobody_asks_on_where_every_row_is_turned_away(world: World) -> None:
    with standing_in(engine("sglang", world.fmt, status=503)) as server:
        summary = world.run(plan_for(world, server))

    assert 1 == summary.code
    assert "rows in a row were turned away at every attempt, the last so: status 503" in str(summary.message)


@pytest.mark.parametrize("name", NAMES)
def test_a_cap_on_tokens_is_kept(name: Name, world: World) -> None:
    with standing_in(engine(name, world.fmt)) as server:
        sampling, caps = Sampling(max_tokens=100), Caps(tokens=1000)
        summary = world.run(plan_for(world, server, sampling=sampling, caps=caps, concurrency=1))

    assert BUDGET_SPENT == summary.code
    assert "of 1000 tokens a run" in str(summary.message)
    ids = [row[field] for row in world.rows() for field in ("prompt_ids", "output_ids")]
    assert 1000 - 200 < sum(len(each) for each in ids if isinstance(each, list)) <= 1000


@pytest.mark.parametrize("name", NAMES)
def test_the_breaker_stops_a_run_whose_answers_are_empty(name: Name, world: World) -> None:
    with standing_in(engine(name, world.fmt)) as server:
        server.answers = lambda _: [world.fmt.think_close_id, world.fmt.end_id]
        summary = world.run(plan_for(world, server))

    assert (TRIPPED, "empty") == (summary.code, (summary.paused or {})["sign"])
    assert ROWS > len(server.asked)


@pytest.mark.parametrize("name", NAMES)
def test_another_server_in_the_place_of_the_first_gets_no_row(name: Name, world: World) -> None:
    with standing_in(engine(name, world.fmt)) as server:
        page, key = ("/server_info", "dtype") if name == "sglang" else ("/version", "version")

        def swap(_: dict[str, Any]) -> None:
            if len(server.asked) == 4:
                server.pages[page][key] = "another"
                server.cuts = 1

        server.spoil = swap
        summary = world.run(plan_for(world, server, concurrency=1))

    assert (1, 4) == (summary.code, len(world.rows()))
    assert "another server answers at" in str(summary.message)


@pytest.mark.parametrize("name", NAMES)
def test_the_engines_time_is_told_and_no_more_than_passed(name: Name, world: World) -> None:
    with standing_in(engine(name, world.fmt, delay=0.02)) as server:
        begun = time.monotonic()
        summary = world.run(plan_for(world, server, limit=8))
        passed = time.monotonic() - begun

    assert 0.02 <= float(str(summary.cost["engine_seconds"])) <= passed


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_too_long_is_refused_and_not_sent(name: Name, world: World) -> None:
    with standing_in(engine(name, world.fmt, context=30)) as server:
        summary = world.run(plan_for(world, server, limit=3))

    assert (3, []) == (summary.rows["refused"], server.asked)
    assert {"prompt_unsupported"} == {str(row["reason"]) for row in world.quarantine()}


@pytest.mark.parametrize("name", NAMES)
def test_a_server_swapped_between_requests_gets_no_row(name: Name, world: World) -> None:
    """It answers, on a new connection, and nothing failed before."""
    page, key = ("/server_info", "version") if name == "sglang" else ("/version", "version")
    with standing_in(engine(name, world.fmt)) as first:

        def swap(_: dict[str, Any]) -> None:
            first.closes = len(first.asked) == 4
            if first.closes:
                first.pages[page][key] = "9.9"

        first.spoil = swap
        summary = world.run(plan_for(world, first, concurrency=1))

    assert (1, 4) == (summary.code, len(world.rows()))
    assert "another server answers at" in str(summary.message)


@pytest.mark.parametrize("name", NAMES)
def test_another_model_behind_a_tunnel_goes_on_with_no_folder(name: Name, world: World) -> None:
    with standing_in(engine(name, world.fmt, weights="/far/a")) as server:
        world.run(plan_for(world, server, limit=2))
        server.weights = "/far/b"

        with pytest.raises(StopError, match="engine"):
            world.run(plan_for(world, server, limit=4))


@pytest.mark.parametrize("name", NAMES)
def test_a_row_that_always_contradicts_itself_blocks_no_other(name: Name, world: World) -> None:
    def aborts(body: dict[str, Any]) -> None:
        if len(server.asked[-1][prompt]) % 3 == 0:
            body["meta_info" if name == "sglang" else "usage"]["completion_tokens"] = 10**400

    prompt = "input_ids" if name == "sglang" else "prompt"
    with standing_in(engine(name, world.fmt, spoil=aborts)) as server:
        first = world.run(plan_for(world, server, concurrency=1, patience=RetryPolicy(1, 0.01, 0.02)))
        server.spoil = lambda _: None
        second = world.run(plan_for(world, server))

    assert 0 < first.rows["to_ask_again"] < ROWS
    assert (0, 0) == (second.code, first.rows["refused"])
    assert ROWS == len({str(row["id"]) for row in world.rows()})


OF_ONE = [(400, True), (413, True), (422, True), (403, False), (302, False), (410, False)]


@pytest.mark.parametrize("status, sets_aside", OF_ONE)
def test_only_what_is_said_of_one_request_sets_its_row_aside(status: int, sets_aside: bool, world: World) -> None:
    with standing_in(engine("sglang", world.fmt)) as server:
        server.turns_away, server.turned_away_with = 1, status
        summary = world.run(plan_for(world, server, limit=6))

    assert (sets_aside, 0 if sets_aside else 1) == (bool(world.quarantine()), summary.code)
    if not sets_aside:
        assert f"sglang refuses this run, with status {status}" in str(summary.message)


def test_a_folder_needs_the_ledger_that_counts_its_caps(world: World) -> None:
    with standing_in(engine("sglang", world.fmt)) as server:
        world.run(plan_for(world, server, limit=4, caps=Caps(requests=5)))
        for path in world.ledger.parent.glob("ledger.sqlite*"):
            path.unlink()

        with pytest.raises(StopError, match=r"was begun with ledger .* what was paid for would be paid for again"):
            world.run(plan_for(world, server, caps=Caps(requests=5)))
    assert 4 == len(server.asked)


def test_a_restarted_server_may_name_the_same_weights_anew(world: World) -> None:
    with standing_in(engine("vllm", world.fmt, weights=str(WEIGHTS))) as server:
        world.run(plan_for(world, server, limit=6))
        (world.out / "shard-00000.parquet").rename(world.folder / "gone")
        edit_manifest(world.out, lambda document: document.update(shards=[]))
        server.served_as = "another-name"
        summary = world.run(plan_for(world, server, limit=6))

    assert (6, 6, 6) == (summary.rows["accepted"], summary.rows["from_ledger"], len(server.asked))
