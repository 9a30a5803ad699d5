"""`python -m pipeline states` as a user runs it: past the real gate of an attested copy, on the tiny target."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from harness.fixtures.drafters import row, run_folder
from harness.fixtures.trees import Copy
from harness.tiny_target.provenance import WEIGHTS
from pipeline.drafter.states.shards import StateStore
from pipeline.formats.registry import TINY_SHA256

ROWS = 400
GIVEN = [row(f"r{n:03d}", [768, n + 1, 5], [n % 700, 3, *range(40), 770]) for n in range(ROWS)]
"""46 tokens each, 43 emitted: 400 such rows are 19 shards of a megabyte."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_folder(tmp_path_factory.mktemp("rows") / "run", GIVEN, tokenizer_sha256=TINY_SHA256, rows_a_shard=300)


@pytest.fixture(scope="module")
def whole(copy: Copy, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "store"
    done = copy.run("-m", "pipeline", *command(rows, out), OMP_WAIT_POLICY="PASSIVE", OMP_NUM_THREADS="1")
    assert 0 == done.returncode, done.stderr
    assert f"{ROWS} rows of 18,400 tokens, 17,200 of them emitted\n" in done.stderr
    assert "the store takes 18.6 MB for 18,400 tokens" in done.stderr
    return out


def command(rows: Path, out: Path, *options: str) -> tuple[str, ...]:
    where = (str(rows), "--target", str(WEIGHTS), "--out", str(out))
    return ("states", *where, "--device", "cpu", "--shard-mb", "1", *options)


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


def test_the_store_holds_every_row(whole: Path) -> None:
    store = StateStore(whole)
    store.verify()

    assert (ROWS, (1, 3, 4), 128, 1024) == (len(store), store.layers, store.hidden_size, store.vocab_size)
    assert [each.id for each in GIVEN] == [each.id for each in store.training]
    assert [*GIVEN[7].prompt_ids, *GIVEN[7].output_ids] == store.rows([7])[0].ids.tolist()


def test_killed_and_run_again_it_has_the_same_bytes(copy: Copy, rows: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    process = copy.start(*command(rows, out))
    while process.poll() is None and len(shards(out)) < 3:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = len(shards(out))

    done = copy.pipeline(*command(rows, out))

    assert 3 <= left < 19
    assert 0 == done.returncode, done.stderr
    assert shards(whole) == shards(out)
    assert (whole / "manifest.json").read_bytes() == (out / "manifest.json").read_bytes()


def test_without_an_attestation_nothing_is_computed(copy: Copy, rows: Path, tmp_path: Path) -> None:
    shut = copy.clone(tmp_path)
    (shut.root / ".drafter-gate" / "attestation.json").unlink()

    done = shut.pipeline(*command(rows, tmp_path / "store"))

    assert 3 == done.returncode
    assert "refused: " in done.stderr
    assert "nox -s contract" in done.stderr
    assert not (tmp_path / "store").exists()


def test_a_vocabulary_without_a_passed_contract_is_refused(copy: Copy, tmp_path: Path) -> None:
    """By the gate."""
    other = run_folder(tmp_path / "run", GIVEN[:2], format="kimi-k2.5", tokenizer_sha256="ab" * 32)

    done = copy.pipeline(*command(other, tmp_path / "store"))

    assert (3, True) == (done.returncode, "no contract of kimi-k2.5 tokenizer abababababab has passed" in done.stderr)


def test_what_cannot_be_used_is_said_in_a_sentence(copy: Copy, rows: Path, whole: Path) -> None:
    before = shards(whole)

    done = copy.pipeline(*command(rows, whole, "--layers", "1,3,5"))

    assert 2 == done.returncode
    assert "was begun with other settings (layers [1, 3, 4], now [1, 3, 5]" in done.stderr
    assert "Traceback" not in done.stderr
    assert before == shards(whole)
