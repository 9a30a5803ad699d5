"""Harmony's control tokens, and the headers of an answer's texts.

Guarantees: a header's words are encoded apart from the control tokens beside them, as every renderer does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pipeline.formats.tokenizer import Tokenizer
    from pipeline.records import Ids

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
ANALYSIS, COMMENTARY, FINAL = "analysis", "commentary", "final"
CHANNELS: Final = (ANALYSIS, COMMENTARY, FINAL)


@dataclass(frozen=True, slots=True)
class Marks:
    """The control tokens' ids, and two messages' headers.

    `thinks` opens an answer that thinks, `turns` leads from its analysis to the final message, and `answers` opens an
    answer that does not think. `control` holds every control token's id.
    """

    start: int
    channel: int
    message: int
    constrain: int
    end: int
    returned: int
    call: int
    thinks: Ids
    turns: Ids
    answers: Ids
    control: frozenset[int]


def marks_of(tokenizer: Tokenizer) -> Marks:
    """Return the ids in this vocabulary.

    TokenizerError where it lacks one of the names.
    """
    start, channel, message, constrain, end, returned, call = (
        tokenizer.id_of(name) for name in (START, CHANNEL, MESSAGE, CONSTRAIN, END, RETURN, CALL)
    )
    role, analysis, final = (tokenizer.encode(word) for word in ("assistant", ANALYSIS, FINAL))
    return Marks(
        start,
        channel,
        message,
        constrain,
        end,
        returned,
        call,
        thinks=(channel, *analysis, message),
        turns=(end, start, *role, channel, *final, message),
        answers=(channel, *final, message),
        control=frozenset(map(tokenizer.id_of, tokenizer.control_names)),
    )
