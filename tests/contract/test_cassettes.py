"""Every cassette: used, played to its end, scrubbed, the same when written again, and recorded from this very emulator.

What a cassette must lead to is pinned here: replayed through the real client, read from the wire and rebuilt, the ids
are the emulator's true ones by the evidence that this route can give, or the row is refused for the right reason.
"""

from __future__ import annotations

import asyncio
import json
import re
from functools import cache

import httpx2
import openai
import pytest
from vcr.errors import CannotOverwriteExistingCassetteException

from harness.cassettes.cassette import Cassette, CassetteError, dump_cassette, leaks, parse_cassette, read_cassette
from harness.cassettes.record import CASES, case_of, names, request_of
from harness.cassettes.replay import EMULATOR_URL, OpenCassette, cassette, replaying
from harness.cassettes.staleness import cassette_paths, emulator_digests, stale_emulator
from harness.views.roundtrip import read, true_fingerprint
from pipeline.base.paths import ROOT
from pipeline.datasets.features import features_of
from pipeline.formats.format import Format
from pipeline.formats.registry import load_format
from pipeline.formats.tokenizer import load_tokenizer
from pipeline.generation.engines.openrouter import OpenRouter, encode_body
from pipeline.proof.fingerprint import Fingerprint, committed_fingerprints, fingerprint_of
from pipeline.proof.reconstruct import Expected, reconstruct
from pipeline.records import Completion, Evidence, Reason, Refusal

__all__ = ["cassette"]

pytestmark = pytest.mark.contract

EXPECTED: dict[str, Evidence | Reason] = {
    "emulator/siliconflow/reasoning": Evidence.COUNTED,
    "emulator/siliconflow/content_only": Evidence.COUNTED,
    "emulator/siliconflow/tools_raw": Evidence.COUNTED,
    "emulator/siliconflow/tools_structured": Reason.STRUCTURED_CALLS,
    "emulator/siliconflow/multi_turn": Evidence.COUNTED,
    "emulator/siliconflow/length_cut": Evidence.COUNTED,
    "emulator/siliconflow/stream": Evidence.STREAM_DELTAS,
    "emulator/siliconflow/own_ids": Evidence.LOGPROBS,
    "emulator/chutes/reasoning": Evidence.COUNTED,
    "emulator/chutes/content_only": Evidence.COUNTED,
    "emulator/chutes/tools_raw": Evidence.COUNTED,
    "emulator/chutes/tools_structured": Evidence.COUNTED,
    "emulator/chutes/multi_turn": Evidence.COUNTED,
    "emulator/chutes/length_cut": Evidence.COUNTED,
    "emulator/chutes/stream": Evidence.COUNTED,
    "emulator/chutes/own_ids": Evidence.ENGINE_IDS,
    "emulator/atlascloud/reasoning": Reason.SEAM_LOSSY,
    "emulator/atlascloud/content_only": Reason.SEAM_LOSSY,
    "emulator/atlascloud/tools_raw": Reason.SEAM_LOSSY,
    "emulator/atlascloud/tools_structured": Reason.SEAM_LOSSY,
    "emulator/atlascloud/multi_turn": Reason.SEAM_LOSSY,
    "emulator/atlascloud/length_cut": Reason.SEAM_LOSSY,
    "emulator/atlascloud/stream": Reason.SEAM_LOSSY,
    "emulator/atlascloud/own_ids": Evidence.LOGPROBS,
}


def covers(name: str) -> pytest.MarkDecorator:
    """What the cassette is a contract of: the prompt's features, and how the answer came; a refusal proves none."""
    profile, case = case_of(name)
    if isinstance(EXPECTED[name], Reason):
        return pytest.mark.contract
    features = [str(feature) for feature in features_of(case.prompt, case.tool_mode)]
    answer = "length_cut" if case.shows == "cut" else "instant" if not case.prompt.thinking else "thinking"
    return pytest.mark.covers(answer, *features, route=f"emulator/{profile.slug}")


@cache
def tiny() -> Format:
    return load_format("kimi-k2.5", load_tokenizer(ROOT / "harness" / "tiny_target" / "weights"))


@cache
def known_fingerprints() -> list[Fingerprint]:
    return committed_fingerprints(ROOT)


@cache
def digests() -> dict[str, str]:
    return emulator_digests(ROOT)


def true_ids(recorded: Cassette) -> tuple[tuple[int, ...], tuple[int, ...]]:
    oracle = recorded.provenance.oracle
    if oracle is None:
        pytest.fail("an emulator cassette without its oracle")
    return oracle.prompt_ids, oracle.output_ids


def replayed(name: str, recorded: Cassette) -> Completion:
    """The answer to the case's request, through the real client; the seed is the one that stands in the recording."""
    _, case = case_of(name)
    seed = json.loads(recorded.interactions[0].request_body)["seed"]

    async def ask() -> bytes:
        async with OpenRouter(EMULATOR_URL) as client:
            answer = await client.send(encode_body(request_of(name, tiny(), seed)))
        assert 200 == answer.status
        return answer.raw

    return read(asyncio.run(ask()), stream=case.stream)


@pytest.mark.parametrize("name", [pytest.param(name, marks=covers(name)) for name in EXPECTED])
def test_replay_gives_the_true_ids_or_the_refusal(name: str, cassette: OpenCassette) -> None:
    profile, case = case_of(name)
    recorded = cassette(name)
    completion = replayed(name, recorded)
    known = known_fingerprints()
    fingerprint = fingerprint_of(completion, known) if known else true_fingerprint(profile, stream=case.stream)

    row = reconstruct(case.prompt, completion, tiny(), fingerprint, Expected(profile.name, None, case.max_tokens))

    if isinstance(row, Refusal):
        assert EXPECTED[name] == row.reason, row.detail
    else:
        assert EXPECTED[name] == row.evidence
        assert true_ids(recorded) == (row.prompt_ids, row.output_ids)


def test_every_provider_has_every_case() -> None:
    assert sorted(names()) == sorted(EXPECTED)
    assert {"reasoning", "content_only", "tools_raw", "tools_structured", "multi_turn", "length_cut"} <= {*CASES}
    assert "stream" in CASES


def test_every_cassette_is_used() -> None:
    """A file that no test opens proves nothing and rots; live routes and local engines have tests of their own."""
    files = [path.relative_to(ROOT / "cassettes").as_posix() for path in cassette_paths(ROOT)]
    others = ("live/", "local/")

    assert sorted(f"{name}.yaml" for name in EXPECTED) == [name for name in files if not name.startswith(others)]


@pytest.mark.parametrize("name", EXPECTED)
def test_cassette_is_scrubbed(name: str) -> None:
    assert [] == list(leaks(read_cassette(ROOT / "cassettes" / f"{name}.yaml")))


@pytest.mark.parametrize("name", EXPECTED)
def test_cassette_writes_itself_again(name: str) -> None:
    """Byte for byte: a cassette edited by hand, or by another tool, shows."""
    text = (ROOT / "cassettes" / f"{name}.yaml").read_bytes().decode("utf-8")

    assert text == dump_cassette(parse_cassette(text))


@pytest.mark.parametrize("name", EXPECTED)
def test_cassette_was_recorded_from_this_emulator(name: str) -> None:
    """By digest of its sources, weights and lock, never by date: run `nox -s cassettes` after a change."""
    assert None is stale_emulator(read_cassette(ROOT / "cassettes" / f"{name}.yaml"), digests())


# The recorder itself: the next HTTP library of the SDK must not pass it by


@pytest.mark.usefixtures("socket_disabled")
def test_replay_answers_the_sdk_without_a_socket(cassette: OpenCassette) -> None:
    """The SDK's own request differs from ours in bytes, so it is offered the recorded ones."""
    name = "emulator/chutes/reasoning"
    recorded = cassette(name)

    with openai.OpenAI(base_url=EMULATOR_URL, api_key="none", max_retries=0) as sdk:
        answer = sdk.post("/chat/completions", cast_to=httpx2.Response, content=recorded.interactions[0].request_body)

    assert recorded.interactions[0].body == answer.content


@pytest.mark.usefixtures("socket_disabled")
@pytest.mark.parametrize("case", ["reasoning", "stream"])
def test_replay_refuses_another_request_without_a_socket(case: str) -> None:
    path = ROOT / "cassettes" / "emulator" / "chutes" / f"{case}.yaml"
    other = read_cassette(path).interactions[0].request_body.replace(b"17 + 26", b"17 + 27")

    with (
        pytest.raises(CannotOverwriteExistingCassetteException, match=re.escape("17 + 27")),
        replaying(path),
        openai.OpenAI(base_url=EMULATOR_URL, api_key="none", max_retries=0) as sdk,
    ):
        sdk.post("/chat/completions", cast_to=httpx2.Response, content=other)


def test_an_unplayed_recording_is_an_error() -> None:
    path = ROOT / "cassettes" / "emulator" / "chutes" / "reasoning.yaml"

    with pytest.raises(CassetteError, match="1 of 1 recordings were not asked for"), replaying(path):
        pass
