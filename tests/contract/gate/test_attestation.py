"""Reading an attestation: only whole, signed once by a trusted key, in its lifetime."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from pathlib import Path

import pytest
from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined]  # public, without __all__

from harness.fixtures.trees import NOW, Tree, small_tree
from pipeline.base.signing import write_public
from pipeline.gate.attestation import Attestation, AttestationError, Scope, read_attestation, trusted_keys
from pipeline.gate.digests import tree_digests

pytestmark = pytest.mark.contract


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return small_tree(tmp_path)


def read(tree: Tree) -> Attestation:
    return read_attestation(tree.attestation, trusted_keys(tree.root, tree.keys), NOW)


def refusal(tree: Tree) -> str:
    with pytest.raises(AttestationError) as caught:
        read(tree)
    return str(caught.value)


def test_a_whole_attestation_is_read(tree: Tree) -> None:
    found = read(tree)

    assert Scope.DEV is found.scope
    assert (NOW, NOW + timedelta(hours=24)) == (found.issued, found.expires)
    assert tree_digests(tree.root) == found.digests
    assert 1 == found.passed
    assert frozenset({"base"}) == found.groups
    assert frozenset({("emulator/chutes", "stream")}) == found.contracts


def test_the_scope_is_that_of_the_key(tree: Tree) -> None:
    key = tree.new_ci_key()
    tree.attest(key=key, scope=Scope.CI)

    assert Scope.CI is read(tree).scope


def test_a_developers_key_cannot_claim_the_scope_of_ci(tree: Tree) -> None:
    tree.attest(scope=Scope.CI)

    assert "it claims the scope 'ci', and its key signs for 'dev' alone" in refusal(tree)


def test_a_public_key_file_cannot_claim_another_keys_id(tree: Tree) -> None:
    """The id is computed from the key, whatever the file says."""
    other = CryptoSigner.generate_ed25519()
    content = {**other.public_key.to_dict(), "keyid": tree.key.public_key.keyid}
    (tree.root / "pipeline" / "gate" / "keys").mkdir()
    (tree.root / "pipeline" / "gate" / "keys" / "ci.json").write_text(json.dumps(content))

    trusted = trusted_keys(tree.root, tree.keys)

    assert {tree.key.public_key.keyid: Scope.DEV, other.public_key.keyid: Scope.CI} == {
        keyid: scope for keyid, (_, scope) in trusted.items()
    }


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"keyval": {"public": "zz"}}', '{"keyval": {"public": "00"}}'])
def test_an_unreadable_public_key_shuts_the_gate(tree: Tree, text: str) -> None:
    (tree.keys / "dev.pub.json").write_text(text)

    assert "holds no readable Ed25519 public key" in refusal(tree)


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff", b"[]", b"{}", b"null", b'{"payload": 1, "payloadType": 2, "signatures": 3}', b"[" * 100_000],
    ids=["empty", "bytes", "list", "object", "null", "types", "deep"],
)
def test_what_is_no_envelope_is_refused_without_a_library_error(tree: Tree, text: bytes) -> None:
    tree.attestation.write_bytes(text)

    assert "is no DSSE envelope" in refusal(tree)


def test_a_payload_of_another_type_is_refused(tree: Tree) -> None:
    tree.edit_envelope(payloadType="text/plain")

    assert "carries a 'text/plain', not a 'application/vnd.in-toto+json'" in refusal(tree)


def test_an_unsigned_payload_is_refused(tree: Tree) -> None:
    tree.edit_envelope(signatures=[])

    assert "carries 0 signatures, where one is wanted" in refusal(tree)


def test_a_second_signature_is_refused(tree: Tree) -> None:
    first = json.loads(tree.attestation.read_bytes())["signatures"][0]
    tree.edit_envelope(signatures=[first, {**first, "keyid": "00"}])

    assert "carries 2 signatures" in refusal(tree)


def test_the_same_signature_twice_is_refused(tree: Tree) -> None:
    first = json.loads(tree.attestation.read_bytes())["signatures"][0]
    tree.edit_envelope(signatures=[first, first])

    assert "is no DSSE envelope (ValueError" in refusal(tree)


def test_another_key_is_refused(tree: Tree) -> None:
    tree.attest(key=CryptoSigner.generate_ed25519())

    assert "which nobody here trusts" in refusal(tree)


def test_the_key_of_another_developer_is_refused(tree: Tree) -> None:
    write_public(tree.keys / "dev.pub.json", CryptoSigner.generate_ed25519().public_key)

    assert "which nobody here trusts" in refusal(tree)


def test_an_altered_payload_is_refused(tree: Tree) -> None:
    payload = base64.b64decode(json.loads(tree.attestation.read_bytes())["payload"])
    tree.edit_envelope(payload=base64.b64encode(payload.replace(b"chutes", b"shutes")).decode())

    assert "was altered after it was signed" in refusal(tree)


def test_a_failed_result_is_refused(tree: Tree) -> None:
    tree.attest(result="FAILED", failedTests=["tests/contract/test_a.py::test_b"])

    assert "its result is FAILED, with 1 failed tests" in refusal(tree)


def test_a_passed_result_with_a_failed_test_is_refused(tree: Tree) -> None:
    tree.attest(failedTests=["tests/contract/test_a.py::test_b"])

    assert "its result is PASSED, with 1 failed tests" in refusal(tree)


def test_a_run_in_which_nothing_passed_is_refused(tree: Tree) -> None:
    tree.attest(passedTests=[])

    assert "it names no test that passed" in refusal(tree)


def test_another_predicate_is_refused(tree: Tree) -> None:
    tree.write({**tree.statement(), "predicateType": "https://slsa.dev/provenance/v1"})

    assert "predicateType is 'https://slsa.dev/provenance/v1'" in refusal(tree)


@pytest.mark.parametrize("field", ["issuedAt", "expiresAt", "groups", "contracts", "liveCassettes", "project", "scope"])
def test_a_payload_that_lacks_a_field_is_refused(tree: Tree, field: str) -> None:
    content = tree.statement()
    assert isinstance(content["predicate"], dict)
    del content["predicate"][field]
    tree.write(content)

    assert "is no test result of this project (KeyError" in refusal(tree)


def test_a_time_without_a_zone_is_refused(tree: Tree) -> None:
    tree.attest(issuedAt="2026-11-29T12:00:00")

    assert "has no zone" in refusal(tree)


def test_an_attestation_from_the_future_is_refused(tree: Tree) -> None:
    later = NOW + timedelta(seconds=1)
    tree.attest(issuedAt=later.isoformat(), expiresAt=(later + timedelta(hours=1)).isoformat())

    assert "is from the future: issued 2026-11-29T12:00:01+00:00" in refusal(tree)


def test_an_old_attestation_is_refused_from_its_last_second_on(tree: Tree) -> None:
    issued = NOW - timedelta(hours=24)
    tree.attest(issuedAt=issued.isoformat(), expiresAt=NOW.isoformat())

    assert "the attestation is too old: issued 24 h 0 min ago, limit 24 h 0 min" in refusal(tree)


def test_a_lifetime_above_the_scopes_limit_is_refused(tree: Tree) -> None:
    tree.attest(expiresAt=(NOW + timedelta(hours=24, seconds=1)).isoformat())

    assert "claims to live 1 day, 0:00:01; the scope dev allows 1 day" in refusal(tree)


def test_every_refusal_names_the_command_that_mends_it(tree: Tree) -> None:
    tree.attestation.unlink()

    assert refusal(tree).endswith("the contract suite has not passed here. Run: nox -s contract")
