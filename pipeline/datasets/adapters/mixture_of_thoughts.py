"""B4, Mixture-of-Thoughts: questions of mathematics, code and science."""

from __future__ import annotations

from pipeline.datasets.conversation import identity, sound
from pipeline.datasets.rows import Raw, turns_in
from pipeline.records import Prompt

NAME = "B4"
COLUMNS = frozenset({"messages"})
ROLES = {"system": "system", "user": "user", "assistant": "assistant"}
SWITCHES = frozenset({"detailed thinking on", "detailed thinking off"})
PAGE = """open-r1/Mixture-of-Thoughts: 349,317 rows in the config `all`, which is the union of `code`, `math` and
`science`: load `all` alone, or every row comes twice (preparation would find them).

Schema: `messages` (`role`, `content`), `num_tokens`, `source`. The prompt is the user turn with its preamble, as it
stands. Questions run together with their choices are kept so.

Dropped: the answer and its `<think>` text, since the target thinks for itself; a system turn that is another family's
switch (`detailed thinking on`), which some copies carry. `num_tokens` counts question and answer, so no prompt is left
out by it."""


def adapt(raw: Raw) -> Prompt:
    """Return the conversation, answers included.

    Raises RejectedError.
    """
    turns = turns_in(raw.value, "messages", ROLES, role_key="role", text_key="content")
    kept = [turn for turn in turns if turn["role"] != "system" or turn["content"] not in SWITCHES]
    return Prompt(identity(NAME, None, raw.value["messages"]), sound(kept), dataset=NAME)
