"""What each of Kimi's releases renders, lays out and refuses, on the compact vocabulary."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.fixtures.answers import FORMAT, PROMPT, answer, reason, route
from pipeline.formats.format import Format, Opener, Parts
from pipeline.formats.kimi.format import KimiFormat, load
from pipeline.formats.kimi.releases import K2, K2_0905, K2_THINKING, K25, K26, K26_PRESERVE, Release
from pipeline.formats.registry import FORMATS
from pipeline.formats.tokenizer import load_tokenizer
from pipeline.generation.engines.output import EngineOutput, complete
from pipeline.generation.engines.request import request_body
from pipeline.proof.fingerprint import TraitName
from pipeline.proof.reconstruct import reconstruct
from pipeline.records import (
    Completion,
    Delta,
    Evidence,
    Json,
    JsonObject,
    Prompt,
    Reason,
    Refusal,
    RefusedError,
    Route,
    Sampling,
    Span,
    SpanKind,
    TokenLogprob,
    TokenRow,
    ToolMode,
    Usage,
)

pytestmark = pytest.mark.contract

TOKENIZER = FORMAT.tokenizer
ENCODE = TOKENIZER.encode
OPEN, CLOSE, END = (TOKENIZER.id_of(name) for name in ("<think>", "</think>", "<|im_end|>"))
REASONING, CONTENT = ENCODE("So it is."), ENCODE(" Yes.")
TOOL: JsonObject = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def of_release(release: Release, name: str = "release") -> KimiFormat:
    """The release without a template beside its vocabulary."""
    return KimiFormat(name, TOKENIZER, None, release)


THINKING, PLAIN = of_release(K2_THINKING), of_release(K2)


def text_of(fmt: Format, prompt: Prompt) -> str:
    return TOKENIZER.decode_text(fmt.render(prompt))


def rebuilt(fmt: KimiFormat, completion: Completion, tokens: int | None, **changes: object) -> TokenRow | Refusal:
    usage = Usage(len(fmt.render(PROMPT)), tokens)
    whole = replace(completion, usage=usage, **changes)  # type: ignore[arg-type]  # fields of Completion
    return reconstruct(PROMPT, whole, fmt, route(stream=whole.deltas is not None))


# Who opens the thinking


@pytest.mark.parametrize(
    "release, thinking, instant",
    [
        (K2, Opener.NOBODY, Opener.NOBODY),
        (K2_0905, Opener.NOBODY, Opener.NOBODY),
        (K2_THINKING, Opener.MODEL, Opener.MODEL),
        (K25, Opener.PROMPT, Opener.NOBODY),
        (K26, Opener.PROMPT, Opener.NOBODY),
    ],
    ids=["K2", "K2-0905", "K2-Thinking", "K2.5", "K2.6"],
)
def test_a_release_says_who_opens_the_thinking(release: Release, thinking: Opener, instant: Opener) -> None:
    fmt = of_release(release)

    assert (thinking, instant) == (fmt.opener(thinking=True), fmt.opener(thinking=False))


def test_k2_thinking_lays_out_the_tag_that_it_emits() -> None:
    assembled = THINKING.assemble(Parts("So it is.", think_closed=True, body=(" Yes.",), ended=True))
    split = 1 + len(REASONING)
    last = split + 1 + len(CONTENT)

    assert (OPEN, *REASONING, CLOSE, *CONTENT, END) == assembled.ids
    assert (
        Span(SpanKind.THINK_OPEN, 0, 1),
        Span(SpanKind.REASONING, 1, split),
        Span(SpanKind.THINK_CLOSE, split, split + 1),
        Span(SpanKind.CONTENT, split + 1, last),
        Span(SpanKind.END, last, last + 1),
    ) == assembled.spans


def test_k2_thinking_may_answer_without_thinking() -> None:
    parts = Parts(None, think_closed=False, body=(" Yes.",), ended=True)

    assert parts == THINKING.parse((*CONTENT, END), thinking=True)


def test_a_closing_tag_without_its_opening_one_is_no_layout() -> None:
    with pytest.raises(RefusedError) as refused:
        THINKING.layout((*REASONING, CLOSE, *CONTENT, END), thinking=True)

    assert Reason.LAYOUT_INVALID is refused.value.refusal.reason


def test_k2_has_no_reasoning_to_assemble() -> None:
    with pytest.raises(RefusedError) as refused:
        PLAIN.assemble(Parts("So.", think_closed=True, body=(" Yes.",), ended=True))

    assert Reason.LAYOUT_INVALID is refused.value.refusal.reason


# Rebuilding


def test_the_count_tells_of_the_tag_that_no_text_shows() -> None:
    ids = (OPEN, *REASONING, CLOSE, *CONTENT, END)
    row = rebuilt(THINKING, answer(), len(ids))

    assert isinstance(row, TokenRow)
    assert (ids, Evidence.COUNTED) == (row.output_ids, row.evidence)


def test_an_answer_that_lacks_the_tag_by_its_count_is_refused() -> None:
    assert Reason.COUNT_MISMATCH is reason(rebuilt(THINKING, answer(), len(REASONING) + len(CONTENT) + 2))


def test_an_answer_without_reasoning_may_hide_it_in_the_content() -> None:
    assert Reason.AMBIGUOUS_LAYOUT is reason(rebuilt(THINKING, answer(reasoning=None), len(CONTENT) + 1))


def test_an_empty_thinking_that_only_counts_is_refused() -> None:
    """An empty thinking that only the count tells of is refused."""
    assert Reason.AMBIGUOUS_LAYOUT is reason(rebuilt(THINKING, answer(reasoning=None), len(CONTENT) + 3))


def test_deltas_spell_all_but_the_tag() -> None:
    """Only the count tells of it, so the grade is the weaker one; without reasoning there is none to tell of."""
    deltas = tuple(
        Delta(field, TOKENIZER.decode_text([token]))  # type: ignore[arg-type]  # the two literals below
        for field, ids in (("reasoning", REASONING), ("content", CONTENT))
        for token in ids
    )
    ids = (OPEN, *REASONING, CLOSE, *CONTENT, END)
    row = rebuilt(THINKING, answer(deltas=deltas), len(ids))

    assert isinstance(row, TokenRow)
    assert (ids, Evidence.COUNTED) == (row.output_ids, row.evidence)
    plain = tuple(delta for delta in deltas if delta.field == "content")
    row = rebuilt(THINKING, answer(reasoning=None, deltas=plain), len(CONTENT) + 1)
    assert isinstance(row, TokenRow)
    assert ((*CONTENT, END), Evidence.STREAM_DELTAS) == (row.output_ids, row.evidence)


def test_a_thinking_that_was_cut_keeps_its_tag() -> None:
    row = rebuilt(
        THINKING, answer(content=None, finish_reason="length", native_finish_reason="length"), 1 + len(REASONING)
    )

    assert isinstance(row, TokenRow)
    assert (OPEN, *REASONING) == row.output_ids


def test_a_cut_behind_the_tag_shows_nothing_and_is_refused() -> None:
    cut = answer(reasoning=None, content=None, finish_reason="length", native_finish_reason="length")

    assert Reason.AMBIGUOUS_LAYOUT is reason(rebuilt(THINKING, cut, 1))


def test_a_route_that_counts_no_think_tokens_counts_neither() -> None:
    known = route({TraitName.THINK_CLOSE_COUNTED: False})
    usage = Usage(len(THINKING.render(PROMPT)), len(REASONING) + len(CONTENT) + 1)
    row = reconstruct(PROMPT, answer(usage=usage), THINKING, known)

    assert isinstance(row, TokenRow)
    assert (OPEN, *REASONING, CLOSE, *CONTENT, END) == row.output_ids


def test_logprobs_without_the_tag_are_refused() -> None:
    listed = (*REASONING, CLOSE, *CONTENT, END)
    entries = tuple(TokenLogprob("", TOKENIZER.token_bytes(token)) for token in listed)

    assert isinstance(rebuilt(THINKING, answer(), len(listed), logprobs=entries), Refusal)


def test_reasoning_of_k2_is_refused() -> None:
    assert Reason.LAYOUT_INVALID is reason(rebuilt(PLAIN, answer(), len(REASONING) + len(CONTENT) + 2))


@pytest.mark.parametrize(
    "fmt, ids, shown",
    [
        (THINKING, (OPEN, *REASONING, CLOSE, *CONTENT, END), ("So it is.", " Yes.")),
        (THINKING, (*CONTENT, END), (None, " Yes.")),
        (THINKING, (OPEN, *REASONING), ("So it is.", "")),
        (PLAIN, (*CONTENT, END), (None, " Yes.")),
    ],
    ids=["thought", "answered at once", "cut", "K2"],
)
def test_a_local_engine_shows_what_an_api_would(
    fmt: KimiFormat, ids: tuple[int, ...], shown: tuple[str | None, str]
) -> None:
    generation = EngineOutput(ids, (0.0,) * len(ids), (), finished=ids[-1] == END)
    prompt_ids = fmt.render(PROMPT)
    completion = complete(prompt_ids, generation, fmt, thinking=True, model="m")
    row = reconstruct(PROMPT, completion, fmt, None)

    assert shown == (completion.reasoning, completion.content)
    assert isinstance(row, TokenRow)
    assert (ids, Evidence.ENGINE_IDS) == (row.output_ids, row.evidence)


# Prompts

KIMI = "You are Kimi, an AI assistant created by Moonshot AI."


@pytest.mark.parametrize(
    "release, said",
    [(K2, "You are a helpful assistant"), (K2_THINKING, KIMI), (K25, None), (K26, None)],
    ids=["K2", "K2-Thinking", "K2.5", "K2.6"],
)
def test_a_missing_system_turn_is_the_default_one(release: Release, said: str | None) -> None:
    """The default system turn is said where the prompt has none."""
    fmt = of_release(release)
    turn = f"<|im_system|>system<|im_middle|>{said}<|im_end|>" if said else ""
    own = Prompt("r", ({"role": "system", "content": "Be brief."}, *PROMPT.messages))

    assert text_of(fmt, PROMPT).startswith(turn + "<|im_user|>")
    assert text_of(fmt, own).startswith("<|im_system|>system<|im_middle|>Be brief.<|im_end|><|im_user|>")


def test_tools_are_spaced_json_before_the_system_turn() -> None:
    """Tools are told as JSON with spaces and before the default system turn."""
    text = text_of(PLAIN, replace(PROMPT, tools=(TOOL,)))
    declared = '[{"function": {"name": "f", "parameters": {"properties": {}, "type": "object"}}, "type": "function"}]'

    assert text.startswith(
        f"<|im_system|>tool_declare<|im_middle|>{declared}<|im_end|><|im_system|>system<|im_middle|>"
    )


@pytest.mark.parametrize(
    "filter_, declared",
    [
        ("tojson(separators=(',', ':'))", '[{"function":{"name":"f","parameters":{"properties":{},"type":"object"}},'),
        ("tojson", '[{"function": {"name": "f", "parameters": {"properties": {}, "type": "object"}}, '),
    ],
    ids=["compact", "spaced"],
)
def test_the_template_decides_how_tools_are_spaced(filter_: str, declared: str, tmp_path: Path) -> None:
    """The template beside the vocabulary says how tools are spaced."""
    for name in ("tokenizer_config.json", "tiktoken.model"):
        (tmp_path / name).write_bytes((TOKENIZER.directory / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text(
        "{% if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | FILTER }}<|im_end|>{% endif %}"
        "<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>"
        "{% for m in messages %}<|im_user|>user<|im_middle|>{{ m.content }}<|im_end|>{% endfor %}"
        "<|im_assistant|>assistant<|im_middle|>".replace("FILTER", filter_),
        "utf-8",
    )
    fmt = load("k2", load_tokenizer(tmp_path), K2)

    assert f"<|im_middle|>{declared}" in text_of(fmt, replace(PROMPT, tools=(TOOL,)))


def test_k2_prints_role_and_content_and_nothing_else() -> None:
    call: dict[str, Json] = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: tuple[JsonObject, ...] = (
        {"role": "assistant", "name": "a", "reasoning_content": "Hm.", "content": "I ask.", "tool_calls": [call]},
        {"role": "tool", "name": "f", "tool_call_id": "functions.f:0", "content": "42"},
    )
    text = text_of(PLAIN, Prompt("r", (*PROMPT.messages, *messages)))

    assert text.endswith(
        "<|im_assistant|>assistant<|im_middle|>I ask.<|im_end|><|im_system|>tool<|im_middle|>42<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|>"
    )


@pytest.mark.parametrize(
    "message", [{"role": "user", "content": None}, {"role": "developer", "content": "x"}], ids=["no content", "role"]
)
def test_k2_refuses_what_its_template_prints_badly(message: JsonObject) -> None:
    with pytest.raises(RefusedError) as refused:
        PLAIN.render(Prompt("r", (message,)))

    assert Reason.PROMPT_UNSUPPORTED is refused.value.refusal.reason
    assert "messages[0]" in str(refused.value.refusal.field)


HISTORY = Prompt(
    "r",
    (
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "reasoning_content": "easy", "content": "4"},
        {"role": "user", "content": "3+3?"},
    ),
)


@pytest.mark.parametrize(
    "release, shown", [(K26, "<think></think>4"), (K26_PRESERVE, "<think>easy</think>4")], ids=["off", "on"]
)
def test_earlier_thinking_is_preserved_where_the_format_says_so(release: Release, shown: str) -> None:
    assert shown in text_of(of_release(release), HISTORY)


@pytest.mark.parametrize(
    "release, said",
    [(K25, None), (K26, None), (K26_PRESERVE, {"preserve_thinking": True})],
    ids=["K2.5", "off", "on"],
)
def test_a_request_says_that_earlier_thinking_is_preserved(release: Release, said: object) -> None:
    where = Route("openrouter", "moonshotai/kimi-k2.6", "siliconflow")
    body = request_body(HISTORY, where, Sampling(), ToolMode.NONE, of_release(release), "s")

    assert said == body.get("chat_template_kwargs")


def test_instant_mode_blanks_earlier_thinking_all_the_same() -> None:
    text = text_of(of_release(K26_PRESERVE), replace(HISTORY, thinking=False))

    assert "easy" not in text
    assert text.endswith("<think></think>")


def test_a_template_that_drops_thinking_refuses_the_prompt() -> None:
    """The compact vocabulary has a template beside it that drops earlier thinking, whatever it is told."""
    with pytest.raises(RefusedError) as refused:
        load("k2.6", TOKENIZER, K26_PRESERVE).render(HISTORY)

    assert Reason.PROMPT_MISMATCH is refused.value.refusal.reason


@pytest.mark.parametrize(
    "messages, tools, field",
    [
        (PROMPT.messages, (TOOL,), "tools"),
        (({"role": "tool", "content": "x", "tool_call_id": "functions.f:0"},), (), "messages[0].role"),
        (({"role": "assistant", "content": "", "tool_calls": [{"id": "functions.f:0"}]},), (), "messages[0].role"),
    ],
    ids=["tools", "a result", "calls"],
)
def test_k2_0905_refuses_what_its_templates_print_apart(
    messages: tuple[JsonObject, ...], tools: tuple[JsonObject, ...], field: str
) -> None:
    """K2 0905 refuses what copies of its template print in different ways."""
    with pytest.raises(RefusedError) as refused:
        of_release(K2_0905).render(Prompt("r", messages, tools))

    assert (Reason.PROMPT_UNSUPPORTED, field) == (refused.value.refusal.reason, refused.value.refusal.field)


def test_k2_0905_says_its_own_default_system_turn_and_no_other() -> None:
    said = replace(PROMPT, messages=({"role": "system", "content": "Be brief."}, *PROMPT.messages))

    assert [True, False] == ["You are Kimi, an AI" in text_of(of_release(K2_0905), asked) for asked in (PROMPT, said)]


@pytest.mark.parametrize("fmt", [PLAIN, THINKING], ids=["K2", "K2-Thinking"])
def test_tools_in_a_message_are_refused_with_a_system_turn(fmt: KimiFormat) -> None:
    """As many tokens in another order, so no count would show it."""
    with pytest.raises(RefusedError) as refused:
        fmt.declare_tools((TOOL,))

    assert Reason.PROMPT_UNSUPPORTED is refused.value.refusal.reason


def test_k2_needs_no_names_for_the_think_tokens(tmp_path: Path) -> None:
    """K2's own vocabulary names 17 control tokens; the places of the others are reserved."""
    config = json.loads((TOKENIZER.directory / "tokenizer_config.json").read_text("utf-8"))
    named = config["added_tokens_decoder"]
    config["added_tokens_decoder"] = {k: v for k, v in named.items() if v["content"] not in ("<think>", "</think>")}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    (tmp_path / "tiktoken.model").write_bytes((TOKENIZER.directory / "tiktoken.model").read_bytes())
    fmt = KimiFormat("k2", load_tokenizer(tmp_path), None, K2)

    assert fmt.render(PROMPT) == PLAIN.render(PROMPT)
    assert (*CONTENT, END) == fmt.assemble(Parts(None, think_closed=False, body=(" Yes.",), ended=True)).ids
    assert CLOSE == fmt.think_close_id


def test_every_release_has_a_name() -> None:
    names = {"kimi-k2", "kimi-k2-0905", "kimi-k2-thinking", "kimi-k2.5", "kimi-k2.6", "kimi-k2.6-preserve-thinking"}

    assert names == {name for name in FORMATS if name.startswith("kimi-")}
