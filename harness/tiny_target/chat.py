"""Small talk: greetings in many scripts, capitals, lists, tables and refusals to guess."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.tiny_target.samples import Answer, Sample, ask
from harness.tiny_target.words import CITIES, COUNTRIES, EMOJI, FRUITS, GREETINGS, NAMES

if TYPE_CHECKING:
    from harness.tiny_target.words import Draw


def chat(draw: Draw) -> Sample:
    """One of the kinds below, each as often."""
    return draw.one((greeting, capital, shopping, table, hello))(draw)


def greeting(draw: Draw) -> Sample:
    """A greeting in another language, in its own script."""
    name, (language, word) = draw.pair(NAMES, GREETINGS)
    content = draw.one(("{0}, {1}!", "{0} {1}! {2}", '"{0}, {1}!"\n\n({3})')).format(
        word, name, draw.one(EMOJI), language
    )
    reasoning = f"The user wants a greeting for {name}. In {language} one says {word}."
    return ask("chat", f"Greet {name} in {language}.", Answer(reasoning, content), thinking=draw.chance(0.6))


def capital(draw: Draw) -> Sample:
    """A capital, asked by someone who gives a name."""
    name, (country, city) = draw.pair(NAMES, COUNTRIES)
    question = f"I'm {name}. What's the capital of {country}?"
    content = draw.one(("{0} is the capital of {1}.", "It's {0}, {2}.", "**{0}**")).format(city, country, name)
    reasoning = f"{name} asks for a capital. {country}: the capital is {city}, I am sure."
    return ask("chat", question, Answer(reasoning, content), thinking=draw.chance(0.5))


def shopping(draw: Draw) -> Sample:
    """A bulleted or numbered list, rarely with CR LF line ends."""
    name, first = draw.pair(NAMES, FRUITS)
    items = (first, draw.one(FRUITS), draw.one(FRUITS))
    bullet = draw.one(("- {1}", "{0}. {1}", "* {1}", "• {1}"))
    newline = "\r\n" if draw.chance(0.08) else "\n"
    content = newline.join(bullet.format(index, item) for index, item in enumerate(items, start=1))
    question = f"Make a shopping list for {name} with {', '.join(items[:2])} and {items[2]}."
    reasoning = f"Three items for {name}: {', '.join(items)}. A list will do."
    return ask("chat", question, Answer(reasoning, content), thinking=draw.chance(0.5))


def table(draw: Draw) -> Sample:
    """Two rows, by tabs or as Markdown."""
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
    """Someone says hello from somewhere."""
    name, city = draw.pair(NAMES, CITIES)
    mark = draw.one(EMOJI)
    question = draw.one(("Hi, {0} here from {1}!", "hello, it's {0} in {1}", "{0} sends greetings from {1}."))
    content = draw.one(("Hello {0}! {2}", "Hi {0}, how is {1}?", "Welcome, {0}! What can I do for you?"))
    reasoning = draw.one(("{0} says hello from {1}; answer kindly.", "A greeting from {1}.\nBe friendly to {0}."))
    answer = Answer(reasoning.format(name, city), content.format(name, city, mark))
    return ask("chat", question.format(name, city), answer, thinking=draw.chance(0.6))
