"""One row's trouble is that row's alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.generation.outcome import refusing_errors
from pipeline.records import Reason, Refusal, RefusedError


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
        (lambda: dict[str, int]()["a"], wrong("KeyError: 'a'")),
        (lambda: float(10**400), wrong("OverflowError: int too large to convert to float")),
    ],
    ids=["refused", "nested", "missing", "overflow"],
)
def test_an_error_is_a_refusal_with_its_class(make: Callable[[], object], refusal: Refusal) -> None:
    assert refusal == refusing_errors(make)


def test_a_machine_without_memory_is_no_fault_of_the_row() -> None:
    def starve() -> int:
        raise MemoryError

    with pytest.raises(MemoryError):
        refusing_errors(starve)
