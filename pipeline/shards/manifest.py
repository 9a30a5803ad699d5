"""The manifest of a folder of rows, `manifest.json`.

It says what was asked of whom, under which attestation, and what came of it. Guarantees: one run at a time writes to a
folder. A run goes on only under the settings it was begun with, if a known key signed its manifest and the shards named
are the bytes on disk; files that the manifest does not name are moved aside first. Every session is listed with the
tree it ran from, and whether that tree changed meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from pipeline.base.files import HeldError, aside, lock_file, write_whole
from pipeline.base.json_lines import canonical
from pipeline.records import Json, JsonObject
from pipeline.shards.shards import NO_QUARANTINE, QUARANTINE, Quarantine, Shard, ShardFolder
from pipeline.shards.signature import SignatureError, signer_of, with_signature

MANIFEST = "manifest.json"
LOCK = ".lock"
VERSION = 1


class ManifestError(Exception):
    """The folder has other settings, or contradicts its manifest."""


class FolderHeldError(ManifestError):
    """Another run is writing to the folder."""


@dataclass(frozen=True, slots=True)
class Session:
    """One start of the program on this folder.

    `tree_start` and `tree_end` are the digests of the tree's subjects by name. `audit` is the digest of the prompts'
    audit, which lies beside the manifest. `ledger` is the id of the ledger that it wrote.
    """

    started: str
    attestation: str
    tree_start: Mapping[str, str]
    tree_end: Mapping[str, str] | None = None
    ended: str | None = None
    outcome: str = "not finished: the process ended without saying so"
    audit: str = ""
    ledger: str = ""

    @property
    def tree_unchanged(self) -> bool | None:
        """Whether the tree stayed the same; None without an end."""
        return None if self.tree_end is None else dict(self.tree_end) == dict(self.tree_start)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A run: settings, sessions, and the results so far.

    `signed` is False where the run, or what it is made of, was accepted without the signature of a known key: nobody
    here can vouch for it, so it is not signed later either.
    """

    run: str
    settings: JsonObject
    sessions: Sequence[Session] = ()
    result: JsonObject = field(default_factory=dict)
    shards: Sequence[Shard] = ()
    quarantine: Quarantine = NO_QUARANTINE
    signed: bool = True


def begin(folder: Path, settings: JsonObject, *, accept_unsigned: bool = False) -> Manifest:
    """Return the manifest of `folder`, or a new one.

    Raises ManifestError where it was begun with other settings or no known key signed it, OSError.
    """
    path = folder / MANIFEST
    if not path.exists():
        # The manifest is written before anything else, so a kill without one can leave only these two.
        ours = {LOCK, aside(path).name}
        if folder.is_dir() and (left := sorted({item.name for item in folder.iterdir()} - ours)):
            raise ManifestError(f"{folder} holds {left[0]} but no {MANIFEST}: give a new --out DIR")
        return Manifest(uuid.uuid4().hex, settings)
    old = _read(path, accept_unsigned=accept_unsigned)
    keys = [key for key in sorted({*old.settings, *settings}) if old.settings.get(key) != settings.get(key)]
    if keys:
        short = [(key, _short(old.settings.get(key)), _short(settings.get(key))) for key in keys]
        different = ", ".join(f"{key} {before} and is asked for {now}" for key, before, now in short)
        raise ManifestError(f"{folder} was begun with {different}. Give the same settings, or another --out DIR")
    return old


def _read(path: Path, *, accept_unsigned: bool) -> Manifest:
    try:
        document = json.loads(path.read_bytes())
        if document["manifest"] != VERSION:
            raise ManifestError(f"{path} is of version {document['manifest']}, this program knows {VERSION}")
        sessions = [
            Session(**{key: value for key, value in session.items() if key != "tree_unchanged"})
            for session in document["sessions"]
        ]
        shards = [Shard(**shard) for shard in document["shards"]]
        # The cost stays while the next session runs, since a lost ledger is detected by it.
        # So does a pause, which must outlive a session that was killed.
        kept = {name: document[name] for name in ("cost", "paused") if name in document}
        quarantine = Quarantine(**document["quarantine"])
        signed = signer_of(path, document, accept_unsigned=accept_unsigned) is not None
        return Manifest(document["run"], document["settings"], tuple(sessions), kept, tuple(shards), quarantine, signed)
    except SignatureError as error:
        raise ManifestError(str(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ManifestError(f"{path} is no manifest of this program ({error!r}). Give another --out DIR") from error


def _short(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}…"  # noqa: PLR2004 - a sentence must stay readable


def run_of(folder: Path) -> str | None:
    """Return the run of `folder`, or None.

    None where no run was begun, or where `begin` will say what is wrong.
    """
    try:
        return _read(folder / MANIFEST, accept_unsigned=True).run
    except (ManifestError, OSError):
        return None


def hold(folder: Path) -> TextIO:
    """Lock a folder for writing; make it if new.

    Raises FolderHeldError, OSError.
    """
    try:
        return lock_file(folder / LOCK)
    except HeldError as error:
        raise FolderHeldError(
            f"{folder} is being written by another run (process {error.holder}): wait for it, or give another --out DIR"
        ) from error


def stored(folder: Path, *, accept_unsigned: bool = False) -> tuple[Mapping[str, Any], str, str | None]:
    """Return a folder's manifest, its sha256, and its signer.

    For a folder that is only read. Raises ManifestError where it is no manifest, of another version, signed by no known
    key, or its settings differ from their own digest; OSError.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise ManifestError(f"{folder} holds no {MANIFEST}: give a folder that `generate` or `merge` wrote (its --out)")
    raw = path.read_bytes()
    try:
        document: Mapping[str, Any] = json.loads(raw)
        if document["manifest"] != VERSION:
            raise ManifestError(f"{path} is of version {document['manifest']}, this program knows {VERSION}")
        if hashlib.sha256(canonical(document["settings"])).hexdigest() != document["settings_sha256"]:
            raise ManifestError(f"{path}: the settings are not those that its digest names. Put the file back")
        _ = [(shard["file"], shard["sha256"], shard["rows"]) for shard in document["shards"]]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ManifestError(f"{path} is no manifest of rows ({type(error).__name__}: {error})") from error
    try:
        return document, hashlib.sha256(raw).hexdigest(), signer_of(path, document, accept_unsigned=accept_unsigned)
    except SignatureError as error:
        raise ManifestError(str(error)) from error


def require_files(folder: Path, document: Mapping[str, Any]) -> None:
    """Refuse a folder with other shards than the manifest names.

    Raises ManifestError.
    """
    named = {str(shard["file"]) for shard in document["shards"]}
    there = {path.name for path in folder.glob("*.parquet")}
    if different := sorted(named ^ there):
        state = "is named by the manifest and not there" if different[0] in named else "is not in the manifest"
        raise ManifestError(f"{folder / different[0]} {state}. Run its own command again, or put it back")


def move_unnamed(folder: Path, manifest: Manifest) -> list[str]:
    """Move what a manifest does not name to `*.unnamed`.

    For a run that goes on; returns the files' names. A session that was killed left them, whose rows come again, or
    somebody put them there: nobody can tell. Raises OSError.
    """
    named = {shard.file for shard in manifest.shards}
    moved = [path for path in sorted(folder.glob("shard-*.parquet")) if path.name not in named]
    for path in moved:
        path.replace(_unnamed(path))
    quarantine, length = folder / QUARANTINE, manifest.quarantine.bytes
    if length is not None and quarantine.exists() and quarantine.stat().st_size > length:
        with quarantine.open("rb") as file:
            named_lines, others = file.read(length), file.read()
        _write(_unnamed(quarantine), others)
        if length:
            _write(quarantine, named_lines)  # never in place: it may be a link to somebody's file
        else:
            quarantine.unlink()
        moved.append(quarantine)
    return [path.name for path in moved]


def _unnamed(path: Path) -> Path:
    return path.with_name(f"{path.name}.unnamed")


def check_files(manifest: Manifest, found: ShardFolder) -> None:
    """Refuse shards and a quarantine that are missing or changed.

    Raises ManifestError.
    """
    wanted = {shard.file: shard.sha256 for shard in manifest.shards}
    on_disk = {shard.file: shard.sha256 for shard in found.shards}
    if manifest.quarantine.bytes is not None and manifest.quarantine.sha256 is not None:
        wanted[QUARANTINE] = manifest.quarantine.sha256
    if found.quarantine.sha256 is not None:
        on_disk[QUARANTINE] = found.quarantine.sha256
    for file, sha256 in wanted.items():
        if on_disk.get(file) != sha256:
            state = "is gone" if file not in on_disk else "was changed"
            raise ManifestError(
                f"{found.folder / file} {state} since it was written. Put it back, or give another --out"
            )


def write(folder: Path, manifest: Manifest) -> None:
    """Write and sign `manifest.json` in one step.

    Raises ManifestError where no key can sign, OSError.
    """
    document: dict[str, Json] = {
        "manifest": VERSION,
        "run": manifest.run,
        "settings": dict(manifest.settings),
        "settings_sha256": hashlib.sha256(canonical(manifest.settings)).hexdigest(),
        "sessions": [{**asdict(session), "tree_unchanged": session.tree_unchanged} for session in manifest.sessions],
        **manifest.result,
        "shards": [asdict(shard) for shard in manifest.shards],
        "quarantine": asdict(manifest.quarantine),
    }
    write_document(folder, document, sign=manifest.signed)


def write_document(folder: Path, document: Mapping[str, Json], *, sign: bool) -> None:
    """Write a manifest whole, signed where `sign`.

    Raises ManifestError, OSError.
    """
    try:
        whole = with_signature(document) if sign else document
    except SignatureError as error:
        raise ManifestError(str(error)) from error
    text = json.dumps(whole, indent=2, ensure_ascii=True) + "\n"
    _write(folder / MANIFEST, text.encode("ascii"))


def _write(path: Path, data: bytes) -> None:
    def fill(file: BinaryIO) -> None:
        file.write(data)

    write_whole(path, fill)


def naming(manifest: Manifest, folder: ShardFolder) -> Manifest:
    """Return the manifest with the files that the folder wrote."""
    return replace(manifest, shards=tuple(folder.shards), quarantine=folder.quarantine)


def with_last_session(manifest: Manifest, **changes: object) -> Manifest:
    """Return the manifest with its last session changed."""
    *before, last = manifest.sessions
    return replace(manifest, sessions=(*before, replace(last, **changes)))  # type: ignore[arg-type]  # fields of Session


def tree_held(sessions: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the tree stayed as attested in every session.

    A session that was killed has no end of its own; it counts where the next one began on the same tree.
    """
    for number, session in enumerate(sessions):
        after = sessions[number + 1]["tree_start"] if number + 1 < len(sessions) else None
        end = after if session.get("tree_end") is None else session["tree_end"]
        if end is None or end != session["tree_start"]:
            return False
    return True
