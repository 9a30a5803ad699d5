"""What a paid run is spared by what is known beforehand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.fixtures.runs import byte_format
from pipeline.base.money import pico
from pipeline.generation.paid_client import StopError
from pipeline.generation.plan import Plan
from pipeline.generation.preflight import require_hope
from pipeline.proof.fingerprint import Fingerprint, Trait, TraitName
from pipeline.records import Json, Route, Sampling, ToolMode

BOTH = frozenset({"logprobs", "return_token_ids"})


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "tokenizer").mkdir()
    where = (tmp_path / "prompts.jsonl", tmp_path / "out", Route("openrouter", "m/k", "atlascloud", stream=True))
    return Plan(*where, Sampling(), ToolMode.RAW, byte_format(tmp_path / "tokenizer"), budget_pico=pico(1))


def fingerprint(seam: Json, *, proven: bool = True) -> Fingerprint:
    return Fingerprint("AtlasCloud", "m/k", stream=True, traits={TraitName.SEAM: Trait(seam, 90, proven)})


@pytest.mark.parametrize(
    "found, supported, words",
    [
        (fingerprint("stripped"), BOTH, "is stripped, so every row would be paid for and refused. Use --logprobs or"),
        (fingerprint("added"), frozenset({"return_token_ids"}), "Use --return-token-ids"),
        (
            fingerprint("kept", proven=False),
            frozenset[str](),
            "seam_space is not proven, so .* Choose another provider",
        ),
    ],
)
def test_a_paid_route_that_proves_nothing_is_refused_before_it_is_asked(
    found: Fingerprint, supported: frozenset[str], words: str, plan: Plan
) -> None:
    with pytest.raises(StopError, match=words):
        require_hope(plan, found, supported)


def test_a_flag_that_the_endpoint_lacks_gives_no_hope(plan: Plan) -> None:
    asked = replace(plan, sampling=Sampling(logprobs=True))

    with pytest.raises(StopError, match="Use --return-token-ids"):
        require_hope(asked, fingerprint("stripped"), frozenset({"return_token_ids"}))


def test_what_can_still_be_proven_is_asked_in_silence(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    require_hope(plan, fingerprint("kept"), BOTH)
    require_hope(replace(plan, sampling=Sampling(logprobs=True)), fingerprint("stripped"), BOTH)
    require_hope(replace(plan, sampling=Sampling(return_token_ids=True)), fingerprint("stripped"), BOTH)

    assert not capsys.readouterr().err
