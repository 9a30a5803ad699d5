"""The exact tokenizer of a target model.

Guarantees: text is encoded with specials off, as one piece, from strict UTF-8; a control token is reached by name and
never by its spelling. Refuses vocabulary files of another hash, lone surrogates, text that tiktoken gives up on, and
text that the model's own tokenizer would normalise to another or, where its vocabulary lacks a byte, shorten.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path

import tiktoken

from pipeline.records import Reason, RefusedError

KIMI_SHA256 = "b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103"
CONTROL_TOKENS = 256
"""Kimi reserves this many ids after its base vocabulary, named or not."""

KIMI_PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
"""`pat_str` of tokenization_kimi.py, the same for K2, K2-Thinking, K2.5 and K2.6."""

PIECE_CHARS = 400_000
RUN_CHARS = 25_000
"""tokenization_kimi.py cuts a *prompt* every 400,000 code points, then where a run of (non-)space passes 25,000."""

_REMEMBERED = 2
_LONG = 900_000
_HOPELESS_RUN = re.compile(rf"[^\S\r\n]{{{_LONG}}}")
"""tiktoken 0.14 panics, with a Rust backtrace on stderr, at 999,024 spaces in a row: not even tried."""


class TokenizerError(Exception):
    """A vocabulary that is missing, damaged, or another one."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a family's tokenizer splits text.

    By `pattern`, after NFC where `nfc`, long prompts cut first where `cut`. `unmerged` are base tokens that no merge
    makes: their ids are read, and never written.
    """

    pattern: str
    nfc: bool = False
    cut: bool = False
    unmerged: Mapping[bytes, int] = field(default_factory=dict)


KIMI_RULES = Rules(KIMI_PATTERN, cut=True)


class Tokenizer:
    """Base and control tokens that share the ids 0..size-1.

    There are no holes. Where `control` is a sequence, as in Kimi's layout, the control tokens follow the base tokens in
    that order.
    """

    def __init__(
        self,
        directory: Path,
        ranks: dict[bytes, int],
        control: Sequence[str] | Mapping[str, int],
        sha256: str,
        rules: Rules = KIMI_RULES,
    ) -> None:
        self.directory = directory
        self.sha256 = sha256
        self.rules = rules
        self._ids_of_bytes = {**ranks, **rules.unmerged}
        self.base_size = len(self._ids_of_bytes)
        self.size = self.base_size + len(control)
        numbered = control if isinstance(control, Mapping) else {name: len(ranks) + k for k, name in enumerate(control)}
        self._control_ids = dict(sorted(numbered.items(), key=lambda item: item[1]))
        self._control = {token: name for name, token in self._control_ids.items()}
        self._encoding = tiktoken.Encoding(
            name=f"layout-{sha256[:8]}",
            pat_str=rules.pattern,
            mergeable_ranks=ranks,
            special_tokens=self._control_ids | {data.decode(): token for data, token in rules.unmerged.items()},
            explicit_n_vocab=self.size,
        )
        self._pieces = [b""] * self.size
        for data, token in chain(self._ids_of_bytes.items(), ((k.encode(), v) for k, v in self._control_ids.items())):
            self._pieces[token] = data
        self.missing_bytes = frozenset(byte for byte in range(256) if bytes([byte]) not in ranks)
        self._missing = re.compile(b"|".join(re.escape(bytes([byte])) for byte in sorted(self.missing_bytes)))
        self._remembered: Callable[[str], list[int]] | None = None
        self._openers = {name[0] for name in self._control_ids}
        self._spelled = re.compile("|".join(re.escape(name) for name in self._control_ids))
        self._decode = self._encoding.decode_bytes
        self._encode = self._encoding.encode_ordinary

    @property
    def control_names(self) -> tuple[str, ...]:
        """The control tokens' names in id order."""
        return tuple(self._control_ids)

    @property
    def base_ids(self) -> Sequence[int]:
        """The ids of the base tokens, ascending."""
        return [token for token in range(self.size) if token not in self._control]

    def encode(self, text: str) -> list[int]:
        """Return ids of `text`, split as a model's own output.

        As one piece, with specials off.
        """
        remembered = self._remembered
        return self._encoded(text) if remembered is None else list(remembered(text))

    def _encoded(self, text: str) -> list[int]:
        self._require_encodable(text)
        try:
            return self._encode(text)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # tiktoken's PanicException is no Exception; a run of 1 M spaces raises it
            raise _unencodable(text) from error

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Remember, within, the texts encoded last.

        For callers that vary one of several texts and encode all of them each time.
        """
        self._remembered = lru_cache(maxsize=_REMEMBERED)(self._encoded)
        try:
            yield
        finally:
            self._remembered = None

    def encode_prompt(self, text: str, *, whole: bool = False) -> list[int]:
        """Return a rendered prompt's ids, cut as engines cut.

        Control tokens spelled in `text` are read as control tokens. For Kimi this is `encode(text)` of
        tokenization_kimi.py, which vLLM and SGLang call: pieces of 400,000 code points, cut again where a run of space
        or of non-space passes 25,000. Other families are not cut, and no text that is taken as a `whole`.
        """
        self._require_encodable(text)
        ids: list[int] = []
        for piece in prompt_pieces(text) if self.rules.cut and not whole else (text,):
            try:
                ids.extend(self._encoding.encode(piece, allowed_special=set(self._control_ids), disallowed_special=()))
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # as in `encode`
                raise _unencodable(piece) from error
        return ids

    def id_of(self, control: str) -> int:
        """Return the id of a control token; TokenizerError otherwise."""
        try:
            return self._control_ids[control]
        except KeyError:
            raise TokenizerError(f"{control!r} is no control token of {self.directory}") from None

    def name_of(self, token: int) -> str | None:
        """Return a control token's name, None for a base token."""
        return self._control.get(token)

    def is_control(self, token: int) -> bool:
        """Return whether the id is a control token's."""
        return token in self._control

    def find_control(self, text: str) -> tuple[int, str] | None:
        """Return offset and name of the first spelled control token."""
        if not any(opener in text for opener in self._openers):
            return None
        found = self._spelled.search(text)
        return (found.start(), found.group()) if found else None

    def id_of_bytes(self, data: bytes) -> int | None:
        """Return the one base token that is exactly these bytes."""
        return self._ids_of_bytes.get(data)

    def token_bytes(self, token: int) -> bytes:
        """Return one token's bytes; a control token gives its name's."""
        return self.decode_bytes((token,))

    def pieces(self, ids: Iterable[int]) -> list[bytes]:
        """Return the bytes of each token; `decode_bytes` joins them."""
        tokens = list(ids)
        if tokens and not 0 <= min(tokens) <= max(tokens) < self.size:
            self.decode_bytes(tokens)  # which says where
        return list(map(self._pieces.__getitem__, tokens))

    def control_of_bytes(self, data: bytes) -> int | None:
        """Return the control token whose name is exactly these bytes."""
        try:
            return self._control_ids.get(data.decode("utf-8"))
        except UnicodeDecodeError:
            return None

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of ids; control tokens give their names'."""
        tokens = list(ids)
        try:
            return self._decode(tokens)
        except (KeyError, OverflowError):
            bad = next(i for i, token in enumerate(tokens) if not 0 <= token < self.size)
            message = f"id {tokens[bad]} at position {bad} is outside 0..{self.size - 1}"
            raise RefusedError(Reason.UNKNOWN_ID, message, token_position=bad) from None

    def decode_text(self, ids: Iterable[int]) -> str:
        """Return the text of ids; refused unless UTF-8."""
        tokens = list(ids)
        data = self.decode_bytes(tokens)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            message = f"bytes {data[error.start : error.end].hex()} at offset {error.start} are not UTF-8"
            ends = accumulate(len(self.token_bytes(token)) for token in tokens)
            at = next(position for position, end in enumerate(ends) if end > error.start)
            raise RefusedError(Reason.LAYOUT_INVALID, message, token_position=at) from None

    def _require_encodable(self, text: str) -> None:
        if self.missing_bytes:
            self._require_bytes(text)
        if len(text) < _LONG and text.isascii():
            return
        _require_encodable(text)
        if self.rules.nfc:
            _require_nfc(text)

    def _require_bytes(self, text: str) -> None:
        """Refuse text with a byte of no token.

        The model's own tokenizer leaves such bytes out.
        """
        raw = text.encode("utf-8", errors="surrogatepass")
        if found := self._missing.search(raw):
            at = len(raw[: found.start()].decode("utf-8", errors="ignore"))
            message = f"the vocabulary has no token for the byte {found.group()[0]:#04x} of character {at}"
            raise RefusedError(Reason.UNENCODABLE, message, char_offset=at)


def _require_encodable(text: str) -> None:
    if len(text) >= _LONG and _HOPELESS_RUN.search(text):
        raise _unencodable(text)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        message = f"character {error.start} is the lone surrogate U+{ord(text[error.start]):04X}"
        raise RefusedError(Reason.LONE_SURROGATE, message, char_offset=error.start) from None


def _require_nfc(text: str) -> None:
    """Refuse text that NFC changes.

    Python's tables are newer than those of the `tokenizers` library, and so know all marks that it moves.
    """
    if not unicodedata.is_normalized("NFC", text):
        normal = unicodedata.normalize("NFC", text)
        pairs = enumerate(zip(text, normal, strict=False))
        at = next((i for i, (ours, theirs) in pairs if ours != theirs), min(len(text), len(normal)))
        raise RefusedError(Reason.NOT_NFC, f"NFC changes the text from character {at} on", char_offset=at)


def _unencodable(text: str) -> RefusedError:
    return RefusedError(Reason.UNENCODABLE, f"tiktoken gave up on a text of {len(text)} characters (a very long run)")


def prompt_pieces(text: str) -> Iterator[str]:
    """Yield the pieces that Kimi's `encode` cuts a prompt into.

    `"".join` of them is `text`.
    """
    for start in range(0, len(text), PIECE_CHARS):
        yield from _cut_runs(text[start : start + PIECE_CHARS])


def _cut_runs(text: str) -> Iterator[str]:
    if len(text) <= RUN_CHARS:
        yield text
        return
    start, run, space = 0, 0, text[0].isspace()
    for i, char in enumerate(text):
        if char.isspace() != space:
            run, space = 1, not space
            continue
        run += 1
        if run > RUN_CHARS:
            yield text[start:i]
            start, run = i, 1
    yield text[start:]


def load_tokenizer(directory: Path, *, expect_sha256: str | None = None) -> Tokenizer:
    """Read `tiktoken.model` and `tokenizer_config.json`.

    TokenizerError where the hash is not `expect_sha256`; it names both.
    """
    raw = _read(directory / "tiktoken.model")
    sha256 = hashlib.sha256(raw).hexdigest()
    if expect_sha256 is not None and sha256 != expect_sha256:
        message = (
            f"{directory / 'tiktoken.model'} has sha256 {sha256}, wanted {expect_sha256}. Give the right directory"
        )
        raise TokenizerError(f"{message} with --tokenizer DIR or $DRAFTER_GATE_TOKENIZERS.")
    ranks = _ranks(raw, directory)
    return Tokenizer(directory, ranks, _control_names(directory, len(ranks)), sha256)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        where = "Name its directory: --tokenizer DIR or $DRAFTER_GATE_TOKENIZERS, or --weights DIR of the emulator."
        raise TokenizerError(f"{path}: no tokenizer there ({error.strerror}). {where}") from None


def _ranks(raw: bytes, directory: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(raw.splitlines(), 1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            message = f"{directory / 'tiktoken.model'}, line {number}: not 'base64 rank': {line[:60]!r}"
            raise TokenizerError(message) from None
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise TokenizerError(f"{directory / 'tiktoken.model'}: ranks are not 0..{len(ranks) - 1} without holes")
    return ranks


def _control_names(directory: Path, base: int) -> list[str]:
    path = directory / "tokenizer_config.json"
    try:
        added = json.loads(_read(path))["added_tokens_decoder"]
        named = {int(token): str(entry["content"]) for token, entry in added.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TokenizerError(f"{path}: no readable added_tokens_decoder ({error})") from None
    outside = [token for token in named if not base <= token < base + CONTROL_TOKENS]
    if outside:
        raise TokenizerError(f"{path}: id {outside[0]} lies outside {base}..{base + CONTROL_TOKENS - 1}")
    return [named.get(token, f"<|reserved_token_{token}|>") for token in range(base, base + CONTROL_TOKENS)]
