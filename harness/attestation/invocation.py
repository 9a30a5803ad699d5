"""Check how the suite was called, before it is attested.

Guarantees: an attested run takes a short list of options and refuses every other. A list of what is allowed fails
closed: options that select, ignore, update or record need not be known by name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from harness.attestation.canaries import foreign_plugins
from harness.attestation.required import CONTRACT
from pipeline.gate import digests, environment
from pipeline.gate.gate import unhashed_objections
from pipeline.records import PROVE, Objection

PROFILE = "contract"
SWITCHES = frozenset(
    {
        *("--attest", "-q", "-qq", "-v", "-vv", "-x", "-ra", "-rA", "-s", "--disable-socket", "--allow-unix-socket"),
    }
)
VALUED = frozenset(
    {
        *("-n", "--numprocesses", "--maxprocesses", "--dist", "--tb", "--color", "--durations", "--durations-min"),
        *("--junitxml", "--junit-xml", "--hypothesis-profile", "-p"),
    }
)
PLUGINS = frozenset(
    {
        *("harness.attestation.plugin", "xdist", "xdist.plugin", "pytest_socket", "_hypothesis_pytestplugin", "syrupy"),
        "no:cacheprovider",
    }
)
VARIABLES = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")


def objections(config: pytest.Config) -> Iterator[Objection]:
    """Yield what speaks against the call, process and installation."""
    root = config.rootpath
    yield from option_objections(config)
    for name in VARIABLES:
        if os.environ.get(name):
            yield Objection(f"{name} is {os.environ[name]!r}: it changes what the suite runs", f"unset {name}")
    if config.inipath != root / "pyproject.toml":
        yield Objection(f"pytest is configured by {config.inipath}, not by pyproject.toml at the root", PROVE)
    yield from plugin_objections(config)
    yield from unhashed_objections(root)
    yield from process_objections(root)


def process_objections(root: Path) -> Iterator[Objection]:
    """Yield what speaks against the interpreter and its packages.

    They are held to the gate's own rules, but for the isolated start.
    """
    runtime = environment.observe()
    yield from environment.start_objections(runtime)
    yield from environment.location_objections(runtime, root)
    yield from digests.forged_caches(root, ("pipeline", "harness", "tests"))
    try:
        yield from environment.lock_objections(runtime, root)
    except OSError as error:
        yield Objection(f"constraints.txt cannot be read ({error.strerror})", "git checkout constraints.txt")


def drop_rewritten(root: Path) -> None:
    """Remove pytest's caches of rewritten asserts.

    Pytest believes such a cache by the hash that the cache itself names.
    """
    for package in ("pipeline", "harness", "tests"):
        for cache in (root / package).rglob("__pycache__/*-pytest-*.pyc"):
            cache.unlink(missing_ok=True)


def option_objections(config: pytest.Config) -> Iterator[Objection]:
    """Yield options, paths and modes that an attested run excludes."""
    for option in unknown_options([str(argument) for argument in config.invocation_params.args]):
        what = f"the run was given {option!r}, which may leave tests out or change what they prove"
        yield Objection(what, f"{PROVE} without it")
    where = [Path(config.invocation_params.dir, argument).resolve() for argument in config.args]
    if where != [config.rootpath / CONTRACT]:
        yield Objection(f"the run was of {', '.join(config.args)}, not of {CONTRACT} alone", PROVE)
    if config.option.collectonly:
        yield Objection("tests were collected and not run (--collect-only)", PROVE)


def unknown_options(arguments: list[str]) -> Iterator[str]:
    """Yield the arguments that an attested run may not have."""
    rest = iter(arguments)
    for argument in rest:
        option, equals, value = argument.partition("=")
        if option in VALUED:
            value = value if equals else next(rest, "")
        elif argument[:2] in {"-n", "-p"} and len(argument) > len("-n") and argument[2] != "-":
            option, value = argument[:2], argument[2:]
        elif argument in SWITCHES or argument.rstrip("/") == CONTRACT:
            continue
        else:
            yield argument
            continue
        if (option == "-p" and value not in PLUGINS) or (option == "--hypothesis-profile" and value != PROFILE):
            yield f"{option} {value}"


def plugin_objections(config: pytest.Config) -> Iterator[Objection]:
    """Yield plugins of neither the suite nor the tree's tests."""
    tests = config.rootpath / "tests"
    for name, plugin in foreign_plugins(config):
        file = plugin.__file__ if isinstance(plugin, ModuleType) else None
        if file is None or not Path(file).resolve().is_relative_to(tests):
            yield Objection(f"the plugin {name} takes part, which the suite does not name", f"{PROVE} without it")
