"""B8, SWE-agent trajectories: a recorded prefix each.

They are of nebius and SWE-smith (tool, xml, ticks).

Guarantees: an observation follows the recorded action that caused it; no prompt continues after an action that the
target itself would have had to take. Which answer of a trajectory is generated is drawn by the row's id.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.datasets.conversation import identity, sound
from pipeline.datasets.rows import Raw, Reject, RejectedError, objects, objects_in, parsed, role_in, text_in
from pipeline.records import Json, JsonObject, Prompt

NEBIUS = "B8-nebius"
NEBIUS_COLUMNS = frozenset({"trajectory"})
SMITH_COLUMNS, SMITH_MORE = frozenset({"messages"}), frozenset({"traj_id"})
TOOL, XML, TICKS = "B8-smith-tool", "B8-smith-xml", "B8-smith-ticks"
NEBIUS_ROLES = {"system": "system", "user": "user", "ai": "assistant"}
SMITH_ROLES = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
DEMONSTRATION = "Here is a demonstration"
_ONE_TURN = """The prompt is a recorded prefix and one turn to generate: the user turns after the first are a
machine's output, answers to actions that the target never took, so only the history as recorded is true. Which answer
is asked for is drawn by the row's id, over all of the trajectory's. Preparation keeps one row a first user turn (a
demonstration that comes before it does not count), since there are far more trajectories than tasks. Kept as it stands:
terminal escapes and control characters in observations."""
NEBIUS_PAGE = f"""nebius/SWE-agent-trajectories: 80,036 rows.

Schema: `instance_id`, `model_name`, `target`, `trajectory` (`role` is `system`, `user` or `ai`; `text`, and the system
text in `system_prompt`), `exit_status`, `generated_patch`, `eval_logs`. Commands are told in the system text and
answered in fenced blocks, so nothing is declared as a tool; every prompt counts as tool data all the same.

{_ONE_TURN} Dropped too: the patch, the logs, and whether the run solved its task, which does not touch its prompts."""
SMITH_PAGE = f"""SWE-bench/SWE-smith-trajectories, splits `tool`, `xml` and `ticks` (about 26,000 rows each, not
verified).

Schema: `messages` (JSON as text; a list in an older revision), `instance_id`, `resolved`, `model`, `traj_id`, `patch`.
`tool` has tool calls and tool messages, `xml` calls as `<function=…>` in the text and observations as user turns,
`ticks` the last fenced block. The definitions of `tool`'s functions are in no row, and none are made up: such a
prompt has calls in its history and declares nothing. Every prompt counts as tool data. The conversation ends before a
call without its result, and before a result without its call.

{_ONE_TURN} Dropped too: what the agent's own bookkeeping adds to a message (`agent`, `thought`, `action`,
`message_type`), whose text stands in its content and calls already."""


def adapt_nebius(raw: Raw) -> Prompt:
    """Return a nebius trajectory. Raises RejectedError."""
    turns = [_nebius_turn(turn) for turn in objects_in(raw.value, "trajectory")]
    return _prompt(NEBIUS, identity(NEBIUS, None, raw.value["trajectory"]), turns)


def adapt_smith(raw: Raw) -> Prompt:
    """Return a SWE-smith trajectory. Raises RejectedError."""
    turns = smith_turns(raw.value)
    name = form_of(turns)
    return _prompt(name, identity(name, None, raw.value.get("traj_id"), raw.value["messages"]), before_loose_end(turns))


def smith_turns(row: JsonObject) -> list[JsonObject]:
    """Return all turns of a SWE-smith row, answers included.

    `messages` is JSON as text, or a list. Raises RejectedError.
    """
    value = row.get("messages")
    listed = parsed(value, "messages") if isinstance(value, str) else value
    return [_smith_turn(turn) for turn in objects(listed, "messages")]


def form_of(turns: Sequence[JsonObject]) -> str:
    """Return the form of a SWE-smith trajectory.

    The three forms have the same columns.
    """
    if any(turn["role"] == "tool" or turn.get("tool_calls") for turn in turns):
        return TOOL
    text = "".join(str(turn["content"]) for turn in turns if turn["role"] in ("system", "assistant"))
    return XML if "<function=" in text else TICKS


def task_of(prompt: Prompt) -> str:
    """Return the first user turn that is no demonstration."""
    texts = [str(message["content"]) for message in prompt.messages if message["role"] == "user"]
    return next((text for text in texts if not text.startswith(DEMONSTRATION)), "".join(texts[:1]))


def _prompt(name: str, row_id: str, turns: Sequence[JsonObject]) -> Prompt:
    if not turns:
        raise RejectedError(Reject.NO_TURNS, "the trajectory is empty")
    return Prompt(row_id, sound(turns), dataset=name)


def before_loose_end(turns: Sequence[JsonObject]) -> Sequence[JsonObject]:
    """Return the turns before an unpaired call or result.

    A call must be answered before the next turn.
    """
    calling, calls = 0, list[Json]()
    for at, turn in enumerate(turns):
        if turn["role"] == "tool" and turn["tool_call_id"] in calls:
            calls.remove(turn["tool_call_id"])
        elif calls or turn["role"] == "tool":
            return turns[: calling if calls else at]
        else:
            calling, calls = at, [call["id"] for call in objects(turn.get("tool_calls") or [], "tool_calls")]
    return turns[:calling] if calls else turns


def _nebius_turn(turn: JsonObject) -> JsonObject:
    role = role_in(turn, "role", NEBIUS_ROLES)
    text = turn.get("system_prompt" if role == "system" else "text") or ""
    if not isinstance(text, str):
        raise RejectedError(Reject.WRONG_SHAPE, f"a {role} turn's text is no text")
    return {"role": role, "content": text}


def _smith_turn(turn: JsonObject) -> JsonObject:
    role = role_in(turn, "role", SMITH_ROLES)
    content = _smith_content(turn.get("content"))
    if role == "tool":
        ids = turn.get("tool_call_ids") or [turn.get("tool_call_id")]
        if not isinstance(ids, list) or len(ids) != 1 or not isinstance(ids[0], str):
            raise RejectedError(Reject.WRONG_SHAPE, "a tool turn does not say which one call it answers")
        return {"role": role, "tool_call_id": ids[0], "content": content or ""}
    if turn.get("tool_calls"):
        calls = [_smith_call(call) for call in objects_in(turn, "tool_calls")]
        return {"role": role, "content": content, "tool_calls": calls}
    return {"role": role, "content": content or ""}


def _smith_content(content: Json) -> str | None:
    """Return the content's text, or its only part's.

    Raises RejectedError(WRONG_SHAPE).
    """
    if content is None or isinstance(content, str):
        return content
    parts = objects(content, "content")
    if len(parts) != 1 or parts[0].get("type") != "text":
        raise RejectedError(Reject.WRONG_SHAPE, "content is not text, nor a list of one text part")
    return text_in(parts[0], "text")


def _smith_call(call: JsonObject) -> Json:
    function = call.get("function")
    if not isinstance(function, dict):
        raise RejectedError(Reject.WRONG_SHAPE, "a tool call has no function")
    named: Json = {"name": text_in(function, "name"), "arguments": text_in(function, "arguments")}
    return {"id": text_in(call, "id"), "type": "function", "function": named}
