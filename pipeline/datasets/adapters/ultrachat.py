"""B6, UltraChat 200k: conversations of several turns."""

from __future__ import annotations

from pipeline.datasets.conversation import identity, sound
from pipeline.datasets.rows import Raw, turns_in
from pipeline.records import Prompt

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
    """Return the conversation, answers included.

    Raises RejectedError.
    """
    turns = turns_in(raw.value, "messages", ROLES, role_key="role", text_key="content")
    messages = sound(turns)
    return Prompt(identity(NAME, raw.value.get("prompt_id"), raw.value["messages"]), messages, dataset=NAME)
