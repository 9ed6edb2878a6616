"""Checkpoints of narrow states: read under other layouts, by runs with other formats, and by who reads parameters alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.checkpoint import read_manifest, read_parameters
from fourfold.config import RunFailure
from fourfold.runtime.routers import Routers
from fourfold.runtime.units import Unit, build_units
from fourfold.train import state
from tests.support.parity_ranks import assemble, master_weights, prepare_rank, run_rank, worst
from tests.support.parity_runs import run_table
from tests.support.ranks import run_on_ranks

HALVES = {"compute": "bf16", "master": "split"}
BF16 = {"compute": "bf16"}
CPU = torch.device("cpu")


def _table(layout: dict[str, Any], precision: dict[str, Any], **optimizer: Any) -> dict[str, Any]:
    return run_table(
        model={"vocab_size": 96},
        batch={"sequence_length": 16, "steps": 4},
        layout=layout,
        optimizer={"name": "adamw", "lr": 0.02, **optimizer},
        precision=precision,
    )


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("layout", [{"tp": 2}, {"dp_shard": 2, "zero": 1}, {"pp": 2}], ids=["tp", "zero-1", "pp"])
def test_a_run_that_goes_on_elsewhere_rounds_as_it_would_have(
    layout: dict[str, Any], name: str, tmp_path: Path
) -> None:
    """Saved by two ranks of ZeRO-3 and resumed under another layout, it ends as one rank that was never stopped."""
    stated = {"name": name, "state_dtype": "bf16"}
    first = _table({"dp_shard": 2, "zero": 3, "microbatch_sequences": 3}, {"compute": "fp64"}, **stated)
    run_on_ranks(2, run_rank, table=first, ranks=2, save=tmp_path)
    second = _table({**layout, "microbatch_sequences": 3}, {"compute": "fp64"}, **stated)
    ended = run_on_ranks(2, run_rank, table=second, ranks=2, start=tmp_path)
    alone = _table({"microbatch_sequences": 3}, {"compute": "fp64"}, **stated)
    [undisturbed] = run_on_ranks(1, run_rank, table=alone, ranks=1)
    found = assemble(second, ended, "parameters", 2)
    error, where = worst(found, assemble(alone, [undisturbed], "parameters", 1))
    assert error < 1e-9, where


def _units(precision: dict[str, Any], **optimizer: Any) -> tuple[Any, Any, dict[str, Unit], Routers]:
    config, view = prepare_rank(0, _table({"microbatch_sequences": 3}, precision, **optimizer), 1)
    units = build_units(view, 0, config.optimizer, CPU, lambda flat, index, out: out.normal_())
    for unit in units.values():
        for tensor in unit.optimizer.state.values():
            tensor.normal_()
        for tensor in (unit.shard, *unit.states.values()):
            tensor[unit.flat.numel :] = 0  # padding
    return config, view, units, Routers(view, [], CPU)


FORMATS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fp32": (BF16, {}),
    "states": (BF16, {"state_dtype": "bf16"}),
    "halves": (HALVES, {}),
    "both": (HALVES, {"state_dtype": "bf16"}),
}


@pytest.mark.parametrize("read", FORMATS)
@pytest.mark.parametrize("saved", FORMATS)
def test_every_format_reads_every_other(saved: str, read: str, tmp_path: Path) -> None:
    """Master weights to the bit; states to the bit, or rounded to the nearest."""
    torch.manual_seed(0)
    config, view, units, routers = _units(FORMATS[saved][0], **FORMATS[saved][1])
    path = state.save(config, tmp_path, view, units, routers, 3, {"step": 3}, 0, lambda: None)
    _, other, found, _ = _units(FORMATS[read][0], **FORMATS[read][1])
    assert state.restore(path, other, found, routers, 0)["step"] == 3
    for name, unit in units.items():
        assert torch.equal(master_weights(found[name]), master_weights(unit))
        for role, tensor in unit.optimizer.state.items():
            loaded = found[name].optimizer.state[role]
            assert torch.equal(loaded, tensor.to(loaded.dtype))
    reader = read_parameters(path)
    for unit in units.values():
        for parameter, start, end in unit.flat.ranges():
            wanted = master_weights(unit)[start:end].view(parameter.shape)
            assert torch.equal(reader.get(parameter.name), wanted)
            assert torch.equal(reader.rows(parameter.name, 0, 1), wanted[:1])


def test_a_checkpoint_is_as_large_as_its_formats(tmp_path: Path) -> None:
    config, view, units, routers = _units(HALVES, state_dtype="bf16")
    path = state.save(config, tmp_path, view, units, routers, 3, {"step": 3}, 0, lambda: None)
    roles = {"weights": "bf16", "remainder": "int16", "exp_avg": "bf16", "exp_avg_sq": "bf16"}
    assert all(record.dtypes == roles for record in read_manifest(path).units.values())
    held = sum(tensor.nbytes for unit in units.values() for tensor in unit.states.values())
    assert held == 8 * sum(unit.flat.shard_numel for unit in units.values())


def test_halves_are_no_state_of_an_fp64_run(tmp_path: Path) -> None:
    config, view, units, routers = _units(HALVES)
    path = state.save(config, tmp_path, view, units, routers, 3, {"step": 3}, 0, lambda: None)
    _, other, found, _ = _units({"compute": "bf16", "master": "fp64"})
    before = {name: unit.master.clone() for name, unit in found.items()}
    with pytest.raises(RunFailure, match=r"master of unit .* was saved as halves, this run holds fp64"):
        state.restore(path, other, found, routers, 0)
    assert all(torch.equal(unit.master, before[name]) for name, unit in found.items())
