"""Tool calls: tools declared, calls, answers to results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.tiny_target.samples import Answer, Sample, assistant, call, user
from harness.tiny_target.words import CITIES, NAMES
from pipeline.records import Json, JsonObject, Prompt, ToolCall

if TYPE_CHECKING:
    from harness.tiny_target.words import Draw

WEATHERS = ("sunny", "rain", "snow", "fog", "windy")


def declare(name: str, description: str, required: tuple[str, ...], **kinds: JsonObject) -> JsonObject:
    """Return a function tool in the OpenAI schema."""
    properties: dict[str, Json] = {key: dict(kind) for key, kind in kinds.items()}
    parameters: Json = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


STRING: JsonObject = {"type": "string"}
UNIT: JsonObject = {"type": "string", "enum": ["c", "f"]}
WEATHER = declare("get_weather", "Weather of a city.", ("city",), city=STRING, unit=UNIT)
CLOCK = declare("get_time", "Local time.", ("city",), city=STRING)
ADD = declare("add", "Adds two integers.", ("a", "b"), a={"type": "integer"}, b={"type": "integer"})
MAIL = declare("send_mail", "Sends a mail.", ("to", "text"), to=STRING, text=STRING)
TOOLS = (WEATHER, CLOCK, ADD, MAIL)


def tools(draw: Draw) -> Sample:
    """Draw a question that needs a tool.

    One or two calls, sometimes after a sentence.
    """
    kind = draw.one((weather, weather, clock, add, mail))
    question, reasoning, calls, lead, needed = kind(draw)
    content = lead if draw.chance(0.4) else ""
    prompt = Prompt("tools", (user(question),), tools=declared(draw, needed), thinking=draw.chance(0.7))
    return Sample(prompt, Answer(reasoning, content, calls))


def declared(draw: Draw, needed: JsonObject) -> tuple[JsonObject, ...]:
    """Return the needed tool.

    In half of the prompts beside another one.
    """
    other = draw.one(TOOLS)
    if other == needed or draw.chance(0.5):
        return (needed,)
    return (needed, other) if draw.chance(0.5) else (other, needed)


Ask = tuple[str, str, tuple[ToolCall, ...], str, JsonObject]


def weather(draw: Draw) -> Ask:
    """Draw the weather in one or two cities.

    Sometimes in a unit.
    """
    name, city = draw.pair(NAMES, CITIES)
    if draw.chance(0.4):
        other = draw.one([place for place in CITIES if place != city])
        calls = (call(0, "get_weather", {"city": city}), call(1, "get_weather", {"city": other}))
        question = f"{name} asks: weather in {city} and {other}?"
        reasoning = f"Two cities: {city}, {other}. That takes two calls of get_weather."
        return question, reasoning, calls, "Let me check both.", WEATHER
    unit = draw.one(("", "c", "f"))
    arguments: JsonObject = {"city": city, "unit": unit} if unit else {"city": city}
    asked = f" ({unit})" if unit else ""
    question = f"{name} asks: weather in {city}{asked}?"
    reasoning = f"{name} needs the weather of {city}. I call get_weather."
    return question, reasoning, (call(0, "get_weather", arguments),), "Let me look.", WEATHER


def clock(draw: Draw) -> Ask:
    """Draw the time somewhere."""
    name, city = draw.pair(NAMES, CITIES)
    question = f"{name} wants to know the time in {city}."
    reasoning = f"The clock tool knows the time. Call get_time for {city}."
    return question, reasoning, (call(0, "get_time", {"city": city}),), "One moment ⏳ ", CLOCK


def add(draw: Draw) -> Ask:
    """Draw a sum left to the tool."""
    first, second = draw.numbers(100, 999)
    question = f"Use the tool: {first} + {second}"
    reasoning = f"I must not compute it myself: add {first} and {second}"
    return question, reasoning, (call(0, "add", {"a": first, "b": second}),), "Adding:\n", ADD


def mail(draw: Draw) -> Ask:
    """Draw a mail with accents and an escape."""
    name, city = draw.pair(NAMES, CITIES)
    text = draw.one(("See you in {}!", "Olá from {} ☀", 'I said "{}".', "{}\nBye"))
    calls = (call(0, "send_mail", {"to": name, "text": text.format(city)}),)
    reasoning = f"A mail to {name}. The text is given, keep it as it is."
    return f"Mail {name}: {text.format(city)}", reasoning, calls, "Sending it now.", MAIL


def tool_result(draw: Draw) -> Sample:
    """Draw an answer to a tool's result."""
    sky, degrees = draw.one(WEATHERS), draw.number(-9, 35)
    name, city = draw.pair(NAMES, CITIES)
    history = transcript(f"{name} asks: weather in {city}?", city, sky, degrees)
    answer = Answer(f"The tool says {sky}, {degrees}.", f"In {city}: {sky}, {degrees} °C.")
    return Sample(Prompt("tool_result", history, tools=(WEATHER, CLOCK), thinking=draw.chance(0.7)), answer)


def second_call(draw: Draw) -> Sample:
    """Draw another call after the first one's result.

    Its id counts on.
    """
    name, city = draw.pair(NAMES, CITIES)
    question = f"{name} asks: weather and time in {city}?"
    history = transcript(question, city, draw.one(WEATHERS), draw.number(-9, 35))
    answer = Answer(f"Now the time in {city}.", "", (call(1, "get_time", {"city": city}),))
    return Sample(Prompt("second_call", history, tools=(WEATHER, CLOCK), thinking=draw.chance(0.7)), answer)


def transcript(question: str, city: str, sky: str, degrees: int) -> tuple[JsonObject, ...]:
    """Return a question, its weather call, and the result."""
    made = call(0, "get_weather", {"city": city})
    return (
        user(question),
        assistant("", reasoning=f"I need the weather of {city}.", calls=(made,)),
        {"role": "tool", "tool_call_id": made.id, "content": f'{{"sky": "{sky}", "deg": {degrees}}}'},
    )
