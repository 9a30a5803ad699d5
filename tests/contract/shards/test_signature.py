"""A manifest's signature: whose it is, and that it is cheap and the same each time."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from harness.fixtures.trees import Tree, small_tree
from pipeline.base import signing
from pipeline.records import Json
from pipeline.shards import signature
from pipeline.shards.signature import SignatureError, signer_of, with_signature

pytestmark = pytest.mark.contract

DOCUMENT: dict[str, Json] = {"manifest": 1, "run": "r", "cost": {"usd": "0.25"}, "share": 1.0, "name": "\ud800é"}
WHERE = Path("runs/a/manifest.json")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    tree = small_tree(tmp_path)
    monkeypatch.setenv("DRAFTER_GATE_KEYS", str(tree.keys))
    return tree


def test_the_developers_key_signs_and_is_made_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTER_GATE_KEYS", str(tmp_path / "new"))

    signed = with_signature(DOCUMENT)

    assert signing.developer_key(tmp_path / "new").public_key.keyid == signer_of(WHERE, signed)


def test_the_same_manifest_has_the_same_signature(tree: Tree) -> None:
    """Else two merges of the same runs would differ."""
    assert with_signature(DOCUMENT) == with_signature(dict(reversed(DOCUMENT.items()))) != with_signature({"run": "s"})
    assert tree.keys.is_dir()


@pytest.mark.parametrize("change", [{"share": 1}, {"cost": {"usd": 0.25}}, {"manifest": True}, {"more": None}], ids=str)
def test_no_value_of_another_type_passes_for_the_signed(change: dict[str, Json], tree: Tree) -> None:
    signed = with_signature(DOCUMENT)

    with pytest.raises(SignatureError, match=rf"was changed after it was signed by {tree.key.public_key.keyid[:12]}"):
        signer_of(WHERE, signed | change)


def test_what_ci_signed_is_taken_everywhere(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here is only the public half."""
    ci = tree.new_ci_key()
    monkeypatch.setattr(signature, "known_keys", partial(signing.known_keys, tree.root))
    with monkeypatch.context() as patch:
        environ = {signing.CI_KEY: ci.private_bytes.decode()}
        patch.setattr(signature, "signer", partial(signing.signer, tree.root, environ))
        signed = with_signature(DOCUMENT)

    assert ci.public_key.keyid == signer_of(WHERE, signed)


def test_a_ci_key_that_nobody_committed_signs_nothing(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(signing.CI_KEY, tree.key.private_bytes.decode())

    with pytest.raises(SignatureError, match="is not in pipeline/gate/keys/"):
        with_signature(DOCUMENT)


def test_a_key_file_that_is_none_is_named_before_it_is_used(tree: Tree) -> None:
    signed = with_signature(DOCUMENT)
    (tree.keys / "laptop.pub.json").write_text("x")

    with pytest.raises(SignatureError, match=r"laptop\.pub\.json holds no readable .* Remove that file"):
        signer_of(WHERE, signed)


def test_an_unknown_key_is_said_with_where_its_half_belongs(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    signed = with_signature(DOCUMENT)
    monkeypatch.setenv("DRAFTER_GATE_KEYS", str(tree.root / "other"))

    with pytest.raises(SignatureError, match=rf"Copy dev\.pub\.json .* to {tree.root / 'other'}/NAME\.pub\.json"):
        signer_of(WHERE, signed)
