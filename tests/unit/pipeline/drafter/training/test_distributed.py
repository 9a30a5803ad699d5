"""A world of one process, and its environment variables.

Two processes are tested in tests/e2e/test_train_processes.py.
"""

from __future__ import annotations

import pytest
import torch

from pipeline.drafter.training.distributed import (
    Sharing,
    World,
    WorldError,
    is_first,
    joined,
    like,
    share,
    size_named,
    whole,
)

CPU = torch.device("cpu")


def alone() -> World:
    return World(0, 1, CPU)


def test_alone_a_sum_is_the_number_itself() -> None:
    given = torch.tensor([1.0, 2.0], requires_grad=True)

    found = alone().sum(given)

    assert ([1.0, 2.0], False) == (found.tolist(), found.requires_grad)
    assert (True, False) == (alone().any(flag=True), alone().any(flag=False))
    assert ["a"] == alone().gathered("a")


def test_alone_an_error_of_the_first_is_raised_as_it_is() -> None:
    def fail() -> None:
        raise KeyError("x")

    assert 3 == alone().first(lambda: 3)
    with pytest.raises(KeyError):
        alone().first(fail)


def test_alone_a_module_is_not_wrapped_and_a_tensor_is_whole() -> None:
    module, tensor = torch.nn.Linear(2, 2), torch.ones(3)

    assert module is share(module, alone(), Sharing.FSDP2)
    assert torch.equal(tensor, whole(tensor))
    assert torch.equal(tensor, like(tensor, torch.zeros(3)))


def test_without_torchrun_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)

    with joined(CPU) as world:
        assert (0, 1, True, 1, True) == (world.rank, world.size, world.is_first, size_named(), is_first())


def test_a_variable_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "two")

    with pytest.raises(WorldError, match=r"\$WORLD_SIZE is 'two': a number belongs there"), joined(CPU):
        pass


def test_processes_without_peers_are_pointed_to_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)

    with pytest.raises(WorldError, match=r"did not find each other .* Start them with torchrun"), joined(CPU):
        pass
