"""The tiny target's chat template against the renderings of Kimi-K2.5's own. Needs transformers."""

from __future__ import annotations

import json
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

from harness.tiny_target.provenance import WEIGHTS
from pipeline.formats.kimi.format import declare_tools


def test_our_template_writes_the_text_of_kimis(shared: Path) -> None:
    template = (WEIGHTS / "chat_template.jinja").read_text(encoding="utf-8")
    cases = json.loads((shared / "kimi" / "renderings.json").read_text(encoding="utf-8"))
    chosen = [case for case in cases if case["template"] == "k2.5"]
    assert chosen
    for case in chosen:
        told = {"tools_ts_str": declare_tools(case["tools"])} if case["tools"] else {}
        switches = {**case["kwargs"], **told}
        rendered, _ = render_jinja_template([case["messages"]], tools=case["tools"], chat_template=template, **switches)
        assert case["text"] == rendered[0], case["case"]
