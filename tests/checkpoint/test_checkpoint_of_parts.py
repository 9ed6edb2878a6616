"""Checkpoints of pipeline, tensor and expert parallel runs: every rank gets back what it had, parameters come out whole."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.checkpoint import (
    WeightFolder,
    fill_from_folder,
    is_first_of_stage,
    read_manifest,
    read_parameters,
    write_huggingface,
)
from fourfold.checkpoint.boxes import tiling_problem
from fourfold.checkpoint.checked_file import CheckedFile
from fourfold.config import ModelConfig, RunFailure
from fourfold.huggingface import family_of
from tests.checkpoint.ranks import ROLES, Run, layout_of

DENSE = ModelConfig(3, 16, 4, 2, 4, 24, 32, max_position=64)
TIED = replace(DENSE, tie_embeddings=True)
MOE = replace(DENSE, num_experts=4, top_k=2, moe_ffn_size=8, first_dense_layers=1, qk_norm=True)
MLA = replace(
    DENSE, num_kv_heads=4, head_dim=6, key_value_rank=8, query_rank=6, rope_head_dim=2, nope_head_dim=4, value_head_dim=3,
    num_experts=4, top_k=2, moe_ffn_size=8, num_shared_experts=2, first_dense_layers=1, router="sigmoid", norm_eps=1e-6,
)  # fmt: skip

LAYOUTS: dict[str, tuple[ModelConfig, dict[str, Any]]] = {
    "pp": (DENSE, {"pp": 2}),
    "pp tied": (TIED, {"pp": 2, "dp_shard": 2}),
    "tp": (DENSE, {"tp": 2, "tp_head": 2}),
    "tp tied": (TIED, {"tp": 2, "tp_head": 2, "zero": 3, "dp_shard": 2}),
    "tp of a padded vocabulary": (replace(DENSE, vocab_size=29), {"tp": 4, "tp_head": 2, "dp_shard": 2}),
    "tp of a padded vocabulary, tied": (replace(TIED, vocab_size=31), {"tp": 2, "tp_head": 2, "zero": 0}),
    "tp with copies of kv heads": (DENSE, {"tp": 4, "tp_head": 2}),
    "tp of one kv head": (replace(DENSE, num_kv_heads=1), {"tp": 2, "tp_head": 1}),
    "zero 0": (DENSE, {"dp_shard": 2, "cp": 2, "zero": 0}),
    "replicas": (DENSE, {"dp_replicate": 2, "dp_shard": 2, "cp": 2}),
    "ep": (MOE, {"dp_shard": 2, "ep": 2}),
    "ep beside its own data parallelism": (MOE, {"dp_shard": 4, "ep": 2}),
    "ep x etp of tp": (MOE, {"dp_shard": 2, "tp": 2, "tp_head": 2, "ep": 2, "etp": 2}),
    "ep over tp": (MOE, {"dp_shard": 2, "tp": 2, "tp_head": 2, "ep": 4}),
    "experts whole, tp": (MOE, {"dp_shard": 2, "tp": 2, "tp_head": 2, "zero": 0}),
    "mla": (MLA, {"dp_shard": 2, "tp": 2, "tp_head": 2, "ep": 2, "etp": 2}),
    "pp x ep x tp x replicas": (MOE, {"pp": 2, "dp_replicate": 2, "dp_shard": 2, "tp": 2, "tp_head": 2, "ep": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_rank_loads_what_it_had_and_parameters_come_out_full(name: str, tmp_path: Path) -> None:
    model, degrees = LAYOUTS[name]
    run = Run(model=model, layout=layout_of(degrees), seed=3)
    assert run.save(tmp_path, 1) == [tmp_path / "step-000001"] * run.world_size
    for rank in range(run.world_size):
        loaded, saved = run.shards(rank, empty=True), run.shards(rank)
        run.load(tmp_path / "step-000001", loaded)
        for unit in saved:
            for role in ROLES:
                assert torch.equal(loaded[unit].tensors[role], saved[unit].tensors[role]), (rank, unit)
    reader = read_parameters(tmp_path / "step-000001")
    assert reader.names() == list(run.parameters())
    for parameter, tensor in reader.items():
        assert torch.equal(tensor, run.parameters()[parameter]), parameter


@pytest.mark.parametrize("name", LAYOUTS)
def test_nothing_is_written_twice(name: str, tmp_path: Path) -> None:
    """Every piece of every part has one writer; only what tensor-parallel ranks hold alike within a split unit is doubled."""
    model, degrees = LAYOUTS[name]
    run = Run(model=model, layout=layout_of(degrees))
    written: dict[tuple[str, str, int], int] = {}
    held: set[tuple[str, str, int]] = set()
    for rank in range(run.world_size):
        for unit, shard in run.shards(rank).items():
            held |= {(unit, shard.part, piece) for piece in range(shard.num_pieces)}
            key = (unit, shard.part, shard.piece)
            written[key] = written.get(key, 0) + shard.is_writer
    assert set(written.values()) == {1}
    assert held == written.keys()


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_data_parallel_rank_writes_as_much_as_the_others(name: str, tmp_path: Path) -> None:
    model, degrees = LAYOUTS[name]
    run = Run(model=model, layout=layout_of(degrees))
    written: dict[tuple[int, int], set[int]] = {}
    for rank in range(run.world_size):
        own = run.layout.coordinates(rank)
        size = sum(
            piece.numel()
            for shard in run.shards(rank).values()
            if shard.flat.domain == "dense" and shard.is_writer
            for piece in shard.pieces().values()
        )
        written.setdefault((own["pp"], own["tp"]), set()).add(size)
    assert all(len(sizes) == 1 for sizes in written.values()), written


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("zero", [0, 3])
def test_every_rank_starts_from_its_part_of_released_weights(name: str, zero: int, tmp_path: Path) -> None:
    model, degrees = LAYOUTS[name]
    run = Run(model=replace(model, family=family_of(model)), layout=layout_of(degrees, zero=zero))
    tensors = run.parameters().items()
    write_huggingface(tmp_path / "hf", run.model, tensors, dtype="fp32", tokenizer_file=None, eos=None)
    folder = WeightFolder(tmp_path / "hf")
    folder.check_against(run.model)
    for rank in range(run.world_size):
        for unit, shard in run.shards(rank).items():
            out = torch.full((shard.flat.shard_numel,), float("nan"))
            fill_from_folder(folder, shard.flat, shard.index, shard.coordinates, out)
            assert torch.equal(out, shard.tensors["master"]), (rank, unit)


def test_some_rows_of_a_parameter_need_only_the_parts_that_hold_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(model=MOE, layout=layout_of(dp_shard=4, ep=4, zero=0))
    run.save(tmp_path, 1)
    reader = read_parameters(tmp_path / "step-000001")
    name = "model.layers.1.mlp.experts.gate_up_proj"
    read: list[str] = []
    original = CheckedFile.read_into
    monkeypatch.setattr(
        CheckedFile, "read_into", lambda self, *rest: read.append(self.path.name) or original(self, *rest)
    )
    assert torch.equal(reader.rows(name, 2, 3), run.parameters()[name][2:3])
    assert read == ["rank-00002.safetensors"]
    assert torch.equal(reader.rows(name, 1, 4), run.parameters()[name][1:4])
    with pytest.raises(ValueError, match="has 4 rows"):
        reader.rows(name, 4, 5)


def test_extra_tensors_are_saved_by_their_stage_and_loaded_by_all(tmp_path: Path) -> None:
    run = Run(model=MOE, layout=layout_of(pp=2, dp_shard=2, ep=2))
    bias = {rank: torch.full((4,), float(run.layout.coordinates(rank)["pp"])) for rank in range(4)}

    def extras(rank: int) -> dict[str, torch.Tensor]:
        stage = run.layout.coordinates(rank)["pp"]
        return {f"b{stage + 1}.balance_bias": bias[rank]} if is_first_of_stage(run.layout, rank) else {}

    run.save(tmp_path, 1, extras=extras)
    folder = tmp_path / "step-000001"
    for rank in range(4):
        wanted = {"b1.balance_bias": torch.empty(4), "b2.balance_bias": torch.empty(4)}
        run.load(folder, run.shards(rank), extras=wanted)
        assert [float(tensor[0]) for tensor in wanted.values()] == [0.0, 1.0]
    reader = read_parameters(folder)
    assert reader.extras == {"b1.balance_bias": (4,), "b2.balance_bias": (4,)}
    assert torch.equal(reader.extra("b2.balance_bias"), torch.ones(4))
    with pytest.raises(RunFailure, match=r"has no extra tensor 'b7\.x'"):
        run.load(folder, run.shards(0), extras={"b7.x": torch.empty(4)})
    with pytest.raises(RunFailure, match=r"extra tensor 'b1\.balance_bias' is \(\(4,\), 'fp32'\) there"):
        run.load(folder, run.shards(0), extras={"b1.balance_bias": torch.empty(5)})


def test_an_extra_tensor_of_two_ranks_or_of_no_name_fails_the_save(tmp_path: Path) -> None:
    run = Run(2)
    for result in run.save(tmp_path, 1, extras=lambda rank: {"x": torch.ones(1)}):
        assert "extra tensor x is in rank-00000.safetensors and in rank-00001.safetensors" in str(result)
    for result in run.save(tmp_path, 1, extras=lambda rank: {"a/b": torch.ones(1)} if rank == 0 else {}):
        assert "'a/b' is no name of an extra tensor" in str(result)


# What is missing is never saved


def test_a_unit_that_nobody_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(model=DENSE, layout=layout_of(pp=2))
    monkeypatch.setattr(run, "units_of", lambda rank: ["embed", "b0"] if rank == 0 else ["b2", "head"])
    for result in run.save(tmp_path, 1):
        assert "no rank wrote unit b1" in str(result)
    assert not (tmp_path / "step-000001").exists()


def test_a_part_that_nobody_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(model=DENSE, layout=layout_of(tp=2, tp_head=2))
    original = run.shards
    monkeypatch.setattr(
        run, "shards", lambda rank: {u: replace(s, is_writer=rank == 0 or u != "b1") for u, s in original(rank).items()}
    )
    for result in run.save(tmp_path, 1):
        assert isinstance(result, RunFailure)
        assert "unit b1: parameter model.layers.1.mlp.gate_proj.weight: nobody has elements 12 to 24" in str(result)


def test_two_ranks_that_write_the_same_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(model=DENSE, layout=layout_of(tp=2, tp_head=2))
    original = run.shards
    monkeypatch.setattr(
        run,
        "shards",
        lambda rank: {u: replace(s, coordinates={**s.coordinates, "tp": 0}) for u, s in original(rank).items()},
    )
    for result in run.save(tmp_path, 1):
        assert "part tp0 of unit" in str(result)


def test_the_manifest_says_the_layout(tmp_path: Path) -> None:
    Run(model=MOE, layout=layout_of(pp=2, dp_shard=2, ep=2)).save(tmp_path, 1)
    manifest = read_manifest(tmp_path / "step-000001")
    assert manifest.layout == {
        "pp": 2, "dp_replicate": 1, "dp_shard": 2, "cp": 1, "tp": 1, "ep": 2, "etp": 1, "zero": 1,
    }  # fmt: skip
    assert list(manifest.units["b1.experts"].parts) == ["ep0", "ep1"]


# Boxes


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=3), st.data())
def test_any_grid_of_boxes_makes_up_the_tensor_and_none_with_a_hole_does(shape: list[int], data: st.DataObject) -> None:
    cuts = [[0, *sorted(data.draw(st.sets(st.integers(1, size - 1))) if size > 1 else []), size] for size in shape]
    boxes: list[Any] = [()]
    for edges in cuts:
        boxes = [(*box, interval) for box in boxes for interval in pairwise(edges)]
    copies = data.draw(st.lists(st.sampled_from(boxes), max_size=3))
    assert tiling_problem(shape, [*boxes, *copies]) is None
    hole = data.draw(st.sampled_from(boxes))
    assert tiling_problem(shape, [box for box in boxes if box != hole]) is not None
    moved = tuple((start + 1, end + 1) for start, end in hole)
    assert tiling_problem(shape, [moved if box == hole else box for box in boxes]) is not None
