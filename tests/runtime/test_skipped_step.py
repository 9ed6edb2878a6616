"""A step with a gradient that is not finite moves nothing: weights, optimizer states, balancing biases, the number of updates."""

from typing import Any

import pytest
import torch

from fourfold.program import Op, lower_step
from fourfold.runtime.collectives import make_groups
from fourfold.runtime.executor import Executor
from fourfold.runtime.parallel import groups_of
from fourfold.runtime.units import is_live, share_parameters
from tests.support.parity_ranks import LINKS, initialized_units, prepare_rank
from tests.support.parity_runs import DEEPSEEK_V3, RankData, global_batch, run_table
from tests.support.ranks import run_on_ranks


def _states_of_three_steps(rank: int, table: dict[str, Any], ranks: int) -> list[dict[str, torch.Tensor]]:
    """States that outlive each step; in the second, a number of a gradient is infinite, on the ranks that have it."""
    config, view = prepare_rank(rank, table, ranks)
    spec, device = view.spec, torch.device("cpu")
    groups = make_groups(spec.layout, rank, groups_of(spec), 60.0, LINKS)
    units = initialized_units(config, view, rank)
    executor = Executor(view, units, groups, config.optimizer, device, rank)
    share_parameters(spec, units, groups)
    program = lower_step(view)
    last = next(i for i, step in enumerate(program.instructions) if step.op is Op.CLIP_NORM) - 1

    def spoil(counter: int, _: Any) -> None:
        if counter == last and (rank == 0 or spec.layout.zero == 0):
            next(unit.grad_shard for unit in units.values() if is_live(unit.grad_shard))[0] = float("inf")

    seen = []
    for number in range(3):
        batch = global_batch(number, config.batch.global_sequences, config.batch.sequence_length, 96, False)
        result = executor.run(program, RankData(batch, spec, rank), 1e-2, spoil if number == 1 else None)
        assert result.skipped == (number == 1)
        states = {f"{name} {role}": t.clone() for name, unit in units.items() for role, t in unit.states.items()}
        biases = {f"bias of {name}": bias.clone() for name, bias in executor.routers.biases.items()}
        seen.append({**states, **biases, "updates": torch.tensor(executor.updates)})
    return seen


@pytest.mark.grid(1)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lion", "muon"])
@pytest.mark.parametrize(
    "layout", [{"zero": 0}, {"zero": 2, "ep": 2}, {"zero": 3, "ep": 2}, {"zero": 1, "offload_optimizer": True}], ids=str
)
def test_it_moves_nothing(layout: dict[str, Any], optimizer: str) -> None:
    table = run_table(
        model={**DEEPSEEK_V3, "vocab_size": 96},
        batch={"global_sequences": 4, "sequence_length": 8},
        layout={"dp_shard": 2, **layout},
        optimizer={"name": optimizer},
    )
    for first, second, third in run_on_ranks(2, _states_of_three_steps, table=table, ranks=2):
        assert first.keys() == second.keys() == third.keys()
        assert [name for name in first if not torch.equal(first[name], second[name])] == []
        biases = [name for name in first if name.startswith("bias")]
        assert biases
        assert all(not torch.equal(second[name], third[name]) for name in [*biases, "updates"])
