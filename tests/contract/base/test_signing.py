"""Keys: whose sign, whose are known, and what becomes of one that is damaged or open to others."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined]  # public, without __all__

from harness.fixtures.trees import Tree, small_tree
from pipeline.base import signing
from pipeline.base.signing import (
    EnvelopeError,
    SigningError,
    UnknownKeyError,
    developer_key,
    known_keys,
    read_public_key,
    seal,
    unseal,
    write_public,
)

pytestmark = pytest.mark.contract


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A tree whose keys are its own."""
    tree = small_tree(tmp_path)
    monkeypatch.setenv("DRAFTER_GATE_KEYS", str(tree.keys))
    return tree


def test_the_developers_key_is_made_once_and_closed_to_others(tmp_path: Path) -> None:
    keys = tmp_path / "a" / "keys"

    first, second = developer_key(keys), developer_key(keys)

    assert first.public_key.keyid == second.public_key.keyid
    assert 0o600 == stat.S_IMODE((keys / "dev.pem").stat().st_mode)
    assert first.public_key.keyid == read_public_key(keys / "dev.pub.json").keyid
    assert ["dev.pem", "dev.pub.json"] == sorted(path.name for path in keys.iterdir())


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    developer_key(tmp_path)
    (tmp_path / "dev.pem").chmod(0o644)

    with pytest.raises(SigningError, match=r"dev.pem can be read by others. Run: rm "):
        developer_key(tmp_path)


def test_a_damaged_key_is_refused_without_a_library_error(tmp_path: Path) -> None:
    developer_key(tmp_path)
    (tmp_path / "dev.pem").write_text("x")

    with pytest.raises(SigningError, match="holds no readable private key in PEM"):
        developer_key(tmp_path)


def test_keys_that_cannot_be_written_name_another_folder(tmp_path: Path) -> None:
    """Keys that cannot be kept are an error that says where to keep them."""
    (tmp_path / "file").write_text("")

    with pytest.raises(SigningError, match="export DRAFTER_GATE_KEYS=DIR"):
        developer_key(tmp_path / "file" / "keys")


def test_known_are_our_own_key_those_beside_it_and_ci(tree: Tree) -> None:
    laptop = CryptoSigner.generate_ed25519().public_key
    write_public(tree.keys / "laptop.pub.json", laptop)
    ci = tree.new_ci_key().public_key

    assert {tree.key.public_key.keyid, laptop.keyid, ci.keyid} == set(known_keys(tree.root))


def test_nobody_is_known_before_there_is_a_key(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTER_GATE_KEYS", str(tree.root / "none"))

    assert {} == known_keys(tree.root)
    assert not (tree.root / "none").exists()


def test_a_damaged_public_key_is_named(tree: Tree) -> None:
    (tree.keys / "laptop.pub.json").write_text("{}")

    with pytest.raises(SigningError, match=r"laptop\.pub\.json holds no readable Ed25519 public key \(KeyError"):
        known_keys(tree.root)


def test_a_public_key_is_written_once(tmp_path: Path) -> None:
    """Each manifest that is written asks for it."""
    developer_key(tmp_path)
    before = (tmp_path / "dev.pub.json").stat()
    developer_key(tmp_path)

    assert (before.st_ino, before.st_mtime_ns) == (
        (tmp_path / "dev.pub.json").stat().st_ino,
        (tmp_path / "dev.pub.json").stat().st_mtime_ns,
    )


def test_ci_signs_where_it_gives_its_key(tree: Tree) -> None:
    key = tree.new_ci_key()

    found = signing.signer(tree.root, {"DRAFTER_GATE_CI_KEY": key.private_bytes.decode()})

    assert (key.public_key.keyid, tree.key.public_key.keyid) == (
        found.public_key.keyid,
        signing.signer(tree.root, {}).public_key.keyid,
    )


def test_an_envelope_gives_its_payload_to_a_known_key_alone(tmp_path: Path) -> None:
    key, stranger = developer_key(tmp_path), CryptoSigner.generate_ed25519()
    keys = {key.public_key.keyid: key.public_key}

    assert (b"words", key.public_key.keyid) == unseal(seal(b"words", key), keys)
    with pytest.raises(UnknownKeyError, match="which nobody here trusts"):
        unseal(seal(b"words", stranger), keys)


@pytest.mark.parametrize(
    "change, why",
    [
        ({"payload": "d29yZHM="}, "was altered after it was signed by"),
        ({"payloadType": "text/plain"}, "carries a 'text/plain', not a"),
        ({"signatures": []}, "carries 0 signatures, where one is wanted"),
        ({"signatures": 1}, "is no DSSE envelope"),
    ],
    ids=["payload", "type", "unsigned", "other"],
)
def test_an_envelope_that_was_altered_gives_nothing(change: dict[str, object], why: str, tmp_path: Path) -> None:
    key = developer_key(tmp_path)

    with pytest.raises(EnvelopeError, match=why):
        unseal(seal(b"other words", key) | change, {key.public_key.keyid: key.public_key})
