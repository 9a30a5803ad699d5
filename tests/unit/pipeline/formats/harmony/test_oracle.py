"""Our harmony beside openai-harmony's and that of the `renderers` package: equal id for id, and read alike.

Both are oracles and no dependencies: without them, or without gpt-oss's vocabulary, the tests skip.
"""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.strategies.completions import cut_completions, emitted, headed_completions, plain_texts, texts
from pipeline.formats.harmony.format import DAY, EFFORTS, HarmonyFormat
from pipeline.formats.harmony.grammar import messages_of
from pipeline.formats.registry import find_tokenizer, open_format
from pipeline.records import Ids, JsonObject, Prompt, RefusedError

oracle = pytest.importorskip("openai_harmony", reason="no oracle here. Run: pip install openai-harmony==0.0.8")
Untyped: TypeAlias = Any
"""Values of packages without types."""
MANY, FEW = (
    settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck)) for count in (300, 100)
)


@pytest.fixture(scope="module")
def ours() -> HarmonyFormat:
    if find_tokenizer("gpt-oss") is None:
        pytest.skip("no gpt-oss in $DRAFTER_GATE_TOKENIZERS; python -m harness vocabularies unpacks it")
    fmt = open_format("gpt-oss")
    assert isinstance(fmt, HarmonyFormat)
    return fmt


@pytest.fixture(scope="module")
def theirs(ours: HarmonyFormat, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Untyped]:
    """The oracle on our vocabulary, written out as the rank file that it would fetch."""
    folder, vocabulary = tmp_path_factory.mktemp("encodings"), ours.tokenizer
    lines = (base64.b64encode(vocabulary.token_bytes(token)) + b" %d\n" % token for token in vocabulary.base_ids)
    (folder / "o200k_base.tiktoken").write_bytes(b"".join(lines))
    before = os.environ.get("TIKTOKEN_ENCODINGS_BASE")
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(folder)
    yield oracle.load_harmony_encoding(oracle.HarmonyEncodingName.HARMONY_GPT_OSS)
    if before is None:
        del os.environ["TIKTOKEN_ENCODINGS_BASE"]
    else:
        os.environ["TIKTOKEN_ENCODINGS_BASE"] = before


SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "string", "description": "Where.\nExactly."},
    {"type": "integer", "minimum": 0, "maximum": 9, "default": 3},
    {"type": "string", "enum": ["a", "b"], "default": "a"},
    {"type": "string", "default": 'say "é"'},
    {"type": ["string", "null"]},
    {"type": ["integer", "number"], "default": None},
    {"type": "boolean", "nullable": True},
    {"type": "string", "title": "T", "examples": ["x", 1]},
    {"type": "array", "items": {"type": "integer"}, "default": [1, "é"]},
    {"type": "array"},
    {"enum": ["a", 1, None]},
    {"anyOf": [{"type": "string"}, {"type": "number"}]},
    {
        "type": "object",
        "description": "Inside.",
        "properties": {"y": {"type": "string"}, "x": {"type": "object", "properties": {"z": {"type": "null"}}}},
        "required": ["x"],
    },
)
DESCRIPTIONS = ("Look it up.", "Two\nlines.\n", "  spaced  ", "")


@st.composite
def tools(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from("zyxab"), unique=True, max_size=4))
    properties = {name: draw(st.sampled_from(SCHEMAS)) for name in names}
    parameters = {"type": "object", "properties": properties, "required": sorted(names)[:1]}
    function = {"name": draw(st.sampled_from(["f", "get_weather"])), "description": draw(st.sampled_from(DESCRIPTIONS))}
    taken: dict[str, Any] = draw(st.sampled_from([{}, {"parameters": {}}, {"parameters": parameters}]))
    return {"type": "function", "function": {**function, **taken}}


def said() -> st.SearchStrategy[str]:
    return plain_texts(min_size=1)


@st.composite
def conversations(draw: st.DrawFn) -> Prompt:
    """Turns of text and tool loops, up to where the model goes on, with instructions or not and tools or not."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": draw(said())}]
    for turn in range(draw(st.integers(0, 3))):
        for step in range(draw(st.integers(0, 2))):
            arguments = json.dumps(draw(st.dictionaries(st.sampled_from("xy"), said(), max_size=2)), ensure_ascii=False)
            call = {"id": f"c{turn}.{step}", "function": {"name": "f", "arguments": arguments}}
            thought = draw(st.none() | said())
            reasoning = {} if thought is None else {"reasoning_content": thought}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call], **reasoning})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": draw(texts())})
        messages.append({"role": "assistant", "content": draw(said()), "reasoning_content": draw(said())})
        messages.append({"role": "user", "content": draw(said())})
    kept = messages[: draw(st.sampled_from([at for at, m in enumerate(messages) if m["role"] != "assistant"])) + 1]
    first: list[JsonObject] = [{"role": "system", "content": draw(said())}] if draw(st.booleans()) else []
    return Prompt("drawn", (*first, *kept), tuple(draw(st.lists(tools(), max_size=2))))


def as_harmony(prompt: Prompt, effort: str) -> Untyped:
    """The conversation as engines that use openai-harmony hand it over."""
    made, role = oracle.Message.from_role_and_content, oracle.Role
    system = oracle.SystemContent.new().with_conversation_start_date(DAY)
    system = system.with_reasoning_effort(oracle.ReasoningEffort(effort.capitalize()))
    first, *rest = prompt.messages
    told = first["content"] if first["role"] == "system" else None
    messages = [made(role.SYSTEM, system)]
    if told is not None or prompt.tools:
        developer = oracle.DeveloperContent.new()
        developer = developer if told is None else developer.with_instructions(told)
        if prompt.tools:
            developer = developer.with_function_tools([described(tool) for tool in prompt.tools])
        messages.append(made(role.DEVELOPER, developer))
    turns = rest if told is not None else prompt.messages
    finals = [at for at, message in enumerate(turns) if message["role"] == "assistant" and "tool_calls" not in message]
    for position, message in enumerate(turns):
        messages += spoken(message, shown=position > max(finals, default=-1))
    return oracle.Conversation.from_messages(messages)


def described(tool: JsonObject) -> Untyped:
    function: Any = tool["function"]
    return oracle.ToolDescription.new(
        name=function["name"], description=function["description"], parameters=function.get("parameters")
    )


def spoken(message: Mapping[str, Untyped], *, shown: bool) -> Iterator[Untyped]:
    made, role, content = oracle.Message.from_role_and_content, oracle.Role, message["content"]
    if message["role"] == "user":
        yield made(role.USER, content)
    elif message["role"] == "tool":
        author = oracle.Author.new(role.TOOL, "functions.f")
        result = oracle.Message.from_author_and_content(author, content)
        yield result.with_channel("commentary").with_recipient("assistant")
    elif calls := message.get("tool_calls"):
        if shown and message.get("reasoning_content"):
            yield made(role.ASSISTANT, message["reasoning_content"]).with_channel("analysis")
        call = made(role.ASSISTANT, calls[0]["function"]["arguments"]).with_channel("commentary")
        yield call.with_recipient("functions.f").with_content_type("json")
    else:
        yield made(role.ASSISTANT, content).with_channel("final")


def test_drawn_prompts_equal_openai_harmonys(ours: HarmonyFormat, theirs: Untyped) -> None:
    """Drawn prompts are rendered as openai harmony renders them."""
    seen: Counter[str] = Counter()

    @MANY
    @given(conversations(), st.sampled_from(EFFORTS))
    def compare(prompt: Prompt, effort: str) -> None:
        config = oracle.RenderConversationConfig(auto_drop_analysis=False)
        conversation = as_harmony(prompt, effort)
        expected = theirs.render_conversation_for_completion(conversation, oracle.Role.ASSISTANT, config=config)
        assert tuple(expected) == replace(ours, effort=effort).render(prompt)
        seen.update([str(prompt.messages[-1]["role"]), "tools" if prompt.tools else "no tools"])

    compare()
    print("\nharmony prompts beside openai-harmony:", dict(seen))  # noqa: T201 — the measure, for `pytest -s`
    assert min(seen.values()) > 10


def test_prompts_of_text_equal_the_renderers_package(ours: HarmonyFormat, theirs: Untyped) -> None:
    """It goes on with an analysis header that engines leave to the model, and so is compared up to there.

    It writes calls without their content type, and a function without parameters as one of any: neither is drawn.
    `theirs` is asked for since the package loads the same encoding.
    """
    assert theirs is not None
    package = pytest.importorskip("renderers.gpt_oss", reason="no renderers here", exc_type=ImportError)
    config = package.GptOssRendererConfig(conversation_start_date=DAY)
    renderer = package.GptOssRenderer(HubTokenizer(ours), config)

    @FEW
    @given(conversations().filter(is_of_text))
    def compare(prompt: Prompt) -> None:
        messages = [dict(message) for message in prompt.messages]
        made = renderer.render_ids(messages, tools=[dict(tool) for tool in prompt.tools] or None)
        assert tuple(made) == ours.render(prompt)[:-2]

    compare()


def is_of_text(prompt: Prompt) -> bool:
    functions: list[Any] = [tool["function"] for tool in prompt.tools]
    return all("parameters" in one for one in functions) and not any("tool_calls" in one for one in prompt.messages)


class HubTokenizer:
    """What `renderers` asks of a hub tokenizer, answered by ours."""

    unk_token_id = None
    name_or_path = ""

    def __init__(self, fmt: HarmonyFormat) -> None:
        self.fmt = fmt

    def convert_tokens_to_ids(self, token: str) -> int:
        return self.fmt.tokenizer.id_of(token)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return self.fmt.tokenizer.encode(text)


Read = list[tuple[str | None, str | None, str]]


def read_by_oracle(ids: Ids, encoding: Untyped) -> Read:
    """Channel, recipient and text of each message; RuntimeError where it is none."""
    parser = oracle.StreamableParser(encoding, oracle.Role.ASSISTANT)
    for token in ids:
        parser.process(token)
    whole = [(message.channel, message.recipient, message.content[0].text) for message in parser.messages]
    if parser.state == oracle.StreamState.CONTENT:
        whole.append((parser.current_channel, parser.current_recipient, parser.current_content))
    return whole


def read_by_us(ids: Ids, fmt: HarmonyFormat) -> Read:
    found = messages_of(ids, fmt.marks, fmt.tokenizer)
    text = fmt.tokenizer.decode_text
    return [(one.channel, one.recipient, text(ids[one.text : one.stop])) for one in found if one.channel]


def test_drawn_answers_are_read_as_openai_harmony_reads_them(ours: HarmonyFormat, theirs: Untyped) -> None:
    drawn = st.one_of(headed_completions(ours, texts()), cut_completions(ours, texts()))

    @MANY
    @given(drawn.map(lambda parts: ours.assemble(parts).ids))
    def compare(ids: Ids) -> None:
        assert read_by_oracle(ids, theirs) == read_by_us(ids, ours)

    compare()


def test_whatever_is_accepted_is_read_alike_wherever_it_is_cut(ours: HarmonyFormat, theirs: Untyped) -> None:
    """The oracle is the laxer of the two: what it cannot read is refused here."""
    seen: Counter[str] = Counter()
    cut = st.tuples(headed_completions(ours, texts()).map(lambda parts: ours.assemble(parts).ids), st.integers(0, 40))
    drawn = st.one_of(emitted(ours), cut.map(lambda pair: pair[0][: pair[1]]))

    @MANY
    @given(drawn)
    def compare(ids: Ids) -> None:
        try:
            ours.layout(ids, thinking=True)
            read = read_by_us(ids, ours)
        except RefusedError:
            seen["refused"] += 1
            return
        seen["accepted"] += 1
        assert read == read_by_oracle(ids, theirs)

    compare()
    assert min(seen["refused"], seen["accepted"]) > 20


def test_the_rank_file_is_the_one_that_the_oracle_would_fetch(ours: HarmonyFormat, theirs: Untyped) -> None:
    text = "I've got 12345 things: naïve café, 世界 😀\r\n\n  if x == 1:\n\t'''We'LL'''"

    assert theirs.encode(text, allowed_special=set()) == ours.tokenizer.encode(text)
    assert {200002, 200012} == set(theirs.stop_tokens_for_assistant_actions())
    assert Path(os.environ["TIKTOKEN_ENCODINGS_BASE"]).is_dir()
