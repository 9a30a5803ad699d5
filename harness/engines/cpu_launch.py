"""Start SGLang's own server on a machine without a GPU.

A script for the interpreter of SGLang's environment. Two things that the registry has for CUDA alone are replaced in
memory, and SGLang itself is unchanged: `sgl_kernel`, whose every function raises when it is called (decoding with
`torch_native` calls none), and the two operators that torchvision's Python part names at import. Guarantees nothing of
speculative decoding, which needs both. Replaced at module level: SGLang's workers are spawned and import this file
again.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

KERNELS = "sgl_kernel"
OPERATORS = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class Kernels(ModuleType):
    """A module whose every function raises when it is called."""

    __path__: list[str] = []  # noqa: RUF012 - what makes an importer take it for a package
    __version__ = "0"

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever is asked for
        if name.startswith("__"):
            raise AttributeError(name)

        def absent(*_: object, **__: object) -> NoReturn:
            raise NotImplementedError(f"{KERNELS}.{name} has no build for the CPU, and was called")

        return absent


class DeclaredOperators(MetaPathFinder):
    """Declares torchvision's operators at its first import; finds no module."""

    library: Any = None

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002 - the protocol's
        if name == "torchvision" and DeclaredOperators.library is None:
            from torch.library import Library

            DeclaredOperators.library = Library("torchvision", "DEF")
            for operator in OPERATORS:
                DeclaredOperators.library.define(f"{operator}{SCHEMA}")


def stand_in() -> None:
    """Make both importable, once a process."""
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    if KERNELS not in sys.modules:
        module = Kernels(KERNELS)
        module.__spec__ = ModuleSpec(KERNELS, None, is_package=True)
        sys.modules[KERNELS] = module
        sys.meta_path.insert(0, DeclaredOperators())


def main() -> None:
    """Run SGLang's own entry with this process's arguments."""
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args(sys.argv[1:]))


if __name__ in ("__main__", "__mp_main__"):
    stand_in()
if __name__ == "__main__":
    main()
