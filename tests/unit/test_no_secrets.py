"""Two scanners find no secret in the tree: our own rules, and those of a detector that others keep.

The second is detect-secrets: it runs offline and in this process, pip installs it under a lock like all else, and its
rules are regular expressions that can be read whole. gitleaks and trufflehog are programs of another language, which
no lock of ours covers. Its filters are left out (a comment in a file can switch it off by them), so that every rule
reads every byte of every file: cassettes, goldens and weights alike. Encodings are undone by our own rules.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from detect_secrets.plugins.base import BasePlugin, RegexBasedDetector

from pipeline.base.redaction import issued_in
from pipeline.base.secret_shapes import encoded_shapes_in

ROOT = Path(__file__).parents[2]
IGNORED = {line.strip("/\n") for line in (ROOT / ".gitignore").read_text("utf-8").splitlines()} | {".git"}

UNUSED: Final = {
    "HexHighEntropyString": "every digest and every golden is one",
    "Base64HighEntropyString": "every vocabulary and every packed body is one",
    "KeywordDetector": "it takes any text behind a name such as `token` for a secret, and this project is about tokens",
    "IPPublicDetector": "an address is no secret, and versions in constraints.txt look like one",
}
"""Rules that are left out, and why."""

MADE_UP: Final = re.compile(rb"(?:0123456789|abcdefghij)\w*", re.IGNORECASE)
"""In tests, a key is made up if its digits or letters stand in their order; they are taken out before the scan."""

PASSWORDS: Final = {
    "pw": "an address of tests/unit/harness/cassettes/test_scrub.py",
    "pass": "addresses there and in tests/unit/pipeline/generation/probe/test_exchange_file.py",
    "s3cret-pw": "an address of tests/unit/pipeline/cli/test_options.py",
    "{PASSWORD}": "a place for one in tests/contract/test_secrets.py",
}
"""What tests write as a password in an address: no more than these very words."""


KINDS: Final[tuple[type[BasePlugin], ...]] = tuple(get_mapping_from_secret_type_to_class().values())
RULES: Final = tuple(kind() for kind in KINDS if kind.__name__ not in UNUSED)


def found_in(data: bytes) -> list[str]:
    """Return what either scanner finds, by kind."""
    text = MADE_UP.sub(b"", data).decode("latin-1")
    found = [rule.secret_type for rule in RULES if set(rule.analyze_string(text)) - PASSWORDS.keys()]
    return [*issued_in(text), *encoded_shapes_in(text), *found]


def files_below(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name not in IGNORED:
            yield from files_below(path) if path.is_dir() else (path,)


def test_no_file_of_the_tree_holds_a_secret() -> None:
    found = {path.relative_to(ROOT).as_posix(): found_in(path.read_bytes()) for path in files_below(ROOT)}

    assert any(name.startswith("cassettes/") for name in found)
    assert {} == {name: kinds for name, kinds in found.items() if kinds}


def test_what_is_left_out_of_the_second_scanner_is_there() -> None:
    """A rule of another name in a later version would be left out no more."""
    assert UNUSED.keys() <= {kind.__name__ for kind in KINDS}
    assert all(isinstance(rule, RegexBasedDetector) for rule in RULES)


HEX = "f0e1d2c3b4a59687" * 4
KEYS = {
    "OpenRouter": "sk-or-v1-" + HEX,
    "OpenAI": "sk-" + "proj-" + "Zy1Xw2Vu3Ts4Rq5Po6Nm",
    "AWS": "AK" + "IA" + "QX3T7ZLM2PWK9RVB",
    "Google": "AI" + "za" + "SyB4x-7Qw9Lk2Jh5Gf8Ds1Ap6Zo3Xi0Cv-N",
    "Slack": "xo" + "xb-" + "2718281828-314159265358-" + "zYxWvUtSrQpOnMlKjIhGfEdC",
    "GitHub": "gh" + "p_" + "zY3xW5vU7tS9rQ1pO3nM5lK7jI9hG1fE3dC5",
    "PEM": "-----BEGIN " + "PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END " + "PRIVATE KEY-----",
}
KNOWN_TO_BOTH = ("AWS", "Slack", "GitHub", "PEM")

FORMS: dict[str, Callable[[str], bytes]] = {
    "plain": str.encode,
    "base64": lambda key: base64.b64encode(key.encode()),
    "hex": lambda key: key.encode().hex().encode(),
    "UTF-16": lambda key: key.encode("utf-16"),
    "percent": lambda key: "".join(f"%{byte:02x}" for byte in key.encode()).encode(),
    "\\u": lambda key: "".join(f"\\u{ord(char):04x}" for char in key).encode(),
}
PLANTED: dict[str, bytes] = {
    "a cassette": (ROOT / "cassettes/emulator/chutes/multi_turn.yaml").read_bytes(),
    "a golden": (ROOT / "goldens/probes.jsonl").read_bytes(),
    "code": Path(__file__).read_bytes(),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("host", PLANTED.values(), ids=PLANTED)
def test_a_planted_key_is_found(key: str, form: Callable[[str], bytes], host: bytes) -> None:
    middle = len(host) // 2

    assert found_in(host[:middle] + b'"' + form(key) + b'"' + host[middle:])


@pytest.mark.parametrize("name", KNOWN_TO_BOTH)
def test_the_second_scanner_finds_what_it_knows_alone(name: str) -> None:
    assert [rule.secret_type for rule in RULES if [*rule.analyze_string(f"key: {KEYS[name]}")]]
