"""Copies to the host's memory behind computation: seconds of a step and of its waits for copies, measured and predicted.

    python benchmarks/offload.py [--link 400] [--steps 9]

One rank of one thread trains a dense model in fp32 with its activations, or its optimizer states, on the device and in the host's
memory, in alternation on the same batches; the losses must be the same bits. On a processor both memories are one and a thread
copies. `--link`: MB/s at which a copy is over at the earliest, in either direction, as over a link; left out, copies take what they
take. The prediction simulates the program with the passes' seconds as measured without offload, and copies at the link's rate, or
at that of one copy alone. All figures are medians of steps.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from fourfold.cost.prices import Prices
from fourfold.hardware import load_cluster
from fourfold.model.parallel import Pending
from fourfold.program import Instruction, Op, Program, lower_step
from fourfold.program.pattern import Pattern
from fourfold.runtime.executor import Executor
from fourfold.runtime.initialize import initialize_shard
from fourfold.runtime.offload.host_link import Copying, HostCopies, HostLink, copy_stream
from fourfold.runtime.units import build_units, share_parameters
from fourfold.simulate.durations import Durations
from fourfold.simulate.engine import simulate_times
from fourfold.simulate.state import SimulationState
from tests.support.opcodes import HOST_COPIES
from tests.support.parity_ranks import prepare_rank
from tests.support.parity_runs import RankData, global_batch, run_table

MODEL = {"num_layers": 8, "hidden_size": 256, "num_heads": 4, "num_kv_heads": 4, "ffn_size": 1024, "vocab_size": 512}
SEQUENCES, LENGTH = 8, 256
CPU = torch.device("cpu")
WAYS: dict[str, dict[str, Any]] = {
    "on the device": {},
    "activations": {"offload": "activations"},
    "optimizer states": {"offload_optimizer": True},
}


class Timed:
    """A rank's steps, timed. `seconds`: of every instruction, a list a step."""

    def __init__(self, layout: dict[str, Any], link: HostLink) -> None:
        table = run_table(
            model=MODEL,
            batch={"global_sequences": SEQUENCES, "sequence_length": LENGTH, "steps": 1},
            layout={"microbatch_sequences": SEQUENCES // 2, **layout},
            precision={"compute": "fp32"},
        )
        config, self.view = prepare_rank(0, table, 1)
        units = build_units(
            self.view, 0, config.optimizer, CPU, lambda flat, i, out: initialize_shard(flat, i, 7, _origin(self), out)
        )
        share_parameters(self.view.spec, units, {})
        self.executor = Executor(self.view, units, {}, config.optimizer, CPU, link=link)
        self.program: Program = lower_step(self.view)
        self.seconds: list[list[float]] = []
        self.losses: list[float] = []

    def step(self, number: int) -> None:
        batch = global_batch(number, SEQUENCES, LENGTH, MODEL["vocab_size"], False)
        data, taken = RankData(batch, self.view.spec, 0), list[float]()
        before = time.perf_counter()

        def observe(counter: int, step: Instruction) -> None:
            nonlocal before
            now = time.perf_counter()
            taken.append(now - before)
            before = now

        self.losses.append(self.executor.run(self.program, data, 1e-3, observe).loss)
        self.seconds.append(taken)

    def waits(self, seconds: list[float]) -> float:
        """Seconds of one step in which computation waited for copies."""
        copies = {step.short for step in self.program.instructions if step.op in HOST_COPIES}
        steps = zip(self.program.instructions, seconds, strict=True)
        return sum(each for step, each in steps if step.op is Op.WAIT and step.handle in copies)


def _origin(timed: Timed) -> dict[str, int]:
    return timed.view.spec.layout.coordinates(0)


class MeasuredDurations(Durations):
    """Passes and updates as they were measured, copies at `rate` bytes a second."""

    def __init__(self, prices: Prices, measured: dict[str, float], rate: float) -> None:
        super().__init__(prices)
        self._measured, self._rate = measured, rate

    def compute(self, step: Instruction | Pattern) -> float:
        return self._measured[_kind(step)]

    local = compute

    def collectives(self, step: Instruction | Pattern) -> float:
        return step.work.host_bytes / self._rate


def _kind(step: Instruction | Pattern) -> str:
    return f"{step.op.value} {step.segment}"


class PacedLink(HostLink):
    """A link whose copies are over no earlier than at a rate, one after the other in each direction."""

    def __init__(self, megabytes_per_second: float) -> None:
        self._rate, self._bytes = 1e6 * megabytes_per_second, 0
        super().__init__(CPU, self._paced(copy_stream(CPU)), self._paced(copy_stream(CPU)))

    def _paced(self, start: Copying) -> Copying:
        def paced(copies: Callable[[], None]) -> Pending:
            seconds = self._bytes / self._rate

            def run() -> None:
                begun = time.perf_counter()
                copies()
                time.sleep(max(0.0, seconds - (time.perf_counter() - begun)))

            return start(run)

        return paced

    def away(self, tensors: Iterable[Tensor]) -> tuple[HostCopies, Pending]:
        sources = list(tensors)
        self._bytes = sum(each.nbytes for each in sources)
        return super().away(sources)

    def offload(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Pending:
        return super().offload(self._counted(pairs))

    def fetch(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Pending:
        return super().fetch(self._counted(pairs))

    def _counted(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        found = list(pairs)
        self._bytes = sum(source.nbytes for _, source in found)
        return found


def copy_rate() -> float:
    """Bytes a second of one copy alone, of some 16 MB."""
    source = torch.ones(4 << 20)
    target, taken = torch.empty_like(source), []
    for _ in range(9):
        begun = time.perf_counter()
        target.copy_(source)
        taken.append(time.perf_counter() - begun)
    return float(source.nbytes / statistics.median(taken))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--link", type=float, default=None, help="MB/s of the emulated link")
    parser.add_argument("--steps", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = {
        name: Timed(layout, HostLink(CPU) if options.link is None else PacedLink(options.link))
        for name, layout in WAYS.items()
    }
    for number in range(options.steps + 1):  # the first warms up
        for run in runs.values():
            run.step(number)
    plain = runs["on the device"]
    assert all(run.losses == plain.losses for run in runs.values()), "offload changed the losses"
    every: dict[str, list[float]] = {}
    for step, taken in zip(plain.program.instructions, zip(*plain.seconds[1:], strict=True), strict=True):
        every.setdefault(_kind(step), []).extend(taken)
    measured = {kind: statistics.median(taken) for kind, taken in every.items()}
    rate = copy_rate() if options.link is None else 1e6 * options.link
    prices = Prices(load_cluster("dgx-h100:1"), plain.view.spec.layout)
    print(f"copies at {rate / 1e9:.2f} GB/s; {torch.get_num_threads()} thread, {options.steps} steps")
    for name, run in runs.items():
        durations = MeasuredDurations(prices, measured, rate)
        times = simulate_times(SimulationState([run.program], durations, run.view.spec.layout, prices))
        row = times.ranks[0]
        waits = run.waits([end - start for start, end in zip(row.starts, row.ends, strict=True)])
        steps, waited = [sum(taken) for taken in run.seconds[1:]], [run.waits(taken) for taken in run.seconds[1:]]
        ratios = [own / other for own, other in zip(steps, map(sum, plain.seconds[1:]), strict=True)]
        print(
            f"{name:<17} step {statistics.median(steps):.3f} s, {statistics.median(ratios):.3f} of that on the device; predicted "
            f"{times.makespan:.3f} s; waits for copies {statistics.median(waited):.3f} s, predicted {waits:.3f} s"
        )


if __name__ == "__main__":
    main()
