"""A manifest that no known key signed, or that was changed since, proves no row; nothing is made of it or goes on."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined]  # public, without __all__

from harness.fixtures.drafters import TOKENIZER, row, run_folder
from harness.fixtures.manifests import Document, as_unsigned, edit_manifest
from harness.fixtures.trees import NOW, small_tree
from pipeline.base.signing import developer_key, key_dir, seal, signer, write_public
from pipeline.drafter.row_folders import RowsError, read_folders
from pipeline.gate.attestation import AttestationError, read_attestation, trusted_keys
from pipeline.records import Evidence, Json, Refusal
from pipeline.records import Reason as Why
from pipeline.shards import manifest as manifests
from pipeline.shards.manifest import MANIFEST, ManifestError
from pipeline.shards.merge import MergePolicy, merge
from pipeline.shards.merge_inputs import MergeError, read_inputs
from pipeline.shards.shards import QUARANTINE, Quarantined, ShardFolder
from pipeline.shards.signature import SIGNATURE

pytestmark = pytest.mark.contract

ROWS = [row("a", [1], [2, 3], Evidence.COUNTED), row("b", [1], [3, 4], Evidence.COUNTED)]
SETTINGS: dict[str, Json] = {"format": "tiny-kimi", "tokenizer_sha256": TOKENIZER, "route": "emulator/chutes"}
REFUSED = (RowsError, MergeError, ManifestError)


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A key folder of the test's own."""
    monkeypatch.setenv("DRAFTER_GATE_KEYS", str(tmp_path / "keys"))
    return tmp_path / "keys"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of two rows that were only counted."""
    return run_folder(tmp_path / "run", ROWS)


def raised(folder: Path) -> None:
    """Raise the evidence of every row, in shard and manifest, under an attestation that never was."""
    path = folder / "shard-00000.parquet"
    table = pq.read_table(path)
    grades = pa.array([str(Evidence.ENGINE_IDS)] * table.num_rows)
    for name in ("evidence", "prompt_evidence"):
        table = table.set_column(table.schema.get_field_index(name), name, grades)
    pq.write_table(table, path)
    document = stored(folder)
    (shard,) = document["shards"]
    shard["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    shard["evidence"] = shard["prompt_evidence"] = {str(Evidence.ENGINE_IDS): 2}
    document["sessions"][-1]["attestation"] = "0" * 64
    store(folder, document)


def stored(folder: Path) -> Document:
    document: Document = json.loads((folder / MANIFEST).read_bytes())
    return document


def store(folder: Path, document: Document) -> None:
    (folder / MANIFEST).write_text(json.dumps(document))


def take_to_train(folder: Path, *, accept_unsigned: bool) -> object:
    return read_folders([folder], accept_unsigned=accept_unsigned)


def take_to_merge(folder: Path, *, accept_unsigned: bool) -> object:
    return read_inputs([folder], accept_unsigned=accept_unsigned)


def go_on(folder: Path, *, accept_unsigned: bool) -> object:
    return manifests.begin(folder, SETTINGS, accept_unsigned=accept_unsigned)


USES = (take_to_train, take_to_merge, go_on)
Use = Callable[..., object]


# Forgeries: none of them is accepted, whatever is asked for


def edited(folder: Path) -> None:
    """The signature stays as it was."""
    raised(folder)


def flipped(folder: Path) -> None:
    document = stored(folder)
    (signature,) = document[SIGNATURE]["signatures"]
    data = base64.b64decode(signature["sig"])
    signature["sig"] = base64.b64encode(bytes([data[0] ^ 1, *data[1:]])).decode()
    store(folder, document)


def by_a_stranger_under_our_name(folder: Path) -> None:
    raised(folder)
    edit_manifest(folder, lambda _: None)
    document = stored(folder)
    ours = document[SIGNATURE]["signatures"][0]["keyid"]
    payload = base64.b64decode(document[SIGNATURE]["payload"])
    document[SIGNATURE] = seal(payload, CryptoSigner.generate_ed25519())
    document[SIGNATURE]["signatures"][0]["keyid"] = ours
    store(folder, document)


def of_another_run(folder: Path) -> None:
    other = run_folder(folder.parent / "other", ROWS)
    store(folder, stored(folder) | {SIGNATURE: stored(other)[SIGNATURE]})


def of_an_earlier_version(folder: Path) -> None:
    before = stored(folder)[SIGNATURE]
    edit_manifest(folder, lambda document: document.update(complete=False))
    store(folder, stored(folder) | {SIGNATURE: before})


def with_the_payload_swapped(folder: Path) -> None:
    """The payload is that of the edited manifest, the signature is of the true one."""
    before = stored(folder)[SIGNATURE]
    raised(folder)
    edit_manifest(folder, lambda _: None)
    store(folder, stored(folder) | {SIGNATURE: before | {"payload": stored(folder)[SIGNATURE]["payload"]}})


def of_an_attestation(folder: Path) -> None:
    """Our own key signed it, but it says something else."""
    raised(folder)
    statement = {"_type": "https://in-toto.io/Statement/v1", "subject": [], "predicate": {"project": "drafter-gate"}}
    store(folder, stored(folder) | {SIGNATURE: seal(json.dumps(statement).encode(), signer())})


def none_at_all(folder: Path) -> None:
    store(folder, stored(folder) | {SIGNATURE: None})


def without_signatures(folder: Path) -> None:
    raised(folder)
    document = stored(folder)
    document[SIGNATURE]["signatures"] = []
    store(folder, document)


FORGERIES = (
    edited,
    flipped,
    by_a_stranger_under_our_name,
    of_another_run,
    of_an_earlier_version,
    with_the_payload_swapped,
    of_an_attestation,
    none_at_all,
    without_signatures,
)


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.__name__)
def test_a_forged_manifest_is_never_accepted(forgery: Callable[[Path], None], use: Use, run: Path) -> None:
    use(run, accept_unsigned=False)
    forgery(run)

    for accept_unsigned in (False, True):
        with pytest.raises(REFUSED, match=r"signature|after it was signed by"):
            use(run, accept_unsigned=accept_unsigned)


# What nobody here vouches for: only where that is asked for


def unsigned(folder: Path) -> None:
    raised(folder)
    as_unsigned(folder)


def by_a_stranger(folder: Path) -> None:
    raised(folder)
    edit_manifest(folder, lambda _: None)
    document = stored(folder)
    document[SIGNATURE] = seal(base64.b64decode(document[SIGNATURE]["payload"]), CryptoSigner.generate_ed25519())
    store(folder, document)


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize(
    "strip, why",
    [
        (unsigned, r"has no signature, so anyone .*--accept-unsigned"),
        (by_a_stranger, r"nobody here .*--accept-unsigned"),
    ],
    ids=["unsigned", "by a stranger"],
)
def test_a_manifest_of_nobody_known_needs_a_flag(strip: Callable[[Path], None], why: str, use: Use, run: Path) -> None:
    strip(run)

    with pytest.raises(REFUSED, match=why):
        use(run, accept_unsigned=False)
    assert use(run, accept_unsigned=True)


def test_what_is_made_of_unsigned_rows_is_not_signed(run: Path, tmp_path: Path) -> None:
    whole = run_folder(tmp_path / "whole", [row("c", [1], [2, 3])])
    as_unsigned(run)

    merge(read_inputs([whole, run], accept_unsigned=True), MergePolicy(), tmp_path / "set")

    assert SIGNATURE not in stored(tmp_path / "set")
    assert [signer().public_key.keyid, None] == [each["signed_by"] for each in stored(tmp_path / "set")["inputs"]]
    with pytest.raises(RowsError, match="has no signature"):
        read_folders([tmp_path / "set"])


def test_a_run_that_was_accepted_unsigned_stays_unsigned(run: Path) -> None:
    as_unsigned(run)

    manifests.write(run, manifests.begin(run, SETTINGS, accept_unsigned=True))

    assert SIGNATURE not in stored(run)


def test_a_merged_set_is_signed_and_raises_no_evidence(run: Path, tmp_path: Path) -> None:
    merge(read_inputs([run]), MergePolicy(), tmp_path / "set")
    (folder,) = read_folders([tmp_path / "set"])

    assert signer().public_key.keyid == folder.signer
    assert [("counted", "counted")] * 2 == [
        (found["evidence"], found["prompt_evidence"]) for table in folder.tables() for found in table.to_pylist()
    ]
    assert [{"counted": 2}] == [shard["evidence"] for shard in stored(tmp_path / "set")["shards"]]


def test_a_merged_set_that_was_edited_is_refused(run: Path, tmp_path: Path) -> None:
    merge(read_inputs([run]), MergePolicy(), tmp_path / "set")
    edit_manifest(tmp_path / "set", lambda document: document.update(sessions=[{"attestation": ""}]))
    raised(tmp_path / "set")

    with pytest.raises(RowsError, match="was changed after it was signed by"):
        read_folders([tmp_path / "set"])


# Keys


def test_a_key_beside_our_own_vouches_for_rows_alone(run: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = small_tree(run.parent / "gpu")
    monkeypatch.setenv("DRAFTER_GATE_KEYS", str(tree.keys))
    with pytest.raises(RowsError, match="nobody here trusts"):
        read_folders([run])

    write_public(tree.keys / "laptop.pub.json", developer_key(keys).public_key)

    assert [developer_key(keys).public_key.keyid] == [folder.signer for folder in read_folders([run])]
    tree.attest(key=developer_key(keys))
    with pytest.raises(AttestationError, match="which nobody here trusts"):
        read_attestation(tree.attestation, trusted_keys(tree.root, tree.keys), NOW)


def test_a_manifest_claims_no_key_by_its_id_alone(run: Path, keys: Path) -> None:
    """A key file's id is computed, so a stranger's file cannot stand for ours."""
    stranger = CryptoSigner.generate_ed25519()
    write_public(keys / "other.pub.json", stranger.public_key)
    document = json.loads((keys / "other.pub.json").read_bytes())
    (keys / "other.pub.json").write_text(json.dumps(document | {"keyid": signer().public_key.keyid}))

    assert [signer().public_key.keyid] == [folder.signer for folder in read_folders([run])]


def test_a_key_that_others_may_read_signs_no_manifest(run: Path) -> None:
    (key_dir() / "dev.pem").chmod(0o644)
    before = (run / MANIFEST).stat().st_mtime_ns

    with pytest.raises(ManifestError, match=r"dev\.pem can be read by others"):
        manifests.write(run, manifests.begin(run, SETTINGS))
    assert before == (run / MANIFEST).stat().st_mtime_ns


# What a manifest does not name, when a run goes on


def folder_of(run: Path) -> ShardFolder:
    return ShardFolder(
        run,
        route="emulator/chutes",
        metadata={"run": "run", **{key: str(SETTINGS[key]) for key in ("format", "tokenizer_sha256")}},
    )


def refused(name: str) -> Quarantined:
    return Quarantined(name, Refusal(Why.COUNT_MISMATCH, "9 and 8"))


@pytest.fixture
def quarantined(run: Path) -> Path:
    """The run, with a refused row."""
    folder = folder_of(run)
    folder.refuse(refused("x"))
    folder.flush()
    old = manifests.begin(run, SETTINGS)
    manifests.write(run, manifests.naming(old, folder))
    return run


def test_a_planted_shard_is_no_part_of_a_run_that_goes_on(quarantined: Path) -> None:
    other = run_folder(quarantined.parent / "other" / "run", [row("z", [1], [9, 9], Evidence.ENGINE_IDS)])
    (quarantined / "shard-00001.parquet").write_bytes((other / "shard-00000.parquet").read_bytes())
    manifest = manifests.begin(quarantined, SETTINGS)

    moved = manifests.move_unnamed(quarantined, manifest)
    folder = folder_of(quarantined)
    manifests.check_files(manifest, folder)

    assert (["shard-00001.parquet"], False, True) == (moved, "id z" in folder, "id a" in folder)
    assert (quarantined / "shard-00001.parquet.unnamed").is_file()


def test_a_planted_refusal_is_no_part_of_a_run_that_goes_on(quarantined: Path) -> None:
    before = (quarantined / QUARANTINE).read_bytes()
    with (quarantined / QUARANTINE).open("ab") as file:
        file.write(before.replace(b'"x"', b'"y"'))
    manifest = manifests.begin(quarantined, SETTINGS)

    moved = manifests.move_unnamed(quarantined, manifest)
    manifests.check_files(manifest, folder_of(quarantined))

    assert ([QUARANTINE], before) == (moved, (quarantined / QUARANTINE).read_bytes())
    assert before.replace(b'"x"', b'"y"') == (quarantined / f"{QUARANTINE}.unnamed").read_bytes()


def test_a_planted_link_leads_to_nobodys_file(run: Path) -> None:
    (run.parent / "diary.txt").write_text("mine\n")
    (run / QUARANTINE).symlink_to(run.parent / "diary.txt")

    assert [QUARANTINE] == manifests.move_unnamed(run, manifests.begin(run, SETTINGS))
    assert ("mine\n", False) == ((run.parent / "diary.txt").read_text(), (run / QUARANTINE).exists())


@pytest.mark.parametrize(
    "change", [lambda line: line.replace(b'"x"', b'"y"'), lambda _: b""], ids=["edited", "emptied"]
)
def test_a_refusal_that_was_changed_stops_the_run(change: Callable[[bytes], bytes], quarantined: Path) -> None:
    path = quarantined / QUARANTINE
    path.write_bytes(change(path.read_bytes()))
    manifest = manifests.begin(quarantined, SETTINGS)

    with pytest.raises(ManifestError, match=r"quarantine\.jsonl (was changed|is gone) since it was written"):
        manifests.check_files(manifest, folder_of(quarantined))


def test_what_was_added_while_a_run_was_on_is_not_signed(quarantined: Path) -> None:
    """The digest is of what the run wrote, and not of what lies there."""
    folder = folder_of(quarantined)
    with (quarantined / QUARANTINE).open("ab") as file:
        file.write((quarantined / QUARANTINE).read_bytes().replace(b'"x"', b'"y"'))
    manifests.write(quarantined, manifests.naming(manifests.begin(quarantined, SETTINGS), folder))

    with pytest.raises(MergeError, match="is not what the manifest says"):
        read_inputs([quarantined])


# What a true signature does not excuse


@pytest.mark.parametrize("use", [take_to_train, take_to_merge], ids=lambda use: use.__name__)
def test_a_planted_shard_is_refused_by_whoever_reads(use: Use, run: Path) -> None:
    (run / "shard-00001.parquet").write_bytes((run / "shard-00000.parquet").read_bytes())

    with pytest.raises(REFUSED, match=r"shard-00001\.parquet is not in the manifest"):
        use(run, accept_unsigned=False)


def test_a_run_goes_on_under_its_own_settings_alone(run: Path) -> None:
    with pytest.raises(ManifestError, match='was begun with route "emulator/chutes" and is asked for "local"'):
        manifests.begin(run, SETTINGS | {"route": "local"})


def test_rows_of_a_tree_that_changed_need_a_flag(run: Path) -> None:
    edit_manifest(run, lambda document: document["sessions"][-1].update(tree_end={"pipeline/": "2"}))

    with pytest.raises(RowsError, match="the tree did not stay as attested"):
        read_folders([run])
    assert read_folders([run], accept_changed_tree=True)


def test_a_set_holds_no_row_of_weaker_evidence_than_asked(run: Path, tmp_path: Path) -> None:
    whole = run_folder(tmp_path / "whole", [row("c", [1], [2, 3], Evidence.ENGINE_IDS)])

    merge(read_inputs([run, whole]), MergePolicy(Evidence.ENGINE_IDS), tmp_path / "set")
    (folder,) = read_folders([tmp_path / "set"])

    assert ["c"] == [found["id"] for table in folder.tables() for found in table.to_pylist()]
