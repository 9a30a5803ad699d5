"""Fingerprints by route, and names of routes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.proof.fingerprint import (
    Fingerprint,
    FingerprintError,
    Trait,
    TraitName,
    file_name,
    fingerprint_of,
    is_model,
    read_fingerprints,
)
from pipeline.records import Completion, Reason, RefusedError, Route, RouteError, parse_route

pytestmark = pytest.mark.contract

LINE = (
    '{"provider": "P", "model": "a/m", "stream": true, "trait": "seam_space", "value": "kept", "n": 30, '
    '"proven": true, "counterexamples": []}\n'
)


def answer(provider: str = "P", model: str = "a/m", *, stream: bool = True) -> Completion:
    return Completion("", "x", provider=provider, model=model, deltas=() if stream else None)


def test_traits_of_one_route_are_one_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(
        LINE + LINE.replace("seam_space", "markers").replace("kept", "raw") + LINE.replace("true,", "false,", 1)
    )
    streamed, whole = read_fingerprints(path)

    assert ("kept", "raw") == (streamed.proven(TraitName.SEAM), streamed.proven(TraitName.MARKERS))
    assert (True, False) == (streamed.stream, whole.stream)


@pytest.mark.parametrize("text", ["", "no json\n", "{}\n", "[]\n", LINE.replace("30", '"many"')])
def test_a_file_that_is_no_fingerprint_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "f.jsonl").write_text(text)

    with pytest.raises(FingerprintError):
        read_fingerprints(tmp_path / "f.jsonl")


@pytest.mark.parametrize("second", [LINE, LINE.replace("kept", "stripped")], ids=["the same", "another value"])
def test_a_trait_that_stands_twice_is_an_error(tmp_path: Path, second: str) -> None:
    (tmp_path / "f.jsonl").write_text(LINE + second)

    with pytest.raises(FingerprintError, match="seam_space stands twice"):
        read_fingerprints(tmp_path / "f.jsonl")


def test_a_missing_field_is_named_with_the_remedy(tmp_path: Path) -> None:
    """A line that lacks a field names the field and the remedy."""
    (tmp_path / "f.jsonl").write_text('{"id": "a-1"}')

    with pytest.raises(FingerprintError, match=r"line 1: no 'provider'.*python -m pipeline fingerprint"):
        read_fingerprints(tmp_path / "f.jsonl")


@pytest.mark.parametrize(
    "completion, known",
    [
        (answer(), True),
        (answer(model="a/m-0127"), False),
        (answer(model="a/m-20260315"), False),
        (answer(model="a/m-pro"), False),
        (answer(model="a/m2"), False),
        (answer(provider="Q"), False),
        (answer(stream=False), False),
    ],
    ids=[
        "same",
        "unknown month and day",
        "unknown date",
        "other model",
        "longer model",
        "other provider",
        "not streamed",
    ],
)
def test_a_fingerprint_is_of_its_own_route_alone(completion: Completion, known: bool) -> None:
    fingerprint = Fingerprint("P", "a/m", stream=True, traits={})

    assert known == fingerprint.is_of(completion)


def test_an_unknown_route_is_unproven() -> None:
    with pytest.raises(RefusedError) as refused:
        fingerprint_of(answer(), [])

    assert Reason.ROUTE_UNPROVEN is refused.value.refusal.reason


@pytest.mark.parametrize("traits", [{}, {"seam_space": Trait("kept", 3, proven=False)}], ids=["absent", "too few"])
def test_a_trait_that_is_not_proven_is_named_in_the_refusal(traits: dict[str, Trait]) -> None:
    with pytest.raises(RefusedError, match="seam_space"):
        Fingerprint("P", "a/m", stream=True, traits=traits).require(TraitName.SEAM)


def test_files_are_named_for_the_route() -> None:
    assert "p--a--m--stream.jsonl" == file_name(Fingerprint("P", "a/m", stream=True, traits={}))


@pytest.mark.parametrize(
    "name, expected",
    [
        ("local", Route("local", "m")),
        ("sglang", Route("sglang", "m")),
        ("vllm", Route("vllm", "m")),
        ("emulator/chutes", Route("emulator", "m", "chutes", stream=True)),
        ("openrouter/siliconflow/fp8", Route("openrouter", "m", "siliconflow/fp8", stream=True)),
    ],
)
def test_route_names_are_api_and_provider(name: str, expected: Route) -> None:
    assert expected == parse_route(name, model="m", stream=True)


@pytest.mark.parametrize("name", ["", "local/x", "sglang/x", "emulator", "emulator/", "openrouter/UPPER", "other/x"])
def test_other_names_are_errors(name: str) -> None:
    with pytest.raises(RouteError, match="there are local"):
        parse_route(name, model="m", stream=False)


@pytest.mark.parametrize(
    "asked, told, expected",
    [
        ("moonshotai/kimi-k2.5", "moonshotai/kimi-k2.5-0127", True),
        ("moonshotai/kimi-k2", "moonshotai/kimi-k2.5", False),
        ("moonshotai/kimi-k2", "moonshotai/kimi-k2-0905", False),
        ("moonshotai/kimi-k2", "moonshotai/kimi-k2-0905:exacto", False),
        ("moonshotai/kimi-k2-0905", "moonshotai/kimi-k2-0905", True),
        ("deepseek/deepseek-r1", "deepseek/deepseek-r1-0528", False),
        ("z-ai/glm-5-turbo", "z-ai/glm-5-turbo-20260315", True),
        ("z-ai/glm-5-turbo", "other/glm-5-turbo-20260315", False),
        ("moonshotai/kimi-k2.5", "moonshotai/kimi-k2.5-0128", False),
        ("moonshotai/Kimi-K2-Instruct", "moonshotai/Kimi-K2-Instruct-0905", False),
        ("deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3-0324", False),
        ("deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-R1-0528", False),
        ("Qwen/Qwen3-235B-A22B", "Qwen/Qwen3-235B-A22B-2507", False),
    ],
)
def test_a_dated_slug_is_the_same_model_if_the_date_is_known(asked: str, told: str, expected: bool) -> None:
    assert expected == is_model(asked, told)
