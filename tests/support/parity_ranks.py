"""A run with this runtime on any number of ranks, and its shards put together to be compared."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fourfold.checkpoint import step_folders
from fourfold.config import parse_run
from fourfold.huggingface import resolve_model
from fourfold.kernels.matmul.libraries import by_onednn
from fourfold.layout import FlatLayout, resolve_layout
from fourfold.model import torch_operations
from fourfold.model.halves import join_halves
from fourfold.model.operations import with_operations
from fourfold.program import Program, RankView, lower_step, memory_peak, rank_view, resolve_step
from fourfold.program.liveness import host_peak_bytes, ledger
from fourfold.program.spec import Transport
from fourfold.runtime.collectives import Handle, bind_groups, make_groups
from fourfold.runtime.executor import Executor
from fourfold.runtime.initialize import global_runs, initialize_shard, shard_pieces
from fourfold.runtime.links import Links
from fourfold.runtime.parallel import groups_of
from fourfold.runtime.tracker import MemoryTracker
from fourfold.runtime.units import Unit, build_units, share_parameters, watch_units
from fourfold.train import state
from tests.support.fused_operations import FUSED
from tests.support.parity_runs import STEPS, RankData, global_batch
from tests.support.staged_links import StagedLinks

LINKS: Links = {}
"""Process groups of a warm worker, kept from case to case."""
STAGED_LINKS: Links = {}
"""Process groups of a warm worker over links that take NCCL's calls."""
SAVED = 1
"""The step before which a run's state is saved."""


def prepare_rank(
    rank: int, table: dict[str, Any], ranks: int, transport: Transport = "exchange"
) -> tuple[Any, RankView]:
    """The run, and its step as this rank sees it."""
    config = parse_run(table)
    model = resolve_model(config.model)
    layout = resolve_layout(config, model, ranks)
    spec = resolve_step(config, model, layout, transport).at_step(0, config.faults, config.metrics)
    return config, rank_view(spec, spec.layout.coordinates(rank)["pp"])


def initialized_units(config: Any, view: RankView, rank: int, device: torch.device | None = None) -> dict[str, Unit]:
    """The tensors of a run that begins; on a processor where no device is named."""
    place = view.spec.layout.coordinates(rank)

    def fill(flat: FlatLayout, index: int, out: torch.Tensor) -> None:
        shard = torch.empty(out.shape, dtype=out.dtype)
        initialize_shard(flat, index, config.run.seed, place, shard)
        out.copy_(shard)

    return build_units(view, rank, config.optimizer, device or torch.device("cpu"), fill)


@contextmanager
def pausing_after_collectives() -> Iterator[None]:
    """A moment after every collective, in which gloo's threads let go of its tensors: until then these count as in use."""
    join = Handle._join_phase

    def join_and_pause(handle: Handle) -> None:
        join(handle)
        time.sleep(0.003)

    Handle._join_phase = join_and_pause
    try:
        yield
    finally:
        Handle._join_phase = join


def run_rank(
    rank: int,
    table: dict[str, Any],
    ranks: int,
    track_memory: bool = False,
    start: Path | None = None,
    save: Path | None = None,
    by_library: tuple[str, ...] = (),
    fused: str = "",
    program: Program | None = None,
    staged: str = "",
) -> dict[str, Any]:
    """One rank's part of the same steps on the runtime; gradients and parameters as shards of its part. `start`: a folder with the
    state before step `SAVED`, from which it goes on; `save`: where that state is saved; `by_library`: the kinds of matmuls that
    oneDNN computes; `fused`: the kernels of norms and cross-entropy that segments call, by their name in `fused_operations`;
    `program`: in place of the one that the run lowers to; `staged`: a device on which all ranks run, as over NCCL: see
    `StagedLink`."""
    config, view = prepare_rank(rank, table, ranks, "native" if staged else "exchange")
    spec = view.spec
    program = program or lower_step(view)
    device = torch.device(staged or "cpu")
    if staged:
        groups = bind_groups(spec.layout, rank, groups_of(spec), StagedLinks(), STAGED_LINKS)
    else:
        groups = make_groups(spec.layout, rank, groups_of(spec), 60.0, LINKS)
    units = initialized_units(config, view, rank, device)
    operations = by_onednn(torch_operations, by_library)
    if fused:
        operations = with_operations(operations, FUSED[fused])
    executor = Executor(view, units, groups, config.optimizer, device, rank, operations=operations)
    numbers = range(0 if start is None else SAVED, config.batch.steps or STEPS)
    if start is not None:
        executor.updates = state.restore(saved_folder(start), view, units, executor.routers, rank)["updates"]
    share_parameters(spec, units, groups)
    for group in groups.values():
        group.sent_bytes = group.surplus_bytes = 0
    gradients: dict[str, Any] = {}

    def observe(counter: int, step: Any) -> None:
        if step.op.value == "C":
            for name, unit in units.items():
                gradients[name] = unit.grad_shard.cpu().clone().numpy()

    losses, norms, peak = [], [], 0
    for number in numbers:
        if save is not None and number == SAVED:
            info = {"updates": executor.updates}
            state.save(config, save, view, units, executor.routers, SAVED, info, rank, dist.barrier)
        batch = global_batch(
            number,
            config.batch.global_sequences,
            config.batch.sequence_length,
            spec.model.vocab_size,
            spec.document_mask,
        )
        data = RankData(batch, spec, rank, device)
        if track_memory:
            with pausing_after_collectives():
                peak = measure_step(executor, program, data, config.optimizer.lr, units)
            continue
        result = executor.run(program, data, config.optimizer.lr, observe)
        losses.append(result.loss + (result.mtp_loss or 0.0) + (result.z_loss or 0.0))
        norms.append(result.grad_norm)
    return {
        "losses": losses,
        "norms": norms,
        "gradients": gradients,
        "parameters": {name: master_weights(unit).cpu().clone().numpy() for name, unit in units.items()},
        "biases": {name: bias.cpu().clone().numpy() for name, bias in executor.routers.biases.items()},
        "samples": dict(executor.samples.read().values) if spec.sampled else {},
        "shards": {name: unit.index for name, unit in units.items()},
        "transport": spec.transport,
        "sent": {axes: size for axes, group in groups.items() if (size := group.sent_bytes - group.surplus_bytes)},
        "declared": {axes: size * len(numbers) for axes, size in ledger(program).items() if size},
        "peak": peak,
        "host_peak": host_bytes(executor),
        "predicted_host_peak": host_peak_bytes(program),
        "predicted_peak": memory_peak(program).bytes,
        "peak_at": program.instructions[memory_peak(program).index].short,
    }


def master_weights(unit: Unit) -> torch.Tensor:
    """The unit's shard of master weights, in the format of the arithmetic."""
    states = unit.states
    return states["master"] if "master" in states else join_halves(states["weights"], states["remainder"])


def saved_folder(out: Path) -> Path:
    """The folder of the state that a run saved under `out`."""
    (folder,) = step_folders(out / "checkpoints")
    return folder


def measure_step(executor: Executor, program: Any, data: RankData, lr: float, units: Any) -> int:
    """Peak live tensor bytes of one step, everything that outlives it included."""
    tracker = MemoryTracker()
    watch_units(tracker, units.values(), data._tables)
    with tracker:
        executor.run(program, data, lr)
    return tracker.peak_bytes


def host_bytes(executor: Executor) -> int:
    """The most bytes that the host's memory held of what is offloaded."""
    states = (tensor for unit in executor.units.values() for tensor in unit.away.values())
    return executor.link.peak_bytes + sum(tensor.nbytes for tensor in states)


def assemble(table: dict[str, Any], results: list[dict[str, Any]], key: str, ranks: int) -> dict[str, torch.Tensor]:
    """Full tensors by name from the shards of every rank. Where several ranks have an element, they must agree on it."""
    full: dict[str, torch.Tensor] = {}
    for rank, result in enumerate(results):
        _, view = prepare_rank(rank, table, ranks, result.get("transport", "exchange"))
        coordinates = view.spec.layout.coordinates(rank)
        for unit, values in result[key].items():
            held = torch.from_numpy(values)
            for local, start, end, part in shard_pieces(view.flats[unit], result["shards"][unit], held):
                empty = torch.full((local.spec.numel,), float("nan"), dtype=part.dtype)
                tensor = full.setdefault(local.name, empty)
                for first, last, low, high in global_runs(local, coordinates, start, end):
                    known = ~tensor[first:last].isnan()
                    same = tensor[first:last][known] == part[low:high][known]
                    assert same.all(), f"ranks differ in {key} of {local.name} (rank {rank})"
                    tensor[first:last] = part[low:high]
    _, view = prepare_rank(0, table, ranks)
    shapes = {each.name: each.shape for segment in view.spec.segments for each in segment.parameters}
    for name, tensor in full.items():
        assert not tensor.isnan().any(), f"nobody has all of {key} of {name}"
    return {name: tensor.view(shapes[name]) for name, tensor in full.items()}


def worst(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> tuple[float, str]:
    """The largest relative error of any tensor (norm of the difference over norm), and its name. A tensor that is next to nothing
    beside the largest (the gradient of GPT-2's key biases is rounding alone) is held to a millionth of that."""
    assert set(actual) == set(expected)
    errors = {}
    least = 1e-6 * max(tensor.norm().item() for tensor in expected.values())
    for name, tensor in expected.items():
        scale = max(tensor.norm().item(), least)
        errors[name] = (actual[name].view(tensor.shape) - tensor).norm().item() / scale
    name = max(errors, key=errors.__getitem__)
    return errors[name], name
