"""What several verbs share: flags' values.

Guarantees: an emulator or an engine is asked on this machine alone, and a real API at its own address alone.
"""

from __future__ import annotations

import argparse
from decimal import Decimal, InvalidOperation
from urllib.parse import urlsplit

from pipeline.base.money import pico
from pipeline.records import SERVED_APIS, Route

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class ArgumentsError(Exception):
    """Arguments that contradict each other or name nothing."""


def check_place(route: Route, base_url: str | None) -> None:
    """Refuse a base URL that is wrong or missing.

    Raises ArgumentsError.
    """
    if route.api in SERVED_APIS:
        start = f"Start one with: nox -s engine -- {route.api} --model DIR"
        if base_url is None:
            raise ArgumentsError(f"the {route.api} route needs --base-url URL. {start}")
        if _host_of(base_url) not in LOOPBACK:
            raise ArgumentsError(f"{base_url} is not on this machine; an engine elsewhere is asked through a tunnel")
    elif route.api == "emulator":
        start = "Start one with: python -m harness emulator --port 0"
        if base_url is None:
            raise ArgumentsError(f"the emulator route needs --base-url URL. {start}")
        if _host_of(base_url) not in LOOPBACK:
            raise ArgumentsError(f"{base_url} is not on this machine; the emulator is asked only here. {start}")
    elif base_url is not None:
        raise ArgumentsError(
            f"--base-url is for the emulator and for engines; {route.name} has its own place. Leave it out"
        )


def _host_of(base_url: str) -> str | None:
    """Return the host of a plain address. Raises ArgumentsError.

    Its message does not repeat the address, which may hold a password.
    """
    form = "give http://127.0.0.1:PORT, with no name, password, query or fragment in it"
    try:
        parts = urlsplit(base_url)
        plain = parts.scheme in {"http", "https"} and not (parts.username or parts.password or parts.query)
        if not plain or parts.fragment or parts.port == 0:
            raise ArgumentsError(f"--base-url is no plain address: {form}")
    except ValueError:  # a bracket that does not close, a port that is no number or too large
        raise ArgumentsError(f"--base-url is no address: {form}") from None
    return parts.hostname


def usd(text: str) -> Decimal:
    """Parse an amount in USD. Raises argparse.ArgumentTypeError."""
    try:
        amount = Decimal(text)
        pico(amount)
    except (InvalidOperation, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is no amount in USD: give a number such as 0.50") from None
    return amount


def positive(text: str) -> int:
    """Parse a whole number from 1. Raises argparse.ArgumentTypeError.

    >>> positive("3")
    3
    """
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


def add_accepted(parser: argparse.ArgumentParser) -> None:
    """Add which rows are taken that nothing vouches for."""
    changed = "take rows of a session whose tree changed while it ran"
    parser.add_argument("--accept-changed-tree", action="store_true", help=changed)
    add_accept_unsigned(parser)


def add_accept_unsigned(parser: argparse.ArgumentParser) -> None:
    """Add whether manifests are taken that no known key signed."""
    unsigned = "take manifests that no known key signed, as of older versions; a set or store of them is not signed"
    parser.add_argument("--accept-unsigned", action="store_true", help=unsigned)
