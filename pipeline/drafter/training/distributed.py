"""The processes that train together, as torchrun starts them.

Without torchrun there is one. Guarantees: a decision that one process takes for all (a stop, an error at the beginning)
reaches all, so that none waits for another for ever. Both ways to share work average gradients over the processes, so
the loss is scaled by their number: the result is that of one process, whatever the shares.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import torch
from torch import distributed as dist
from torch import nn

Value = TypeVar("Value")


class WorldError(Exception):
    """Processes that cannot work together, or another one's error."""


class Sharing(StrEnum):
    """How processes share work: whole copies, or parts of weights."""

    DDP = "ddp"
    FSDP2 = "fsdp2"


@dataclass(frozen=True, slots=True)
class World:
    """All processes, seen from one of them."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over all processes, a new CPU tensor."""
        if self.size == 1:
            return tensor.detach().cpu()
        total = tensor.detach().clone().to(self.device)
        dist.all_reduce(total)
        return total.cpu()

    def any(self, *, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return bool(self.sum(torch.tensor(float(flag), dtype=torch.float64)) > 0)

    def gathered(self, value: Value) -> list[Value]:
        """Return every process's value, by rank."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def first(self, work: Callable[[], Value]) -> Value:
        """Run `work` in the first process, for all.

        All get its result, or what it raises.
        """
        if self.size == 1:
            return work()
        result: list[Any] = [None, None]  # the value, and an error in words
        error: Exception | None = None
        if self.is_first:
            try:
                result[0] = work()
            except Exception as caught:  # noqa: BLE001 - the others must hear of whatever it is
                error, result[1] = caught, f"{type(caught).__name__}: {caught}"
        dist.broadcast_object_list(result, src=0, device=self.device)
        if error is not None:
            raise error
        if result[1] is not None:
            raise WorldError(f"the first process stopped ({result[1]})")
        value: Value = result[0]
        return value

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier(**({"device_ids": [self.device.index]} if self.device.type == "cuda" else {}))


@contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """Join the processes that torchrun's variables name.

    They are left at the end; without the variables there is one process. A GPU is this process's own, by its local
    rank. Raises WorldError.
    """
    size, rank = _number("WORLD_SIZE", 1), _number("RANK", 0)
    if device.type == "cuda":
        device = torch.device("cuda", _number("LOCAL_RANK", 0) if size > 1 else device.index or 0)
        torch.cuda.set_device(device)
    if size == 1:
        yield World(0, 1, device)
        return
    own = {"device_id": device} if device.type == "cuda" else {}
    try:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=rank, world_size=size, **own)
    except (ValueError, RuntimeError) as error:
        raise WorldError(f"the {size} processes did not find each other ({error}). Start them with torchrun") from error
    try:
        yield World(rank, size, device)
    finally:
        dist.destroy_process_group()


def is_first() -> bool:
    """Whether this process reports, by torchrun's variables."""
    return _number("RANK", 0) == 0


def size_named() -> int:
    """Return how many processes torchrun started; 1 without it."""
    return _number("WORLD_SIZE", 1)


def share(module: nn.Module, world: World, sharing: Sharing) -> nn.Module:
    """Return the module as all processes train it together.

    The module itself in a single process.
    """
    if world.size == 1:
        return module
    if sharing is Sharing.DDP:
        return nn.parallel.DistributedDataParallel(module, broadcast_buffers=False)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(module, mesh=init_device_mesh(world.device.type, (world.size,)))
    return module


def accumulating(module: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """Average gradients only in the last of several backwards."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return nullcontext() if last else module.no_sync()
    if hasattr(module, "set_requires_gradient_sync"):
        module.set_requires_gradient_sync(last)
    return nullcontext()


def settle(module: nn.Module) -> None:
    """Release weights gathered for forwards without a backward."""
    if hasattr(module, "reshard"):
        module.reshard()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a possibly sharded tensor.

    Every process must call it.
    """
    gather = getattr(tensor, "full_tensor", None)
    full: torch.Tensor = tensor if gather is None else gather()
    return full.detach()


def like(full: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
    """Place a whole tensor as another one lies.

    On the device of `pattern`, in parts if it is in parts. The tensor is the same in every process.
    """
    if not hasattr(pattern, "full_tensor"):
        return full.to(pattern.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full.to(pattern.device), pattern.device_mesh, pattern.placements)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if text and not text.isdigit():
        raise WorldError(f"${name} is {text!r}: a number belongs there. Start several processes with torchrun")
    return int(text) if text else default
