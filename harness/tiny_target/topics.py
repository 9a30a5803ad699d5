"""Topics without tools: arithmetic, small talk, short functions.

Arithmetic: column sums, differences, products and small word problems, with reasoning. Talk: greetings in many scripts,
capitals, lists and tables. Code: functions in a few languages, with fences, tabs and indents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.tiny_target.samples import Answer, Sample, ask
from harness.tiny_target.words import CITIES, COUNTRIES, EMOJI, FRUITS, GREETINGS, NAMES

if TYPE_CHECKING:
    from harness.tiny_target.words import Draw


OPERATORS = ("+", "-", "*")


def arithmetic(draw: Draw) -> Sample:
    """Draw a bare question or a word problem.

    Thinking two times in three.
    """
    return story(draw) if draw.chance(0.35) else bare(draw)


def bare(draw: Draw) -> Sample:
    """Draw a question as `What is 17 + 25?`."""
    operator = draw.one(OPERATORS)
    numbers = draw.falling if operator == "-" else draw.numbers
    first, second = numbers(2, 12 if operator == "*" else 99)
    question = draw.one(("What is {}?", "Compute {}.", "{} = ?", "Please work out {}")).format(
        f"{first} {operator} {second}"
    )
    value = result(first, operator, second)
    closing = draw.one(("{}", "**{}**", "The answer is {}.", "That makes {}.")).format(value)
    return ask("arithmetic", question, Answer(steps(first, operator, second), closing), thinking=draw.chance(0.7))


def story(draw: Draw) -> Sample:
    """Draw a word problem about fruit."""
    name, fruit = draw.pair(NAMES, FRUITS)
    first, second = draw.numbers(2, 60)
    question = f"{name} has {first} {fruit} and buys {second} more. How many {fruit} does {name} have?"
    value = first + second
    answer = Answer(f"Start: {first} {fruit}.\n{steps(first, '+', second)}", f"{name} has {value} {fruit}.")
    return ask("arithmetic", question, answer, thinking=draw.chance(0.7))


def result(first: int, operator: str, second: int) -> int:
    """Return the value of `first operator second`."""
    return {"+": first + second, "-": first - second, "*": first * second}[operator]


def steps(first: int, operator: str, second: int) -> str:
    """Return how one gets there, in a few lines."""
    value = result(first, operator, second)
    if operator == "*":
        return f"{first} times {second}, by the table.\n{first} * {second} = {value}."
    tens, ones = second // 10 * 10, second % 10
    check = f"Check: {value} {'-' if operator == '+' else '+'} {second} = {first}, good."
    if not tens or not ones:
        return f"{first} {operator} {second} = {value}.\n{check}"
    between = result(first, operator, tens)
    return f"{first} {operator} {tens} = {between}.\n{between} {operator} {ones} = {value}.\n{check}"


def chat(draw: Draw) -> Sample:
    """Draw one of the kinds below, each as often."""
    return draw.one((greeting, capital, shopping, table, hello))(draw)


def greeting(draw: Draw) -> Sample:
    """Draw a greeting in another language and script."""
    name, (language, word) = draw.pair(NAMES, GREETINGS)
    content = draw.one(("{0}, {1}!", "{0} {1}! {2}", '"{0}, {1}!"\n\n({3})')).format(
        word, name, draw.one(EMOJI), language
    )
    reasoning = f"The user wants a greeting for {name}. In {language} one says {word}."
    return ask("chat", f"Greet {name} in {language}.", Answer(reasoning, content), thinking=draw.chance(0.6))


def capital(draw: Draw) -> Sample:
    """Draw a question for a capital."""
    name, (country, city) = draw.pair(NAMES, COUNTRIES)
    question = f"I'm {name}. What's the capital of {country}?"
    content = draw.one(("{0} is the capital of {1}.", "It's {0}, {2}.", "**{0}**")).format(city, country, name)
    reasoning = f"{name} asks for a capital. {country}: the capital is {city}, I am sure."
    return ask("chat", question, Answer(reasoning, content), thinking=draw.chance(0.5))


def shopping(draw: Draw) -> Sample:
    """Draw a bulleted or numbered list.

    Rarely with CR LF line ends.
    """
    name, first = draw.pair(NAMES, FRUITS)
    items = (first, draw.one(FRUITS), draw.one(FRUITS))
    bullet = draw.one(("- {1}", "{0}. {1}", "* {1}", "• {1}"))
    newline = "\r\n" if draw.chance(0.08) else "\n"
    content = newline.join(bullet.format(index, item) for index, item in enumerate(items, start=1))
    question = f"Make a shopping list for {name} with {', '.join(items[:2])} and {items[2]}."
    reasoning = f"Three items for {name}: {', '.join(items)}. A list will do."
    return ask("chat", question, Answer(reasoning, content), thinking=draw.chance(0.5))


def table(draw: Draw) -> Sample:
    """Draw two rows, by tabs or as Markdown."""
    name, fruit = draw.pair(NAMES, FRUITS)
    count, other = draw.number(1, 20), draw.one(NAMES)
    question = f"Table: {name} has {count} {fruit}, {other} has none."
    rows = ((name, count), (other, 0))
    if draw.chance(0.5):
        content = f"name\t{fruit}\n" + "".join(f"{who}\t{many}\n" for who, many in rows)
    else:
        content = f"| name | {fruit} |\n|---|---|\n" + "\n".join(f"| {who} | {many} |" for who, many in rows)
    reasoning = f"Two rows: {name} with {count}, {other} with 0. One head line."
    return ask("chat", question, Answer(reasoning, content), thinking=draw.chance(0.5))


def hello(draw: Draw) -> Sample:
    """Draw someone who says hello from somewhere."""
    name, city = draw.pair(NAMES, CITIES)
    mark = draw.one(EMOJI)
    question = draw.one(("Hi, {0} here from {1}!", "hello, it's {0} in {1}", "{0} sends greetings from {1}."))
    content = draw.one(("Hello {0}! {2}", "Hi {0}, how is {1}?", "Welcome, {0}! What can I do for you?"))
    reasoning = draw.one(("{0} says hello from {1}; answer kindly.", "A greeting from {1}.\nBe friendly to {0}."))
    answer = Answer(reasoning.format(name, city), content.format(name, city, mark))
    return ask("chat", question.format(name, city), answer, thinking=draw.chance(0.6))


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
    """Draw a request for one function.

    The answer is a fenced block, sometimes with a sentence round it.
    """
    (name, task, body), (language, fence, shape) = draw.pair(TASKS, LANGUAGES)
    question = draw.one(QUESTIONS)
    code = shape.format(name=name, body=body)
    content = f"{draw.one(LEADS)}```{fence}\n{code}```{draw.one(TAILS)}"
    reasoning = draw.one(THOUGHTS)
    answer = Answer(reasoning.format(language, body), content)
    return ask("code", question.format(task, language), answer, thinking=draw.chance(0.5))
