"""`python -m pipeline train` as a user runs it: past the real gate of an attested copy, on the tiny target."""

from __future__ import annotations

import json
import random
import shutil
import signal
from pathlib import Path

import pytest

from harness.fixtures.drafters import row, run_folder, small_llama
from harness.fixtures.manifests import as_unsigned
from harness.fixtures.training import Trainer, curve, final_tensors, same_bits
from harness.fixtures.trees import Copy
from harness.tiny_target.provenance import WEIGHTS
from pipeline.drafter.training.checkpoints import all_of, newest
from pipeline.drafter.training.metrics import read_metrics
from pipeline.formats.registry import TINY_SHA256
from pipeline.records import Evidence

SHUT, UNUSABLE, FAILED = 3, 2, 1
GIVEN = [row(f"r{n:02d}", [768, n + 1, 5], [n % 90, 3, *range(n % 7, 20 + n % 11), 770]) for n in range(48)]
FLAGS = ("--tokens-a-batch", "128", "--epochs", "4", "--ttt-length", "4", "--learning-rate", "1e-3", "--threads", "1")
OPTIONS = (*FLAGS, "--held-out", "0.1", "--checkpoint-every", "4", "--validate-every", "10")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_folder(tmp_path_factory.mktemp("rows") / "run", GIVEN, tokenizer_sha256=TINY_SHA256, rows_a_shard=30)


@pytest.fixture(scope="module")
def trainer(copy: Copy, rows: Path) -> Trainer:
    return Trainer(copy, rows, WEIGHTS, OPTIONS)


@pytest.fixture(scope="module")
def whole(trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    done = trainer.run_apart(out)
    assert 0 == done.returncode, done.stderr
    assert "draft vocabulary: 1,024 of 1,024 tokens, 100.00 % of the emitted tokens" in done.stderr
    return out


# What comes of it


def test_there_is_a_drafter_that_engines_load(whole: Path) -> None:
    config = json.loads((whole / "drafter" / "config.json").read_bytes())
    provenance = json.loads((whole / "drafter" / "PROVENANCE.json").read_bytes())

    assert (["LlamaForCausalLMEagle3"], 1024, 128) == (
        config["architectures"],
        config["draft_vocab_size"],
        config["hidden_size"],
    )
    assert (whole / "drafter" / "model.safetensors").is_file()
    assert [1, 3, 4] == provenance["aux_layers"]
    assert "aligned" == provenance["recipe"]["mode"]


def test_the_manifest_names_proof_settings_and_outcome(whole: Path, copy: Copy) -> None:
    document = json.loads((whole / "manifest.json").read_bytes())
    settings, session = document["settings"], document["sessions"][-1]

    assert ("complete", True) == (session["outcome"], session["tree_unchanged"])
    assert (64, True) == (len(session["attestation"]), document["complete"])
    assert ["cd" * 32] == settings["rows"]["folders"][0]["attestations"]
    assert [[1, 3, 4], [2, 4, 5]] == [settings["layers"], settings["layers_as_boundaries"]]
    assert copy.tree.attestation.is_file()


def test_every_step_and_validation_is_in_the_metrics(whole: Path) -> None:
    trained, validated = read_metrics(whole, "train"), read_metrics(whole, "validation")
    steps = json.loads((whole / "manifest.json").read_bytes())["steps_in_all"]

    assert [*range(1, steps + 1)] == [line["step"] for line in trained]
    assert [*range(10, steps, 10), steps] == [line["step"] for line in validated]
    assert trained[-1]["loss"] < 0.9 * trained[0]["loss"]
    assert all(4 == len(line["loss_by_step"]) == len(line["accuracy_by_step"]) for line in trained + validated)
    assert 2 == len(all_of(whole))


def test_a_run_that_is_done_is_said_to_be_so(trainer: Trainer, whole: Path) -> None:
    before = final_tensors(whole)

    done = trainer.run(whole)

    assert 0 == done.returncode, done.stderr
    assert same_bits(before, final_tensors(whole))


# Stops


def test_killed_at_random_steps_it_ends_in_the_same_bits(trainer: Trainer, whole: Path, tmp_path: Path) -> None:
    out, draw = tmp_path / "run", random.Random(20261130)
    steps = len(read_metrics(whole, "train"))

    for at in sorted(draw.sample(range(2, steps - 2), 2)):
        assert -signal.SIGKILL == trainer.stopped(out, at)
    done = trainer.run(out)

    assert 0 == done.returncode, done.stderr
    assert "going on after step" in done.stderr
    assert same_bits(final_tensors(whole), final_tensors(out))
    assert curve(whole) == curve(out)
    drafters = [(folder / "drafter" / "model.safetensors").read_bytes() for folder in (whole, out)]
    assert drafters[0] == drafters[1]


def test_interrupted_it_writes_a_checkpoint_and_resumes(trainer: Trainer, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"

    status = trainer.stopped(out, 6, by=signal.SIGINT)
    steps, place = len(read_metrics(out, "train")), newest(out)
    outcome = json.loads((out / "manifest.json").read_bytes())["sessions"][-1]["outcome"]
    done = trainer.run(out)

    assert (130, "interrupted") == (status, outcome)
    assert f"step-{steps:08d}" == (place or out).name
    assert f"going on after step {steps} of" in done.stderr
    assert same_bits(final_tensors(whole), final_tensors(out))
    assert curve(whole) == curve(out)


def test_other_settings_do_not_go_on_with_it(trainer: Trainer, whole: Path) -> None:
    before = (whole / "manifest.json").read_bytes()

    done = trainer.run(whole, "--learning-rate", "2e-3")

    assert UNUSABLE == done.returncode
    assert "was begun with learning_rate 0.001 and is asked for 0.002" in done.stderr
    assert before == (whole / "manifest.json").read_bytes()


def test_a_changed_checkpoint_is_refused(trainer: Trainer, tmp_path: Path) -> None:
    """Nothing else is taken in its place."""
    out = tmp_path / "run"
    trainer.stopped(out, 10)
    place = newest(out) or out
    data = bytearray((place / "optimizer.safetensors").read_bytes())
    data[-1] ^= 1
    (place / "optimizer.safetensors").write_bytes(data)

    done = trainer.run(out)

    assert UNUSABLE == done.returncode
    assert f"{place / 'optimizer.safetensors'} was changed since it was written" in done.stderr


def test_a_checkpoint_of_another_run_is_refused(trainer: Trainer, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert 0 == trainer.run(out, "--seed", "9", "--steps", "4").returncode
    place = newest(whole) or whole
    shutil.copytree(place, out / "checkpoints" / place.name)

    done = trainer.run(out, "--seed", "9", "--steps", "4")

    assert UNUSABLE == done.returncode
    assert f"{out / 'checkpoints' / place.name} is of a run with other settings" in done.stderr


@pytest.mark.parametrize("options", [("--export-dtype", "float32"), ()])
def test_another_runs_drafter_in_the_way_is_refused(trainer: Trainer, tmp_path: Path, options: tuple[str, ...]) -> None:
    """Before any step."""
    out = tmp_path / "run"
    assert 0 == trainer.run(out, "--steps", "4").returncode
    if not options:
        told = out / "drafter" / "PROVENANCE.json"
        told.write_text(json.dumps(json.loads(told.read_bytes()) | {"steps": 2}))
    before = len(read_metrics(out, "train"))

    done = trainer.run(out, "--steps", "4", *options)

    assert (UNUSABLE, before) == (done.returncode, len(read_metrics(out, "train")))
    assert f"{out / 'drafter'} holds a drafter of" in done.stderr
    assert "Move it away" in done.stderr


def test_layers_that_no_engine_hands_over_are_refused(trainer: Trainer, tmp_path: Path) -> None:
    """Before any step."""
    done = trainer.run(tmp_path / "run", "--layers", "1,3,7")

    assert (UNUSABLE, False) == (done.returncode, (tmp_path / "run").exists())
    assert "is what SGLang never hands to a drafter" in done.stderr


def test_a_target_whose_config_was_changed_goes_on_with_nothing(
    copy: Copy, rows: Path, whole: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    shutil.copytree(WEIGHTS, target)
    config = json.loads((target / "config.json").read_bytes())
    (target / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))

    done = Trainer(copy, rows, target, OPTIONS).run(whole)

    assert UNUSABLE == done.returncode
    assert "was begun with target_config_sha256" in done.stderr


# A store of states


@pytest.fixture(scope="module")
def store(copy: Copy, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("states") / "store"
    where = (str(rows), "--target", str(WEIGHTS), "--out", str(out), "--device", "cpu", "--dtype", "float32")
    done = copy.pipeline("states", *where, "--shard-mb", "1")
    assert 0 == done.returncode, done.stderr
    return out


def test_a_store_trains_as_its_rows_do(copy: Copy, store: Path, whole: Path, tmp_path: Path) -> None:
    """The same rows in the same batches; a state may round otherwise, since other rows were run beside it."""
    out = tmp_path / "run"

    done = Trainer(copy, store, WEIGHTS, OPTIONS).run(out)

    assert 0 == done.returncode, done.stderr
    one, other = ([line for line in curve(folder) if line["kind"] == "train"] for folder in (whole, out))
    assert [line["tokens"] for line in one] == [line["tokens"] for line in other]
    assert [pytest.approx(line["loss"], rel=1e-3) for line in one] == [line["loss"] for line in other]


def test_a_changed_state_stops_it_and_what_was_trained_stands(
    copy: Copy, store: Path, whole: Path, tmp_path: Path
) -> None:
    """One bit in the middle of the states; it is met in the first epoch, and named with its row."""
    folder, out = tmp_path / "store", tmp_path / "run"
    shutil.copytree(store, folder)
    shard = next(folder.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)

    done = Trainer(copy, folder, WEIGHTS, OPTIONS).run(out, "--checkpoint-every", "1")

    assert UNUSABLE == done.returncode
    assert f"{shard} was changed since it was written (row 'r" in done.stderr
    assert len(read_metrics(out, "train")) == len(curve(out)) < len(read_metrics(whole, "train")) / 4
    assert "stopped" == json.loads((out / "manifest.json").read_bytes())["sessions"][-1]["outcome"]


# The gate


def test_without_an_attestation_nothing_is_trained(trainer: Trainer, tmp_path: Path) -> None:
    shut = trainer.copy.clone(tmp_path)
    shut.tree.attestation.unlink()

    done = Trainer(shut, trainer.rows, WEIGHTS).run(tmp_path / "run")

    assert SHUT == done.returncode
    assert "refused: there is no attestation at" in done.stderr
    assert "Run: nox -s contract" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_changed_tree_trains_nothing(trainer: Trainer, tmp_path: Path) -> None:
    changed = trainer.copy.clone(tmp_path)
    with (changed.root / "pipeline" / "drafter" / "masks.py").open("a") as file:
        file.write("\n")

    done = Trainer(changed, trainer.rows, WEIGHTS).run(tmp_path / "run")

    assert (SHUT, True) == (done.returncode, "changed since the contract suite passed: pipeline/" in done.stderr)


def test_a_vocabulary_without_a_passed_contract_is_refused(trainer: Trainer, tmp_path: Path) -> None:
    target = small_llama(tmp_path / "target", vocab_size=1024)
    other = run_folder(tmp_path / "other", GIVEN[:4], format="kimi-k2.5", tokenizer_sha256="ab" * 32)

    done = Trainer(trainer.copy, other, target).run(tmp_path / "run")

    assert (SHUT, True) == (done.returncode, "no contract of kimi-k2.5 tokenizer abababababab" in done.stderr)


def test_weak_evidence_is_taken_by_choice_and_its_risk_is_shown(trainer: Trainer, tmp_path: Path) -> None:
    weak = [row(f"w{n}", [768, 5], [n, 3, 9, 770], Evidence.COUNTED) for n in range(8)]
    folder = run_folder(tmp_path / "weak", weak, tokenizer_sha256=TINY_SHA256)
    short = Trainer(trainer.copy, folder, WEIGHTS, (*FLAGS, "--steps", "1"))

    refused = short.run(tmp_path / "run")
    taken = short.run(tmp_path / "run", "--min-evidence", "counted")

    assert UNUSABLE == refused.returncode
    assert (
        "no row is left to train on: 8 weak_evidence. --min-evidence counted takes the weakest grade" in refused.stderr
    )
    assert (0, True) == (taken.returncode, "risk: 8 rows are of the grade counted" in taken.stderr)


# Bad input


def test_rows_that_nobody_signed_train_only_where_asked(trainer: Trainer, tmp_path: Path) -> None:
    folder = as_unsigned(run_folder(tmp_path / "old", GIVEN[:8], tokenizer_sha256=TINY_SHA256))
    short = Trainer(trainer.copy, folder, WEIGHTS, (*FLAGS, "--steps", "1"))

    refused = short.run(tmp_path / "run")
    taken = short.run(tmp_path / "run", "--accept-unsigned")

    assert (UNUSABLE, 0) == (refused.returncode, taken.returncode)
    assert "manifest.json has no signature, so anyone may have written it" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_rows_of_another_vocabulary_than_the_target_are_refused(trainer: Trainer, tmp_path: Path) -> None:
    other = run_folder(tmp_path / "other", GIVEN[:4], tokenizer_sha256="ab" * 32)

    done = Trainer(trainer.copy, other, WEIGHTS).run(tmp_path / "run")

    assert (UNUSABLE, True) == (done.returncode, "their ids mean different tokens" in done.stderr)


def test_a_target_of_fewer_tokens_than_the_rows_have_is_refused(trainer: Trainer, tmp_path: Path) -> None:
    done = Trainer(trainer.copy, trainer.rows, small_llama(tmp_path / "target")).run(tmp_path / "run")

    assert (UNUSABLE, True) == (done.returncode, "knows ids below 48" in done.stderr)


def test_rows_longer_than_a_batch_are_counted_and_never_cut(trainer: Trainer, tmp_path: Path) -> None:
    long = [*GIVEN[:6], row("long", [768], [7] * 200)]
    folder = run_folder(tmp_path / "long", long, tokenizer_sha256=TINY_SHA256)

    done = Trainer(trainer.copy, folder, WEIGHTS, (*OPTIONS, "--steps", "1", "--held-out", "0")).run(tmp_path / "run")

    assert 0 == done.returncode, done.stderr
    assert "1 rows left out: too_long" in done.stderr
    assert "6 rows train, 0 validate" in done.stderr


def test_rows_that_teach_nothing_are_refused_together(trainer: Trainer, tmp_path: Path) -> None:
    """One emitted token each: there is none to read and none to predict."""
    folder = run_folder(
        tmp_path / "mute", [row(f"m{n}", [768, 5], [770]) for n in range(3)], tokenizer_sha256=TINY_SHA256
    )

    done = Trainer(trainer.copy, folder, WEIGHTS, FLAGS).run(tmp_path / "run")

    assert (UNUSABLE, True) == (done.returncode, "no row is left to train on (3 mute)" in done.stderr)
    assert "Traceback" not in done.stderr


def test_a_shard_that_was_changed_is_refused(trainer: Trainer, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "changed", GIVEN[:4], tokenizer_sha256=TINY_SHA256)
    with (folder / "shard-00000.parquet").open("ab") as file:
        file.write(b"\n")

    done = Trainer(trainer.copy, folder, WEIGHTS, FLAGS).run(tmp_path / "run")

    assert (UNUSABLE, True) == (done.returncode, "was changed since it was written" in done.stderr)


def test_a_loss_that_is_no_number_stops_it_and_names_the_rows(trainer: Trainer, tmp_path: Path) -> None:
    """A rate that throws the weights out of range within some steps; the checkpoint before it is whole."""
    out = tmp_path / "run"

    done = trainer.run(out, "--learning-rate", "1e30", "--warmup", "0", "--checkpoint-every", "1")

    assert FAILED == done.returncode
    assert "is not finite, and the step was not taken; its rows: 'r" in done.stderr
    assert "The last good checkpoint is" in done.stderr
    assert "Traceback" not in done.stderr
    assert 1 <= len(all_of(out))
    assert all(bool(tensor.isfinite().all()) for tensor in final_tensors(out).values())
