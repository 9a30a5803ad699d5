"""The pytest plugin that attests runs of the contract suite.

Guarantees: an attestation is written only when asked for (`--attest`), by the controller alone, and only of a whole
run: every test of REQUIRED passed and no other ran; nothing was selected, skipped or expected to fail; the tree did not
change; no canary was masked. Otherwise nothing is written, each objection is printed with the command that mends it,
and the run fails. The old attestation is removed either way.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest

from harness.attestation import canaries, invocation, required
from harness.attestation.kills import held_kills, listed_promises
from harness.attestation.outcomes import Outcomes, mark_coverage
from harness.attestation.required import absent_groups, by_group, is_absent
from harness.attestation.statement import Result, write_attestation
from harness.attestation.suite import COPY
from pipeline.base.signing import SigningError
from pipeline.gate.attestation import AttestationError, attestation_path
from pipeline.gate.digests import DigestError, changed, tree_digests
from pipeline.gate.gate import CONTRACT_EXAMPLES
from pipeline.gate.kills import TEETH, KillTableError, read_kills
from pipeline.records import PROVE, Objection

CANARIES = "drafter_gate_canaries"
DESELECTED = "drafter_gate_deselected"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("drafter-gate")
    group.addoption("--attest", action="store_true", help="sign an attestation of this run, if it is whole")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--attest"):
        return
    config.pluginmanager.register(CanaryRunner(config), "drafter-gate-canaries")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Witness(config), "drafter-gate-witness")


def pytest_report_header(config: pytest.Config) -> list[str]:
    del config
    return [f"not collected: {group} ({why})" for group, why in absent_groups().items()]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if is_absent(collection_path, config.rootpath) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_coverage(items)


class CanaryRunner:
    """Run the canaries after the tests, where the tests run.

    A worker of xdist hands the result to the controller.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.problems: list[str] | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        result = yield
        if session.items and not _is_controller(self.config):
            self.problems = canaries.silenced(session)
            self._output(CANARIES, self.problems)
        return result

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._output(DESELECTED, [item.nodeid for item in items])

    def _output(self, key: str, values: list[str]) -> None:
        """Hand values to the controller, where this is a worker."""
        output: dict[str, object] | None = getattr(self.config, "workeroutput", None)
        if output is not None:
            earlier = output.get(key, [])
            output[key] = [*(earlier if isinstance(earlier, list) else []), *values]


class Witness:
    """Watch a run and attest it, or say why not."""

    def __init__(self, config: pytest.Config) -> None:
        """Remove the old attestation and digest the tree, before collection."""
        self.config = config
        self.root = config.rootpath
        self.outcomes = Outcomes()
        self.worker_problems: list[str] = []
        self.lines: list[str] = []
        self.earlier, self.earlier_kills = _before(attestation_path())
        attestation_path().unlink(missing_ok=True)
        invocation.drop_rewritten(self.root)
        self.before, self.early = _digests(self.root)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.outcomes.add(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.outcomes.add_collection(report)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.outcomes.deselected |= {item.nodeid for item in items}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object, error: object) -> None:
        del error
        output: dict[str, list[str]] = getattr(node, "workeroutput", {})
        self.outcomes.deselected |= set(output.get(DESELECTED, []))
        self.worker_problems += output.get(CANARIES, ["a worker ended without running its canary"])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Attest the run, or object to it.

        Runs last, since other plugins (an unused golden) may still make the run fail.
        """
        objections = [*self.early, *self.objections()]
        if session.exitstatus and not objections:
            objections.append(Objection(f"pytest ended with status {int(session.exitstatus)}", PROVE))
        if not objections:
            objections += self.attest()
        if objections:
            self.lines = ["attestation: not written", *(f"objection: {objection}" for objection in objections)]
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, object, object]:
        """Print the attestation's lines after all others."""
        result = yield
        for line in self.lines:
            terminalreporter.write_line(line)
        return result

    def objections(self) -> Iterator[Objection]:
        """Yield all that speaks against an attestation of this run."""
        yield from invocation.objections(self.config)
        if os.environ.get(COPY) != str(self.root):
            what = "--attest was given in the tree itself, whose files may change while the suite runs"
            yield Objection(what, PROVE)
        yield from self.outcomes.objections()
        try:
            listed = required.read_required(self.root / required.REQUIRED)
            yield from required.differences(listed, self.outcomes.whole, self.outcomes.unfinished)
        except required.RequiredError as error:
            yield Objection(str(error), required.WRITE)
        yield from self.canary_objections()
        yield from _profile_objections(self.config)
        after, problems = _digests(self.root)
        yield from problems
        if self.before and after and (names := changed(self.before, after)):
            yield Objection(f"the tree changed while the suite ran: {', '.join(names)}", PROVE)

    def canary_objections(self) -> Iterator[Objection]:
        """Yield what the canaries found, here and in the workers."""
        runner = self.config.pluginmanager.get_plugin("drafter-gate-canaries")
        own = runner.problems if isinstance(runner, CanaryRunner) else None
        if own is None and not _is_controller(self.config):
            own = ["the canary was not run"]
        if masked := canaries.masked_report(self.config):
            own = [*(own or []), masked]
        for problem in dict.fromkeys([*(own or []), *self.worker_problems]):
            yield Objection(
                f"failures may be masked: {problem}", f"git log -p -- '*conftest.py', mend it, then {PROVE}"
            )

    def attest(self) -> Iterator[Objection]:
        """Sign the attestation; yield the objection where that fails."""
        passed = self.outcomes.whole
        groups, covered = frozenset(by_group(passed)), frozenset(self.outcomes.covered)
        lost = frozenset(name for name in self.earlier - passed if by_group([name]).keys() <= groups)
        try:
            kills = held_kills(read_kills(self.root), listed_promises(self.root), passed, groups)
            gone = self.earlier_kills - (kills.killers.keys() if kills else set())
            result = Result(
                *(passed, groups, covered, self.before, invocation.PROFILE, CONTRACT_EXAMPLES, lost),
                *(kills, frozenset(gone)),
            )
            path, scope, expires = write_attestation(result, self.root)
        except KillTableError as error:
            yield Objection(str(error), TEETH)
            return
        except (SigningError, AttestationError, OSError) as error:
            yield Objection(f"the attestation could not be signed: {error}", PROVE)
            return
        until = expires.strftime("%Y-%m-%d %H:%M UTC")
        self.lines = [f"attestation: {path} ({len(passed)} tests, scope {scope}, until {until})"]
        self.lines += [f"lost since the last one: {name}" for name in sorted(lost)]
        self.lines += [f"noticed no more since the last one: {promise}" for promise in sorted(gone)]


def _before(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return tests and noticed promises of the last attestation.

    They are only shown and noted, so its signature does not matter.
    """
    try:
        payload = base64.b64decode(json.loads(path.read_bytes())["payload"])
        predicate = json.loads(payload)["predicate"]
        kills = (predicate.get("kills") or {}).get("killers", {})
        return frozenset(map(str, predicate["passedTests"])), frozenset(map(str, kills))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return frozenset(), frozenset()


def _digests(root: Path) -> tuple[dict[str, str], list[Objection]]:
    try:
        return tree_digests(root), []
    except DigestError as error:
        return {}, [Objection(str(error), PROVE)]


def _is_controller(config: pytest.Config) -> bool:
    """Return whether tests run in other processes than this."""
    return config.pluginmanager.has_plugin("dsession")


def _profile_objections(config: pytest.Config) -> Iterator[Objection]:
    """Yield a hypothesis profile that is not the contract's.

    tests/conftest.py loads the contract's profile unless the command line named another.
    """
    from hypothesis import settings

    name = config.getoption("--hypothesis-profile", None) or invocation.PROFILE
    profile = settings.get_profile(name)
    if name != invocation.PROFILE or (profile.max_examples, profile.derandomize) != (CONTRACT_EXAMPLES, True):
        what = f"the hypothesis profile is {name} with {profile.max_examples} examples, not {invocation.PROFILE}"
        yield Objection(f"{what} with {CONTRACT_EXAMPLES}, derandomised", f"{PROVE} without --hypothesis-profile")
