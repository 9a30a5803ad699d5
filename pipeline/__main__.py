"""Boot `python -m pipeline` in an isolated interpreter.

Guarantees: code comes from this tree and from installed packages alone. The root is on no search path, so `pipeline` is
all that can be imported from it. Until the interpreter is isolated, only `os` and `sys` are imported, so nothing on
PYTHONPATH or in a forged bytecode cache can run. Refuses `-O`, and a `pipeline` that was loaded from another tree.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # what `typing` would give, which is not imported yet
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib is not imported yet
CACHE_NAME = "drafter-gate-pycache-"
REFUSED = 3


def main() -> int:
    """Run the command line here if isolated, else start over."""
    if sys.flags.optimize:
        what = "python runs with -O or PYTHONOPTIMIZE, which takes checks out of the code"
        return _refuse(what, "env -u PYTHONOPTIMIZE python -m pipeline …")
    if not (sys.flags.isolated and sys.flags.dont_write_bytecode and sys.pycache_prefix):
        return _start_over()
    sys.meta_path.insert(0, _OwnFinder)
    if os.path.basename(sys.pycache_prefix).startswith(CACHE_NAME):  # noqa: PTH119 - as above
        _remove_at_exit(sys.pycache_prefix)
    import pipeline

    loaded = os.path.dirname(os.path.abspath(pipeline.__file__ or ""))  # noqa: PTH100, PTH120 - as above
    if loaded != os.path.join(ROOT, "pipeline"):  # noqa: PTH118 - as above
        return _refuse(f"pipeline was loaded from {loaded}, not from {ROOT}", f"cd {ROOT} && python -m pipeline …")
    from pipeline.cli.main import main as command_line

    return command_line(sys.argv[1:])


class _OwnFinder:
    """Finds the package `pipeline` at the root, nothing else."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name != "pipeline":
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [ROOT])


def _start_over() -> int:
    """Run the same command in an isolated interpreter.

    It ignores PYTHON* variables, user packages and every bytecode cache. The process is replaced and not started below
    this one, so that signals and the exit status stay the caller's.
    """
    cache = f"{CACHE_NAME}{os.getpid()}-{os.urandom(8).hex()}"
    prefix = os.path.join(os.environ.get("TMPDIR") or "/tmp", cache)  # noqa: PTH118, S108 - made below, for us alone
    try:
        os.mkdir(prefix, 0o700)  # noqa: PTH102 - pathlib is not imported yet
        flags = ("-I", "-B", "-X", f"pycache_prefix={prefix}")
        os.execv(sys.executable, [sys.executable, *flags, os.path.abspath(__file__), *sys.argv[1:]])  # noqa: S606, PTH100 - no shell is wanted
    except OSError as error:
        return _refuse(f"no isolated interpreter could be started ({error})", "TMPDIR=DIR python -m pipeline …")


def _remove_at_exit(prefix: str) -> None:
    """Remove the cache folder when the process exits.

    It stays empty under -B; it is there so that nobody else can fill it.
    """
    import atexit
    import contextlib

    def remove() -> None:
        with contextlib.suppress(OSError):
            os.rmdir(prefix)  # noqa: PTH106 - as above

    atexit.register(remove)


def _refuse(what: str, mend: str) -> int:
    sys.stderr.write(f"refused: {what}. Run: {mend}\n")
    return REFUSED


if __name__ == "__main__":
    sys.exit(main())
