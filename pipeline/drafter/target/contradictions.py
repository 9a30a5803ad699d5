"""What a target's config says twice, and not alike.

Guarantees: a size, a switch or a rotary setting that stands in two places with two values is named with both of them.
Loaders take one silently, and not the same one: transformers prefers `rope_scaling` to `rope_parameters` and either to
`rope_theta` at the top, engines and exporters other orders. Settings by layer type are no contradiction of each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline.records import Json, JsonObject

NESTED = "text_config"
"""Where a config of several modalities keeps that of its language model."""
DECIDING = (
    *("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "max_position_embeddings", "tie_word_embeddings", "rms_norm_eps", "rope_theta"),
)
ROTARY = ("rope_scaling", "rope_parameters")
"""Objects with rotary settings: the older name, and the one since transformers 5."""


def contradictions(document: JsonObject) -> Iterator[str]:
    """Yield each contradiction of a config.json, in words."""
    nested = document.get(NESTED)
    if isinstance(nested, Mapping):
        for name in DECIDING:
            top, own = document.get(name), nested.get(name)
            if top is not None and own is not None and top != own:
                yield f"{name} is {top!r} at the top and {own!r} in {NESTED}"
        yield from rotary_contradictions(nested)
    else:
        yield from rotary_contradictions(document)


def rotary_contradictions(document: JsonObject) -> Iterator[str]:
    """Yield the contradictions of one model's rotary settings."""
    places = {name: place for name in ROTARY if isinstance(place := document.get(name), Mapping)}
    for name, place in places.items():
        if {"type", "rope_type"} <= place.keys() and place["type"] != place["rope_type"]:
            yield f"{name} has the type {place['type']!r} and the rope_type {place['rope_type']!r}"
    flat = [{"rope_type": place.get("rope_type", place.get("type")), **place} for place in places.values()]
    names = [name for each in flat for name in each if not isinstance(each[name], Mapping)]
    for name in dict.fromkeys(name for name in names if name != "type"):
        found = dict(_values(document, places, name))
        if len({repr(_number(value)) for value in found.values()}) > 1:
            yield f"{name} is {' and '.join(f'{value!r} {place}' for place, value in found.items())}"
    yield from _left_aside(document, places)


def _values(document: JsonObject, places: Mapping[str, JsonObject], name: str) -> Iterator[tuple[str, Json]]:
    """Yield where a rotary setting stands, and its value there."""
    if document.get(name) is not None:
        yield "at the top", document[name]
    for place, held in places.items():
        value = held.get("rope_type", held.get("type")) if name == "rope_type" else held.get(name)
        if value is not None:
            yield f"in {place}", value


def _left_aside(document: JsonObject, places: Mapping[str, JsonObject]) -> Iterator[str]:
    """Yield a top base that no layer type has."""
    top = document.get("rope_theta")
    kinds = [(kind, held) for place in places.values() for kind, held in place.items() if isinstance(held, Mapping)]
    bases = {kind: held["rope_theta"] for kind, held in kinds if held.get("rope_theta") is not None}
    if top is not None and len(bases) == len(kinds) > 0 and top not in bases.values():
        told = ", ".join(f"{base!r} for {kind}" for kind, base in bases.items())
        yield f"rope_theta is {top!r} at the top and {told}"


def _number(value: Json) -> Json:
    """Return a number as a float: 10000 is 1e4."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else value
