"""What we export, read by the programs it is for: speculators' and SpecForge's own classes and loaders.

`$DRAFTER_GATE_PEERS` is a Python with speculators 0.9.0, specforge 0.2.0 and what they import; never the project's own
environment, whose pins they do not share.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from harness.fixtures.drafters import drawn_drafter
from harness.tiny_target.provenance import WEIGHTS
from pipeline.drafter.export.serving import export
from pipeline.drafter.export.speculators import from_speculators, to_speculators
from pipeline.drafter.export.training_inputs import hash_of, write_inputs
from pipeline.drafter.model.model import Drafter
from pipeline.drafter.rows import TrainingRow
from pipeline.drafter.target.hidden_states import Target, load_target
from pipeline.records import Evidence

PEERS = os.environ.get("DRAFTER_GATE_PEERS")

pytestmark = pytest.mark.skipif(
    not PEERS, reason="$DRAFTER_GATE_PEERS names no Python that has speculators and specforge"
)

QUIET = {"OMP_WAIT_POLICY": "PASSIVE", "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1"}


def ran(code: str, *arguments: object) -> str:
    """What the program prints in the peers' Python."""
    command = [str(PEERS), "-c", code, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, **QUIET})
    assert (0, "") == (done.returncode, "" if done.returncode == 0 else done.stderr[-3000:])
    return done.stdout


@pytest.fixture(scope="module")
def target() -> Target:
    torch.set_num_threads(1)
    return load_target(WEIGHTS)


@pytest.fixture(scope="module")
def drafter(target: Target) -> Drafter:
    return drawn_drafter(target, 512)


@pytest.fixture
def served(tmp_path: Path, target: Target, drafter: Drafter) -> Path:
    export(tmp_path / "served", drafter, target.facts, dtype=torch.float32)
    return tmp_path / "served"


LOGITS = """
import sys, torch
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.eagle3.config import Eagle3SpeculatorConfig
folder, case, out = sys.argv[1:]
config = Eagle3SpeculatorConfig.from_pretrained(folder)
config.transformer_layer_config._attn_implementation = "eager"
model = Eagle3DraftModel.from_pretrained(folder, config=config)
logits = []
model.lm_head.register_forward_hook(lambda module, given, output: logits.append(output.detach()))
given = torch.load(case)
n = given["ids"].shape[1]
with torch.no_grad():
    model(given["aux"], given["ids"], torch.zeros(1, n, dtype=torch.long), ttt_steps=1)
torch.save({"logits": logits[0], "layers": model.config.eagle_aux_hidden_state_layer_ids}, out)
"""


def test_speculators_own_class_scores_the_conversion_alike(
    tmp_path: Path, target: Target, drafter: Drafter, served: Path
) -> None:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 768, (1, 30), generator=generator)
    aux = torch.randn(1, 30, 384, generator=generator)
    torch.save({"ids": ids, "aux": aux}, tmp_path / "case.pt")
    to_speculators(served, tmp_path / "theirs", target.facts, target.embedding, verifier=str(WEIGHTS), draft_tokens=4)

    ran(LOGITS, tmp_path / "theirs", tmp_path / "case.pt", tmp_path / "out.pt")

    theirs = torch.load(tmp_path / "out.pt")
    with torch.no_grad():
        states = drafter.decode(ids, drafter.fuse(aux), torch.arange(30)[None], drafter.new_cache())
        ours = drafter.logits(states)
    assert float((ours - theirs["logits"]).abs().max()) < 1e-5 * float(ours.abs().max())
    assert [2, 4, 5] == theirs["layers"]


CONVERT = """
import sys
from speculators.convert.eagle.eagle3_converter import Eagle3Converter
Eagle3Converter().convert(*sys.argv[1:], validate=False)
"""


def test_speculators_own_converter_reads_what_we_serve(tmp_path: Path, target: Target, served: Path) -> None:
    """Its output is read back."""
    ran(CONVERT, served, tmp_path / "converted", WEIGHTS)

    theirs = load_file(tmp_path / "converted" / "model.safetensors")
    ours = load_file(served / "model.safetensors")
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in ours.items()}
    assert {*renamed} == {*theirs} - {"embed_tokens.weight"}
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in renamed.items())

    from_speculators(tmp_path / "converted", tmp_path / "back", target.facts, target.embedding)
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert all(torch.equal(tensor, back[name]) for name, tensor in ours.items())


def rows() -> list[TrainingRow]:
    """Rows of unlike lengths, with ids of the whole vocabulary among them."""
    generator = torch.Generator().manual_seed(5)
    found = []
    for index in range(40):
        length = int(torch.randint(2, 300, (1,), generator=generator))
        prompt = int(torch.randint(1, length, (1,), generator=generator))
        ids = torch.randint(0, 1024, (length,), generator=generator)
        found.append(TrainingRow(str(index), ids, torch.arange(length) >= prompt, Evidence.ENGINE_IDS, "B1"))
    return found


def hashes() -> Counter[str]:
    return Counter(hash_of(row.ids.tolist(), row.mask.tolist()) for row in rows())


SPECFORGE = """
import json, sys
from specforge.data.prompt_builder import prepare_prompt_tasks
tasks = prepare_prompt_tasks(
    sys.argv[1], None, chat_template=None, max_length=int(sys.argv[2]), is_preformatted=False,
    train_only_last_turn=False, cache_dir=None, cache_key=None, num_proc=None,
)
for task in tasks:
    print(json.dumps([task["payload"]["input_ids"], task["payload"]["loss_mask"]]))
"""

SPECULATORS = """
import json, sys
from speculators.data_generation.preprocessing import load_and_preprocess_dataset
data, _ = load_and_preprocess_dataset(
    sys.argv[3], [sys.argv[1]], seq_length=int(sys.argv[2]), build_dataset_num_proc=1,
)
for row in data:
    print("ROW", json.dumps([row["input_ids"].tolist(), row["loss_mask"].tolist()]))
"""


@pytest.mark.parametrize("loader", [SPECFORGE, SPECULATORS], ids=["specforge", "speculators"])
def test_their_loader_yields_our_ids(tmp_path: Path, loader: str) -> None:
    account = write_inputs(tmp_path / "rows", rows(), {})

    said = ran(loader, tmp_path / "rows" / "rows.jsonl", account.longest, WEIGHTS)

    lines = [line.removeprefix("ROW ") for line in said.splitlines() if line.startswith(("[", "ROW "))]
    assert hashes() == Counter(hash_of(*json.loads(line)) for line in lines if line.startswith("[["))


def test_a_length_below_the_longest_cuts_rows_without_an_error(tmp_path: Path) -> None:
    """Why the account names the longest row, and the command says to tell them so."""
    account = write_inputs(tmp_path / "rows", rows(), {})

    said = ran(SPECFORGE, tmp_path / "rows" / "rows.jsonl", account.longest - 1, WEIGHTS)

    assert hashes() != Counter(hash_of(*json.loads(line)) for line in said.splitlines())
