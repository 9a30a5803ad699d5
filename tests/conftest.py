"""Hypothesis profiles of the suite, the only place where the number of examples is set.

`contract` draws the same examples each time, so that the gate's answer depends on the tree alone; `fidelity` draws
many and new ones, for a long hunt by hand. `nox -s fidelity` draws its own (`harness.measures.families`).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

# A deadline or a "too slow" measures how busy the machine is, not the code.
SLOW = [HealthCheck.too_slow]

settings.register_profile(
    "contract",
    max_examples=200,
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=SLOW,
)
settings.register_profile("fidelity", max_examples=10_000, deadline=None, print_blob=True, suppress_health_check=SLOW)
# A mutant's first failure is enough: its example is not shrunk.
settings.register_profile("teeth", settings.get_profile("contract"), phases=[Phase.explicit, Phase.generate])
# Which lines a test executes shows in few examples, and tracing them all takes minutes.
settings.register_profile("reach", settings.get_profile("teeth"), max_examples=20)
settings.load_profile("contract")


def pytest_configure() -> None:
    """Heed Ctrl-C wherever the suite was started from.

    nohup and background jobs ignore it, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests sign and spend is not the developer's; the attestation, made after them, is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTER_GATE_KEYS", str(tmp_path_factory.mktemp("keys")))
        patch.delenv("DRAFTER_GATE_CI_KEY", raising=False)
        yield


@pytest.fixture(autouse=True)
def _profile(request: pytest.FixtureRequest) -> None:
    """A test that runs a pytest of its own in this process leaves that one's profile behind, with its deadline."""
    settings.load_profile(request.config.getoption("--hypothesis-profile", None) or "contract")
