"""Compare what two trees print for the same input.

`python -m harness offline-verbs MATERIAL --against TREE`

Guarantees: each tree runs its own `python -m pipeline` on the same files. Stdout, stderr, exit status and every file
that a verb writes are compared. A difference is a changed promise to users: exit 1, by name.

`MATERIAL` holds `recordings/exchanges.jsonl`, `kimi/` and `datasets/`, for the reference tests. `TREE` is another
checkout, such as `git worktree add TREE REVISION`. Without `--against` the digests alone are printed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.base.paths import ROOT
from pipeline.base.screen import show
from pipeline.records import Json

DATASETS = ("B1", "B1-llamafactory", "B2", "B3", "B4", "B5", "B6", "B7", "B8")
FORMATS = ("kimi-k2", "kimi-k2-thinking", "kimi-k2.5", "kimi-k2.6")


@dataclass(frozen=True, slots=True)
class VerbRun:
    """One call of a verb.

    Its name in the table, its arguments, its stdin, and files beside it.
    """

    name: str
    arguments: tuple[str, ...]
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, or print digests; 1 where two trees differ."""
    parser = argparse.ArgumentParser(prog="python -m harness offline-verbs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("material", type=Path, metavar="MATERIAL", help="the reference material")
    parser.add_argument("--against", type=Path, metavar="TREE", help="another checkout to compare with")
    options = parser.parse_args(arguments)
    different = 0
    for run in runs_of(options.material.resolve()):
        here = output_of(ROOT, run)
        there = output_of(options.against.resolve(), run) if options.against else here
        different += here != there
        names = [name for name in here.keys() | there.keys() if here.get(name) != there.get(name)]
        verdict = f"DIFFERS in {', '.join(sorted(names))}" if names else "same"
        total = hashlib.sha256(json.dumps(here, sort_keys=True).encode()).hexdigest()[:12]
        show(f"{run.name:44} {total} {verdict if options.against else ''}")
    return 1 if different else 0


def output_of(tree: Path, run: VerbRun) -> dict[str, str]:
    """Return digests of everything that a run printed and wrote.

    Paths of the tree itself and of the folder are no difference.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, data in run.files.items():
            Path(folder, name).write_bytes(data)
        environment = {**os.environ, "PYTHONPATH": str(tree), "DRAFTER_GATE_STATE": folder}
        done = subprocess.run(
            [sys.executable, str(tree / "pipeline" / "__main__.py"), *run.arguments],
            cwd=folder,
            env=environment,
            input=run.stdin,
            capture_output=True,
            check=False,
        )
        named = ((str(tree).encode(), b"TREE"), (folder.encode(), b"FOLDER"))
        told = {"stdout": done.stdout, "stderr": done.stderr}
        for path, word in named:
            told = {name: data.replace(path, word) for name, data in told.items()}
        files = {path.name: path.read_bytes() for path in sorted(Path(folder).glob("out*"))}
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in {**told, **files}.items()}
        return {**digests, "exit": str(done.returncode)}


def runs_of(material: Path) -> Iterator[VerbRun]:
    """Yield every offline verb on all of the material."""
    kimi, exchanges = material / "kimi", material / "recordings" / "exchanges.jsonl"
    yield VerbRun("reasons", ("reasons",))
    yield VerbRun("datasets", ("datasets",))
    yield VerbRun("ledger", ("ledger",))
    proven, files = ("--fingerprint", "routes.jsonl"), {"routes.jsonl": proven_routes(exchanges)}
    for fmt in FORMATS:
        named = ("--format", fmt, "--tokenizer", str(kimi))
        yield VerbRun(f"render {fmt}", ("render", *named), renderings(kimi / "renderings.json"))
        yield VerbRun(f"reconstruct {fmt}", ("reconstruct", *named), answers(exchanges))
        yield VerbRun(f"reconstruct {fmt}, proven routes", ("reconstruct", *named, *proven), answers(exchanges), files)
    yield VerbRun("reconstruct --oracle", ("reconstruct", *named, *proven, "--oracle"), answers(exchanges), files)
    vocabulary = [part for fmt in FORMATS for part in ("--tokenizer", f"{fmt}={kimi}")]
    yield VerbRun("fingerprint", ("fingerprint", str(exchanges), *vocabulary))
    yield VerbRun("fingerprint --json", ("fingerprint", str(exchanges), *vocabulary, "--json"))
    for path in sorted((material / "datasets").rglob("*.jsonl")):
        for dataset in DATASETS:
            if path.name.startswith(dataset.partition("-")[0]) or path.parent.name.startswith(
                dataset.partition("-")[0]
            ):
                name = f"{dataset} {path.name}"
                chosen = (str(path), "--dataset", dataset)
                prepared = ("--out", "out.jsonl", "--rejects", "out.rejects.jsonl", "--no-decontaminate", "--json")
                yield VerbRun(f"prepare {name}", ("prepare", *chosen, *prepared))
                yield VerbRun(f"audit {name}", ("audit", *chosen, "--rows"))


def proven_routes(path: Path) -> bytes:
    """Return fingerprints that claim all traits of every recorded route.

    Proofs are so tried to their end.
    """
    traits: Mapping[str, Json] = {
        **dict.fromkeys(("end_token_counted", "end_token_counted_tools", "think_close_counted", "count_native"), True),
        "unclosed_thinking": "reasoning",
        "prompt_prefix": [],
        "prompt_prefix_tools": [],
        "seam_space": "kept",
        "line_ends": "kept",
        "deltas": "tokens",
        "markers": "raw",
        "tool_ids": "verbatim",
        "tool_arguments": "verbatim",
        "turn_end": "by_role",
        "think_lead": "written",
    }
    given = (json.loads(line) for line in path.read_bytes().splitlines())
    routes = sorted({(str(one["provider"]), str(one["model"]), bool(one["stream"])) for one in given})
    lines = (
        {"provider": provider, "model": model, "stream": stream, "trait": name, "value": value, "n": 99, "proven": True}
        for provider, model, stream in routes
        for name, value in traits.items()
    )
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def renderings(path: Path) -> bytes:
    """Return the committed renderings' prompts, one a line."""
    lines = (
        {"id": f"{case['template']}/{case['case']}", "messages": case["messages"], "tools": case["tools"] or []}
        for case in json.loads(path.read_text("utf-8"))
    )
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()


def answers(path: Path) -> bytes:
    """Return the recorded exchanges as `reconstruct` reads them."""
    return b"".join(map(answer, path.read_bytes().splitlines()))


def answer(line: bytes) -> bytes:
    """Return one exchange as a line for `reconstruct`.

    Where its request is not known, the prompt is one that was not asked.
    """
    given = json.loads(line)
    request = given["request"] or {"messages": [{"role": "user", "content": "hi"}]}
    made = {
        "id": given["id"],
        "prompt": {"messages": request.get("messages") or [], "tools": request.get("tools") or []},
    }
    if given["stream"]:
        made["sse"] = given["body"]
    else:
        try:
            made["response"] = json.loads(given["body"])
        except ValueError:
            made["response"] = given["body"]
    return json.dumps(made, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
