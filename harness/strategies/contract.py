"""The contract tests that every family has.

The folders of `tests/contract` take them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import ClassVar

import pytest

from harness.strategies import suite
from harness.views.roundtrip import RoundTrip
from harness.views.view import Profile
from pipeline.formats.format import Format, Opener, Parts
from pipeline.formats.tokenizer import Tokenizer
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import Completion, Prompt, Reason, Refusal, TokenRow, ToolCall, Usage

TEXT = (
    "I've got 12345 things: naïve café, 世界 and こんにちは。\r\n\n  if x == 1:\n\t'''We'LL''' 🇳🇴👩‍👩‍👧 नमस्ते ไทย ..!!  "
)
"""What vocabularies split in ways of their own."""


class RoundTrips:
    """Ids that providers show come back, or are refused.

    A subclass names its format.
    """

    pytestmark = pytest.mark.contract
    fmt: ClassVar[Format]

    @classmethod
    @cache
    def whole(cls) -> list[Parts]:
        """Answers that all ways to ask share."""
        return suite.drawn_whole(cls.fmt)

    def test_parse_is_the_inverse_of_assemble(self) -> None:
        suite.inverse(self.fmt)()

    def test_assemble_is_the_inverse_of_parse_or_it_refuses(self) -> None:
        suite.inverse_or_refusal(self.fmt)()

    @pytest.mark.parametrize("profile, stream", suite.ROUTES, ids=lambda value: getattr(value, "slug", str(value)))
    def test_no_answer_is_rebuilt_wrong(self, profile: Profile, stream: bool) -> None:  # noqa: FBT001 - a parameter
        suite.never_wrong(self.fmt, profile, stream=stream)()

    @pytest.mark.parametrize("trip", suite.LOSSLESS, ids=lambda trip: trip.name)
    def test_lossless_views_give_every_canonical_answer_back(self, trip: RoundTrip) -> None:
        suite.exact(self.fmt, trip, self.whole())()

    @pytest.mark.parametrize("trip", suite.LOSSY, ids=lambda trip: trip.name)
    def test_views_that_lose_white_space_are_refused(self, trip: RoundTrip) -> None:
        suite.refused(self.fmt, trip, self.whole())()


class CallTrips(RoundTrips):
    """The same, of families with calls between markers.

    A subclass writes `set(on=1)` as the family does.
    """

    call: ClassVar[str]

    def test_calls_are_held_to_the_emitted_ids(self) -> None:
        require_calls_of_ids(self.fmt, self.call)


def require_calls_of_ids(fmt: Format, call: str) -> None:
    """Require that parsed calls are those of returned ids.

    Another name, another value, another type, a call more and a call less are contradicted.
    """
    body = fmt.split_markers(call)
    thinking = fmt.opener(thinking=True) is not Opener.NOBODY
    ids = fmt.assemble(Parts("So." if thinking else None, think_closed=thinking, body=body, ended=True)).ids
    prompt = Prompt("r", ({"role": "user", "content": "hi"},), thinking=thinking)
    prompt_ids = fmt.render(prompt)
    told = Completion(
        reasoning="So." if thinking else None,
        content=None,
        finish_reason="tool_calls",
        token_ids=ids,
        prompt_ids=prompt_ids,
        usage=Usage(len(prompt_ids), len(ids)),
    )

    def made(*calls: tuple[str, str]) -> TokenRow | Refusal:
        shown = tuple(ToolCall(f"call_{at}", name, arguments) for at, (name, arguments) in enumerate(calls))
        return reconstruct(prompt, replace(told, tool_calls=shown), fmt, None)

    if not isinstance(row := made(("set", '{"on": 1}')), TokenRow) or row.output_ids != ids:
        pytest.fail(f"the call of the ids came back as {row}")
    other = [("set", f'{{"on": {value}}}') for value in ("true", "1.0", "2", "null")]
    other += [("get", '{"on": 1}'), ("set", '{"off": 1}'), ("set", "{}"), ("set", '{"on": 1, "off": 1}')]
    for calls in ([one] for one in other):
        if not isinstance(row := made(*calls), Refusal) or row.reason is not Reason.IDS_CONTRADICT:
            pytest.fail(f"{calls} came back as {row}, the ids say {call}")
    twice = made(("set", '{"on": 1}'), ("set", '{"on": 1}'))
    if not isinstance(twice, Refusal) or twice.reason is not Reason.IDS_CONTRADICT:
        pytest.fail(f"one call shown twice came back as {twice}")


def text_ids(tokenizer: Tokenizer, ids: str) -> Callable[[], None]:
    """Return the test that `TEXT` has its published ids.

    They are those that the `tokenizers` library 0.23.3 gives it with the model's file.
    """

    def test() -> None:
        found = tokenizer.encode(TEXT)
        if [*map(int, ids.split())] != found or tokenizer.decode_text(found) != TEXT:
            pytest.fail(f"the ids are {found}, of the text {tokenizer.decode_text(found)!r}")

    return test


def control_ids(tokenizer: Tokenizer, published: Mapping[str, int]) -> Callable[[str, int], None]:
    """Return the test that control tokens have published ids."""

    @pytest.mark.parametrize("name, expected", [*published.items()])
    def test(name: str, expected: int) -> None:
        if (tokenizer.id_of(name), tokenizer.name_of(expected)) != (expected, name):
            pytest.fail(f"{name} has the id {tokenizer.id_of(name)}, and {expected} is {tokenizer.name_of(expected)}")

    return test
