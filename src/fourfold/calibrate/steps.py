"""Steps of real programs on random tokens: what the executor needs, without corpus or run folder; each instruction's time."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from fourfold.calibrate.clock import fill_, own_time, synchronize
from fourfold.config import parse_run
from fourfold.data.batches import Batch
from fourfold.huggingface import resolve_model
from fourfold.kernels.choose import Alone
from fourfold.kernels.kinds import choose_for_run
from fourfold.kernels.matmul.libraries import by_onednn
from fourfold.layout import FlatLayout, resolve_layout
from fourfold.model import torch_operations
from fourfold.program import lower_step
from fourfold.program.kinds import instruction_kinds, seconds_by_kind
from fourfold.program.resolve import resolve_step
from fourfold.program.spec import StepSpec, transport_on
from fourfold.program.view import rank_view
from fourfold.runtime.clock import StepClock
from fourfold.runtime.collectives import make_groups
from fourfold.runtime.executor import Executor
from fourfold.runtime.links import Links
from fourfold.runtime.parallel import groups_of
from fourfold.runtime.tracker import MemoryTracker
from fourfold.runtime.units import build_units, share_parameters, watch_units
from fourfold.train.feed import feed_tables, rank_feed, rank_rows

LINKS: Links = {}
"""Process groups of this rank, kept from one program to the next."""


def table_spec(table: Mapping[str, Any], ranks: int, device: str) -> StepSpec:
    """The step of a run table on so many ranks of such a device."""
    config = parse_run(dict(table))
    model = resolve_model(config.model)
    return resolve_step(config, model, resolve_layout(config, model, ranks), transport_on(device))


class StepRunner:
    """One rank's executor for a run table; `ranks`: those that train together, the caller being number `rank` of them."""

    def __init__(
        self,
        table: Mapping[str, Any],
        ranks: int,
        rank: int,
        device: torch.device,
        now: Callable[[], float] = time.perf_counter,
        by_library: tuple[str, ...] = (),
    ) -> None:
        """`by_library`: the kinds of matmuls that oneDNN computes."""
        self._now = now
        config, spec = parse_run(dict(table)), table_spec(table, ranks, device.type)
        self.view = rank_view(spec, spec.layout.coordinates(rank)["pp"])
        self.program = lower_step(self.view)
        self.device, self.rank = device, rank
        self.groups = make_groups(spec.layout, rank, groups_of(spec), 600.0, LINKS)
        self.units = build_units(self.view, rank, config.optimizer, device, _fill)
        share_parameters(spec, self.units, self.groups)
        operations = by_onednn(torch_operations, by_library)
        if device.type == "cuda":  # the kernels that a run on this device would choose
            operations = choose_for_run(config, spec, self.program, Alone(device), None, None).operations
        place = device, rank
        self.executor = Executor(self.view, self.units, self.groups, config.optimizer, *place, operations=operations)
        self.tables = feed_tables(spec, device)
        self.batch = _batch(config.batch.global_sequences, config.batch.sequence_length, spec.model.vocab_size)

    def step(self, clock: StepClock | None = None) -> float:
        """Seconds of one step, its batch's preparation included. `clock`: times its instructions too."""
        synchronize(self.device)
        start = self._now()
        layout = self.view.spec.layout
        rows = self.batch.select(rank_rows(layout, self.rank))
        feed = rank_feed(self.view.spec, rows, self.rank, self.tables)
        if clock is not None:
            clock.begin(0)
        self.executor.run(self.program, feed, 1e-4, clock)
        synchronize(self.device)
        seconds = self._now() - start
        if clock is not None:
            clock.finish(seconds)
        return seconds

    def kind_seconds(self, clock: StepClock) -> dict[str, list[float]]:
        """Seconds of every kind of instruction in the clock's latest step."""
        return seconds_by_kind(instruction_kinds(self.program, self.view.stages.segments), clock.steps[-1].ends)

    def sent_bytes(self) -> dict[str, int]:
        """Bytes that this rank has sent so far, by axes."""
        return {axes: group.sent_bytes for axes, group in self.groups.items()}

    def peak_bytes(self) -> int:
        """The peak of live tensors of one step."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self.step()
            return torch.cuda.max_memory_allocated(self.device)
        tracker = MemoryTracker()
        watch_units(tracker, self.units.values(), self.tables)
        with tracker:
            self.step()
        return tracker.peak_bytes


def _fill(flat: FlatLayout, index: int, out: torch.Tensor) -> None:
    fill_(out, 0.02)


def _batch(rows: int, length: int, vocabulary: int) -> Batch:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, vocabulary, (rows, length + 1))
    positions = np.broadcast_to(np.arange(length), (rows, length))
    return Batch(tokens[:, :-1].copy(), tokens[:, 1:].copy(), positions.copy(), None)


def measure_layouts(
    rank: int, device: torch.device, tables: list[dict[str, Any]], ranks: int, steps: int, by_library: tuple[str, ...]
) -> list[float]:
    """Median seconds of steps that all ranks make together."""
    answers = []
    for table in tables:
        runner = StepRunner(table, ranks, rank, device, by_library=by_library)
        runner.step()
        seconds = []
        for _ in range(steps):
            dist.barrier()
            seconds.append(runner.step())
        answers.append(median(seconds))
    return answers


def measure_steps(
    rank: int,
    device: torch.device,
    tables: list[dict[str, Any]],
    window: float,
    by_library: tuple[str, ...],
    alone: bool = False,
    most: float = math.inf,
) -> list[dict[str, Any]]:
    """Typical seconds of a step and of each kind of instruction, for each run table on one rank of its own. All ranks run it at the
    same time, each for itself. `alone`: by the device's own time. `most`: seconds of all together, the choices among kernels
    counted; tables for which too little of it is left, as long as the one before took, have no answer. The first always has."""
    answers: list[dict[str, Any]] = []
    now = own_time(device) if alone else time.perf_counter
    opened = before = time.perf_counter()
    for table in tables:
        begin = time.perf_counter()
        if answers and begin - opened + (begin - before) > most:
            break
        before = begin
        runner = StepRunner(table, 1, 0, device, now, by_library)
        runner.step()
        dist.barrier()
        clock = StepClock(device, now)
        steps: list[tuple[float, dict[str, list[float]]]] = []
        begun = time.perf_counter()
        while len(steps) < 2 or time.perf_counter() - begun < window:
            seconds = runner.step(clock)
            steps.append((seconds, runner.kind_seconds(clock)))
        answers.append(_typical(steps))
    dist.barrier()
    return answers


def _typical(steps: Sequence[tuple[float, Mapping[str, Sequence[float]]]]) -> dict[str, float]:
    """Means over the middle half of steps, ordered by their seconds: kinds of instructions then add up to the step. Medians of each
    kind, whose times are skewed, add up to less."""
    ordered = sorted(steps, key=lambda step: step[0])
    cut = (len(ordered) + 1) // 4
    middle = ordered[cut : len(ordered) - cut]
    kinds: dict[str, list[float]] = defaultdict(list)
    for _, seconds_of in middle:
        for name, seconds in seconds_of.items():
            kinds[name] += seconds
    return {"step": mean(seconds for seconds, _ in middle), **{name: mean(seconds) for name, seconds in kinds.items()}}


def measure_together(
    rank: int, device: torch.device, tables: list[dict[str, Any]], window: float, by_library: tuple[str, ...]
) -> list[list[list[float]]]:
    """By number of ranks less one and run table, seconds of steps that the first 1, 2, ... ranks begin together, each for itself; 0
    where this rank waited."""
    runners = [StepRunner(table, 1, 0, device, by_library=by_library) for table in tables]
    counts = [agreed_repeats(runner.step() + runner.step(), 2, window / 2, device) for runner in runners]
    world = dist.get_world_size()
    found: list[list[list[float]]] = [[[] for _ in runners] for _ in range(world)]
    for index, (runner, count) in enumerate(zip(runners, counts, strict=True)):
        for _ in range(count):
            for active in range(1, world + 1):
                dist.barrier()
                found[active - 1][index].append(runner.step() if rank < active else 0.0)
    dist.barrier()
    return found


def agreed_repeats(elapsed: float, repeats: int, window: float, device: torch.device) -> int:
    """How often to repeat what took so long so often, to fill a window: the same on all ranks, 1 at least."""
    wanted = torch.tensor([repeats * window / max(elapsed, 1e-6)], dtype=torch.float64, device=device)
    dist.all_reduce(wanted)
    return max(1, int(wanted.item() / dist.get_world_size()))
