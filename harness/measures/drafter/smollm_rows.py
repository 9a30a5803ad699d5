"""Make rows of a local model that has no Format.

`python -m harness smollm-rows MODEL OUT FILE… [--hold-out 60] [--limit N]`

The model's own chat template renders the prompts. Guarantees: answers are the sampled ids, never decoded and encoded
again, so their evidence is `engine_ids`. A prompt that is not asked has its reason in the quarantine. Held-out
questions are spread evenly over each set: their prompts are in `held_out.jsonl`, and no row is made of any of their
turns. Shards and manifest are those of `generate`; the format is empty, since no contract of this repository covers
the template. Run again, it resumes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.measures.drafter.questions import Question, QuestionsError, chosen, read_questions
from pipeline.base.files import write_whole
from pipeline.base.json_lines import canonical
from pipeline.base.paths import ROOT
from pipeline.gate.attestation import AttestationError, attestation_path, read_attestation, trusted_keys
from pipeline.gate.digests import tree_digests
from pipeline.generation.plan import row_seed
from pipeline.records import Evidence, Ids, Json, Reason, Refusal, Sampling, Span, SpanKind, TokenRow
from pipeline.shards import manifest as manifests
from pipeline.shards.manifest import Manifest, ManifestError, Session
from pipeline.shards.shards import Quarantined, ShardError, ShardFolder

if TYPE_CHECKING:
    from pipeline.generation.engines.local import LocalEngine

HELD_OUT = "held_out.jsonl"
BATCH = 32


class RowsNotMadeError(Exception):
    """Why no rows can be made."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model directory, its engine, template and digests."""

    directory: Path
    engine: LocalEngine
    template: Any
    tokenizer_sha256: str
    weights_sha256: str

    def prompt_ids(self, turns: Sequence[Mapping[str, str]]) -> Ids:
        """Return a conversation's ids, ready for its answer.

        Rendered by the model's own template.
        """
        rendered = self.template.apply_chat_template([*turns], add_generation_prompt=True, return_dict=True)
        return tuple(rendered["input_ids"])


@dataclass(slots=True)
class Job:
    """The model, the sampling, and the folder of the rows."""

    model: Model
    sampling: Sampling
    folder: ShardFolder
    manifest: Manifest
    out: Path


def open_model(directory: Path, threads: int | None = None) -> Model:
    """Load from disk only. Raises RowsNotMadeError, EngineError."""
    from transformers import AutoTokenizer

    from pipeline.generation.engines.local import load_engine

    if not (directory / "tokenizer.json").is_file():
        raise RowsNotMadeError(
            f"{directory} holds no tokenizer.json. Give a model directory, as harness.measures.drafter.smollm writes"
        )
    engine = load_engine(directory, threads=threads)
    template = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    weights = hashlib.sha256()
    for path in sorted(directory.glob("*.safetensors")):
        weights.update(bytes.fromhex(_sha256(path)))
    return Model(directory, engine, template, _sha256(directory / "tokenizer.json"), weights.hexdigest())


def make_rows(model: Model, out: Path, questions: Sequence[Question], sampling: Sampling, session: Session) -> Manifest:
    """Make a row of each turn not held out.

    Raises ManifestError, ShardError, OSError.
    """
    asked, held = [q for q in questions if not q.held_out], [q for q in questions if q.held_out]
    wanted = settings(model, sampling, questions)
    manifests.begin(out, wanted)
    with manifests.hold(out):
        manifest = manifests.begin(out, wanted)
        metadata = {"run": manifest.run, "format": "", "tokenizer_sha256": model.tokenizer_sha256}
        folder = ShardFolder(out, route="local", metadata=metadata)
        manifests.check_shards(manifest, folder.shards, out)
        manifest = replace(manifest, sessions=(*manifest.sessions, session), shards=tuple(folder.shards))
        manifests.write(out, manifest)
        _write_held_out(out, model, held)
        job = Job(model, sampling, folder, manifest, out)
        _ask(job, asked)
        return _finish(job)


def settings(model: Model, sampling: Sampling, questions: Sequence[Question]) -> dict[str, Json]:
    """Return everything that decides which rows come out."""
    asked: list[Json] = [question.document() for question in questions]
    return {
        "route": "local",
        "api": "local",
        "model": model.directory.name,
        "provider": "local",
        "stream": False,
        "tools": "none",
        "format": "",
        "tokenizer_sha256": model.tokenizer_sha256,
        "fingerprint_sha256": None,
        "weights_sha256": model.weights_sha256,
        "prompts_sha256": hashlib.sha256(canonical({"questions": asked})).hexdigest(),
        "sampling": {
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
            "seed": sampling.seed,
        },
    }


def attested_session() -> Session:
    """Return a session attested for this very tree.

    Raises AttestationError, RowsNotMadeError.
    """
    attested = read_attestation(attestation_path(), trusted_keys(ROOT), datetime.now(UTC))
    found = tree_digests(ROOT)
    if dict(attested.digests) != dict(found):
        raise RowsNotMadeError("the tree changed since the contract suite passed. Run: nox -s contract")
    return Session(_now(), attested.sha256, found)


# Asking


def _ask(job: Job, questions: Sequence[Question]) -> None:
    """Ask first turns, then later ones behind the model's answers."""
    history: dict[str, list[Mapping[str, str]]] = {}
    for turn in range(max((len(q.turns) for q in questions), default=0)):
        waiting = [q for q in questions if turn < len(q.turns) and (turn == 0 or q.id in history)]
        done = _done_rows(job)
        todo: list[tuple[Question, str, Ids]] = []
        for question in waiting:
            turns = [*history.get(question.id, []), {"role": "user", "content": question.turns[turn]}]
            history[question.id] = turns
            prompt = job.model.prompt_ids(turns)
            if (row_id := _row_id(job, question, turn)) in done:
                continue
            if refusal := _refusal(job, prompt):
                job.folder.refuse(Quarantined(row_id, refusal, dataset=question.dataset))
                continue
            todo.append((question, row_id, prompt))
        _answer(job, todo)
        job.folder.flush()
        _remember(job, history, waiting, turn)


def _answer(job: Job, todo: list[tuple[Question, str, Ids]]) -> None:
    """Answer prompts in batches of like length, to pad little."""
    todo = sorted(todo, key=lambda each: (len(each[2]), each[1]))
    while batch := todo[:BATCH]:
        todo = todo[BATCH:]
        own = [replace(job.sampling, seed=row_seed(job.sampling.seed, row_id)) for _, row_id, _ in batch]
        found = job.model.engine.generate([prompt for _, _, prompt in batch], own)
        for (question, row_id, prompt), answer in zip(batch, found, strict=True):
            row = TokenRow(
                row_id, prompt, answer.ids, _spans(answer.ids, finished=answer.finished), Evidence.ENGINE_IDS
            )
            job.folder.accept(row, question.dataset)
        job.folder.flush()
        job.manifest = replace(job.manifest, shards=tuple(job.folder.shards))
        manifests.write(job.out, job.manifest)
        sys.stderr.write(f"{len(job.folder)} rows, {len(todo)} more of this turn\n")


def _spans(ids: Ids, *, finished: bool) -> tuple[Span, ...]:
    stop = len(ids) - finished
    spans = (Span(SpanKind.CONTENT, 0, stop), Span(SpanKind.END, stop, len(ids)))
    return tuple(span for span in spans if span.stop > span.start)


def _remember(job: Job, history: dict[str, list[Mapping[str, str]]], waiting: Sequence[Question], turn: int) -> None:
    """Extend each conversation by its answer.

    A conversation whose turn was refused ends there.
    """
    done = _done_rows(job)
    for question in waiting:
        if (output := done.get(_row_id(job, question, turn))) is None:
            history.pop(question.id, None)
            continue
        text = job.model.template.decode([*output], skip_special_tokens=True)
        history[question.id] = [*history[question.id], {"role": "assistant", "content": text}]


def _row_id(job: Job, question: Question, turn: int) -> str:
    """Return the row's id; sampled rows carry their seed.

    Several sampled runs so make one training set.
    """
    return f"{question.id}/{turn}{f'/{job.sampling.seed}' * (job.sampling.temperature > 0)}"


def _done_rows(job: Job) -> dict[str, Ids]:
    """Return the output ids of all written rows, by row."""
    import pyarrow.parquet as pq

    found: dict[str, Ids] = {}
    for shard in job.folder.shards:
        table = pq.read_table(job.out / shard.file, columns=["id", "output_ids"], partitioning=None)
        found |= {row["id"]: tuple(row["output_ids"]) for row in table.to_pylist()}
    return found


def _refusal(job: Job, prompt: Ids) -> Refusal | None:
    wanted, room = len(prompt) + job.sampling.max_tokens, job.model.engine.context
    if wanted <= room:
        return None
    detail = f"prompt and max_tokens need {wanted} tokens, the model takes {room}"
    return Refusal(Reason.PROMPT_UNSUPPORTED, detail, field="messages")


def _finish(job: Job) -> Manifest:
    prompt, output = job.folder.tokens()
    accepted = job.folder.evidence().total()
    result: dict[str, Json] = {
        "complete": True,
        "rows": {"accepted": accepted, "refused": job.folder.reasons.total()},
        "accepted_by_evidence": dict(job.folder.evidence()),
        "refused_by_reason": dict(job.folder.reasons),
        "tokens": {"prompt": prompt, "output": output},
        "cost": {"usd": "0", "unsettled_worst_usd": "0", "unsettled_requests": 0, "emulated": True, "budget_usd": "0"},
        "counted": None,
    }
    manifest = replace(job.manifest, result=result, shards=tuple(job.folder.shards))
    tree = tree_digests(ROOT) if manifest.sessions[-1].tree_start else {}
    manifest = manifests.with_last_session(manifest, ended=_now(), tree_end=tree, outcome="complete")
    manifests.write(job.out, manifest)
    return manifest


def _write_held_out(out: Path, model: Model, held: Sequence[Question]) -> None:
    """Write the prompts of held-out questions.

    First turns alone: a later one needs an answer first.
    """
    lines = []
    for question in held:
        turns = [{"role": "user", "content": question.turns[0]}]
        line = {"id": f"{question.id}/0", "dataset": question.dataset, "messages": turns}
        lines.append(json.dumps({**line, "prompt_ids": [*model.prompt_ids(turns)]}) + "\n")
    write_whole(out / HELD_OUT, lambda file: file.writelines(line.encode("ascii") for line in lines))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness smollm-rows", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("model", type=Path, help="a model directory, as harness.measures.drafter.smollm writes")
    add("out", type=Path, help="the folder of the rows, new or begun before")
    add("files", type=Path, nargs="+", help="JSON Lines with `turns` or `messages`, a set a file")
    add("--hold-out", type=int, default=60, help="questions kept out of training, evenly over the sets (default 60)")
    add("--limit", type=int, help="at most so many questions a set")
    add("--max-tokens", type=int, default=128)
    add("--temperature", type=float, default=0.0)
    add("--seed", type=int, default=0)
    add("--threads", type=int, help="of torch, for the whole process")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    from pipeline.generation.engines.local import EngineError

    options = _parser().parse_args(arguments)
    try:
        session = attested_session()
        questions = chosen(read_questions(options.files, options.limit), options.hold_out)
        sampling = Sampling(options.temperature, options.max_tokens, options.seed)
        manifest = make_rows(open_model(options.model, options.threads), options.out, questions, sampling, session)
    except AttestationError as error:
        sys.stderr.write(f"error: {error.objection.what}. Run: {error.objection.mend}\n")
        return 3
    except (RowsNotMadeError, QuestionsError, EngineError, ManifestError, ShardError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(json.dumps({"out": str(options.out), **manifest.result}) + "\n")
    return 0
