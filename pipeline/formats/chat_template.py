"""A model's own chat template, rendered as engines do.

Guarantees: a prompt is never rendered in two ways. Where the tokenizer's directory holds `chat_template.jinja`, or its
`tokenizer_config.json` names a template, what that renders must equal the format's own rendering id for id, or the
prompt is refused; a release that changes its template is so noticed at the first row. Jinja settings are those of
transformers' `apply_chat_template`. A template is code of somebody else: it runs in jinja's sandbox with a bound on its
memory, and whatever it raises is its own fault, named so.
"""

from __future__ import annotations

import json
import resource
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import LoopControlExtension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pipeline.formats.tokenizer import Tokenizer, TokenizerError
from pipeline.records import Ids, Prompt, Reason, RefusedError

if TYPE_CHECKING:
    from pipeline.records import Json

FILE_NAME = "chat_template.jinja"
MOST_MEMORY: Final = 2 << 30
"""Bytes that a template may take beside what the process holds. A text of this size is no prompt."""
_RENDERING: Final = threading.Lock()
"""The bound is the process's, so one template runs at a time."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A compiled template and where it came from."""

    path: Path
    compiled: Template
    source: str

    def text(self, prompt: Prompt, **variables: Json) -> str:
        """Return the rendered prompt.

        RefusedError(PROMPT_UNSUPPORTED) where the template itself refuses.
        """
        try:
            with _bounded():
                return self.compiled.render(
                    messages=[dict(message) for message in prompt.messages],
                    tools=[dict(tool) for tool in prompt.tools] or None,
                    thinking=prompt.thinking,
                    add_generation_prompt=True,
                    **variables,
                )
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - the code is not ours, and may raise anything
            message = f"{self.path.name} cannot render this prompt: {error!s:.300}"
            raise RefusedError(Reason.PROMPT_UNSUPPORTED, message, field="messages") from None

    def require_equal(self, tokenizer: Tokenizer, prompt: Prompt, ids: Ids, variables: Mapping[str, Json]) -> None:
        """Refuse a prompt that the template renders differently.

        RefusedError(PROMPT_MISMATCH) unless its rendering encodes to `ids`.
        """
        theirs = tuple(tokenizer.encode_prompt(self.text(prompt, **variables), whole=True))
        if theirs != ids:
            pairs = enumerate(zip(ids, theirs, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(ids), len(theirs)))
            message = f"{self.path.name} renders {len(theirs)} tokens, this format {len(ids)}; they part at {at}"
            raise RefusedError(Reason.PROMPT_MISMATCH, message, field="messages", token_position=at)


def load_template(directory: Path) -> ChatTemplate | None:
    """Return the template beside a tokenizer, None without one.

    TokenizerError where it cannot be read.
    """
    path = directory / FILE_NAME
    source = _source(path)
    if source is None:
        return None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    try:
        with _bounded():  # jinja computes what is constant when it compiles
            return ChatTemplate(path, environment.from_string(source), source)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - as above
        raise TokenizerError(f"{path}: no usable chat template ({error!s:.300})") from None


@contextmanager
def _bounded() -> Iterator[None]:
    """Bound the memory that a template may take.

    Raises TemplateError where it wants more. A lower bound of the user's own is left as it is, and its MemoryError too.
    """
    with _RENDERING:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        held = int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
        if soft != resource.RLIM_INFINITY and soft <= held + MOST_MEMORY:
            yield
            return
        resource.setrlimit(resource.RLIMIT_AS, (held + MOST_MEMORY, hard))
        try:
            yield
        except MemoryError:
            raise TemplateError(f"it takes more than {MOST_MEMORY >> 30} GiB of memory") from None
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _source(path: Path) -> str | None:
    """Return the template's text, None where there is none.

    Its own file, or the entry of `tokenizer_config.json`; a list of several is not read.
    """
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8")
        config = path.with_name("tokenizer_config.json")
        named = json.loads(config.read_text(encoding="utf-8")).get("chat_template") if config.is_file() else None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise TokenizerError(f"{path}: no usable chat template ({error})") from None
    return named if isinstance(named, str) else None


def _to_json(value: Any, **options: Any) -> str:  # noqa: ANN401 — jinja gives a filter whatever the template holds
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
