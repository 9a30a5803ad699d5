"""Print every reason for a refusal, as docs/reasons.md.

    python -m pipeline reasons

Guarantees: the table is made from the closed list in `records` and nothing else; a reason without a meaning, or a
meaning without a reason, is an error.
"""

from __future__ import annotations

import argparse

from pipeline.base.screen import show_text
from pipeline.records import MEANINGS, Reason

HEAD = """# Reasons

Every row is either accepted with a proof or refused for one of these reasons, in the field `reason`.
`detail` says in words what was seen. `where` says the place, as far as there is one:
`field` names the part of the prompt or the answer (`messages[2].content`, `reasoning`, `usage.completion_tokens`),
`char_offset` counts the code points of that field from 0, and `token_position` counts ids from 0
(or the deltas of a stream, or the entries of `logprobs`, where `field` or `detail` says so).

Written by `python -m pipeline reasons`; a test holds the two equal.

| reason | meaning |
|---|---|
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("reasons", help="print every reason for a refusal, as a table")
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Print the table."""
    show_text(table())
    return 0


def table() -> str:
    """Return the whole document, in Markdown."""
    if unequal := set(Reason) ^ set(MEANINGS):
        raise ValueError(f"no meaning, or a meaning without a reason: {', '.join(sorted(unequal))}")
    return HEAD + "".join(f"| `{reason}` | {MEANINGS[reason].replace('|', chr(92) + '|')} |\n" for reason in Reason)
