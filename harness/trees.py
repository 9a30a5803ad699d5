"""A small tree that stands in for a checkout, with a key of its own: the gate's own tests work on it alone.

Guarantees: nothing here reads or writes the user's own attestation, key or checkout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined]  # public, without __all__

from harness.attestation import Result, sign, statement
from harness.signing import developer_key, write_public
from pipeline import gate
from pipeline.attested import Scope
from pipeline.digests import file_sha256, tree_digests
from pipeline.environment import Runtime
from pipeline.records import Json, Route

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
FILES = {
    "pipeline/__init__.py": "",
    "pipeline/gate.py": "shut = True\n",
    gate.TINY_TOKENIZER: "IQ== 0\n",
    "tests/contract/REQUIRED": "[base]\ntests/contract/test_a.py::test_a\n",
    gate.PROBES: '{"id": "a"}\n',
    "goldens/a.json": '{"provenance": {"recorded_at": "2026-11-20T00:00:00Z"}}\n',
    "cassettes/emulator/a.yaml": "provenance:\n  recorded_at: '2026-11-21T00:00:00Z'\n",
    "noxfile.py": "",
    "pyproject.toml": "",
    "constraints.txt": "tiktoken==0.14.0\ntorch==2.13.0\n",
}
CLEAN = Runtime(
    optimize=0,
    isolated=True,
    fresh_bytecode=True,
    pythonpath="",
    search_path=(),
    modules={},
    distributions=(("tiktoken", "0.14.0"), ("torch", "2.13.0+cpu"), ("pip", "23.2.1")),
)


@dataclass(frozen=True, slots=True)
class Tree:
    """The tree, the folder of the developer's key, and where the attestation lies."""

    root: Path
    keys: Path

    @property
    def attestation(self) -> Path:
        return self.root / ".drafter-gate" / "attestation.json"

    @property
    def key(self) -> CryptoSigner:
        return developer_key(self.keys)

    def job(self, **changes: object) -> gate.Job:
        """Free generation on the tiny target, but for the changes."""
        route = Route("emulator", "drafter-gate/tiny-kimi", "chutes")
        job = gate.Job(gate.Kind.GENERATE, route, "tiny-kimi", file_sha256(self.root / gate.TINY_TOKENIZER))
        return replace(job, **changes)  # type: ignore[arg-type]  # the caller names Job's own fields

    def decide(
        self, job: gate.Job | None = None, *, spent_today_pico: int = 0, runtime: Mapping[str, object] | None = None
    ) -> gate.Decision:
        """The gate's answer at `NOW` in a clean interpreter, but for the changes."""
        seen = replace(CLEAN, search_path=(str(self.root),), **(runtime or {}))  # type: ignore[arg-type]  # as in `job`
        return gate.decide(
            job or self.job(),
            root=self.root,
            spent_today_pico=spent_today_pico,
            now=NOW,
            runtime=seen,
            attestation=self.attestation,
            keys=self.keys,
        )

    def attest(self, *, key: CryptoSigner | None = None, scope: Scope = Scope.DEV, **predicate: Json) -> None:
        """Sign the tree as it lies, with these fields of the predicate changed."""
        content = self.statement(scope)
        changed = content["predicate"]
        if isinstance(changed, dict):
            changed.update(predicate)
        self.write(content, key)

    def statement(self, scope: Scope = Scope.DEV) -> dict[str, Json]:
        """What a whole run of one test, on one route with one feature, would attest."""
        passed = frozenset({"tests/contract/test_a.py::test_a"})
        covered = frozenset({("emulator/chutes", "stream")})
        result = Result(passed, frozenset({"base"}), covered, tree_digests(self.root), "contract", 200)
        return statement(result, scope, NOW, self.root)

    def write(self, content: Mapping[str, Json], key: CryptoSigner | None = None) -> None:
        self.attestation.parent.mkdir(exist_ok=True)
        self.attestation.write_bytes(sign(content, key or self.key))

    def edit_envelope(self, **fields: Json) -> None:
        """Change fields of the envelope as it lies."""
        envelope = json.loads(self.attestation.read_bytes())
        self.attestation.write_text(json.dumps({**envelope, **fields}), "utf-8")

    def new_ci_key(self) -> CryptoSigner:
        """A key that the tree trusts for CI; what was attested before does not cover it."""
        key = CryptoSigner.generate_ed25519()
        (self.root / "pipeline" / "keys").mkdir(exist_ok=True)
        write_public(self.root / "pipeline" / "keys" / "ci.json", key.public_key)
        return key


def small_tree(folder: Path) -> Tree:
    """A tree in `folder` with every subject, attested by its developer."""
    root = folder / "tree"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, "utf-8")
    tree = Tree(root, folder / "keys")
    tree.attest()
    return tree
