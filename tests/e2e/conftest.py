"""What several modules of end-to-end tests start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.fixtures.runs import World, byte_format, make_world
from harness.fixtures.trees import Copy, attested_copy
from harness.live.rehearsal import Shop, opened
from pipeline.base.signing import key_dir, signer, write_public
from pipeline.formats.format import Format


@pytest.fixture(scope="session")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy of the tree that its small suite has passed in, to be read alone: whoever changes it takes a clone.

    It takes rows that tests wrote, and they take its own.
    """
    copy = attested_copy(tmp_path_factory.mktemp("copy"), "-n", "2")
    write_public(copy.keys / "tests.pub.json", signer().public_key)
    write_public(key_dir() / "copy.pub.json", copy.tree.key.public_key)
    return copy


@pytest.fixture(scope="session")
def fmt(tmp_path_factory: pytest.TempPathFactory) -> Format:
    """A format whose vocabulary is bytes; a module that needs another overrides it."""
    return byte_format(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def world(tmp_path: Path, fmt: Format) -> World:
    return make_world(tmp_path, fmt)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with opened(tmp_path) as found:
        yield found
