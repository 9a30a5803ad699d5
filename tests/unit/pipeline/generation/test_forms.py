"""Stream or body: what proves more rows."""

from __future__ import annotations

import pytest

from pipeline.generation.preflight import better_form
from pipeline.proof.fingerprint import Fingerprint, Trait, TraitName
from pipeline.records import Json

MODEL = "moonshotai/kimi-k2.5"


def form(
    *, stream: bool, native: bool = True, seam: str = "kept", deltas: str = "none", proven: bool = True
) -> Fingerprint:
    values: dict[TraitName, Json] = {TraitName.COUNT_NATIVE: native, TraitName.SEAM: seam, TraitName.DELTAS: deltas}
    traits = {str(name): Trait(value, 30, proven) for name, value in values.items()}
    return Fingerprint("Moonshot AI", MODEL, stream, traits)


@pytest.mark.parametrize(
    "stream, body, expected",
    [
        ({"deltas": "tokens"}, {}, True),
        ({"deltas": "batches"}, {}, True),
        ({"native": False}, {}, False),
        ({"seam": "stripped"}, {}, False),
        ({"proven": False}, {}, False),
        ({"seam": "stripped"}, {"seam": "stripped"}, True),
    ],
)
def test_the_form_that_proves_more_is_asked_for(stream: dict[str, Json], body: dict[str, Json], expected: bool) -> None:
    known = [form(stream=True, **stream), form(stream=False, **body)]  # type: ignore[arg-type]  # form's own arguments

    assert expected == better_form("openrouter/moonshotai", MODEL, known)


def test_a_route_of_which_nothing_is_known_is_asked_for_a_stream() -> None:
    other = form(stream=False)

    assert better_form("openrouter/novita", MODEL, [other])
    assert better_form("openrouter/moonshotai", "another/model", [other])
    assert better_form("local", MODEL, [other])
