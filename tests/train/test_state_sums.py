"""Values that one rank alone holds cannot change unseen between two updates, nor between the state and its checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import HashStore

from fourfold.checkpoint import checkpoints, save
from fourfold.config import RunConfig, RunFailure, parse_run
from fourfold.program.instruction import Instruction, Op
from fourfold.rendezvous.barrier import StoreBarrier
from fourfold.runtime.corruption import Corruption
from fourfold.runtime.routers import Routers
from fourfold.runtime.units import Unit, build_units
from fourfold.train import state
from fourfold.train.saver import Saver
from fourfold.train.state_sums import StateSums, copy_check
from tests.support.programs import DIMENSIONS, make_view

CPU = torch.device("cpu")
ALONE = StoreBarrier(HashStore(), "save", 1, 600.0)


def run(every: int, **checkpoint: Any) -> RunConfig:
    batch = {"global_sequences": 2, "sequence_length": 20, "steps": 12}
    return parse_run(
        {"model": DIMENSIONS, "batch": batch, "faults": {"checksum_every_steps": every}, "checkpoint": checkpoint}
    )


def flip(tensor: Tensor, element: int) -> None:
    words = tensor.view(torch.int32) if tensor.element_size() == 4 else tensor.view(torch.int16)
    words[element] ^= 1


@pytest.fixture(params=[{"zero": 3}, {"zero": 1, "precision": {"compute": "bf16"}}, {"zero": 2}], ids=str)
def units(request: pytest.FixtureRequest) -> dict[str, Unit]:
    view = make_view(dp_shard=2, **request.param)
    found = build_units(view, 1, run(1).optimizer, CPU, state.no_fill)
    for unit in found.values():
        unit.shard.copy_(torch.randn(unit.shard.shape))
        for tensor in unit.states.values():
            tensor.copy_(torch.randn(tensor.shape))
    return found


def test_every_tensor_that_lasts_is_watched_and_named(units: dict[str, Unit]) -> None:
    sums = StateSums(run(1), 12, units, 1)
    for unit in units.values():
        held = {**unit.states, "shard": unit.shard}
        for role, tensor in held.items():
            low = unit.flat.shard_range(unit.index)[0]
            names = [
                (name, first)
                for (_, first, last), name in zip(unit.flat.ranges(), _names(unit), strict=True)
                if first <= low < last
            ]
            sums.take(3)
            sums.verify()
            flip(tensor, 0)
            with pytest.raises(Corruption) as caught:
                sums.verify()
            flip(tensor, 0)
            sums.verify()
            assert caught.value.ranks == (1,)
            if names:
                assert names[0][0] in caught.value.what
            if role not in ("master", "shard"):
                assert caught.value.what.startswith(f"{role} of ")


def _names(unit: Unit) -> list[str]:
    return [parameter.name for parameter, _, _ in unit.flat.ranges()]


def test_a_look_is_due_where_the_run_checks_and_before_a_save(units: dict[str, Unit]) -> None:
    sums = StateSums(run(4, every_steps=5), 12, units, 1)
    clip = Instruction(Op.CLIP_NORM)
    tensor = next(iter(units.values())).states["exp_avg"]
    for step in range(1, 13):
        sums.take(step)
        flip(tensor, 0)
        look = sums.before_update(step)
        assert (look is not None) == (step % 4 == 3)
        if look is not None:
            look(0, Instruction(Op.LOAD))
            with pytest.raises(Corruption):
                look(1, clip)
        elif step in (5, 10, 12):
            with pytest.raises(Corruption):
                sums.verify()
        else:
            sums.verify()


def test_without_checks_nothing_is_summed(units: dict[str, Unit]) -> None:
    sums = StateSums(run(0, every_steps=1), 12, units, 1)
    sums.take(12)
    flip(next(iter(units.values())).states["exp_avg"], 0)
    sums.verify()
    assert sums.before_update(3) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_copy_is_compared_wherever_the_original_lies(dtype: torch.dtype) -> None:
    values = torch.randn(4099).to(dtype)
    for start in range(5):
        source = {"a": values[start : start + 4001], "b": values[:0]}
        copy = {name: tensor.clone() for name, tensor in source.items()}
        check = copy_check(source, copy)
        check()
        copy["a"].view(torch.uint8)[7] ^= 16
        with pytest.raises(RunFailure, match="silent corruption: the copy of a in host memory"):
            check()


@pytest.mark.parametrize("every", [1, 0])
def test_a_copy_that_changes_while_it_is_written_is_no_checkpoint(tmp_path: Path, monkeypatch, every: int) -> None:
    config, view = run(every, every_steps=1, keep=9), make_view()
    units = build_units(view, 0, config.optimizer, CPU, state.no_fill)
    saver = Saver(config, tmp_path, view, units, Routers(view, [], CPU), 0, ALONE)
    original = save.write_tensors
    rots = True

    def write(path: Path, tensors: dict[str, Tensor], *more: Any) -> Any:
        if rots:
            flip(next(iter(tensors.values())), 0)
        return original(path, tensors, *more)

    monkeypatch.setattr(save, "write_tensors", write)
    saver.begin(1, {"step": 1})
    saver.wait()
    (end,) = saver.ended()
    assert (end.path is None) == bool(every), "its digests alone say that it is what was written"
    assert not every or "silent corruption: the copy of" in str(end.error)
    rots = False
    saver.begin(2, {"step": 2})
    saver.wait()
    assert saver.ended()[0].path is not None
    assert len(checkpoints(tmp_path / "checkpoints")) == 2 - every
