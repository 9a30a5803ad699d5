"""Server, client and both killed mid-run, with a stand-in for the engine: nothing lost, nothing twice, nothing left."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from harness.engines.settings import Name, Start
from harness.measures.engines.kills import VICTIMS, Engine, KillFinding, trial
from pipeline.base.paths import ROOT

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="engines are kept on Linux alone")

SERVER = """#!{python}
import sys, time
sys.path.insert(0, {root!r})
from harness.engines.stand_in import StandIn, standing_in
from pipeline.formats.registry import open_format
fmt = open_format("tiny-kimi")
said = [*fmt.tokenizer.encode("A sum."), fmt.think_close_id, *fmt.tokenizer.encode("It is done."), fmt.end_id]
port = int(sys.argv[sys.argv.index("--port") + 1])
with standing_in(StandIn({name!r}, lambda prompt: said, fmt.end_id, delay=0.05), port=port):
    time.sleep(300)
"""


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_a_run_goes_on_whoever_was_killed(name: Name, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(SERVER.format(python=sys.executable, root=str(ROOT), name=name))
    script.chmod(0o755)
    engine, draw = Engine(Start(name, str(script), tmp_path)), random.Random(3)
    found = KillFinding()
    try:
        for victim in VICTIMS:
            trial(engine, victim, draw, found)
    finally:
        engine.close()

    assert (3, 0, 0, 0, 0) == (found.trials, found.lost, found.double, found.left, found.early)
