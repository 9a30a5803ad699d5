"""One row's trouble is that row's alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.generation.outcome import refusing_errors
from pipeline.records import Reason, Refusal, RefusedError

pytestmark = pytest.mark.contract


def test_what_is_made_is_handed_on() -> None:
    assert 7 == refusing_errors(lambda: 7)


def refuse() -> int:
    raise RefusedError(Reason.SPECIAL_TEXT, "the prompt spells it", field="messages")


def nest() -> int:
    return nest() + 1


def wrong(detail: str) -> Refusal:
    return Refusal(Reason.MALFORMED_INPUT, detail, field="response")


@pytest.mark.parametrize(
    "make, refusal",
    [
        (refuse, Refusal(Reason.SPECIAL_TEXT, "the prompt spells it", field="messages")),
        (nest, wrong("RecursionError: nested too deeply for this program")),
    ],
    ids=["refused", "nested"],
)
def test_a_refusal_and_too_deep_nesting_are_of_the_row(make: Callable[[], object], refusal: Refusal) -> None:
    assert refusal == refusing_errors(make)


@pytest.mark.parametrize(
    "make, said",
    [(lambda: dict[str, int]()["a"], "KeyError"), (lambda: float(10**400), "OverflowError")],
    ids=["missing", "overflow"],
)
def test_a_bug_of_ours_is_called_so_with_its_place(make: Callable[[], object], said: str) -> None:
    found = refusing_errors(make)

    assert isinstance(found, Refusal)
    assert Reason.INTERNAL_ERROR is found.reason
    assert found.detail.startswith(f"{said} at outcome.py:")


def test_a_machine_without_memory_is_no_fault_of_the_row() -> None:
    def starve() -> int:
        raise MemoryError

    with pytest.raises(MemoryError):
        refusing_errors(starve)
