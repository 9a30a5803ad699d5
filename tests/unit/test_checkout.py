"""What a checkout holds is the same bytes everywhere."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pipeline.base.paths import ROOT
from pipeline.gate.digests import SUBJECTS


def git(*arguments: str, cwd: Path = ROOT, given: str | None = None) -> str:
    done = subprocess.run(["git", *arguments], cwd=cwd, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no git checkout: {done.stderr.strip()}")
    return done.stdout


def test_every_hashed_file_says_how_its_lines_end() -> None:
    """A checkout with `core.autocrlf` would change the digests of the others."""
    files = git("ls-files", *SUBJECTS)
    attributes = git("check-attr", "--stdin", "text", given=files).splitlines()

    assert [] == [line for line in attributes if line.endswith(": unspecified")]


def test_a_clone_with_autocrlf_has_the_same_bytes(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    options = ("-c", "core.autocrlf=true", "-c", "core.eol=crlf")
    git("clone", "-q", "--no-hardlinks", *options, str(ROOT), str(clone))
    listed = git("ls-tree", "-r", "HEAD", *SUBJECTS, cwd=clone).splitlines()
    blobs = {line.partition("\t")[2]: line.split()[2] for line in listed}
    hashed = git("hash-object", "--no-filters", "--stdin-paths", cwd=clone, given="\n".join(blobs)).split()

    assert list(blobs.values()) == hashed
