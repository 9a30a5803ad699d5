"""Short functions in a few languages: code fences, tabs, indents and comments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.tiny_target.samples import Answer, Sample, ask

if TYPE_CHECKING:
    from harness.tiny_target.words import Draw

TASKS = (("double", "doubles a number", "n * 2"), ("square", "squares a number", "n * n"),
         ("half", "halves a number", "n / 2"), ("next_one", "adds one to a number", "n + 1"),
         ("negate", "negates a number", "-n"), ("is_even", "tells whether a number is even", "n % 2 == 0"),
         ("cube", "cubes a number", "n * n * n"), ("last_digit", "gives the last digit", "n % 10"))  # fmt: skip
LANGUAGES = (
    ("Python", "python", "def {name}(n):\n    return {body}\n"),
    ("JavaScript", "js", "function {name}(n) {{\n  return {body};\n}}\n"),
    ("Go", "go", "func {name}(n int) int {{\n\treturn {body}\n}}\n"),
    ("C", "c", "int {name}(int n) {{\n\treturn {body};\n}}\n"),
    ("Rust", "rust", "fn {name}(n: i64) -> i64 {{\n    {body}\n}}\n"),
)
QUESTIONS = (
    "Write a {1} function that {0}.",
    "{1}: a function that {0}?",
    "How do I write a function that {0} in {1}?",
)
THOUGHTS = (
    "The user wants a function in {0}. The body is `{1}`, nothing else.",
    "They want {0}.\nReturn {1}.\nShort is fine.",
    "Simple: {1}",
)
LEADS = ("", "Here it is:\n\n", "Sure!\n\n", "One way:\n")
TAILS = ("", "\nCall it with any n.", "\n\nThat is all 🙂")


def coding(draw: Draw) -> Sample:
    """A request for one function; the answer is a fenced block, sometimes with a sentence round it."""
    (name, task, body), (language, fence, shape) = draw.pair(TASKS, LANGUAGES)
    question = draw.one(QUESTIONS)
    code = shape.format(name=name, body=body)
    content = f"{draw.one(LEADS)}```{fence}\n{code}```{draw.one(TAILS)}"
    reasoning = draw.one(THOUGHTS)
    answer = Answer(reasoning.format(language, body), content)
    return ask("code", question.format(task, language), answer, thinking=draw.chance(0.5))
