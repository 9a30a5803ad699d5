"""An engine's own speculation: how it is asked for, what it says of its drafts, and what passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.measures.engines.speculation import Drafted, counts_of_sglang, counts_of_vllm, flags, objections_to
from pipeline.generation.engines.output import EngineError
from pipeline.records import Json

METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="tiny"} 200.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="tiny"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="tiny"} 800.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="tiny"} 613.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="0"} 178.0
"""
EQUAL: dict[str, Json] = {"wide": 0, "near": 0}


def test_vllm_counts_its_drafts_in_its_metrics() -> None:
    assert Drafted(200, 800, 613) == counts_of_vllm(METRICS)
    assert Drafted() == counts_of_vllm("")


def test_sglang_counts_them_in_each_answer() -> None:
    meta = {"spec_verify_ct": 5, "spec_num_proposed_drafts": 20, "spec_num_correct_drafts": 12}

    assert Drafted(5, 20, 12) == counts_of_sglang(json.dumps({"meta_info": meta}).encode())


def test_an_answer_without_counts_is_no_speculation() -> None:
    with pytest.raises(EngineError, match="says nothing of its drafts"):
        counts_of_sglang(b'{"meta_info": {"completion_tokens": 3}}')


def test_an_acceptance_length_counts_the_targets_own_token() -> None:
    assert [1 + 613 / 200, 1.0] == [Drafted(200, 800, 613).length, Drafted().length]


def test_both_engines_are_told_the_same_chain() -> None:
    (flag, settings), sglang = flags("vllm", Path("/d"), 4), " ".join(flags("sglang", Path("/d"), 4))

    assert "--speculative-config" == flag
    assert {"method": "eagle3", "model": "/d", "num_speculative_tokens": 4} == json.loads(settings)
    assert (
        "--speculative-algorithm EAGLE3 --speculative-draft-model-path /d --speculative-num-steps 4 "
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens 5"
    ) == sglang


@pytest.mark.parametrize(
    "found, theirs, expected",
    [
        (EQUAL, Drafted(100, 400, 210), []),
        (EQUAL | {"near": 3}, Drafted(100, 400, 200), []),
        (EQUAL | {"wide": 2}, Drafted(100, 400, 200), ["2 answers differ under a wide margin"]),
        (EQUAL, Drafted(), ["the engine drafted nothing"]),
        (EQUAL, Drafted(100, 400, 20), ["its acceptance length 1.200 is not ours, 3.000, within 5%"]),
    ],
)
def test_it_passes_where_ids_and_lengths_agree(found: dict[str, Json], theirs: Drafted, expected: list[str]) -> None:
    assert expected == list(objections_to(found, theirs, Drafted(100, 400, 200)))
