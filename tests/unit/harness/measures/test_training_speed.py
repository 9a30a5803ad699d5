"""The speed measure of drafter training: what it compares, and what it refuses to compare."""

from __future__ import annotations

import pytest

from harness.measures.training_speed import BenchError, Taken, check, compared, measured, ratio


def test_time_is_compared_within_a_round() -> None:
    """The second round fell into a busy minute."""
    assert 2.0 == ratio([2.0, 20.0, 3.0], [1.0, 10.0, 1.0])


def test_the_faster_peer_decides() -> None:
    taken = {
        "ours": Taken(wall=[1.0], cpu=[2.0], memory=70 * 2.0**20),
        "quick": Taken(wall=[1.6], cpu=[2.0], memory=80 * 2.0**20),
        "slow": Taken(wall=[3.0], cpu=[5.0], memory=140 * 2.0**20),
    }

    assert [
        "seq 512, 50 % supervised: ours 512 tokens/s, 70 MiB",
        "    quick              1.60 x its tokens/s (1.00 x by processor time), 0.88 of its memory",
        "    slow               3.00 x its tokens/s (2.50 x by processor time), 0.50 of its memory",
        "    faster: quick; aims 1.5 x tokens/s and 0.7 of its memory: tokens/s met, memory MISSED",
    ] == list(compared(taken, 512, 50))


@pytest.mark.parametrize("theirs", [0.6, float("nan")])
def test_who_computes_something_else_is_not_timed(theirs: float) -> None:
    with pytest.raises(BenchError, match="loss of step 1"):
        check({"ours": {"specforge": [0.5, 0.5]}, "specforge": {"specforge": [0.5, theirs]}})


def test_a_step_of_ours_takes_time_and_memory() -> None:
    taken = measured(96, 50, ["ours"], 2)["ours"]

    assert (2, 2) == (len(taken.wall), len(taken.cpu))
    assert 0 < min(taken.cpu)
    assert 0 < taken.memory < 2**30


def test_a_side_that_cannot_start_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BenchError, match="nobody ended without an answer"):
        measured(96, 50, ["nobody"], 1)
    assert "KeyError: 'nobody'" in capfd.readouterr().err
