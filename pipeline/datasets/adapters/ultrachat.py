"""B6, UltraChat 200k: conversations of several turns."""

from __future__ import annotations

from pipeline.datasets.conversation import asked_last, identity, sound
from pipeline.datasets.rows import Raw, objects_in, role_in, text_in
from pipeline.records import JsonObject, Prompt

NAME = "B6"
COLUMNS, MORE = frozenset({"messages"}), frozenset({"prompt_id"})
ROLES = {"system": "system", "user": "user", "assistant": "assistant"}
PAGE = """HuggingFaceH4/ultrachat_200k, split `train_sft`: 207,865 rows. The `*_gen` splits may overlap with it.

Schema: `prompt`, `prompt_id` (sha256 of `prompt`), `messages` (`role`, `content`). The prompt is the conversation up to
its last user turn, with the answers that were recorded in between as its history. Where `prompt` and the first message
differ, `messages` is right.

Dropped: the last answer; everything from the first empty turn on, so that an empty answer is the one asked for.
Preparation keeps one row a first user turn, which is one row a `prompt_id`. The text holds names and addresses of real
people, in pasted web pages."""


def adapt(raw: Raw) -> Prompt:
    """The conversation up to its last open question. Raises RejectedError."""
    turns = [_turn(turn) for turn in objects_in(raw.value, "messages")]
    messages = asked_last(sound(turns))
    return Prompt(identity(NAME, raw.value.get("prompt_id"), raw.value["messages"]), messages, dataset=NAME)


def _turn(turn: JsonObject) -> JsonObject:
    return {"role": role_in(turn, "role", ROLES), "content": text_in(turn, "content")}
