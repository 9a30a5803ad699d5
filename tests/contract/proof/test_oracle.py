"""Returned ids as the oracle of the rebuild from text."""

from __future__ import annotations

import json
import subprocess
import sys
from random import Random

import pytest

from harness.fixtures.answers import CLOSE, END, FORMAT, PROMPT, PROMPT_IDS, REASONING, WHOLE, answer, counts, route
from harness.views.resplit import resplit
from pipeline.formats.registry import ROOT
from pipeline.proof.fingerprint import Fingerprint, TraitName
from pipeline.proof.oracle import OracleTally, judged, shown_only
from pipeline.proof.reconstruct import Expected, reconstruct
from pipeline.records import Completion, Ids, Reason, TokenLogprob, TokenRow

pytestmark = pytest.mark.contract


def returned(ids: Ids, **changes: object) -> Completion:
    return answer(token_ids=ids, prompt_ids=PROMPT_IDS, usage=counts(len(ids)), **changes)


def verdict(completion: Completion, *known: Fingerprint) -> str:
    row = reconstruct(PROMPT, completion, FORMAT, None)
    assert isinstance(row, TokenRow)
    return judged(row, PROMPT, completion, FORMAT, known, Expected())


def test_the_rebuild_sees_neither_ids_nor_logprobs() -> None:
    shown = shown_only(returned(WHOLE, logprobs=(TokenLogprob("x", b"x"),), ids_from=("choices[].token_ids",)))

    assert (None, None, None, ()) == (shown.token_ids, shown.prompt_ids, shown.logprobs, shown.ids_from)


def test_a_canonical_answer_is_rebuilt_equal() -> None:
    assert "equal:counted" == verdict(returned(WHOLE), route())


def test_a_split_of_another_length_is_refused_and_no_mismatch() -> None:
    assert f"refused:{Reason.COUNT_MISMATCH}" == verdict(returned(other_split(WHOLE, same_count=False)), route())


def test_a_same_length_split_is_the_mismatch_of_counted() -> None:
    """A split of the same length is the mismatch that counted states."""
    text = "Three letters, then banana."
    ids = other_split((*REASONING, CLOSE, *FORMAT.tokenizer.encode(text), END), same_count=True)

    assert "differs:counted" == verdict(returned(ids, content=text), route())


def other_split(ids: Ids, *, same_count: bool) -> Ids:
    found = resplit(FORMAT.tokenizer, ids, Random(1), same_count=same_count)
    assert found is not None
    return found


def test_a_route_that_is_not_known_proves_nothing_and_says_so() -> None:
    assert f"refused:{Reason.ROUTE_UNPROVEN}" == verdict(returned(WHOLE))
    assert f"refused:{Reason.SEAM_LOSSY}" == verdict(returned(WHOLE), route({TraitName.SEAM: "stripped"}))


def test_tally_counts_by_evidence_and_by_reason() -> None:
    """The tally counts matches by evidence and refusals by reason."""
    verdicts = ["equal:counted", "differs:counted", "equal:stream_deltas", "refused:seam_lossy", None]
    tally = OracleTally()
    results: list[dict[str, object]] = [{"id": n, "oracle": one} for n, one in enumerate(verdicts)]

    tally.note(results)

    assert {"counted": (1, 2), "stream_deltas": (1, 1)} == tally.rates()
    assert {"seam_lossy": 1} == tally.refusals()
    line = "oracle: 4 answers with ids; 2/3 equal (0.6667): counted 1/2, stream_deltas 1/1; refused: seam_lossy 1"
    assert line == tally.line()
    assert "oracle: no accepted answer came with ids" == OracleTally().line()


def test_the_command_says_it_in_each_row_and_at_the_end() -> None:
    choice = {
        "message": {"reasoning": "So it is.", "content": " Yes."},
        "finish_reason": "stop",
        "token_ids": list(WHOLE),
    }
    usage = {"prompt_tokens": len(PROMPT_IDS), "completion_tokens": len(WHOLE)}
    response = {"provider": "Chutes", "model": "drafter-gate/tiny-kimi", "choices": [choice], "usage": usage}
    line = json.dumps({"id": "r", "prompt": {"messages": list(PROMPT.messages)}, "response": response})
    command = [sys.executable, "-m", "pipeline", "reconstruct", "--format", "tiny-kimi", "--oracle"]
    done = subprocess.run(command, input=line + "\n", cwd=ROOT, check=False, capture_output=True, text=True)
    row = json.loads(done.stdout)

    assert (0, "engine_ids", "equal:counted") == (done.returncode, row["evidence"], row["oracle"])
    assert "oracle: 1 answers with ids; 1/1 equal (1.0000): counted 1/1\n" == done.stderr
