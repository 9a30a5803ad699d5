"""Reading a store: exactly what was written, or refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from harness.fixtures.drafters import row, run_folder, small_llama
from harness.fixtures.manifests import Document, as_unsigned, edit_manifest
from pipeline.drafter.rows import LeftOut, RowPolicy, TrainingRows, read_rows
from pipeline.drafter.states.extract import ExtractionPlan, extract
from pipeline.drafter.states.manifest import StoreError, computed_with
from pipeline.drafter.states.shards import PlacedRow, StateStore
from pipeline.drafter.target.files import target_facts
from pipeline.drafter.target.hidden_states import StateSource, Target, load_target
from pipeline.records import Evidence, Span, SpanKind, TokenRow

pytestmark = pytest.mark.contract

ATTESTATION = "cd" * 32
GIVEN = [
    row("a", [5, 3, 9], [1, 7, 40, 2]),
    row("b", [8], [8, 2]),
    row("c", [11, 6, 30, 30], [4]),
    row("d", [1], [9] * 9),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(small_llama(tmp_path_factory.mktemp("small") / "target"))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> TrainingRows:
    return read_rows([run_folder(tmp_path_factory.mktemp("rows") / "run", GIVEN)])


def plan(target: Target, rows: TrainingRows, dtype: str = "bfloat16") -> ExtractionPlan:
    """Two shards: rows a and b, then c and d."""
    computed = computed_with(torch.float32, target.device)
    return ExtractionPlan(target.facts, target.layers, rows, dtype, computed, 1300)


@pytest.fixture
def folder(tmp_path: Path, target: Target, rows: TrainingRows) -> Path:
    extract(plan(target, rows), target, tmp_path / "store", attestation=ATTESTATION, progress=lambda _: None)
    return tmp_path / "store"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_states_come_back_as_they_were_computed(tmp_path: Path, target: Target, rows: TrainingRows, dtype: str) -> None:
    extract(plan(target, rows, dtype), target, tmp_path / dtype, attestation=ATTESTATION, progress=lambda _: None)
    expected = target.states(list(rows), getattr(torch, dtype))

    found = StateStore(tmp_path / dtype).rows([3, 0, 2, 1])

    assert ["d", "a", "c", "b"] == [states.id for states in found]
    for states, index in zip(found, [3, 0, 2, 1], strict=True):
        assert expected[index].ids.tolist() == states.ids.tolist()
        assert expected[index].mask.tolist() == states.mask.tolist()
        assert close(expected[index].aux, states.aux)
        assert close(expected[index].last, states.last)


def close(expected: torch.Tensor, actual: torch.Tensor) -> bool:
    """Compare to the rounding of the stored dtype.

    Shards group rows otherwise than one call for all of them does.
    """
    assert (expected.shape, expected.dtype) == (actual.shape, actual.dtype)
    rounding = 2 * torch.finfo(actual.dtype).eps
    return bool(torch.isclose(expected.float(), actual.float(), rtol=rounding, atol=1e-4).all())


def test_a_store_says_what_its_rows_are_without_their_states(folder: Path, rows: TrainingRows) -> None:
    store = StateStore(folder)
    source: StateSource = store

    assert source.lengths == store.lengths
    assert ["stream_deltas"] * 4 == store.evidence
    assert ([7, 3, 5, 10], 4, (1, 3, 4), 16, 48) == (
        store.lengths,
        len(store),
        store.layers,
        store.hidden_size,
        store.vocab_size,
    )
    assert [each.id for each in rows] == [each.id for each in store.training]
    for mine, theirs in zip(store.training, rows, strict=True):
        assert (theirs.ids.tolist(), theirs.mask.tolist()) == (mine.ids.tolist(), mine.mask.tolist())
        assert (theirs.evidence, theirs.dataset) == (mine.evidence, mine.dataset)
    assert ["b", "c"] == [each.id for each in store.training[1:3]]


def test_a_row_that_is_not_there_is_an_index_error(folder: Path) -> None:
    store = StateStore(folder)

    for index in (-1, 4):
        with pytest.raises(IndexError):
            store.rows([index])


def test_the_manifest_explains_its_numbers_and_size(folder: Path) -> None:
    """25 tokens, 16 of them emitted, 16 numbers in 2 bytes: (3 * 25 + 16) * 32 + 4 * 25, for (4 * 25) * 32 + 100."""
    document = json.loads((folder / "manifest.json").read_bytes())

    assert ([1, 3, 4], [2, 4, 5], "bfloat16") == tuple(
        document["settings"][key] for key in ("layers", "layers_as_boundaries", "dtype")
    )
    assert "output of these 0-based layers, not normed" in document["settings"]["aux"]
    assert "after its final norm, at emitted positions only" in document["settings"]["last"]
    assert (25, 16, 3012, 120.5, 132.0) == tuple(
        document["size"][key] for key in ("tokens", "emitted", "bytes", "bytes_a_token", "peers_bytes_a_token")
    )
    assert ([ATTESTATION], True) == (document["attestations"], document["complete"])
    assert ["stream_deltas"] == [*document["settings"]["rows"]["evidence"]]


# What is refused


def test_a_changed_byte_is_found_in_the_row_that_it_is_in(folder: Path) -> None:
    path = folder / "states-00000.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # tensors lie in the order of their names: the last byte is of row b's last state, or its ids
    path.write_bytes(data)
    store = StateStore(folder)

    assert ["a"] == [states.id for states in store.rows([0])]
    with pytest.raises(StoreError, match=r"states-00000\.safetensors was changed since it was written \(row 'b'\)"):
        store.rows([1])
    with pytest.raises(StoreError, match="was changed since it was written"):
        store.verify()


def test_every_byte_of_a_shard_is_covered(folder: Path) -> None:
    path = folder / "states-00001.safetensors"
    whole = path.read_bytes()
    undetected = []
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        try:
            store = StateStore(folder)
            store.rows([2, 3])
        except StoreError:
            continue
        undetected.append(place)

    assert [] == undetected


@pytest.mark.parametrize(
    "damage, why",
    [
        (lambda path: path.unlink(), "is gone since it was written"),
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "was changed since it was written"),
        (lambda path: path.write_bytes(b""), "was changed since it was written. Put it back, or extract into"),
        (lambda path: path.write_bytes(b"\xff" * 20), "was changed since it was written. Put it back, or"),
    ],
)
def test_a_shard_that_is_not_whole_is_refused_at_once(folder: Path, damage: Callable[[Path], object], why: str) -> None:
    damage(folder / "states-00001.safetensors")

    with pytest.raises(StoreError, match=f"states-00001.safetensors {why}"):
        StateStore(folder)


def raise_evidence(folder: Path) -> Callable[[Document], None]:
    """Call every row of the first shard proven by ids; return the manifest's change that fits."""
    path = folder / "states-00000.safetensors"
    data = path.read_bytes()
    length = 8 + int.from_bytes(data[:8], "little")
    header = data[:length].replace(b'\\"stream_deltas\\"', b'\\"engine_ids\\"   ')
    path.write_bytes(header + data[length:])
    digests = {"sha256": path.read_bytes(), "header_sha256": header}
    return lambda it: it["shards"][0].update({name: hashlib.sha256(part).hexdigest() for name, part in digests.items()})


def test_a_shard_edited_with_its_manifest_is_refused(folder: Path) -> None:
    signature = json.loads((folder / "manifest.json").read_bytes())["signature"]
    edit_manifest(folder, raise_evidence(folder))
    assert ["engine_ids", "engine_ids", "stream_deltas", "stream_deltas"] == StateStore(folder).evidence

    document = json.loads((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_text(json.dumps(document | {"signature": signature}))

    with pytest.raises(StoreError, match="was changed after it was signed by"):
        StateStore(folder, accept_unsigned=True)


def test_a_store_that_nobody_signed_needs_a_flag(folder: Path) -> None:
    as_unsigned(folder)

    with pytest.raises(StoreError, match=r"has no signature, so anyone .* --accept-unsigned takes it"):
        StateStore(folder)
    assert not StateStore(folder, accept_unsigned=True).document.signed


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda it: it.update(complete=False), "is not whole yet. Run the command again that began it"),
        (lambda it: it.update(states=9), "is of version 9"),
        (lambda it: it.update(attestations=[]), "names no attestation under which its states were made"),
        (lambda it: it.update(attestations=["no"]), r"names no attestation under .*: nothing proves them"),
        (lambda it: it["settings"].update(layers=[1, 3, 5]), "the settings are not those that its digest names"),
        (lambda it: it.pop("shards"), "is no manifest of hidden states"),
        (lambda it: it["shards"][0].update(more=1), r"is no manifest of hidden states \(TypeError"),
        (lambda it: it["shards"].pop(), "names shards of [0-9]+ rows, and the store was begun with"),
        (lambda it: it["shards"].append(it["shards"][0]), "names shards of [0-9]+ rows, and"),
        (lambda it: it["shards"].__setitem__(0, it["shards"][1]), "names (shards of|a shard twice)"),
        (lambda it: it["shards"][0].update(tokens=1), "says other numbers of states-00000.safetensors than it holds"),
    ],
)
def test_a_manifest_that_is_none_is_refused(folder: Path, change: Callable[[Document], object], why: str) -> None:
    edit_manifest(folder, change)

    with pytest.raises(StoreError, match=why):
        StateStore(folder)


def test_a_folder_of_rows_is_no_store(rows: TrainingRows) -> None:
    with pytest.raises(StoreError, match=r"is no manifest of hidden states \(KeyError: 'states'\)"):
        StateStore(rows.folders[0].path)


def test_a_folder_without_a_manifest_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="give the folder that `states` wrote"):
        StateStore(tmp_path)


def test_the_target_that_made_the_states_is_taken(folder: Path, target: Target) -> None:
    StateStore(folder).check_target(target.facts)


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"hidden_size": 32}, "whose hidden_size is 16, and that of .* is 32"),
        ({"vocab_size": 50}, "whose vocab_size is 48, and that of .* is 50"),
        ({"num_hidden_layers": 9}, "whose num_layers is 8, and that of .* is 9"),
        ({"intermediate_size": 32}, "whose weights_sha256 is"),
        ({"rms_norm_eps": 1e-3}, "whose config_sha256 is"),
    ],
)
def test_another_target_is_refused(folder: Path, tmp_path: Path, changes: dict[str, float], why: str) -> None:
    other = target_facts(small_llama(tmp_path / "other", **changes))

    with pytest.raises(StoreError, match=why):
        StateStore(folder).check_target(other)


def test_a_store_knows_of_each_row_its_prompt_its_end_and_loop(tmp_path: Path, target: Target) -> None:
    cut = TokenRow("cut", (1,), (7, 8), (Span(SpanKind.CONTENT, 0, 2),), Evidence.ENGINE_IDS)
    given = [row("good", [1], [7, 2], Evidence.LOGPROBS), cut, row("loop", [1], [7] * 300 + [2])]
    policy = RowPolicy(min_prompt_evidence=Evidence.COUNTED, keep_cut=True, keep_looping=True)
    rows = read_rows([run_folder(tmp_path / "run", given)], policy)
    extract(plan(target, rows), target, tmp_path / "store", attestation=ATTESTATION, progress=lambda _: None)

    found = StateStore(tmp_path / "store").placed

    assert ["logprobs", "counted", "stream_deltas"] == [placed.prompt_evidence for placed in found]
    assert ([False, True, False], [False, False, True]) == (
        [placed.is_cut for placed in found],
        [placed.is_looping for placed in found],
    )


def test_a_header_without_ends_claims_no_more_than_is_sure() -> None:
    old = PlacedRow("a", "B1", "engine_ids", 3, 1, "00", "00")

    assert LeftOut.WEAK_PROMPT_EVIDENCE is RowPolicy().refuses(old)
    assert LeftOut.CUT is RowPolicy(min_prompt_evidence=Evidence.COUNTED).refuses(old)
    assert RowPolicy(min_prompt_evidence=Evidence.COUNTED, keep_cut=True).refuses(old) is None
