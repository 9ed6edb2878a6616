"""The same code on a CUDA device: parity with one CPU process, and the predicted peak against the allocator's."""

import pytest
import torch

from fourfold.config import parse_run
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.model.environment import Microbatch
from fourfold.program import lower_step, memory_peak, rank_view, resolve_step
from fourfold.runtime.executor import Executor
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


class OnDevice:
    """A rank's data, moved to the device as it is loaded."""

    def __init__(self, data: RankData, device: torch.device) -> None:
        self._data, self._device = data, device
        self.num_targets = data.num_targets

    def load(self, microbatch: int) -> Microbatch:
        b = self._data.load(microbatch)
        tensors = (t.to(self._device) for t in (b.tokens, b.targets, b.cos, b.sin))
        return Microbatch(*tensors, b.document_lengths)


def _train(table: dict) -> tuple[list[float], dict[str, torch.Tensor], int, int]:
    device = torch.device("cuda")
    config = parse_run(table)
    model = resolve_model(config.model)
    spec = resolve_step(config, model, resolve_layout(config, model, 1), "native")
    view = rank_view(spec)
    program = lower_step(view)
    before = torch.cuda.memory_allocated()
    units = build_units(
        view, 0, config.optimizer, device, lambda flat, i, out: out.copy_(_initial(flat, i, config.run.seed, out))
    )
    share_parameters(spec, units, {})
    executor = Executor(view, units, {}, config.optimizer, device)
    torch.cuda.reset_peak_memory_stats()
    losses = []
    for step in range(STEPS):
        batch = global_batch(step, config.batch.global_sequences, config.batch.sequence_length, model.vocab_size, False)
        losses.append(executor.run(program, OnDevice(RankData(batch, spec, 0), device), config.optimizer.lr).loss)
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
