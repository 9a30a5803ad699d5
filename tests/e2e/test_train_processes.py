"""Training by two processes that torchrun starts, over gloo: the same losses and weights as by one.

Rows have unlike numbers of emitted tokens, so that a mean of the processes' own means would be another loss; epochs
have an odd number of batches, so that one process has none of its own in their last step.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from harness.fixtures.drafters import row, run_folder
from harness.fixtures.training import Trainer, curve, farthest, final_tensors, losses, same_bits
from harness.fixtures.trees import Copy
from harness.tiny_target.provenance import WEIGHTS
from pipeline.formats.registry import TINY_SHA256

GIVEN = [row(f"r{n:02d}", [768, n + 1, 5], [n % 90, 3, *range(n % 7, 12 + n % 31), 770]) for n in range(21)]
FLAGS = ("--tokens-a-batch", "120", "--epochs", "3", "--ttt-length", "4", "--threads", "1", "--held-out", "0.15")
NEAR = 1e-6


@pytest.fixture(scope="module")
def trainer(copy: Copy, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    folder = tmp_path_factory.mktemp("rows") / "run"
    return Trainer(copy, run_folder(folder, GIVEN, tokenizer_sha256=TINY_SHA256, rows_a_shard=30), WEIGHTS, FLAGS)


@pytest.fixture(scope="module")
def alone(trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process that sums two batches up before each step."""
    out = tmp_path_factory.mktemp("alone") / "run"
    done = trainer.run(out, "--accumulate", "2")
    assert 0 == done.returncode, done.stderr
    return out


@pytest.fixture(scope="module", params=["ddp", "fsdp2"])
def together(request: pytest.FixtureRequest, trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two processes, one batch each a step; torchrun begins one pair, and forks are the other."""
    out = tmp_path_factory.mktemp(request.param) / "run"
    run = trainer.run_by if request.param == "ddp" else trainer.run_together
    done = run(2, out, "--sharing", request.param, "--checkpoint-every", "3")
    assert 0 == done.returncode, done.stderr
    assert 1 == done.stderr.count("rows train"), "the first process alone speaks"
    return out


def test_two_processes_have_the_losses_of_one(alone: Path, together: Path) -> None:
    one, two = curve(alone), curve(together)

    assert [line["tokens"] for line in one if line["kind"] == "train"] == [
        line["tokens"] for line in two if line["kind"] == "train"
    ]
    assert [line["rows_by_step"] for line in one] == [line["rows_by_step"] for line in two]
    assert max(abs(a - b) / a for a, b in zip(losses(one), losses(two), strict=True)) < NEAR
    assert [line["loss"] for line in one if line["kind"] == "validation"] == [
        pytest.approx(line["loss"], rel=NEAR) for line in two if line["kind"] == "validation"
    ]


def test_two_processes_have_the_weights_of_one(alone: Path, together: Path) -> None:
    assert farthest(final_tensors(alone), final_tensors(together)) < NEAR


def test_two_processes_export_one_drafter(together: Path) -> None:
    document = json.loads((together / "manifest.json").read_bytes())

    assert (True, 2) == (document["complete"], document["settings"]["processes"])
    assert (together / "drafter" / "model.safetensors").is_file()


def test_two_processes_go_on_from_a_checkpoint_to_the_same_bits(
    trainer: Trainer, together: Path, tmp_path: Path
) -> None:
    """The last checkpoint is taken away, and the run goes on from the one before it."""
    sharing = json.loads((together / "manifest.json").read_bytes())["settings"]["sharing"]
    before = final_tensors(together)
    whole = curve(together)
    last = max((together / "checkpoints").iterdir())
    last.rename(tmp_path / "last")

    done = trainer.run_together(2, together, "--sharing", sharing, "--checkpoint-every", "3")

    assert 0 == done.returncode, done.stderr
    assert "going on after step" in done.stderr
    assert same_bits(before, final_tensors(together))
    assert whole == curve(together)


def test_two_processes_asked_to_stop_write_one_checkpoint(trainer: Trainer, tmp_path: Path) -> None:
    """The signal is passed on by torchrun, and all end after the same step."""
    out = tmp_path / "run"

    status = trainer.stopped(out, 3, "--epochs", "500", by=signal.SIGTERM, processes=2)

    session = json.loads((out / "manifest.json").read_bytes())["sessions"][-1]
    assert 0 != status
    assert [f"step-{len(losses(curve(out))):08d}"] == [path.name for path in (out / "checkpoints").iterdir()]
    assert "interrupted" == session["outcome"]


def test_an_error_of_the_first_process_ends_them_all(trainer: Trainer, alone: Path) -> None:
    """A folder that one process began: the others are not left waiting."""
    done = trainer.run_by(2, alone)

    assert 0 != done.returncode
    assert "was begun with" in done.stderr
    assert "processes 1 and is asked for 2" in done.stderr
