"""`python -m harness emulator` as a process: its one line, its exit codes, its errors. Needs starlette, no torch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from harness.emulator.oracle_log import read_oracle
from harness.tiny_target.vocabulary import write_vocabulary

ROOT = Path(__file__).parents[2]
IDS = [72, 105, 256 + 23, 72, 105, 256 + 2]
"""`Hi</think>Hi<|im_end|>` where only single bytes are in the base vocabulary."""


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A directory with a tokenizer and a context, which is all that a pool needs."""
    directory = tmp_path / "weights"
    directory.mkdir()
    write_vocabulary({bytes([value]): value for value in range(256)}, directory)
    (directory / "config.json").write_text('{"max_position_embeddings": 512}')
    (directory / "pool.jsonl").write_text(json.dumps({"key": "row-1", "ids": IDS}) + "\n")
    return directory


def command(weights: Path, *more: str) -> list[str]:
    pool = str(weights / "pool.jsonl")
    return [sys.executable, "-m", "harness", "emulator", "--weights", str(weights), "--pool", pool, *more]


@contextlib.contextmanager
def started(weights: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command(weights, *more), cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def refused(*arguments: str) -> str:
    """The one line with which the command ends where it cannot start."""
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (2, "") == (done.returncode, done.stdout)
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_answers_at_the_address_it_prints_and_ends_clean(
    number: signal.Signals, weights: Path, tmp_path: Path
) -> None:
    oracle = tmp_path / "runs" / "oracle.jsonl"
    body = {"model": "drafter-gate/tiny-kimi", "messages": [{"role": "user", "content": "Hi"}], "user": "row-1"}
    with started(weights, "--oracle", str(oracle)) as process:
        assert process.stdout is not None
        word, url = process.stdout.readline().split()
        with httpx2.Client(trust_env=False) as client:
            message = client.post(f"{url}/chat/completions", json=body).json()["choices"][0]["message"]
        process.send_signal(number)
        rest, errors = process.communicate(timeout=30)

    assert (word, message["reasoning"], message["content"]) == ("listening", "Hi", "Hi")
    assert (0, "", "") == (process.returncode, rest, errors)
    assert [tuple(IDS)] == [entry.output_ids for entry in read_oracle(oracle)]


def test_a_taken_port_is_one_sentence(weights: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = refused(*command(weights, "--port", str(port)))

    expected = (
        f"port {port} on 127.0.0.1 cannot be had ({os.strerror(98)}). Take another, or a free one with: --port 0\n"
    )
    assert expected == message


def test_a_port_that_is_none_is_one_sentence(weights: Path) -> None:
    assert "port 99999 on 127.0.0.1 cannot be had" in refused(*command(weights, "--port", "99999"))


def test_a_missing_tokenizer_is_one_sentence(weights: Path) -> None:
    (weights / "tiktoken.model").unlink()

    assert "no tokenizer there" in refused(*command(weights))


@pytest.mark.parametrize(
    "text,message",
    [
        ("{", "not JSONL"),
        ("[]\n", 'line 1: an answer is {"ids"'),
        ('{"ids": [1]}\n{"ids": []}\n', "line 2: an answer is"),
        ('{"ids": ["a"]}\n', "line 1: an answer is"),
    ],
)
def test_a_pool_that_is_none_is_one_sentence(text: str, message: str, weights: Path) -> None:
    (weights / "pool.jsonl").write_text(text)

    assert message in refused(*command(weights))


def test_an_unknown_format_is_one_sentence(weights: Path) -> None:
    assert "unknown format 'glm'" in refused(*command(weights, "--format", "glm"))


def test_an_oracle_log_that_cannot_be_written_is_one_sentence(weights: Path) -> None:
    assert "the oracle log cannot be written" in refused(*command(weights, "--oracle", str(weights)))


def test_a_model_without_a_context_is_one_sentence(weights: Path) -> None:
    (weights / "config.json").unlink()

    assert "--context N" in refused(*command(weights))
