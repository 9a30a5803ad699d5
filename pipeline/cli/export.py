"""Write a drafter, or rows, as other programs read them.

    python -m pipeline export checkpoint|to-speculators|from-speculators|untrained|rows …

Guarantees: what is written is checked first, and is there whole or not at all, in a new place. Rows leave only by the
gate and policy of our own training, since the hours of other trainers cost money too. Unusable input is exit 2, in one
sentence; the gate's refusal is 3.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.base.screen import say, show_json
from pipeline.cli.evaluate import layers_named
from pipeline.cli.options import ArgumentsError, add_accepted, positive
from pipeline.cli.states import add_policy, policy_of, sentences_of
from pipeline.gate.gate import SHUT, GateShutError, require
from pipeline.records import Json

DTYPES = ("bfloat16", "float16", "float32")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("export", help="write drafters and rows as other programs read them")
    kinds = parser.add_subparsers(required=True, metavar="WHAT")
    for add in (add_checkpoint, add_speculators, add_untrained, add_rows):
        add(kinds)


def add_checkpoint(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """A checkpoint of a running training, as engines load it."""
    parser = kinds.add_parser("checkpoint", help="a checkpoint of `train` as SGLang and vLLM load it")
    add = parser.add_argument
    add(
        "training",
        type=Path,
        metavar="RUN",
        help="folder of `train` (its newest checkpoint is taken), or one checkpoint",
    )
    add("out", type=Path, metavar="OUT", help="a new directory")
    add("--target", type=Path, required=True, metavar="DIR", help="the target's model directory")
    add("--dtype", choices=DTYPES, default="bfloat16", help="dtype of the weights (default: bfloat16)")
    parser.set_defaults(run=run_checkpoint)


def run_checkpoint(args: argparse.Namespace) -> int:
    import torch

    from pipeline.drafter.export.serving import export
    from pipeline.drafter.target.files import target_facts
    from pipeline.drafter.training.checkpoints import load, newest
    from pipeline.drafter.training.setup import drafter_of

    snapshot, facts = load(newest(args.training) or args.training), target_facts(args.target)
    for name in ("weights_sha256", "config_sha256"):
        if snapshot.description.get(f"target_{name}") != getattr(facts, name):
            raise ArgumentsError(f"{args.training} is of another target than {args.target}: its {name} differs")
    provenance: dict[str, Json] = {"steps": snapshot.step}
    export(args.out, drafter_of(snapshot), facts, dtype=getattr(torch, args.dtype), provenance=provenance)
    return _written(args.out, steps=snapshot.step)


def add_speculators(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """To and from speculators' format."""
    to = kinds.add_parser("to-speculators", help="an exported drafter in speculators' format")
    to.add_argument("--verifier", metavar="NAME", help="the target's name at the server (default: --target)")
    to.add_argument(
        "--draft-tokens", type=positive, default=3, metavar="N", help="tokens drafted in a round (default: 3)"
    )
    back = kinds.add_parser("from-speculators", help="a drafter in speculators' format as SGLang and vLLM load it")
    for parser, run in ((to, run_to_speculators), (back, run_from_speculators)):
        parser.add_argument("drafter", type=Path, metavar="DRAFTER_DIR", help="the drafter's directory")
        parser.add_argument("out", type=Path, metavar="OUT", help="a new directory")
        parser.add_argument("--target", type=Path, required=True, metavar="DIR", help="the target's model directory")
        parser.set_defaults(run=run)


def run_to_speculators(args: argparse.Namespace) -> int:
    from pipeline.drafter.export.speculators import to_speculators
    from pipeline.drafter.target.files import read_embedding_and_head, target_facts

    facts, embedding = target_facts(args.target), read_embedding_and_head(args.target).embedding
    verifier = args.verifier or str(args.target)
    to_speculators(args.drafter, args.out, facts, embedding, verifier=verifier, draft_tokens=args.draft_tokens)
    return _written(args.out)


def run_from_speculators(args: argparse.Namespace) -> int:
    from pipeline.drafter.export.speculators import from_speculators
    from pipeline.drafter.target.files import read_embedding_and_head, target_facts

    from_speculators(args.drafter, args.out, target_facts(args.target), read_embedding_and_head(args.target).embedding)
    return _written(args.out)


def add_untrained(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """A drafter with fresh weights."""
    parser = kinds.add_parser("untrained", help="a drafter with fresh weights, to compare with or to try an engine on")
    add = parser.add_argument
    add("out", type=Path, metavar="OUT", help="a new directory")
    add("--target", type=Path, required=True, metavar="DIR", help="the target's model directory")
    add("--draft-vocabulary", type=positive, metavar="N", help="the first N tokens (default: the target's vocabulary)")
    add("--layers", metavar="LOW,MID,HIGH", help="0-based layers whose outputs are read (default: EAGLE's)")
    add("--seed", type=int, default=0, help="seed of the weights (default: 0)")
    add("--dtype", choices=DTYPES, default="bfloat16", help="dtype of the weights (default: bfloat16)")
    parser.set_defaults(run=run_untrained)


def run_untrained(args: argparse.Namespace) -> int:
    import torch

    from pipeline.drafter.decoding.drafting import untrained
    from pipeline.drafter.export.serving import export
    from pipeline.drafter.model.config import choose_vocabulary, drafter_config
    from pipeline.drafter.target.files import read_embedding_and_head, target_facts
    from pipeline.drafter.target.layers import layers_of

    facts = target_facts(args.target)
    size = args.draft_vocabulary or facts.vocab_size
    layers = layers_of(facts.num_layers, layers_named(args.layers))
    config = drafter_config(facts.config.get_text_config(), draft_vocab_size=size, layers=layers)
    vocabulary = choose_vocabulary(torch.zeros(facts.vocab_size), size)
    drafter = untrained(config, vocabulary, read_embedding_and_head(args.target).embedding, args.seed)
    provenance: dict[str, Json] = {"untrained": True, "seed": args.seed}
    export(args.out, drafter, facts, dtype=getattr(torch, args.dtype), provenance=provenance)
    return _written(args.out)


def add_rows(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Proven rows as other trainers' input."""
    parser = kinds.add_parser("rows", help="proven rows as training input of SpecForge and speculators: ids, no text")
    add = parser.add_argument
    add("out", type=Path, metavar="OUT", help="a new folder")
    add("rows", type=Path, nargs="+", metavar="ROWS_FOLDER", help="folders that `generate` or `merge` wrote")
    add_policy(parser)
    add_accepted(parser)
    parser.set_defaults(run=run_rows)


def run_rows(args: argparse.Namespace) -> int:
    from pipeline.drafter.export.training_inputs import write_inputs
    from pipeline.drafter.row_folders import job_of
    from pipeline.drafter.rows import read_rows

    rows = read_rows(
        args.rows,
        policy_of(args, args.longest),
        accept_changed_tree=args.accept_changed_tree,
        accept_unsigned=args.accept_unsigned,
    )
    say(*sentences_of(rows))
    try:
        permit = require(job_of(rows.folders))
    except GateShutError as error:
        say(*error.lines)
        return SHUT
    account = write_inputs(args.out, rows, {**rows.document(), "attestation": permit.attestation_sha256})
    say(
        f"both trainers cut rows that are longer than their limit: give --max-length {account.longest} or more to "
        "SpecForge, --seq-length to speculators"
    )
    return _written(args.out, rows=account.rows, tokens=account.tokens, longest_row=account.longest)


def _written(out: Path, **more: Json) -> int:
    show_json({"out": str(out), **more})
    return 0
