"""The attestation: what the statement says, and who signs it."""

from __future__ import annotations

import base64
import json
import stat
from datetime import timedelta
from pathlib import Path

import pytest
from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined]  # public, without __all__

from harness.attestation import statement as attestation
from harness.attestation.signing import new_ci_key, signer
from harness.fixtures.trees import NOW, Tree, small_tree
from pipeline.base.signing import SigningError
from pipeline.gate.attestation import Scope, read_attestation, trusted_keys
from pipeline.gate.digests import tree_digests


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A tree whose state and keys are its own, also for code that looks them up by itself."""
    tree = small_tree(tmp_path)
    monkeypatch.setenv("DRAFTER_GATE_STATE", str(tree.attestation.parent))
    monkeypatch.setenv("DRAFTER_GATE_KEYS", str(tree.keys))
    monkeypatch.delenv("DRAFTER_GATE_CI_KEY", raising=False)
    return tree


def result(tree: Tree) -> attestation.Result:
    return attestation.Result(
        passed=frozenset({"tests/contract/test_a.py::test_b", "tests/contract/test_a.py::test_a"}),
        groups=frozenset({"base"}),
        contracts=frozenset({("emulator/chutes", "stream"), ("emulator/chutes", "image"), ("local", "stream")}),
        digests=tree_digests(tree.root),
        profile="contract",
        max_examples=200,
    )


def test_the_statement_is_an_in_toto_test_result_with_our_fields(tree: Tree) -> None:
    found = attestation.statement(result(tree), Scope.DEV, NOW, tree.root)
    predicate = found["predicate"]
    assert isinstance(predicate, dict)

    assert "https://in-toto.io/Statement/v1" == found["_type"]
    assert "https://in-toto.io/attestation/test-result/v0.1" == found["predicateType"]
    assert ["tests/contract/test_a.py::test_a", "tests/contract/test_a.py::test_b"] == predicate["passedTests"]
    assert [
        {"route": "emulator/chutes", "features": ["image", "stream"]},
        {"route": "local", "features": ["stream"]},
    ] == predicate["contracts"]
    assert {"passed": 2} == predicate["counts"]
    assert {"profile": "contract", "maxExamples": 200} == predicate["hypothesis"]
    assert ("dev", "2026-11-29T12:00:00+00:00") == (predicate["scope"], predicate["issuedAt"])
    assert "2026-11-30T12:00:00+00:00" == predicate["expiresAt"]


def test_subjects_carry_the_digest_of_their_kind(tree: Tree) -> None:
    subjects = attestation.statement(result(tree), Scope.DEV, NOW, tree.root)["subject"]
    assert isinstance(subjects, list)

    kinds = {entry["name"]: list(entry["digest"]) for entry in subjects if isinstance(entry, dict)}  # type: ignore[arg-type]

    assert ["dirHash1"] == kinds["pipeline/"]
    assert ["sha256"] == kinds["constraints.txt"]
    assert 8 == len(kinds)


def test_the_oldest_recordings_are_named(tree: Tree) -> None:
    (tree.root / "goldens" / "b.json").write_text('{"provenance": {"recorded_at": "2026-11-01T00:00:00Z"}}')
    (tree.root / "cassettes" / "b.yaml").write_text("provenance:\n  recorded_at: '2026-11-25T00:00:00Z'\n")

    predicate = attestation.statement(result(tree), Scope.DEV, NOW, tree.root)["predicate"]
    assert isinstance(predicate, dict)

    assert "2026-11-01T00:00:00Z" == predicate["oldestGolden"]
    assert "2026-11-21T00:00:00Z" == predicate["oldestCassette"]
    assert {} == predicate["liveCassettes"]


def test_each_route_and_model_names_its_oldest_cassette(tree: Tree) -> None:
    """The oldest live cassette of each route and model is named."""
    for name, (day, model) in {"a": ("20", "m/k"), "b": ("10", "m/k"), "c": ("15", "other/q")}.items():
        route = f"source: live\n  route: openrouter/chutes\n  model: {model}\n"
        entries = f"recorded_at: '2026-11-{day}T00:00:00Z'\n  {route}"
        (tree.root / "cassettes" / f"{name}.yaml").write_text(f"provenance:\n  {entries}")

    predicate = attestation.statement(result(tree), Scope.DEV, NOW, tree.root)["predicate"]
    assert isinstance(predicate, dict)

    assert {
        "openrouter/chutes m/k": "2026-11-10T00:00:00Z",
        "openrouter/chutes other/q": "2026-11-15T00:00:00Z",
    } == predicate["liveCassettes"]


def test_what_is_written_is_what_the_gate_reads(tree: Tree) -> None:
    path, scope, expires = attestation.write_attestation(result(tree), tree.root, NOW)

    found = read_attestation(path, trusted_keys(tree.root, tree.keys), NOW)

    assert (tree.attestation, Scope.DEV, NOW + timedelta(hours=24)) == (path, scope, expires)
    assert 2 == found.passed
    assert [path] == list(path.parent.iterdir())


def test_integers_stay_integers(tree: Tree) -> None:
    path, _, _ = attestation.write_attestation(result(tree), tree.root, NOW)

    payload = base64.b64decode(json.loads(path.read_bytes())["payload"])

    assert b'"maxExamples":200' in payload


def test_the_environment_gives_the_key_of_ci(tree: Tree) -> None:
    key = tree.new_ci_key()

    found, scope = signer(tree.root, {"DRAFTER_GATE_CI_KEY": key.private_bytes.decode()})

    assert (key.public_key.keyid, Scope.CI) == (found.public_key.keyid, scope)


def test_a_ci_key_that_nobody_committed_is_refused(tree: Tree) -> None:
    stranger = CryptoSigner.generate_ed25519().private_bytes.decode()

    with pytest.raises(SigningError, match="is not in pipeline/gate/keys/"):
        signer(tree.root, {"DRAFTER_GATE_CI_KEY": stranger})


def test_an_attestation_of_ci_lives_a_week(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTER_GATE_CI_KEY", tree.new_ci_key().private_bytes.decode())

    path, scope, expires = attestation.write_attestation(result(tree), tree.root, NOW)

    assert (Scope.CI, NOW + timedelta(days=7)) == (scope, expires)
    assert Scope.CI is read_attestation(path, trusted_keys(tree.root, tree.keys), NOW).scope


def test_rotation_writes_a_pair_that_signs_and_is_trusted(tree: Tree, tmp_path: Path) -> None:
    (tree.root / "pipeline" / "gate" / "keys").mkdir()

    public = new_ci_key(tree.root, tmp_path / "ci.pem")
    _, scope = signer(tree.root, {"DRAFTER_GATE_CI_KEY": (tmp_path / "ci.pem").read_text()})

    assert Scope.CI is scope
    assert tree.root / "pipeline" / "gate" / "keys" == public.parent
    assert 0o600 == stat.S_IMODE((tmp_path / "ci.pem").stat().st_mode)


def test_rotation_never_replaces_a_private_key(
    tree: Tree, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree.root / "pipeline" / "gate" / "keys").mkdir()
    (tmp_path / "ci.pem").write_text("precious")
    monkeypatch.setattr(attestation, "ROOT", tree.root)

    status = attestation.main(["rotate", "--private", str(tmp_path / "ci.pem")])

    assert 2 == status
    assert "File exists. Name a file that does not exist" in capsys.readouterr().err
    assert "precious" == (tmp_path / "ci.pem").read_text()
    assert [] == list((tree.root / "pipeline" / "gate" / "keys").iterdir())


def test_rotation_never_prints_the_private_key(
    tree: Tree, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree.root / "pipeline" / "gate" / "keys").mkdir()
    monkeypatch.setattr(attestation, "ROOT", tree.root)

    status = attestation.main(["rotate", "--private", str(tmp_path / "ci.pem")])
    shown = "".join(capsys.readouterr())

    assert 0 == status
    assert "PRIVATE KEY" not in shown
    assert "DRAFTER_GATE_CI_KEY" in shown
