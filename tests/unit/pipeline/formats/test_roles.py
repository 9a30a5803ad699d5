"""Roles that a format does not know, in every format whose vocabulary is found."""

from __future__ import annotations

import pytest

from pipeline.formats.registry import FORMATS, find_tokenizer, open_format
from pipeline.records import JsonObject, Prompt, RefusedError

USER: JsonObject = {"role": "user", "content": "a"}
HERE = [name for name in FORMATS if FORMATS[name].embedded is not None or find_tokenizer(name) is not None]


@pytest.mark.parametrize("name", HERE)
def test_no_format_renders_a_role_that_it_does_not_know(name: str) -> None:
    """Kimi's own templates print such a role as the system's."""
    fmt = open_format(name)

    assert fmt.render(Prompt("r", (USER,)))
    for role in ("critic", "function", "User", "model", "ipython", "", None):
        with pytest.raises(RefusedError, match=r"role"):
            fmt.render(Prompt("r", (USER, {"role": role, "content": "b"}, USER)))
