"""What is an answer in harmony, and what each stretch of it is."""

from __future__ import annotations

import pytest

from harness.fixtures.harmony_bytes import ANALYSIS, CALL, FINAL, FORMAT, LEGAL, TURN, ids_of, text_of
from pipeline.records import Reason, RefusedError, SpanKind

pytestmark = pytest.mark.contract


def spans(text: str) -> list[tuple[str, str]]:
    ids = ids_of(text)
    return [(str(span.kind), text_of(ids[span.start : span.stop])) for span in FORMAT.layout(ids, thinking=True)]


def test_an_answer_is_an_analysis_and_a_final_message() -> None:
    """An answer is an analysis and a final message behind their headers."""
    expected = [
        ("think_open", ANALYSIS),
        ("reasoning", "r"),
        ("think_close", TURN + FINAL),
        ("content", "c"),
        ("end", "<|return|>"),
    ]
    assert expected == spans(f"{ANALYSIS}r{TURN}{FINAL}c<|return|>")


def test_each_message_on_the_way_keeps_its_kind() -> None:
    steps = f"{ANALYSIS}a{TURN}<|channel|>commentary<|message|>b{TURN}{ANALYSIS}c{TURN}{CALL}<|call|>"
    expected = [
        ("think_open", ANALYSIS),
        ("reasoning", "a"),
        ("think_close", f"{TURN}<|channel|>commentary<|message|>"),
        ("content", "b"),
        ("think_open", TURN + ANALYSIS),
        ("reasoning", "c"),
        ("think_close", "<|end|>"),
        ("tool_section", f"<|start|>assistant{CALL}"),
        ("end", "<|call|>"),
    ]
    assert expected == spans(steps)


@pytest.mark.parametrize("text", LEGAL)
def test_every_legal_answer_comes_back_from_its_parts(text: str) -> None:
    """Every legal answer is laid out whole and comes back from its parts."""
    ids = ids_of(text)
    found = FORMAT.layout(ids, thinking=True)
    parts = FORMAT.parse(ids, thinking=True)

    assert list(range(len(ids))) == [at for span in found for at in range(span.start, span.stop)]
    assert SpanKind.END is found[-1].kind
    assert (ids, found) == (FORMAT.assemble(parts).ids, FORMAT.assemble(parts).spans)


@pytest.mark.parametrize("text", LEGAL)
def test_an_answer_cut_anywhere_is_laid_out_whole(text: str) -> None:
    ids = ids_of(text)
    for stop in range(len(ids)):
        found = FORMAT.layout(ids[:stop], thinking=True)
        assert list(range(stop)) == [at for span in found for at in range(span.start, span.stop)]
        assert SpanKind.END not in {span.kind for span in found}


@pytest.mark.parametrize("text", LEGAL)
def test_a_cut_answer_comes_back_or_is_refused(text: str) -> None:
    """An answer cut anywhere comes back from its parts or is refused."""
    ids = ids_of(text)
    for stop in range(len(ids)):
        begins_a_role = 0 < stop and not set(ids[:stop]).intersection(range(256, 263))
        if begins_a_role:
            with pytest.raises(RefusedError, match="begins a header"):
                FORMAT.parse(ids[:stop], thinking=True)
        else:
            assert ids[:stop] == FORMAT.assemble(FORMAT.parse(ids[:stop], thinking=True)).ids


@pytest.mark.parametrize(
    "text, said",
    [
        (f"{ANALYSIS}r<|return|>", "which <\\|end\\|> ends"),
        (f"{ANALYSIS}r<|call|>", "which <\\|end\\|> ends"),
        (f"{FINAL}c<|end|>", "which <\\|return\\|> ends"),
        (f"{FINAL}c<|call|>", "which <\\|return\\|> ends"),
        (f"{CALL}<|return|>", "which <\\|call\\|> ends"),
        (f"{CALL}<|end|>", "which <\\|call\\|> ends"),
        (f"{FINAL}c<|return|>x", "not the last token"),
        (f"{FINAL}c<|return|><|return|>", "not the last token"),
        (f"{CALL}<|call|><|start|>assistant{FINAL}c<|return|>", "not the last token"),
        (f"{ANALYSIS}r<|end|>{FINAL}c<|return|>", "begins without <\\|start\\|>"),
        (f"{ANALYSIS}r<|end|><|start|>user<|message|>c<|end|>", "are no header"),
        (f"{ANALYSIS}r<|end|><|start|>user{FINAL}c<|return|>", "is no header"),
        (f"{ANALYSIS}r<|end|><|start|>{FINAL}c<|return|>", "is no header"),
        (f"assistant{FINAL}c<|return|>", "is no header"),
        (f"<|start|>assistant{FINAL}c<|return|>", "are no header"),
        ("<|message|>c<|return|>", "are no header"),
        ("<|channel|>finale<|message|>c<|return|>", "is no header"),
        ("<|channel|><|message|>c<|return|>", "is no header"),
        ("<|channel|>final json<|message|>c<|return|>", "is no header"),
        ("<|channel|>final<|channel|>final<|message|>c<|return|>", "are no header"),
        (" to=a<|channel|>commentary to=b<|message|>c<|call|>", "is no header"),
        ("<|channel|>commentary to=b json<|constrain|>json<|message|>c<|call|>", "is no header"),
        ("<|constrain|>json<|channel|>final<|message|>c<|return|>", "are no header"),
        (f"{FINAL}c<|message|>d<|return|>", "which <\\|return\\|> ends"),
        (f"{FINAL}c<|start|>d<|return|>", "which <\\|return\\|> ends"),
        ("Yes.", "begins no header"),
        ("<|channel|>finally", "begins no header"),
        ("<|return|>", "are no header"),
        (f"{ANALYSIS}r<|end|><|end|>", "begins without"),
        (f"{ANALYSIS}r<|end|><|start|>user", "begins no header"),
    ],
)
def test_what_is_no_answer_in_harmony_is_refused(text: str, said: str) -> None:
    with pytest.raises(RefusedError, match=said) as error:
        FORMAT.layout(ids_of(text), thinking=True)

    assert Reason.LAYOUT_INVALID is error.value.refusal.reason
    assert error.value.refusal.token_position is not None


@pytest.mark.parametrize("token", [-1, 263, 10**9])
def test_an_id_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(RefusedError) as error:
        FORMAT.layout((*ids_of(f"{ANALYSIS}r"), token), thinking=True)

    assert Reason.UNKNOWN_ID is error.value.refusal.reason
