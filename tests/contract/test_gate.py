"""The gate refuses what it must, names what mends it, and allows the clean tree."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined]  # public, without __all__

from harness.fixtures.trees import NOW, Tree, small_tree
from pipeline.gate.attestation import Scope

pytestmark = pytest.mark.contract


def no_attestation(tree: Tree) -> None:
    tree.attestation.unlink()


def changed_code(tree: Tree) -> None:
    (tree.root / "pipeline" / "gate.py").write_text("shut = false\n")


def changed_golden(tree: Tree) -> None:
    (tree.root / "goldens" / "a.json").write_text("{}")


def changed_cassette(tree: Tree) -> None:
    (tree.root / "cassettes" / "emulator" / "a.yaml").write_text("")


def changed_lock(tree: Tree) -> None:
    with (tree.root / "constraints.txt").open("a") as file:
        file.write("\n")


def symbolic_link(tree: Tree) -> None:
    (tree.root / "harness" / "more").symlink_to(tree.root / "goldens")


def root_conftest(tree: Tree) -> None:
    (tree.root / "conftest.py").write_text("")


def root_pytest_ini(tree: Tree) -> None:
    (tree.root / "pytest.ini").write_text("")


def altered_payload(tree: Tree) -> None:
    payload = base64.b64decode(json.loads(tree.attestation.read_bytes())["payload"])
    tree.edit_envelope(payload=base64.b64encode(payload.replace(b"200", b"100")).decode())


def unsigned(tree: Tree) -> None:
    tree.edit_envelope(signatures=[])


def other_payload_type(tree: Tree) -> None:
    tree.edit_envelope(payloadType="application/json")


def second_key(tree: Tree) -> None:
    tree.attest(key=CryptoSigner.generate_ed25519())


def two_signatures(tree: Tree) -> None:
    first = json.loads(tree.attestation.read_bytes())["signatures"][0]
    tree.edit_envelope(signatures=[first, {**first, "keyid": "00"}])


def claimed_ci(tree: Tree) -> None:
    tree.attest(scope=Scope.CI)


def failed(tree: Tree) -> None:
    tree.attest(result="FAILED")


def nothing_passed(tree: Tree) -> None:
    tree.attest(passedTests=[])


def too_old(tree: Tree) -> None:
    tree.attest(issuedAt=(NOW - timedelta(hours=25)).isoformat(), expiresAt=(NOW - timedelta(hours=1)).isoformat())


def from_the_future(tree: Tree) -> None:
    tree.attest(issuedAt=(NOW + timedelta(hours=1)).isoformat(), expiresAt=(NOW + timedelta(hours=2)).isoformat())


def without_base(tree: Tree) -> None:
    tree.attest(groups=["tokenizer:00"])


ATTACKS: dict[Callable[[Tree], None], str] = {
    no_attestation: "there is no attestation at",
    changed_code: "changed since the contract suite passed: pipeline/",
    changed_golden: "changed since the contract suite passed: goldens/",
    changed_cassette: "changed since the contract suite passed: cassettes/",
    changed_lock: "changed since the contract suite passed: constraints.txt",
    symbolic_link: "is a symbolic link",
    root_conftest: "conftest.py lies at the root",
    root_pytest_ini: "pytest.ini lies at the root",
    altered_payload: "was altered after it was signed",
    unsigned: "carries 0 signatures",
    other_payload_type: "carries a 'application/json'",
    second_key: "which nobody here trusts",
    two_signatures: "carries 2 signatures",
    claimed_ci: "it claims the scope 'ci'",
    failed: "its result is FAILED",
    nothing_passed: "it names no test that passed",
    too_old: "is too old",
    from_the_future: "is from the future",
    without_base: "lacks the group base",
}
PROCESSES: dict[str, object] = {
    "optimize": 1,
    "isolated": False,
    "fresh_bytecode": False,
    "pythonpath": "/shadow",
    "modules": {"pipeline.gate.gate": "/elsewhere/pipeline/gate/gate.py"},
    "distributions": (("tiktoken", "0.13.0"),),
}


def test_the_clean_tree_is_allowed(tmp_path: Path) -> None:
    decision = small_tree(tmp_path).decide()

    assert () == decision.objections
    assert decision.permit is not None


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_on_the_tree_is_refused_with_a_command(tmp_path: Path, attack: Callable[[Tree], None]) -> None:
    """The command mends it."""
    tree = small_tree(tmp_path)
    attack(tree)

    decision = tree.decide()

    assert decision.permit is None
    assert ATTACKS[attack] in " ".join(objection.what for objection in decision.objections)
    assert all(objection.mend for objection in decision.objections)


@pytest.mark.parametrize("field", PROCESSES)
def test_a_process_other_than_the_clean_one_is_refused(tmp_path: Path, field: str) -> None:
    decision = small_tree(tmp_path).decide(runtime={field: PROCESSES[field]})

    assert 1 == len(decision.objections)
    assert decision.permit is None
