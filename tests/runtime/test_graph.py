"""Steps that are replayed from their capture are the steps that are not, to the bit.

There is no CUDA here. A recorder stands in for a graph: it writes down every operation of a captured step with its tensors, and a
replay repeats these operations on the same memory, whatever Python would do.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import PropertyMock, patch

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from fourfold.config import parse_run
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.program import lower_step, rank_view, resolve_step
from fourfold.runtime import graph
from fourfold.runtime.executor import Executor
from fourfold.runtime.graph import StepGraph
from fourfold.runtime.initialize import initialize_shard
from fourfold.runtime.step import StepResult
from fourfold.runtime.units import build_units, share_parameters
from tests.support.parity_runs import RankData, global_batch, run_table

STEPS = 6
Tensors = list[Tensor]


def _flat(value: Any) -> Tensors:
    if isinstance(value, Tensor):
        return [value]
    return [each for part in value for each in _flat(part)] if isinstance(value, list | tuple) else []


def _alias(value: Any) -> Any:
    """The tensor as it is now, whatever is done to its shape later."""
    return value.as_strided(value.shape, value.stride(), value.storage_offset()) if isinstance(value, Tensor) else value


class Recorder(TorchDispatchMode):
    """Operations, and storages with the sizes that they had."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Tensors]] = []
        self.storages: dict[int, tuple[Any, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tree_map(_alias, (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if torch.Tag.inplace_view not in func.tags:  # such a one changes a tensor's shape in place, and no memory
            self.calls.append((func, *given, [_alias(each) for each in _flat(result)]))
        for tensor in _flat([args, result]):
            storage = tensor.untyped_storage()
            size = max(storage.nbytes(), self.storages.get(storage._cdata, (storage, 0))[1])
            self.storages[storage._cdata] = storage, size
        return result

    def replay(self) -> None:
        left = [(storage, storage.nbytes()) for storage, _ in self.storages.values()]
        for storage, size in self.storages.values():
            if storage.nbytes() < size:
                storage.resize_(size)  # a graph has memory of its own for what a step frees
        with torch.no_grad():
            for func, args, kwargs, results in self.calls:
                for kept, new in zip(results, _flat(func(*args, **kwargs)), strict=True):
                    if kept.untyped_storage()._cdata != new.untyped_storage()._cdata:
                        kept.copy_(new)
        for storage, size in left:
            storage.resize_(size)


def _recording(executor: Executor) -> graph.Capture:
    """Captures without running: the state is put back."""

    def capture(issue: Callable[[], None]) -> graph.Replayable:
        units = executor.units.values()
        state = [t for unit in units for t in (unit.shard, unit.master, *unit.optimizer.state.values())]
        before = [tensor.clone() for tensor in state]
        counts = executor.compute.num_targets.clone()
        with Recorder() as recorder:
            issue()
        for tensor, value in zip([*state, executor.compute.num_targets], [*before, counts], strict=True):
            tensor.copy_(value)
        executor.compute.loss.zero_()
        return recorder

    return capture


def _train(table: dict[str, Any], eager_steps: int) -> tuple[list[StepResult], Tensors]:
    """Results and the parameters at the end. The learning rate differs in every step."""
    config = parse_run(table)
    model = resolve_model(config.model)
    spec = resolve_step(config, model, resolve_layout(config, model, 1))
    view, device = rank_view(spec), torch.device("cpu")

    def fill(flat: Any, index: int, out: Tensor) -> None:
        initialize_shard(flat, index, config.run.seed, {}, out)

    units = build_units(view, 0, config.optimizer, device, fill)
    share_parameters(spec, units, {})
    executor = Executor(view, units, {}, config.optimizer, device, fixed=True, locate_nan=True)
    captured = StepGraph(executor, lower_step(view), _recording(executor), eager_steps)
    results = []
    for step in range(STEPS):
        batch = global_batch(step, config.batch.global_sequences, config.batch.sequence_length, model.vocab_size, False)
        results.append(captured.run(RankData(batch, spec, 0), 1e-3 * (step + 1)))
    return results, [unit.master for unit in units.values()]


@pytest.fixture(autouse=True)
def _as_on_a_device() -> Any:
    """The host may not look at values."""
    with patch.object(Executor, "_on_host", new_callable=PropertyMock, return_value=False):
        yield


TABLES = {
    "accumulation": run_table(layout={"microbatch_sequences": 2}, precision={"compute": "fp32"}),
    "recompute": run_table(
        layout={"microbatch_sequences": 4, "recompute": "full"},
        model={"tie_embeddings": True},
        precision={"compute": "bf16"},
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_replayed_steps_are_eager_steps(name: str) -> None:
    expected, parameters = _train(TABLES[name], STEPS)
    results, found = _train(TABLES[name], 2)
    assert results == expected
    assert len({result.loss for result in results}) == STEPS
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, parameters, strict=True))
