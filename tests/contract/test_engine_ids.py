"""Every golden as an engine's server answers it: its ids come back by the engine's own word, and nothing else does."""

from __future__ import annotations

from functools import cache

import pytest

from harness.engines.stand_in import Name, answered
from harness.goldens.cases import GOLDENS
from harness.goldens.extension import golden_path
from harness.goldens.golden import Golden, read_golden
from pipeline.formats.format import Format
from pipeline.formats.registry import open_format
from pipeline.generation.engines.dialects import DIALECTS
from pipeline.generation.engines.output import EngineOutput, complete
from pipeline.generation.engines.server import ServerRequest, checked
from pipeline.proof.reconstruct import Expected, reconstruct
from pipeline.records import Evidence, Reason, Refusal, Sampling, TokenRow

pytestmark = pytest.mark.contract

MODEL = "drafter-gate/tiny-kimi"
NAMES: tuple[Name, ...] = ("sglang", "vllm")
CASES = [
    pytest.param(name, case.id, marks=pytest.mark.covers(*case.features, route=name), id=f"{name}-{case.id}")
    for name in NAMES
    for case in GOLDENS.values()
]


@cache
def tiny() -> Format:
    return open_format("tiny-kimi")


@cache
def golden_of(case: str) -> Golden:
    return read_golden(golden_path(case))


def generation(name: Name, golden: Golden) -> EngineOutput:
    """What the client makes of the engine's answer."""
    last = golden.ids[-1]
    end_id = last if last in tiny().end_ids else -1
    body = answered(name, list(golden.prompt_ids), list(golden.ids), end_id)
    ask = ServerRequest(golden.prompt_ids, Sampling(max_tokens=len(golden.ids)), tuple(tiny().end_ids))
    return checked(ask, DIALECTS[name]().generation(ask, body))


def row_of(name: Name, golden: Golden, provider: str) -> TokenRow | Refusal:
    found, asked = generation(name, golden), Expected(provider, MODEL, len(golden.ids))
    thinking = golden.prompt.thinking
    completion = complete(golden.prompt_ids, found, tiny(), thinking=thinking, model=MODEL, provider=name)
    return reconstruct(golden.prompt, completion, tiny(), None, asked)


@pytest.mark.parametrize("name, case", CASES)
def test_golden_comes_back_from_an_engine_by_its_ids(name: Name, case: str) -> None:
    golden = golden_of(case)
    row = row_of(name, golden, name)

    assert isinstance(row, TokenRow), row
    assert (Evidence.ENGINE_IDS, golden.prompt_ids, golden.ids) == (row.evidence, row.prompt_ids, row.output_ids)


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_is_not_taken_for_another_route(name: Name) -> None:
    row = row_of(name, golden_of("thinking"), "local")

    assert isinstance(row, Refusal)
    assert Reason.WRONG_PROVIDER is row.reason
