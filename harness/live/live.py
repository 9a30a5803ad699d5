"""Make cassettes, contract and fingerprint of a probe.

    python -m harness live record DIR [--write]
    python -m harness live drift DIR

`record` writes the cassettes, the table of what they give and its tests, and shows how the fingerprint differs from the
committed one; only `--write` writes that. `drift` compares a few answers and writes nothing. Guarantees: what the
emulator answered does not enter this tree, and a trait that changed makes the exit status of `drift` 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from pathlib import Path

from harness.attestation.required import CONTRACT, LIVE, TABLE
from harness.cassettes.cassette import Cassette, CassetteError
from harness.live.cassettes import RecordedProbe, cassettes_of, folder_of, read_recorded, save_all
from harness.live.fingerprint_diff import Change, Tier, as_asked, changes, learned_from, lines_of, same_route, table
from harness.live.suite import Entry, Table, opened, outcome, read_table, write_suite
from pipeline.base.paths import ROOT
from pipeline.base.screen import say, show
from pipeline.datasets.features import features_of
from pipeline.fingerprints.exchanges import ExchangesError
from pipeline.fingerprints.models import model_of
from pipeline.formats.registry import FormatError
from pipeline.formats.tokenizer import TokenizerError
from pipeline.gate.gate import PROBES
from pipeline.generation.probe.exchange_file import FILE
from pipeline.generation.probe.probes import Probe, ProbesError, read_probes
from pipeline.proof.fingerprint import Fingerprint, FingerprintError, committed_fingerprints, file_name
from pipeline.records import Json

CHANGED, UNUSABLE = 1, 2
TROUBLE = (CassetteError, ExchangesError, FingerprintError, FormatError, ProbesError, TokenizerError, OSError)
QUIET = frozenset({Tier.SAME, Tier.OPEN})
"""Tiers that a record does not list."""


class LiveError(Exception):
    """What was brought back is unusable for this."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Record or compare.

    Exit 0, 1 where a route has drifted, 2 where nothing could be done.
    """
    options = parser().parse_args(arguments)
    try:
        recorded = [one for folder in options.folders for one in read_recorded(folder / FILE)]
        reasons = [one.why_not() for one in recorded]
        for one, why in zip(recorded, reasons, strict=True):
            if why:
                say(f"not kept: {one.probe}, {one.exchange.id}: {why}")
        kept = [one for one, why in zip(recorded, reasons, strict=True) if not why]
        status: int = options.act(kept, options)
    except (LiveError, *TROUBLE) as error:
        say(f"error: {error}")
        return UNUSABLE
    return status


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = argparse.ArgumentParser(prog="python -m harness live", description=(__doc__ or "").split("\n")[0])
    verbs = top.add_subparsers(required=True, metavar="VERB")
    record_verb = verbs.add_parser("record", help="make cassettes, their contract and the fingerprint's differences")
    record_verb.add_argument("--write", action="store_true", help="write the fingerprint, too")
    drift_verb = verbs.add_parser("drift", help="compare a handful with the committed fingerprint; exit 1 on a change")
    for verb, act in ((record_verb, record), (drift_verb, drift)):
        verb.add_argument("folders", nargs="+", type=Path, metavar="DIR", help=f"what `pipeline probe` wrote: {FILE}")
        verb.add_argument("--tokenizer", metavar="DIR", help="directory with the model's vocabulary")
        verb.add_argument("--root", type=Path, default=ROOT, help="another tree to write to and compare with")
        verb.set_defaults(act=act)
    return top


def record(kept: Sequence[RecordedProbe], options: argparse.Namespace) -> int:
    """Write cassettes, fingerprint and contract, in this order.

    The contract says what the committed fingerprint proves.
    """
    root: Path = options.root
    if root.resolve() == ROOT and any(not one.route.startswith("openrouter/") for one in kept):
        raise LiveError("these answers are an emulator's, and this tree keeps live ones. Use --root DIR for a trial")
    if not kept:
        raise LiveError("no answer is left to record. Look at what was told above, then probe again")
    probes = {probe.id: probe for probe in read_probes(root / PROBES).probes}
    formats = {one.exchange.model: format_of(one.exchange.model) for one in kept}
    if strangers := sorted({one.probe for one in kept} - probes.keys()):
        raise LiveError(f"{strangers[0]} is no committed probe. Probe again with this tree's {PROBES}")
    cassettes = cassettes_of(kept, root)
    for path in save_all(cassettes, root / "cassettes"):
        show(f"recorded {path.relative_to(root)}")
    for path in orphans(kept, probes, root):
        path.unlink()
        show(f"removed  {path.relative_to(root)}: no committed probe is called so")
    record_fingerprints(kept, options)
    entries = {
        name: table_entry(next(one for one in kept if one.name == name), cassettes[name], probes, formats, options)
        for name in cassettes
    }
    for folder in write_contracts(cassettes, entries, root):
        show(f"contract {folder.relative_to(root)}")
    return 0


def orphans(kept: Sequence[RecordedProbe], probes: Mapping[str, Probe], root: Path) -> Iterator[Path]:
    """Yield cassettes of these routes whose probe is gone.

    Nobody can record them anew.
    """
    for folder in sorted({folder_of(one.route, one.exchange.model) for one in kept}):
        for path in sorted((root / "cassettes" / folder).glob("*.yaml")):
            if path.stem.rpartition(".")[0] not in probes:
                yield path


def record_fingerprints(kept: Sequence[RecordedProbe], options: argparse.Namespace) -> None:
    """Learn, print the differences, and write where asked."""
    for found, listed in compared(kept, options, few=False):
        shown = [change for change in listed if change.tier not in QUIET]
        for line in table(found, shown):
            show(line)
        show(f"  {sum(change.tier is Tier.SAME for change in listed)} traits as committed")
        if options.write:
            write_fingerprint(found, kept, options.root)


def compared(
    kept: Sequence[RecordedProbe], options: argparse.Namespace, *, few: bool
) -> Iterator[tuple[Fingerprint, list[Change]]]:
    """Yield each learned fingerprint with its changes."""
    learned, account = learned_from([one.exchange for one in kept], options.tokenizer)
    say(*account)
    known = committed_fingerprints(options.root)
    models = list(dict.fromkeys(one.exchange.model for one in kept))
    for one in learned:
        found = as_asked(one, models)
        yield found, changes(same_route(found, known), found, few=few)


def write_fingerprint(found: Fingerprint, kept: Sequence[RecordedProbe], root: Path) -> None:
    """Write a fingerprint to the committed ones."""
    folder = root / "goldens" / "fingerprints"
    folder.mkdir(parents=True, exist_ok=True)
    source = "live" if all(one.route.startswith("openrouter/") for one in kept) else "emulator"
    recorded_at = min(one.at for one in kept).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    path = folder / file_name(found)
    path.write_text("".join(lines_of(found, recorded_at, source)), encoding="utf-8", newline="\n")
    show(f"written  {path.relative_to(root)}")


def write_contracts(cassettes: Mapping[str, Cassette], entries: Mapping[str, Entry], root: Path) -> Iterator[Path]:
    """Write the table and the tests of each route.

    What was not recorded anew stays as it was.
    """
    for route in dict.fromkeys(cassette.provenance.route for cassette in cassettes.values()):
        folder = root / CONTRACT / LIVE / route.replace("/", "--")
        entries_before = read_table(folder).entries if (folder / TABLE).is_file() else {}
        before = {
            name: entry for name, entry in entries_before.items() if (root / "cassettes" / f"{name}.yaml").is_file()
        }
        mine = {name: entries[name] for name, cassette in cassettes.items() if cassette.provenance.route == route}
        yield write_suite(Table(route, {**before, **mine}), root)


def table_entry(
    first: RecordedProbe,
    cassette: Cassette,
    probes: Mapping[str, Probe],
    formats: Mapping[str, str],
    options: argparse.Namespace,
) -> Entry:
    """Return what one cassette gives, for the table."""
    probe, slug = probes[first.probe], first.exchange.model
    reasoning = (first.exchange.request or {}).get("reasoning")
    thinking = isinstance(reasoning, dict) and reasoning.get("enabled") is True
    prompt: dict[str, Json] = {"id": probe.id, "messages": [*map(dict, probe.prompt.messages)], "thinking": thinking}
    if probe.prompt.tools:
        prompt["tools"] = [*map(dict, probe.prompt.tools)]
    shape = "length_cut" if probe.known.cut else "thinking" if thinking else "instant"
    features = (shape, *sorted(str(feature) for feature in features_of(probe.prompt, probe.tool_mode)))
    entry = Entry(formats[slug], first.exchange.provider, prompt, features, ())
    known, fmt = committed_fingerprints(options.root), opened(entry.format, options.tokenizer)
    return replace(entry, rows=tuple(outcome(entry, fmt, slug, each, known) for each in cassette.interactions))


def format_of(slug: str) -> str:
    """Return the format that a model answers in."""
    if (model := model_of(slug)) is None:
        raise LiveError(f"which format {slug} answers in is not in pipeline/fingerprints/models.py. Add it there")
    return model.format


def drift(kept: Sequence[RecordedProbe], options: argparse.Namespace) -> int:
    """Print each proven trait: the same, changed, or unseen."""
    moved = compared_routes = 0
    for found, listed in compared(kept, options, few=True):
        proven = [change for change in listed if change.before is not None and change.before.proven]
        compared_routes += bool(proven)
        moved += sum(change.tier is Tier.CHANGED for change in proven)
        for line in table(found, proven) if proven else ():
            show(line)
    if not compared_routes:
        raise LiveError("no committed fingerprint is of these answers. Run: nox -s cassettes -- --live … --write")
    show(f"{moved} traits changed" if moved else "no trait changed")
    return CHANGED if moved else 0
