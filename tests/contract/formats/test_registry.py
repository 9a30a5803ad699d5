"""A family from outside the package: its own vocabulary, one class, one entry, and the same proofs as every other."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from harness.views.roundtrip import RoundTrip, send, true_fingerprint
from harness.views.view import PROFILES
from pipeline.formats import registry
from pipeline.formats.emitted_calls import EmittedCall
from pipeline.formats.format import Assembled, Format, Opener, Parts
from pipeline.formats.registry import FORMATS, Family, FormatError, open_format, register
from pipeline.formats.tokenizer import Tokenizer, TokenizerError
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import (
    Evidence,
    Ids,
    JsonObject,
    Prompt,
    Reason,
    Refusal,
    RefusedError,
    Span,
    SpanKind,
    TokenRow,
)

pytestmark = pytest.mark.contract

NAME = "toy-letters"
TURN, END = "<|turn|>", "<|stop|>"


@dataclass(frozen=True, slots=True)
class ToyFormat(Format):
    """`<|turn|>ROLE:text` for every message, `<|turn|>bot:` for the answer, which is text and `<|stop|>`."""

    name: str
    tokenizer: Tokenizer

    @property
    def end_id(self) -> int:
        return self.tokenizer.id_of(END)

    @property
    def think_open_id(self) -> int:
        raise TokenizerError(f"{self.name} does not think")

    @property
    def think_close_id(self) -> int:
        return self.tokenizer.id_of("<|no-thinking|>")

    def opener(self, *, thinking: bool) -> Opener:  # noqa: ARG002 — a model that cannot think
        return Opener.NOBODY

    def tool_markers(self) -> dict[str, int]:
        return {}

    def calls_in(self, ids: Ids) -> list[EmittedCall]:  # noqa: ARG002 — it knows no tools
        return []

    def render(self, prompt: Prompt) -> Ids:
        if prompt.tools:
            raise RefusedError(Reason.PROMPT_UNSUPPORTED, f"{self.name} knows no tools", field="tools")
        turns = [f"{message['role']}:{message['content']}" for message in prompt.messages]
        return tuple(
            token for turn in (*turns, "bot:") for token in (self.tokenizer.id_of(TURN), *self.tokenizer.encode(turn))
        )

    def special_text(self, prompt: Prompt) -> str | None:
        found = [self.tokenizer.find_control(str(message["content"])) for message in prompt.messages]
        return next((one[1] for one in found if one), None)

    def declare_tools(self, tools: Sequence[JsonObject]) -> str:
        raise RefusedError(Reason.PROMPT_UNSUPPORTED, f"{self.name} knows no tools: {len(tools)}", field="tools")

    def assemble(self, parts: Parts) -> Assembled:
        if parts.reasoning is not None or not all(isinstance(piece, str) for piece in parts.body):
            raise RefusedError(Reason.LAYOUT_INVALID, f"{self.name} says text alone")
        text = tuple(self.tokenizer.encode("".join(str(piece) for piece in parts.body)))
        ids = (*text, self.end_id) if parts.ended else text
        return Assembled(ids, self.layout(ids, thinking=False))

    def layout(self, ids: Ids, *, thinking: bool) -> tuple[Span, ...]:  # noqa: ARG002 — as above
        stop = len(ids) - 1 if ids[-1:] == (self.end_id,) else len(ids)
        wrong = next((i for i, token in enumerate(ids[:stop]) if self.tokenizer.is_control(token)), None)
        if wrong is not None:
            raise RefusedError(Reason.LAYOUT_INVALID, f"control token at {wrong}", token_position=wrong)
        content = (Span(SpanKind.CONTENT, 0, stop),) if stop else ()
        return (*content, Span(SpanKind.END, stop, len(ids))) if stop < len(ids) else content

    def parts(self, ids: Ids, *, thinking: bool) -> Parts:
        spans = {span.kind: ids[span.start : span.stop] for span in self.layout(ids, thinking=thinking)}
        text = self.tokenizer.decode_text(spans.get(SpanKind.CONTENT, ()))
        return Parts(None, think_closed=False, body=(text,) if text else (), ended=SpanKind.END in spans)

    def parse(self, ids: Ids, *, thinking: bool) -> Parts:
        parts = self.parts(ids, thinking=thinking)
        if self.assemble(parts).ids != ids:
            raise RefusedError(Reason.NOT_CANONICAL, "the ids are not canonical")
        return parts


def write_vocabulary(folder: Path) -> str:
    """256 bytes and a few merges as `tiktoken.model`, three control tokens; its sha256."""
    tokens = [bytes([byte]) for byte in range(256)] + [b"he", b"ll", b"hell", b"hello", b" w"]
    raw = b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    names = {str(len(tokens) + k): {"content": name} for k, name in enumerate((TURN, END, "<|no-thinking|>"))}
    (folder / "tiktoken.model").write_bytes(raw)
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": names}), "utf-8")
    return hashlib.sha256(raw).hexdigest()


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Format]:
    folder = tmp_path_factory.mktemp("toy")
    register(NAME, Family(ToyFormat, write_vocabulary(folder), embedded=folder))
    yield open_format(NAME)
    # Tests in the same process count the families.
    registry._FORMATS.pop(NAME)


HI = Prompt("r", ({"role": "user", "content": "hi"},))
TEXT = "hello w"


def test_a_family_from_outside_is_found_by_its_name(toy: Format) -> None:
    assert (NAME, True) == (toy.name, NAME in FORMATS)


def test_it_renders_on_its_own_vocabulary(toy: Format) -> None:
    turn = toy.tokenizer.id_of(TURN)

    assert (turn, *b"user:hi", turn, *b"bot:") == toy.render(HI)


def test_it_assembles_and_parses(toy: Format) -> None:
    parts = Parts(None, think_closed=False, body=(TEXT,), ended=True)
    ids = toy.assemble(parts).ids

    assert (259, 260, toy.end_id) == ids
    assert parts == toy.parse(ids, thinking=True)


@pytest.mark.parametrize(
    "trip, evidence",
    [
        (RoundTrip(PROFILES["chutes"], stream=False, tools_sent=False), Evidence.COUNTED),
        (RoundTrip(PROFILES["chutes"], stream=True, tools_sent=False, ids=True), Evidence.ENGINE_IDS),
        (RoundTrip(PROFILES["siliconflow"], stream=True, tools_sent=False), Evidence.STREAM_DELTAS),
        (RoundTrip(PROFILES["siliconflow"], stream=False, tools_sent=False, logprobs=True), Evidence.LOGPROBS),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_its_answers_are_proven_by_every_evidence(toy: Format, trip: RoundTrip, evidence: Evidence) -> None:
    ids = toy.assemble(Parts(None, think_closed=False, body=(TEXT,), ended=True)).ids
    completion = send(ids, HI, toy.render(HI), trip, toy)
    row = reconstruct(HI, completion, toy, true_fingerprint(trip.profile, stream=trip.stream))

    assert isinstance(row, TokenRow)
    assert (ids, evidence) == (row.output_ids, row.evidence)


def test_a_wrong_answer_of_it_is_refused(toy: Format) -> None:
    trip = RoundTrip(PROFILES["chutes"], stream=False, tools_sent=False)
    split = (*b"hello w", toy.end_id)
    completion = replace(send(split, HI, toy.render(HI), trip, toy), reasoning=None)
    row = reconstruct(HI, completion, toy, true_fingerprint(trip.profile, stream=False))

    assert isinstance(row, Refusal)
    assert Reason.COUNT_MISMATCH is row.reason


def test_a_vocabulary_of_another_hash_is_refused(toy: Format, tmp_path: Path) -> None:
    write_vocabulary(tmp_path)
    (tmp_path / "tiktoken.model").write_bytes(b"AA== 0\n")

    with pytest.raises(TokenizerError, match="has sha256"):
        open_format(toy.name, str(tmp_path))


@pytest.mark.parametrize("name", ["kimi-k2.5", "tiny-kimi"])
def test_a_name_that_is_taken_stays_what_it_is(name: str) -> None:
    known = FORMATS[name]

    with pytest.raises(FormatError, match="exists already"):
        register(name, Family(ToyFormat, "0" * 64))
    assert known is FORMATS[name]


@pytest.mark.parametrize("name", ["", "../kimi", "Kimi", "a/b"])
def test_a_name_that_is_no_folder_is_refused(name: str) -> None:
    with pytest.raises(FormatError, match="is no format name"):
        register(name, Family(ToyFormat, "0" * 64))
