"""A checkpoint holds the optimizer's state by name, and is refused where the run has another optimizer."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fourfold.checkpoint import read_manifest
from fourfold.config import RunFailure, parse_run
from fourfold.config.optimizers import OPTIMIZERS, OptimizerSpec
from fourfold.program import RankView
from fourfold.runtime.routers import Routers
from fourfold.runtime.units import Unit, build_units
from fourfold.train import state
from tests.support.programs import DIMENSIONS, make_view

CPU = torch.device("cpu")


def with_optimizer(view: RankView, optimizer: OptimizerSpec) -> RankView:
    return replace(view, spec=replace(view.spec, optimizer=optimizer))


def units_of(view, section) -> dict[str, Unit]:
    return build_units(view, 0, section, CPU, state.no_fill)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_is_saved_by_name_and_read_back_by_the_same_optimizer_alone(tmp_path: Path, name: str) -> None:
    batch = {"global_sequences": 1, "sequence_length": 20}
    config = parse_run({"model": DIMENSIONS, "batch": batch, "optimizer": {"name": name}})
    view = with_optimizer(make_view(), config.optimizer.spec)
    units, routers = units_of(view, config.optimizer), Routers(view, [], CPU)
    for seed, unit in enumerate(units.values()):
        torch.manual_seed(seed)
        for tensor in (unit.master, *unit.optimizer.state.values()):
            tensor.normal_()
    path = state.save(config, tmp_path, view, units, routers, 3, {"step": 3}, 0, lambda: None)
    roles = {"master", *(tensor.name for tensor in config.optimizer.spec.state)}
    assert all(set(record.dtypes) == roles for record in read_manifest(path).units.values())
    again = units_of(view, config.optimizer)
    assert state.restore(path, view, again, routers, 0)["step"] == 3
    for unit, loaded in zip(units.values(), again.values(), strict=True):
        assert torch.equal(loaded.master, unit.master)
        assert all(torch.equal(loaded.optimizer.state[key], unit.optimizer.state[key]) for key in unit.optimizer.state)
    other = with_optimizer(view, OptimizerSpec("other", ()))
    untouched = units_of(view, config.optimizer)
    with pytest.raises(RunFailure, match=f"saved with optimizer.name = '{name}', this run has 'other'"):
        state.restore(path, other, untouched, routers, 0)
    assert all(not unit.master.any() for unit in untouched.values())
