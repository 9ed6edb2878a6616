"""The runtime on a CUDA device: parity with one CPU process, and the predicted peak against the allocator's."""

import gc
from typing import Any

import pytest
import torch

from fourfold.config import parse_run
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.model.torch_operations import accumulate
from fourfold.program import RankView, lower_step, memory_peak, rank_view, resolve_step
from fourfold.runtime import step as step_module
from fourfold.runtime.device import read_back
from fourfold.runtime.executor import Executor
from fourfold.runtime.graph import StepGraph, capture_cuda
from fourfold.runtime.initialize import initialize_shard
from fourfold.runtime.units import build_units, share_parameters
from tests.support.parity_ranks import worst
from tests.support.parity_reference import reference
from tests.support.parity_runs import STEPS, RankData, global_batch, run_table
from tests.support.shards import full_tensors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]


def _executor(table: dict, device: torch.device, fixed: bool = False) -> tuple[Any, RankView, Executor]:
    config = parse_run(table)
    model = resolve_model(config.model)
    spec = resolve_step(config, model, resolve_layout(config, model, 1), "native")
    view = rank_view(spec)
    units = build_units(
        view, 0, config.optimizer, device, lambda flat, i, out: out.copy_(_initial(flat, i, config.run.seed, out))
    )
    share_parameters(spec, units, {})
    return config, view, Executor(view, units, {}, config.optimizer, device, fixed=fixed)


def _train(table: dict) -> tuple[list[float], dict[str, torch.Tensor], int, int]:
    device = torch.device("cuda", 0)
    gc.collect()  # an executor is a cycle of references
    before = torch.cuda.memory_allocated()
    config, view, executor = _executor(table, device)
    spec, program, units, model = view.spec, lower_step(view), executor.units, view.spec.model
    torch.cuda.reset_peak_memory_stats()
    losses = []
    for step in range(STEPS):
        batch = global_batch(step, config.batch.global_sequences, config.batch.sequence_length, model.vocab_size, False)
        losses.append(executor.run(program, RankData(batch, spec, 0, device), config.optimizer.lr).loss)
    peak = torch.cuda.max_memory_allocated() - before
    masters = {name: unit.master.cpu() for name, unit in units.items()}
    return losses, full_tensors(spec, masters), peak, memory_peak(program).bytes


def _initial(flat, index: int, seed: int, out: torch.Tensor) -> torch.Tensor:
    shard = torch.empty(out.shape, dtype=out.dtype)
    initialize_shard(flat, index, seed, {}, shard)
    return shard


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_parity_on_the_device(recompute: str) -> None:
    table = run_table(layout={"recompute": recompute, "microbatch_sequences": 4}, precision={"compute": "fp64"})
    expected = reference(table)
    losses, parameters, _, _ = _train(table)
    assert losses == pytest.approx(expected.losses, rel=1e-9)
    error, name = worst(parameters, expected.parameters)
    assert error < 1e-9, name


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_predicted_peak_is_the_allocators(compute: str) -> None:
    model = {
        "num_layers": 8,
        "hidden_size": 512,
        "num_heads": 8,
        "num_kv_heads": 4,
        "ffn_size": 1536,
        "vocab_size": 8192,
    }
    table = run_table(
        model=model,
        batch={"global_sequences": 8, "sequence_length": 1024},
        layout={"microbatch_sequences": 8},
        precision={"compute": compute},
    )
    _, _, peak, predicted = _train(table)
    assert predicted == pytest.approx(peak, rel=0.05)


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_replayed_steps_are_eager_steps(compute: str) -> None:
    """The losses of steps that a CUDA graph replays, under learning rates that change."""
    device, losses = torch.device("cuda", 0), []
    for eager_steps in (3, 6):
        config, view, executor = _executor(run_table(precision={"compute": compute}), device, fixed=True)
        graph = StepGraph(executor, lower_step(view), capture_cuda, eager_steps)
        sizes, vocab = (config.batch.global_sequences, config.batch.sequence_length), view.spec.model.vocab_size
        data = [RankData(global_batch(step, *sizes, vocab, False), view.spec, 0, device) for step in range(6)]
        losses.append([graph.run(each, 1e-3 * (step + 1)).loss for step, each in enumerate(data)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_the_host_waits_at_the_end_of_a_step_alone(compute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rehearsal says so; here torch itself raises an error where the host would wait."""
    device = torch.device("cuda", 0)
    config, view, executor = _executor(run_table(precision={"compute": compute}), device)
    program, waits = lower_step(view), []

    def read(tensors: Any) -> Any:
        torch.cuda.set_sync_debug_mode("default")
        waits.append(len(tensors))
        return read_back(tensors)

    monkeypatch.setattr(step_module, "read_back", read)
    batch = global_batch(
        0, config.batch.global_sequences, config.batch.sequence_length, view.spec.model.vocab_size, False
    )
    data = RankData(batch, view.spec, 0, device)
    executor.run(program, data, 1e-3)  # libraries make their workspaces in the first
    torch.cuda.set_sync_debug_mode("error")
    try:
        executor.run(program, data, 1e-3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(waits) == 2


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    device = torch.device("cuda", 0)
    config, view, executor = _executor(run_table(precision={"compute": "fp32"}), device)
    batch = global_batch(
        0, config.batch.global_sequences, config.batch.sequence_length, view.spec.model.vocab_size, False
    )
    data, program = RankData(batch, view.spec, 0, device), lower_step(view)
    executor.run(program, data, 1e-2)
    executor.units["head"].shard[0] = float("inf")
    before = {name: each.master.clone() for name, each in executor.units.items()}
    result = executor.run(program, data, 1e-2)
    assert result.skipped
    assert executor.updates == 1
    assert all(torch.equal(each.master, before[name]) for name, each in executor.units.items())


@pytest.mark.parametrize("fresh", [True, False])
def test_a_bf16_weight_gradient_is_not_rounded(fresh: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    out, x = (torch.randn(256, n, generator=generator).bfloat16().cuda() for n in (64, 96))
    grad = torch.full((64, 96), 0.0 if fresh else 1000.0, device="cuda")
    expected = grad.double() + out.t().double() @ x.double()
    accumulate(grad, out, x, fresh)
    assert ((grad.double() - expected).norm() / expected.norm()).item() < 1e-6
