"""Run tests that must fail, to unmask tampering hooks.

After the real tests each process runs one failing item in every folder of tests, through the same hooks. Its reports
reach the hooks of conftests and of unknown plugins, which may tamper with them, and are kept from pytest's own
reporters, so that neither the terminal nor the exit status counts them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TRUSTED = frozenset(
    {
        *("_pytest", "pytest", "pluggy", "xdist", "execnet", "syrupy", "hypothesis", "_hypothesis_pytestplugin"),
        *("pytest_socket", "anyio", "platformdirs", "harness"),
        "__channelexec__",  # where xdist's worker lives
    }
)
"""Packages whose plugins take no part in what a conftest may do; the lock pins all but our own, which is a subject."""
QUIET = frozenset({"pytest_runtest_logstart", "pytest_runtest_logreport", "pytest_runtest_logfinish"})


class CanaryError(AssertionError):
    """The failure that every canary must report."""


class Canary(pytest.Function):
    """A failing test whose reports stay among foreign plugins.

    Pytest's own reporters never see them; `reports` keeps them as the foreign plugins left them.
    """

    reports: list[pytest.TestReport]

    @property
    def ihook(self) -> Any:  # noqa: ANN401 - pytest's own hook relay is untyped
        return _QuietHooks(self)


class _QuietHooks:
    """Pytest's hooks, with reports sent to foreign plugins alone.

    A report then goes to the canary's own list.
    """

    def __init__(self, canary: Canary) -> None:
        self._canary = canary

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as above
        if name not in QUIET:
            return getattr(self._canary.config.hook, name)
        foreign = foreign_hook(self._canary.config, name)

        def call(**arguments: Any) -> None:  # noqa: ANN401 - hooks take what they take
            foreign(**arguments)
            if name == "pytest_runtest_logreport":
                self._canary.reports.append(arguments["report"])

        return call


def foreign_plugins(config: pytest.Config) -> Iterator[tuple[str, object]]:
    """Yield the plugins that the suite does not name."""
    for name, plugin in config.pluginmanager.list_name_plugin():
        module = plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__module__
        if plugin is not None and module.partition(".")[0] not in TRUSTED:
            yield name, plugin


def foreign_hook(config: pytest.Config, name: str) -> Any:  # noqa: ANN401 - as above
    """Return the hook as only foreign plugins implement it."""
    foreign = {id(plugin) for _, plugin in foreign_plugins(config)}
    ours = [plugin for plugin in config.pluginmanager.get_plugins() if id(plugin) not in foreign]
    return config.pluginmanager.subset_hook_caller(name, remove_plugins=ours)


def silenced(session: pytest.Session) -> list[str]:
    """Run one canary in each folder; return what masked them."""
    modules: dict[Path, pytest.Module] = {}
    for item in session.items:
        if module := item.getparent(pytest.Module):
            modules.setdefault(module.path.parent, module)
    if not modules:
        return ["no canary could be run: no test module was collected"]
    return [problem for module in modules.values() if (problem := _masked_canary(module))]


def masked_report(config: pytest.Config) -> str | None:
    """Say what hooks make of a failure's report.

    None where it stays a failure.
    """
    report = pytest.TestReport("canary", ("canary", 0, "canary"), {}, "failed", "canary", "call")
    foreign_hook(config, "pytest_runtest_logreport")(report=report)
    category = config.hook.pytest_report_teststatus(report=report, config=config)[0]
    if report.outcome != "failed" or category != "failed":
        return f"a hook showed the report of a failure as {category or report.outcome}"
    return None


def _masked_canary(module: pytest.Module) -> str | None:
    """Run a canary in one folder; say what masked it."""
    tries = 0

    def fail() -> None:
        """Fail the first time, and pass when tried again."""
        nonlocal tries
        tries += 1
        if tries == 1:
            raise CanaryError("this test must be reported failed")

    canary: Canary = Canary.from_parent(module, name=f"test_{secrets.token_hex(8)}", callobj=fail)
    canary.reports = []
    canary.config.hook.pytest_runtest_protocol(item=canary, nextitem=None)
    calls = [report for report in canary.reports if report.when == "call"]
    where = module.path.parent.name
    if tries > 1:
        return f"in {where}/ the canary, a test that must fail, was tried {tries} times"
    if len(calls) != 1:
        return f"in {where}/ the canary, a test that must fail, was not run"
    if not calls[0].failed or hasattr(calls[0], "wasxfail") or "CanaryError" not in calls[0].longreprtext:
        return f"in {where}/ the canary, a test that must fail, was reported {calls[0].outcome}"
    return None
