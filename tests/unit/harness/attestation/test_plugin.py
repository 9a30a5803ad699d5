"""The plugin, run by pytester on small suites: what an attested run objects to, and what it leaves alone.

Each of these suites is no checkout, so none is attested; what is asserted is which objection is raised, and which not.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.attestation.invocation import unknown_options

pytest_plugins = ["pytester"]

SUITE = """
    import pytest

    @pytest.mark.parametrize("n", [1, 2])
    def test_twice(n):
        assert n + n == 2 * n
"""
CONFTEST = """
    from hypothesis import settings

    settings.register_profile("contract", max_examples=200, derandomize=True, database=None)
    settings.load_profile("contract")
"""
REQUIRED = "[base]\ntests/contract/test_a.py::test_twice[1]\ntests/contract/test_a.py::test_twice[2]\n"
MASKED = "*failures may be masked*"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite of two passing tests, listed in REQUIRED, with a state folder of its own."""
    monkeypatch.setenv("DRAFTER_GATE_STATE", str(pytester.path / "state"))
    monkeypatch.setenv("DRAFTER_GATE_KEYS", str(pytester.path / "keys"))
    monkeypatch.setenv("DRAFTER_GATE_SUITE_COPY", str(pytester.path))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyprojecttoml('[tool.pytest]\nmarkers = ["covers: x", "contract: x"]\n')
    for name, text in {"test_a.py": SUITE, "conftest.py": CONFTEST, "REQUIRED": REQUIRED}.items():
        write(pytester, name, text)
    return pytester


def write(suite: pytest.Pytester, name: str, text: str) -> None:
    path = suite.path / "tests" / "contract" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = text.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    path.write_text("\n".join(line[indent:] for line in lines) + "\n")


def attest(suite: pytest.Pytester, *options: str, where: str = "tests/contract") -> pytest.RunResult:
    return suite.runpytest_inprocess(
        "-p", "harness.attestation.plugin", "-p", "_hypothesis_pytestplugin", "--attest", where, *options
    )


def objections(result: pytest.RunResult) -> list[str]:
    """The objections but those that any folder meets which is no checkout."""
    unlike = ("was loaded from", "pyproject.toml", "constraints.txt", "second copy", "is missing", "cannot be read")
    lines = [line for line in result.outlines if line.startswith("objection: ")]
    return [line for line in lines if not any(words in line for words in unlike)]


def test_a_whole_run_outside_a_checkout_meets_one_objection(suite: pytest.Pytester) -> None:
    """A whole run meets no objection but that it is no checkout."""
    result = attest(suite)

    result.assert_outcomes(passed=2)
    assert [] == objections(result)
    assert "attestation: not written" in result.outlines


def test_a_run_that_is_not_attested_fails_though_its_tests_pass(suite: pytest.Pytester) -> None:
    assert pytest.ExitCode.TESTS_FAILED == attest(suite).ret


def test_without_attest_nothing_is_said_written_or_failed(suite: pytest.Pytester) -> None:
    result = suite.runpytest_inprocess("-p", "harness.attestation.plugin", "tests/contract", "-k", "twice")

    assert pytest.ExitCode.OK == result.ret
    result.stdout.no_fnmatch_line("attestation*")


def test_the_old_attestation_is_gone_before_anything_runs(suite: pytest.Pytester) -> None:
    (suite.path / "state").mkdir()
    old = suite.path / "state" / "attestation.json"
    old.write_text("{}")

    attest(suite, "--no-such-option-at-all")
    attest(suite, "--collect-only")

    assert not old.exists()


@pytest.mark.parametrize(
    "test, objection",
    [
        ("def test_b(): assert False", "tests failed or had errors (1)"),
        ("import nothing_of_this_name", "tests failed or had errors (1)"),
        (
            "import pytest\n@pytest.fixture\ndef x(): raise ValueError\ndef test_b(x): pass",
            "tests failed or had errors (1)",
        ),
        ("import pytest\ndef test_b(): pytest.skip('why')", "tests were skipped (1)"),
        ("import pytest\npytest.skip('why', allow_module_level=True)", "tests were skipped (1)"),
        ("import pytest\n@pytest.mark.xfail(strict=False)\ndef test_b(): assert False", "tests are marked xfail (1)"),
        ("import pytest\n@pytest.mark.xfail(strict=False)\ndef test_b(): pass", "tests are marked xfail (1)"),
        (
            "import pytest\n@pytest.mark.parametrize('n', [])\ndef test_b(n): pass",
            "tests have an empty parameter set (1)",
        ),
        ("def test_b(subtests):\n    with subtests.test('x'):\n        assert False", "tests failed or had errors (1)"),
        ("def test_b(): pass", "tests passed that REQUIRED does not list (1): tests/contract/test_b.py::test_b"),
    ],
    ids=["failed", "import", "fixture", "skip", "module skip", "xfail", "xpass", "empty", "subtest", "unlisted"],
)
def test_a_test_that_did_not_just_pass_is_an_objection(suite: pytest.Pytester, test: str, objection: str) -> None:
    write(suite, "test_b.py", test)

    found = objections(attest(suite))

    assert any(objection in line for line in found)
    assert all(". Run: " in line for line in found)


def test_a_required_test_that_is_gone_is_an_objection(suite: pytest.Pytester) -> None:
    write(suite, "REQUIRED", REQUIRED + "tests/contract/test_a.py::test_gone\n")

    (objection,) = objections(attest(suite))

    assert "tests of REQUIRED did not pass (1): tests/contract/test_a.py::test_gone" in objection


@pytest.mark.parametrize(
    "options", [("-k", "1"), ("-m", "not slow"), ("--deselect", "tests/contract/test_a.py::test_twice[1]")]
)
def test_selecting_tests_is_an_objection(suite: pytest.Pytester, options: tuple[str, ...]) -> None:
    found = objections(attest(suite, *options))

    assert any(f"the run was given {options[0]!r}" in line for line in found)


def test_a_deselected_test_is_named(suite: pytest.Pytester) -> None:
    found = objections(attest(suite, "-k", "1"))

    assert any("tests were deselected (1): tests/contract/test_a.py::test_twice[2]" in line for line in found)


@pytest.mark.parametrize("where", ["tests/contract/test_a.py", "tests/contract/test_a.py::test_twice", "tests"])
def test_a_run_of_anything_but_the_suite_is_an_objection(suite: pytest.Pytester, where: str) -> None:
    found = objections(attest(suite, where=where))

    assert any(f"the run was of {where}, not of tests/contract alone" in line for line in found)


def test_collecting_alone_is_an_objection(suite: pytest.Pytester) -> None:
    found = objections(attest(suite, "--co"))

    assert any("tests were collected and not run (--collect-only)" in line for line in found)
    assert any("no test passed" in line for line in found)


@pytest.mark.parametrize("name", ["PYTEST_ADDOPTS", "PYTEST_PLUGINS"])
def test_a_variable_that_changes_what_runs_is_an_objection(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "" if name == "PYTEST_PLUGINS" else "--deselect=tests/contract/test_a.py::test_twice[1]")
    if name == "PYTEST_PLUGINS":
        monkeypatch.setenv(name, "xdist")

    assert any(f"{name} is" in line for line in objections(attest(suite)))


def test_another_hypothesis_profile_is_an_objection(suite: pytest.Pytester) -> None:
    found = objections(attest(suite, "--hypothesis-profile=default"))

    assert any("the hypothesis profile is default with" in line for line in found)


def test_a_contract_profile_with_fewer_examples_is_an_objection(suite: pytest.Pytester) -> None:
    write(suite, "conftest.py", CONFTEST.replace("200", "1"))

    assert any("the hypothesis profile is contract with 1 examples" in line for line in objections(attest(suite)))


def test_a_plugin_from_outside_the_tree_is_an_objection(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = suite.path.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "helpful_plugin.py").write_text("")
    monkeypatch.syspath_prepend(elsewhere)

    found = objections(attest(suite, "-p", "helpful_plugin"))

    assert any("the plugin helpful_plugin takes part, which the suite does not name" in line for line in found)
    assert any("the run was given '-p helpful_plugin'" in line for line in found)


# Canaries

MAKEREPORT = """
    import pytest

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        report.outcome = "passed"
        return report
"""
LOGREPORT = """
    import pytest

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(report):
        report.outcome = "passed"
"""
NO_CALL = """
    import pytest

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(pyfuncitem):
        return True
"""
NO_RUN = """
    import pytest

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(item, nextitem):
        for when in ("setup", "call", "teardown"):
            report = pytest.TestReport(item.nodeid, item.location, {}, "passed", None, when)
            item.config.hook.pytest_runtest_logreport(report=report)
        return True
"""
STATUS = """
    def pytest_report_teststatus(report, config):
        return "passed", ".", "PASSED"
"""
XFAIL = """
    import pytest

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        report.wasxfail = "expected"
        return report
"""


@pytest.mark.parametrize("mask", [MAKEREPORT, LOGREPORT, NO_CALL, NO_RUN, STATUS, XFAIL])
def test_a_hook_that_turns_failures_into_passes_is_unmasked(suite: pytest.Pytester, mask: str) -> None:
    """Every assertion of the suite is false, and pytest reports that all passed."""
    write(suite, "test_a.py", SUITE.replace("2 * n", "3 * n"))
    write(suite, "conftest.py", CONFTEST + mask)

    result = attest(suite)

    result.stdout.fnmatch_lines([f"objection: {MASKED}Run: git log*"])
    assert pytest.ExitCode.TESTS_FAILED == result.ret


def test_a_mask_in_a_folder_below_is_unmasked(suite: pytest.Pytester) -> None:
    write(suite, "sub/test_b.py", "def test_b(): assert False")
    write(suite, "sub/conftest.py", MAKEREPORT)

    result = attest(suite)

    result.stdout.fnmatch_lines(["objection: *in sub/ the canary, a test that must fail, was reported passed*"])


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_mask_in_workers_is_unmasked(suite: pytest.Pytester, workers: str) -> None:
    write(suite, "test_a.py", SUITE.replace("2 * n", "3 * n"))
    write(suite, "conftest.py", CONFTEST + MAKEREPORT)

    result = attest(suite, "-p", "xdist", "-n", workers)

    result.stdout.fnmatch_lines([f"objection: {MASKED}Run: git log*"])


def test_canaries_are_not_counted_or_shown(suite: pytest.Pytester) -> None:
    result = attest(suite, "-v")

    result.assert_outcomes(passed=2)
    assert 2 == sum("PASSED" in line for line in result.outlines)
    result.stdout.no_fnmatch_line("*CanaryError*")


# Workers


def test_workers_outcomes_reach_the_controller(suite: pytest.Pytester) -> None:
    result = attest(suite, "-p", "xdist", "-n", "2")

    result.assert_outcomes(passed=2)
    assert [] == objections(result)


def test_what_workers_deselect_reaches_the_controller(suite: pytest.Pytester) -> None:
    found = objections(attest(suite, "-p", "xdist", "-n", "2", "-k", "1"))

    assert any("tests were deselected (1)" in line for line in found)


# Coverage


def test_covers_without_a_route_is_a_usage_error(suite: pytest.Pytester) -> None:
    write(suite, "test_b.py", "import pytest\n@pytest.mark.covers('stream')\ndef test_b(): pass")

    result = attest(suite)

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines(["*tests/contract/test_b.py::test_b: covers needs features and a route*"])


# Options


@pytest.mark.parametrize(
    "arguments",
    [
        ["tests/contract", "--attest", "-n", "auto", "--maxprocesses", "8", "--disable-socket", "--allow-unix-socket"],
        ["tests/contract/", "-n2", "-q", "--hypothesis-profile", "contract", "-p", "no:cacheprovider", "-pxdist"],
        ["--hypothesis-profile=contract", "--durations=5", "--junit-xml=out.xml"],
    ],
)
def test_the_options_of_the_contract_session_are_known(arguments: list[str]) -> None:
    assert [] == list(unknown_options(arguments))


@pytest.mark.parametrize(
    "argument, shown",
    [
        *(
            (option, option)
            for option in ("-k1", "--deselect=a", "--ignore=a", "--ignore-glob=a", "--co", "--lf", "--ff")
        ),
        *(
            (option, option)
            for option in ("--sw", "--snapshot-update", "--record-mode=all", "-o", "-c", "--noconftest")
        ),
        *(
            (option, option)
            for option in ("--runxfail", "--rootdir=/", "tests/unit", "-mslow", "--assert=plain", "--nf")
        ),
        ("-pother", "-p other"),
        ("-p=other", "-p other"),
        ("--hypothesis-profile=fidelity", "--hypothesis-profile fidelity"),
    ],
)
def test_every_other_option_is_shown(argument: str, shown: str) -> None:
    assert [shown] == list(unknown_options([argument]))


def test_no_contract_test_sets_its_own_number_of_examples() -> None:
    """A local `@settings` beats the profile, so `max_examples=1` could hide in one."""
    contract = Path(__file__).parents[3] / "contract"

    local = [path.name for path in contract.rglob("*.py") if "settings(" in path.read_text("utf-8")]

    assert [] == local
