"""Record what an engine shows of scripted completions.

`python -m harness engine-cassettes --engine sglang --url URL`, or `--model DIR` to write the scripted model.

Guarantees: the engine serves the scripted model, and an answer whose ids are not its script's is not recorded. A file
holds every script for one way to ask, bytes as they came. Replayed, each answer is its text view and, beside it, the
ids that the same answer carries.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from harness.cassettes.cassette import Cassette, CassetteError, Interaction, Provenance, read_cassette, save_cassette
from harness.emulator.survey import SurveyedAnswer, SurveyQuestion
from harness.engines.chat import ENGINES, Answered, EngineError, ask_bodies, asked_for_ids, exchange_of, trips_of
from harness.engines.scripted_model import PAD, SCRIPTS, SPAN, Script
from harness.views.roundtrip import RoundTrip
from pipeline.base.paths import ROOT
from pipeline.base.screen import say, show
from pipeline.formats.format import Format
from pipeline.formats.registry import open_format
from pipeline.generation.engines.openrouter import NoAnswerError
from pipeline.records import Completion, RefusedError

MODEL: Final = "drafter-gate/scripted"
WHERE: Final = "http://engine.invalid/v1/chat/completions"
LIBRARY: Final = ROOT / "cassettes" / "local"


@dataclass(frozen=True, slots=True)
class Played:
    """One recorded answer: its script, text view and true ids."""

    script: Script
    exchange: SurveyedAnswer
    raw: bytes


def main(arguments: Sequence[str] | None = None) -> int:
    """Record; 2 where an answer is not its script."""
    parser = argparse.ArgumentParser(prog="python -m harness engine-cassettes", description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=sorted(ENGINES), help="which engine listens there")
    parser.add_argument("--url", metavar="http://127.0.0.1:PORT", help="where it serves the scripted model")
    parser.add_argument("--version", default="", help="the engine's version, for the provenance")
    parser.add_argument("--library", type=Path, default=LIBRARY, help="where the cassettes go")
    parser.add_argument("--model", type=Path, metavar="DIR", help="write the scripted model there, and nothing else")
    options = parser.parse_args(arguments)
    if options.model:
        from harness.engines.scripted_model import write_scripted

        show(f"{write_scripted(options.model)}")
        return 0
    if not (options.engine and options.url and options.version):
        parser.error("recording needs --engine, --url and --version")
    try:
        for name, count in record(options.engine, options.url, options.version, options.library):
            show(f"{name}: {count} answers")
    except (EngineError, NoAnswerError, CassetteError, OSError) as error:
        say(f"error: {error}")
        return 2
    return 0


def record(engine: str, url: str, version: str, library: Path) -> Iterator[tuple[str, int]]:
    """Write each way's cassette; yield its name and count."""
    fmt = open_format("tiny-kimi")
    for trip in trips_of(engine):
        chosen = [script for script in SCRIPTS.values() if can_say(engine, script)]
        asked = [(question_of(script, trip, fmt), body_of(engine, script, trip, fmt)) for script in chosen]
        answers = ask_bodies(url, asked)
        for script, answer in zip(chosen, answers, strict=True):
            require_said(script, answer, fmt)
        provenance = Provenance(
            recorded_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            source="local",
            route=engine,
            model=MODEL,
            stream=trip.stream,
            versions={engine: version},
        )
        save_cassette(
            library / engine / f"{way_of(trip)}.yaml", Cassette(provenance, tuple(map(_interaction, answers)))
        )
        yield f"{engine}/{way_of(trip)}", len(answers)


def way_of(trip: RoundTrip) -> str:
    """Return the file's name, as `stream-tools`."""
    return f"{'stream' if trip.stream else 'json'}-{'tools' if trip.tools_sent else 'raw'}"


def can_say(engine: str, script: Script) -> bool:
    """Whether the engine can emit the script.

    SGLang takes ids for a chat. vLLM takes text alone, and reads control tokens by their names in it.
    """
    return engine == "sglang" or script.is_text()


def question_of(script: Script, trip: RoundTrip, fmt: Format) -> SurveyQuestion:
    """Return the question that the script answers.

    The limit is the script's length where the script is cut.
    """
    return _Scripted(trip, script.prompt, 0, limit=len(script.emitted(fmt)) if script.cut else SPAN)


@dataclass(frozen=True, slots=True)
class _Scripted(SurveyQuestion):
    limit: int = SPAN

    @property
    def max_tokens(self) -> int:
        return self.limit


def body_of(engine: str, script: Script, trip: RoundTrip, fmt: Format) -> dict[str, Any]:
    """Return the request: the script as last message, filled up.

    The script travels as ids where the engine takes them. The prompt ends as Kimi's do: vLLM reads there whether the
    thinking is over.
    """
    ids, prompt = script.emitted(fmt), script.prompt
    opened = [fmt.think_open_id] if prompt.thinking else [fmt.think_open_id, fmt.think_close_id]
    fill = SPAN - len(ids) - len(opened)
    text = script.text if script.cut else f"{script.text}<|im_end|>"
    messages = [*map(dict, prompt.messages), {"role": "user", "content": text}]
    given = {} if script.is_text() else {"input_ids": [*ids, *[fmt.tokenizer.id_of(PAD)] * fill, *opened]}
    return {
        "model": MODEL,
        "messages": messages,
        "temperature": 0.0,
        "max_tokens": question_of(script, trip, fmt).max_tokens,
        "user": script.name,
        "chat_template_kwargs": {"thinking": prompt.thinking, "fill": fill},
        **({"tools": list(prompt.tools)} if trip.tools_sent else {}),
        **given,
        **asked_for_ids(engine, stream=trip.stream),
    }


def require_said(script: Script, answer: Answered, fmt: Format) -> None:
    """Raise EngineError unless the engine emitted just the script."""
    found = exchange_of(answer, fmt).truth.output_ids
    if found != script.emitted(fmt):
        raise EngineError(f"{script.name}: the script is {script.emitted(fmt)}, the engine emitted {found}")


def _interaction(answer: Answered) -> Interaction:
    kind = "text/event-stream" if answer.question.trip.stream else "application/json"
    sent = {"content-type": ["application/json"]}
    return Interaction("POST", WHERE, sent, answer.request, 200, "OK", {"content-type": [kind]}, answer.raw)


def played(engine: str, trip: RoundTrip, fmt: Format, library: Path = LIBRARY) -> Iterator[Played]:
    """Yield every answer of one cassette. Raises CassetteError, EngineError."""
    for each in read_cassette(library / engine / f"{way_of(trip)}.yaml").interactions:
        script = SCRIPTS[json.loads(each.request_body)["user"]]
        answer = Answered(question_of(script, trip, fmt), each.request_body, each.body)
        yield Played(script, exchange_of(answer, fmt), each.body)


def as_asked(completion: Completion | RefusedError, script: Script, fmt: Format) -> Completion:
    """Return the view with the script's own prompt count.

    The model was not shown that prompt. Raises RefusedError where the view is a refusal.
    """
    if isinstance(completion, RefusedError):
        raise completion
    usage = completion.usage
    prompt_tokens = len(fmt.render(script.prompt))
    return replace(completion, prompt_ids=None, usage=usage and replace(usage, prompt_tokens=prompt_tokens))
