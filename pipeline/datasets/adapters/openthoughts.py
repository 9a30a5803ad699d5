"""B5, OpenThoughts-114k and OpenThoughts3-1.2M: one question a row."""

from __future__ import annotations

from functools import partial

from pipeline.datasets.conversation import identity, sound
from pipeline.datasets.rows import Raw, turns_in
from pipeline.records import Prompt

SMALL, LARGE = "B5-114k", "B5-3"
SMALL_COLUMNS, LARGE_COLUMNS = frozenset({"system", "conversations"}), frozenset({"conversations"})
SMALL_ROLES = {"user": "user", "assistant": "assistant"}
LARGE_ROLES = {"human": "user", "gpt": "assistant"}
SMALL_PAGE = """open-thoughts/OpenThoughts-114k, config `default`: 113,957 rows.

Schema: `system` (one text for all rows), `conversations` (`from` is `user` or `assistant`, `value`). The prompt is the
user turn with its fixed preamble, as it stands.

Dropped: the answer, and `system`: it orders `<|begin_of_thought|>` and three more delimiters of another model, and a
target that obeyed would be asked to imitate them instead of thinking in its own way."""
LARGE_PAGE = """open-thoughts/OpenThoughts3-1.2M: 1,200,000 rows, about 75,000 questions with 16 answers each.

Schema: `difficulty` (null in mathematics), `source`, `domain`, `conversations` (`from` is `human` or `gpt`, `value`).
The prompt is the human turn, HTML and Markdown as they stand.

Dropped: the answers (most in mathematics are cut off, which does not matter), and in preparation 15 of each 16 rows,
since they ask the same. The files are ordered by domain: a part is drawn by seed, never the first rows."""


def adapt(raw: Raw, *, name: str, roles: dict[str, str]) -> Prompt:
    """Return the conversation, answers included.

    Raises RejectedError.
    """
    turns = turns_in(raw.value, "conversations", roles, role_key="from", text_key="value")
    return Prompt(identity(name, None, raw.value["conversations"]), sound(turns), dataset=name)


adapt_small = partial(adapt, name=SMALL, roles=SMALL_ROLES)
adapt_large = partial(adapt, name=LARGE, roles=LARGE_ROLES)
