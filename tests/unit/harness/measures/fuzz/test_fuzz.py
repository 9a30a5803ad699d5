"""The fuzz: seeded, resumable, right on what it draws, and able to see each kind of fault."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.measures.fuzz import __main__ as fuzz
from harness.measures.fuzz import answers, rebuilds, rows
from harness.measures.fuzz.campaign import EVERY, Campaign, CampaignError
from harness.measures.fuzz.mutants import AGAIN, RAW, Material, edit, joined, split_events, written
from pipeline.datasets.registry import DATASETS
from pipeline.records import Prompt

CASES, ROWS = 400, 60


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository's own rows alone."""
    monkeypatch.delenv("DRAFTER_GATE_SHARED", raising=False)


@pytest.fixture(scope="module")
def goldens() -> list[answers.SeedAnswer]:
    return [*answers.goldens()]


@pytest.fixture(scope="module")
def drawn(goldens: list[answers.SeedAnswer]) -> rebuilds.Rebuilds:
    """One golden in four, and the emulator's cassettes."""
    return rebuilds.Rebuilds([*goldens[::4], *answers.recorded_cassettes("emulator")], 5)


# Answers


def test_no_mutated_answer_makes_a_wrong_row_or_an_error(drawn: rebuilds.Rebuilds) -> None:
    found = [drawn.case(number) for number in range(CASES)]
    accepted = [outcome for outcome, _ in found if outcome.startswith("accepted")]

    assert [] == [(number, wrong) for number, (_, wrong) in enumerate(found) if wrong]
    assert CASES / 20 < len(accepted) < CASES / 2
    assert 10 < len({outcome for outcome, _ in found})


def test_a_case_is_the_same_whenever_it_is_drawn(drawn: rebuilds.Rebuilds) -> None:
    again = rebuilds.Rebuilds([*drawn.seeds["golden"], *drawn.seeds["cassette"]], 5)

    assert [drawn.drawn(number)[1] for number in (7, 3)] == [again.drawn(number)[1] for number in (7, 3)]
    assert drawn.drawn(7)[1] != drawn.drawn(8)[1]


def whole(goldens: list[answers.SeedAnswer], *, stream: bool) -> tuple[answers.SeedAnswer, rebuilds.Mutant]:
    """An answer as it was sent, with text and counts."""
    trips = ("siliconflow-stream-raw", "siliconflow-json-raw")
    one = next(one for one in goldens if one.name == f"golden thinking {trips[not stream]}")
    return one, rebuilds.Mutant(b"", one.raw.decode(), is_asked_alike=True, done=())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fault, named",
    [
        (lambda ids: ids, ""),
        (lambda ids: (*ids[:3], *ids[4:]), "reasoning"),
        (lambda ids: ids[:-1], "cut"),
        (lambda ids: (*ids[:-2], ids[-1]), "content"),
    ],
    ids=["none", "a token lost", "no end", "the last word lost"],
)
def test_a_row_that_its_answer_does_not_bear_out_is_seen(
    goldens: list[answers.SeedAnswer],
    fault: Any,  # noqa: ANN401 - a change of ids
    named: str,
    *,
    stream: bool,
) -> None:
    one, made = whole(goldens, stream=stream)
    prompt_ids, ids = one.truth or ((), ())
    result = {"prompt_ids": prompt_ids, "output_ids": fault(ids), "evidence": "counted"}
    said = rebuilds.wrong(one, made, result)

    assert named in said
    assert bool(named) == bool(said)


def test_an_answer_taken_beside_an_error_is_seen(goldens: list[answers.SeedAnswer]) -> None:
    one, made = whole(goldens, stream=False)
    body = json.loads(made.answer) | {"error": {"message": "overloaded"}}
    prompt_ids, ids = one.truth or ((), ())
    result = {"prompt_ids": prompt_ids, "output_ids": ids, "evidence": "counted"}

    assert "error: ids say False, it says True" == rebuilds.wrong(one, replace(made, answer=json.dumps(body)), result)


# What mutants are made of


def test_what_no_json_writer_writes_is_put_in_as_text() -> None:
    told = written({"a": f"{RAW}1e999", "b": {AGAIN + "c": 1, "c": 2}}, Random(1))

    assert ["1e999", 2] == [told.replace(" ", "")[5:10], told.count('"c"')]


def test_an_unchanged_stream_is_split_and_joined_alike(goldens: list[answers.SeedAnswer]) -> None:
    _, made = whole(goldens, stream=True)
    plain = next(n for n in range(99) if Random(n).random() >= 1 / 4)

    assert made.answer == joined(split_events(made.answer), Random(plain))


def test_edits_share_no_value_with_their_material() -> None:
    donor = {"usage": {"prompt_tokens": [1]}}
    for number in range(300):
        root: dict[str, Any] = {"usage": {"prompt_tokens": 2}, "choices": [{"index": 0}]}
        for _ in range(4):
            edit(root, Random(number), Material(donor, ("</think>",)))

    assert {"usage": {"prompt_tokens": [1]}} == donor


# Rows


@pytest.mark.parametrize("dataset", rows.names())
def test_mutated_rows_keep_their_text_or_are_rejected(dataset: str) -> None:
    mutated = rows.MutatedRows(dataset, 5)

    assert [] == [(number, wrong) for number in range(ROWS) if (wrong := mutated.case(number)[1])]


@pytest.mark.parametrize("dataset", ["B2", "B6", "B8", "messages"])
def test_an_adapter_that_trims_is_seen(dataset: str) -> None:
    known = DATASETS[dataset]

    def trimmed(raw: Any) -> Prompt:  # noqa: ANN401 - as the registry's readers
        made = known.read(raw)
        return replace(made, messages=tuple({**one, "content": str(one["content"]).strip()} for one in made.messages))

    mutated = rows.MutatedRows(dataset, 5)
    mutated.filter = replace(mutated.filter, dataset=replace(known, read=trimmed))

    assert any(mutated.case(number)[1] for number in range(ROWS))


# The campaign


class Counting:
    """Cases of which every third is wrong; the one of number 7 raises."""

    digest = "d"

    def case(self, number: int) -> tuple[str, str]:
        if number == 7:
            raise ValueError("seven")
        return ("odd" if number % 2 else "even"), "third" if number % 3 == 2 else ""

    def told(self, number: int) -> str:
        return str(number)


def test_a_campaign_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for until in (10, EVERY + 3):
        campaign = Campaign.begun(path, 1)
        assert all(section.name == "x" for section in campaign.run("x", Counting(), until))
    (section,) = Campaign.begun(path, 1).sections.values()

    assert (EVERY + 3, EVERY + 3) == (section.done, section.outcomes.total())
    assert 1 == section.outcomes["exception"]
    assert (7, "exception", "ValueError: seven") in section.failures
    assert (EVERY + 3) // 3 + 1 == section.failed
    assert campaign.failed


def test_a_state_of_another_campaign_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    [*Campaign.begun(path, 1).run("x", Counting(), 3)]
    other = Counting()
    other.digest = "e"

    with pytest.raises(CampaignError, match="is of seed 1, and this campaign of 2"):
        Campaign.begun(path, 2)
    with pytest.raises(CampaignError, match="on the seeds d, and here are e"):
        next(Campaign.begun(path, 1).run("x", other, 9))
    path.write_text("[]")
    with pytest.raises(CampaignError, match="is no state of a campaign"):
        Campaign.begun(path, 1)


def test_a_section_can_be_run_and_a_case_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ("--state", str(tmp_path / "state.json"))

    assert 0 == fuzz.main(["--only", "B2", "--rows", "20", *state])
    assert "B2: 20 cases" in capsys.readouterr().out
    assert 0 == fuzz.main(["--only", "B2", "--case", "3"])
    assert capsys.readouterr().out.endswith(": right\n")
    assert 2 == fuzz.main(["--only", "B2", "--seed", "2", *state])
