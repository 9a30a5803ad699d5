"""Arithmetic with reasoning: column sums, differences, products and small word problems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.tiny_target.samples import Answer, Sample, ask
from harness.tiny_target.words import FRUITS, NAMES

if TYPE_CHECKING:
    from harness.tiny_target.words import Draw

OPERATORS = ("+", "-", "*")


def arithmetic(draw: Draw) -> Sample:
    """A bare question or a word problem, thinking two times in three."""
    return story(draw) if draw.chance(0.35) else bare(draw)


def bare(draw: Draw) -> Sample:
    """`What is 17 + 25?`."""
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
    """A word problem about fruit."""
    name, fruit = draw.pair(NAMES, FRUITS)
    first, second = draw.numbers(2, 60)
    question = f"{name} has {first} {fruit} and buys {second} more. How many {fruit} does {name} have?"
    value = first + second
    answer = Answer(f"Start: {first} {fruit}.\n{steps(first, '+', second)}", f"{name} has {value} {fruit}.")
    return ask("arithmetic", question, answer, thinking=draw.chance(0.7))


def result(first: int, operator: str, second: int) -> int:
    """The value of `first operator second`."""
    return {"+": first + second, "-": first - second, "*": first * second}[operator]


def steps(first: int, operator: str, second: int) -> str:
    """How one gets there, in a few lines."""
    value = result(first, operator, second)
    if operator == "*":
        return f"{first} times {second}, by the table.\n{first} * {second} = {value}."
    tens, ones = second // 10 * 10, second % 10
    check = f"Check: {value} {'-' if operator == '+' else '+'} {second} = {first}, good."
    if not tens or not ones:
        return f"{first} {operator} {second} = {value}.\n{check}"
    between = result(first, operator, tens)
    return f"{first} {operator} {tens} = {between}.\n{between} {operator} {ones} = {value}.\n{check}"
