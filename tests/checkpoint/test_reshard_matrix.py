"""Saved under any layout, loaded under any other: every rank has the bits of the full tensors, and reads little more."""

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.checkpoint import checked_file, file_bytes, is_first_of_stage, save_checkpoint
from fourfold.checkpoint.boxes import Box, blocks, box_numel, box_shape, box_slices, boxes_of_range, intersection
from fourfold.checkpoint.file_bytes import CHUNK_BYTES
from fourfold.config import ModelConfig
from tests.checkpoint.ranks import ROLES, Run, layout_of

DENSE = ModelConfig(4, 16, 4, 2, 4, 24, 32, max_position=64)
TIED = replace(DENSE, tie_embeddings=True, vocab_size=29)
MOE = replace(DENSE, num_experts=4, top_k=2, moe_ffn_size=8, first_dense_layers=1, qk_norm=True, router="sigmoid")
INTERLEAVED = {"pp": 2, "virtual_stages": 2, "segments_per_stage": (2, 1, 2, 1), "stage_ranks": (0, 1, 0, 1)}

COMMON: dict[str, dict[str, Any]] = {
    "one rank": {},
    "zero 0": {"dp_shard": 3, "zero": 0},
    "zero 1": {"dp_shard": 2, "zero": 1},
    "zero 2": {"dp_shard": 4, "zero": 2},
    "zero 3": {"dp_shard": 3, "zero": 3},
    "hsdp": {"dp_replicate": 2, "dp_shard": 2, "zero": 3},
    "replicas": {"dp_replicate": 3, "zero": 0},
    "tp": {"tp": 2, "tp_head": 2},
    "tp with copies of kv heads": {"tp": 4, "tp_head": 2, "dp_shard": 2},
    "pp": {"pp": 3, "dp_shard": 2, "outermost": "dp"},
    "pp uneven": {"pp": 2, "segments_per_stage": (1, 5), "stage_ranks": (0, 1), "zero": 0},
    "pp interleaved": {**INTERLEAVED, "dp_shard": 2, "zero": 3},
    "pp in a v": {**INTERLEAVED, "stage_ranks": (0, 1, 1, 0), "tp": 2, "tp_head": 2},
    "cp": {"cp": 2, "dp_shard": 2},
    "cp of zero 0": {"cp": 2, "cp_ulysses": 2, "zero": 0},
}
EXPERTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "ep": {"dp_shard": 4, "ep": 4},
    "ep beside data parallelism": {"dp_shard": 4, "ep": 2, "zero": 3},
    "etp": {"dp_shard": 2, "tp": 2, "tp_head": 2, "ep": 2, "etp": 2},
    "ep over tp": {"dp_shard": 2, "tp": 2, "tp_head": 2, "ep": 4},
    "experts full, tp": {"dp_shard": 2, "tp": 2, "tp_head": 2, "zero": 0},
    "replicas of ep": {"pp": 2, "dp_replicate": 2, "dp_shard": 2, "ep": 2},
    "cp and ep": {"cp": 2, "dp_shard": 2, "ep": 2, "zero": 2},
}
MUON = {name: degrees for name, degrees in COMMON.items() if name in ("zero 0", "zero 1", "zero 3", "hsdp", "pp", "tp")}
MODELS = {
    "dense": (DENSE, COMMON),
    "tied": (TIED, COMMON),
    "experts": (MOE, EXPERTS),
    "muon": (MOE, {**MUON, **{name: degrees for name, degrees in EXPERTS.items() if "e" in name}}),
}
_QUICK = {
    (model, *names)
    for model, (_, layouts) in MODELS.items()
    for names in [*pairwise([*layouts, *list(layouts)[:1]]), *product(list(layouts)[-1:], list(layouts)[:3])]
}
CASES = [
    pytest.param(model, saved, here, marks=() if (model, saved, here) in _QUICK else pytest.mark.sweep)
    for model, (_, layouts) in MODELS.items()
    for saved, here in product(layouts, layouts)
]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a run's checkpoint, saved on first use."""
    made: dict[tuple[str, str], Path] = {}

    def folder(model: str, name: str) -> Path:
        if (model, name) not in made:
            run = _run(model, name)
            root = tmp_path_factory.mktemp("saved")
            made[model, name] = root / "step-000007"
            info = {"step": 7, "tokens": 7 * 512, "skipped_steps": 1, "updates": 6}
            assert run.save(root, 7, info=info, extras=lambda rank: _biases(run, rank)) == [made[model, name]] * len(
                range(run.world_size)
            )
        return made[model, name]

    return folder


def _run(model: str, name: str) -> Run:
    config, layouts = MODELS[model]
    return Run(model=config, layout=layout_of(layouts[name]), seed=5, muon=model == "muon")


def _bias(layer: int) -> torch.Tensor:
    return torch.arange(4.0) / (layer + 3)


def _layers(run: Run, rank: int) -> list[int]:
    return [s.layer for s in run.segments if s.moe and s.layer is not None and s.units[0] in run.units_of(rank)]


def _biases(run: Run, rank: int) -> dict[str, torch.Tensor]:
    if not is_first_of_stage(run.layout, rank):
        return {}
    return {f"b{layer}.balance_bias": _bias(layer) for layer in _layers(run, rank)}


@pytest.mark.grid(1)
@pytest.mark.parametrize(("model", "saved", "here"), CASES)
def test_any_layout_to_any_layout(checkpoints: Any, model: str, saved: str, here: str) -> None:
    folder, run = checkpoints(model, saved), _run(model, here)
    for rank in range(run.world_size):
        loaded, expected = run.shards(rank, empty=True), run.shards(rank)
        extras = {f"b{layer}.balance_bias": torch.full((4,), float("nan")) for layer in _layers(run, rank)}
        info = run.load(folder, loaded, extras=extras)
        assert info == {"step": 7, "tokens": 7 * 512, "skipped_steps": 1, "updates": 6}
        for unit in expected:
            for role in ROLES:
                assert torch.equal(loaded[unit].tensors[role], expected[unit].tensors[role]), (rank, unit, role)
        for layer in _layers(run, rank):
            assert torch.equal(extras[f"b{layer}.balance_bias"], _bias(layer))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_every_format_is_split_by_rows_and_columns(tmp_path: Path, dtype: torch.dtype) -> None:
    saved = _run("dense", "one rank").shards(0, dtype=dtype)
    folder = save_checkpoint(tmp_path, 1, saved, {}, rank=0, synchronize=lambda: None, keep=1)
    run = _run("dense", "tp with copies of kv heads")
    for rank in range(run.world_size):
        loaded, expected = run.shards(rank, empty=True, dtype=dtype), run.shards(rank, dtype=dtype)
        run.load(folder, loaded)
        for unit in expected:
            assert all(torch.equal(loaded[unit].tensors[role], expected[unit].tensors[role]) for role in ROLES)


LARGE = ModelConfig(2, 256, 4, 4, 64, 1024, 2048, max_position=64)


@pytest.mark.parametrize(
    ("saved", "here", "most"),
    [
        ({"zero": 0}, {"dp_shard": 4, "zero": 3}, 1.0),
        ({"dp_shard": 4, "zero": 3}, {"dp_replicate": 2, "dp_shard": 2, "zero": 1}, 1.0),
        ({"pp": 2}, {"pp": 4, "segments_per_stage": (1, 1, 1, 1), "stage_ranks": (0, 1, 2, 3)}, 1.0),
        ({"dp_shard": 2}, {"tp": 4, "tp_head": 4}, 2.0),  # half of a layer's matrices are split by columns
    ],
    ids=str,
)
def test_a_rank_reads_the_bytes_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: Any, here: Any, most: float
) -> None:
    """Whole chunks are checked, and what was checked is read. `most`: bytes checked, over those that the rank holds."""
    Run(model=LARGE, layout=layout_of(saved)).save(tmp_path, 1)
    run, counts = Run(model=LARGE, layout=layout_of(here)), {"checked": 0, "read": 0}
    original, verify = file_bytes._read, checked_file.CheckedFile.verify

    def count(descriptor: int, out: memoryview, start: int) -> None:
        counts["read"] += len(out)
        original(descriptor, out, start)

    def count_chunks(file: checked_file.CheckedFile, chunks: Any, keep: bool = False) -> None:
        counts["checked"] += len(chunks) * CHUNK_BYTES
        verify(file, chunks, keep)

    monkeypatch.setattr(file_bytes, "_read", count)
    monkeypatch.setattr(checked_file.CheckedFile, "verify", count_chunks)
    for rank in range(run.world_size):
        counts.update(checked=0, read=0)
        shards = run.shards(rank, empty=True)
        run.load(tmp_path / "step-000001", shards)
        held = sum(tensor.nbytes for shard in shards.values() for tensor in shard.tensors.values())
        ranges = sum(len(shard.flat.parameters) * len(ROLES) for shard in shards.values()) + 4
        assert counts["checked"] <= most * held + ranges * CHUNK_BYTES
        assert counts["read"] <= 2 * (most * held + ranges * CHUNK_BYTES)


# Geometry


@st.composite
def a_box(draw: st.DrawFn, inside: Box) -> Box:
    result = []
    for low, high in inside:
        start = draw(st.integers(low, high - 1))
        result.append((start, draw(st.integers(start + 1, high))))
    return tuple(result)


FULL = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(lambda sizes: tuple((0, size) for size in sizes))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_boxes_of_a_range_are_its_elements_in_order(data: st.DataObject) -> None:
    full = data.draw(FULL)
    box = data.draw(a_box(full))
    numbers = np.arange(box_numel(full)).reshape(box_shape(full))
    flat = numbers[box_slices(box, full)].reshape(-1)
    start = data.draw(st.integers(0, len(flat)))
    end = data.draw(st.integers(start, len(flat)))
    found = list(boxes_of_range(box, start, end))
    assert [first for first, _ in found] == list(np.cumsum([start, *(box_numel(part) for _, part in found)])[:-1])
    parts = [numbers[box_slices(part, full)].reshape(-1) for _, part in found]
    assert np.array_equal(np.concatenate([*parts, numbers[:0].reshape(-1)]), flat[start:end])


@pytest.mark.parametrize(("most", "rows"), [(4, [1] * 8), (8, [2] * 4), (12, [3, 3, 2]), (100, [8])])
def test_a_block_is_as_many_rows_as_it_may_be(most: int, rows: list[int]) -> None:
    box: Box = ((0, 8), (0, 4))
    found = [box_shape(block) for _, block, _ in blocks(box, box, most, 4)]
    assert found == [(number, 4) for number in rows]


@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(1, 40), st.integers(1, 40))
def test_blocks_read_what_is_wanted_once(data: st.DataObject, block: int, sparse: int) -> None:
    full = data.draw(FULL)
    source, other = data.draw(a_box(full)), data.draw(a_box(full))
    wanted = intersection(source, other)
    if wanted is None:
        return
    numbers = np.arange(box_numel(full)).reshape(box_shape(full))
    saved = numbers[box_slices(source, full)].reshape(-1)
    result = np.full(box_shape(full), -1)
    for first, rows, part in blocks(source, wanted, block, sparse):
        assert box_numel(rows) <= max(block, sparse) or box_shape(rows)[:-1] == (1,) * (len(rows) - 1)
        array = saved[first : first + box_numel(rows)].reshape(box_shape(rows))
        assert (result[box_slices(part, full)] == -1).all()
        result[box_slices(part, full)] = array[box_slices(part, rows)]
    assert np.array_equal(result[box_slices(wanted, full)], numbers[box_slices(wanted, full)])
    assert (result >= 0).sum() == box_numel(wanted)
