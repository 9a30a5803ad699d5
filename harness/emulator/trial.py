"""An emulator for the length of a `with`, in this process: its address, its state, its oracle log.

Guarantees: requests go over a real loopback socket and past any proxy. For tests and for recording.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from harness.emulator.account import Account, RateLimit
from harness.emulator.answers import Answerer
from harness.emulator.app import create_app
from harness.emulator.faults import Faults
from harness.emulator.oracle_log import OracleEntry, OracleLog, read_oracle
from harness.emulator.server import running
from harness.emulator.service import Service
from pipeline.formats.format import Format

CONTEXT = 2048
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Trial:
    """A running emulator; `url` is what a client takes as its base URL."""

    url: str
    service: Service
    oracle: Path

    def post(self, body: Mapping[str, object] | bytes, **headers: str) -> httpx2.Response:
        """POST to /chat/completions of an object, or of bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        with httpx2.Client(trust_env=False, timeout=SECONDS) as client:
            return client.post(f"{self.url}/chat/completions", content=content, headers=headers)

    def get(self, path: str, **headers: str) -> httpx2.Response:
        """GET of a path below the base URL."""
        with httpx2.Client(trust_env=False, timeout=SECONDS) as client:
            return client.get(f"{self.url}{path}", headers=headers)

    def entries(self) -> list[OracleEntry]:
        """The oracle log so far."""
        return list(read_oracle(self.oracle))


@dataclass(frozen=True, slots=True)
class Terms:
    """What may be other than usual: the account, the rate limit, faults, whether a key is asked for."""

    account: Account = field(default_factory=Account)
    rate: RateLimit = field(default_factory=RateLimit)
    faults: Faults = field(default_factory=Faults)
    require_key: bool = False


@contextlib.contextmanager
def emulating(fmt: Format, answerer: Answerer, oracle: Path, terms: Terms | None = None) -> Iterator[Trial]:
    """A Trial over `answerer`, its oracle log appended to `oracle`."""
    terms = terms or Terms()
    with OracleLog(oracle) as log:
        service = Service(
            fmt=fmt,
            answerer=answerer,
            oracle=log,
            context=CONTEXT,
            account=terms.account,
            rate=terms.rate,
            faults=terms.faults,
            require_key=terms.require_key,
        )
        with running(create_app(service)) as url:
            yield Trial(url, service, oracle)
