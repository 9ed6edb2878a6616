"""The exchange of experts' rows behind another microbatch's computation: exposed seconds before and after, measured and predicted.

    python benchmarks/experts_overlap.py [--cluster this-machine.toml] [--link 50] [--steps 8]

Four ranks of one thread train a mixture of experts in fp32, with and without `layout.overlap_experts`, in alternation on the same
batches; the losses must agree. Messages between ranks of one machine are copies that take a core. So rows travel over a slower
link, of `--link` MB/s for each rank: one exchange after the other, each is over when the link would be done. Exposed: seconds in
which a rank whose peers have all come waits for the link; median of steps, mean of ranks. `--cluster`: a file of `fourfold
calibrate`, which prices all else.
"""

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
from fourfold.cost.calibration import CalibratedPrices
from fourfold.hardware import load_cluster
from fourfold.model.work import sent_bytes
from fourfold.program import lower_step
from fourfold.runtime.collectives import make_groups
from fourfold.runtime.executor import Executor
from fourfold.runtime.links import TorchLink
from fourfold.runtime.parallel import groups_of
from fourfold.runtime.units import share_parameters
from fourfold.simulate.run_prices import prices_for
from fourfold.simulate.step import simulate
from fourfold.simulate.summary import EXPOSED, traffic
from tests.support.parity_ranks import initialized_units, prepare_rank
from tests.support.parity_runs import RankData, global_batch, run_table
from tests.support.ranks import run_on_ranks

RANKS = 4
MODEL = {
    **{"family": "mixtral", "num_layers": 4, "hidden_size": 256, "num_heads": 4, "num_kv_heads": 4, "ffn_size": 512},
    **{"num_experts": 8, "top_k": 2, "moe_ffn_size": 512, "vocab_size": 1024},
}
LENGTH = 128
LAYOUTS: dict[str, dict[str, Any]] = {
    "accumulation": {"dp_shard": 4, "ep": 4},
    "accumulation, ZeRO-3": {"dp_shard": 4, "ep": 4, "zero": 3},
    "1f1b": {"pp": 2, "dp_shard": 2, "ep": 2},
    "dualpipe_v": {"pp": 2, "dp_shard": 2, "ep": 2, "schedule": "dualpipe_v"},
}


def table_of(layout: dict[str, Any], overlap: bool) -> dict[str, Any]:
    """The run: 8 microbatches of two sequences on each rank that reads data."""
    sequences = 16 * layout["dp_shard"]
    return run_table(
        model=MODEL,
        batch={"global_sequences": sequences, "sequence_length": LENGTH, "steps": 1},
        layout={**layout, "microbatch_sequences": 2, "overlap_experts": overlap},
        precision={"compute": "fp32"},
    )


@dataclass
class SlowLink(TorchLink):
    """A link whose all-to-alls take their bytes' time. `waited`: seconds in which somebody waited for it alone."""

    bytes_per_second: float = 0.0
    free: float = 0.0
    waited: float = 0.0

    def all_to_all(self, received: Any, sent: Any, rows_in: Any, rows_out: Any) -> "_Due":
        ranks = dist.get_world_size(self.process_group)
        seconds = sent_bytes("all_to_all", sent.numel() * sent.element_size(), ranks) / self.bytes_per_second
        self.free = max(self.free, time.perf_counter()) + seconds
        return _Due(self, super().all_to_all(received, sent, rows_in, rows_out), self.free)


@dataclass
class _Due:
    """An all-to-all that is over at a time."""

    link: SlowLink
    work: Any
    due: float

    def wait(self) -> None:
        self.work.wait()
        begun = time.perf_counter()
        time.sleep(max(0.0, self.due - begun))
        self.link.waited += time.perf_counter() - begun


def contender(rank: int, table: dict[str, Any], link: float) -> tuple[Any, SlowLink]:
    """A step, as a function of its number that returns the loss; and the link of its experts."""
    config, view = prepare_rank(rank, table, RANKS)
    spec = view.spec
    groups = make_groups(spec.layout, rank, groups_of(spec), 60.0)
    slow = groups["ep"].link = SlowLink(groups["ep"].link.process_group, False, bytes_per_second=link)
    device = torch.device("cpu")
    units = initialized_units(config, view, rank)
    share_parameters(spec, units, groups)
    executor, program = Executor(view, units, groups, config.optimizer, device, rank), lower_step(view)

    def step(number: int) -> float:
        batch = global_batch(number, config.batch.global_sequences, LENGTH, spec.model.vocab_size, False)
        return executor.run(program, RankData(batch, spec, rank), 1e-4).loss

    return step, slow


def measure(rank: int, layout: dict[str, Any], link: float, steps: int) -> list[tuple[list[float], list[float]]]:
    """Without and with overlap: seconds of every step, and those in which the rank waited for the link."""
    sides = [contender(rank, table_of(layout, overlap), link) for overlap in (False, True)]
    found: list[tuple[list[float], list[float]]] = [([], []), ([], [])]
    for number in range(2 + steps):
        losses = []
        for (step, slow), (seconds, waited) in zip(sides, found, strict=True):
            dist.barrier()
            slow.waited, begun = 0.0, time.perf_counter()
            losses.append(step(number))
            dist.barrier()
            seconds.append(time.perf_counter() - begun)
            waited.append(slow.waited)
        if abs(losses[0] - losses[1]) > 1e-5 * abs(losses[0]):
            raise SystemExit(f"losses differ at step {number}: {losses}")
    return [(seconds[2:], waited[2:]) for seconds, waited in found]


def predicted(layout: dict[str, Any], overlap: bool, cluster: str, link: float) -> tuple[float, float]:
    """Seconds of the step, and of exposed exchanges. The slow link takes no core: kernels beside it lose nothing."""
    config, view = prepare_rank(0, table_of(layout, overlap), RANKS)
    measured = CalibratedPrices.collective

    def collective(self: CalibratedPrices, kind: str, axes: str, size: int) -> float:
        if axes != "ep":
            return measured(self, kind, axes, size)
        return sent_bytes(kind, size, self.layout.ep) / link

    with patch.object(CalibratedPrices, "collective", collective):
        prices = prices_for(config, view.spec, load_cluster(cluster))
        step = simulate(view.spec, replace(prices, software=replace(prices.software, contention=0.0)))
        return step.seconds, mean_exposed(step)


def mean_exposed(step: Any) -> float:
    """Exposed seconds of exchanges, mean of the pipeline's ranks."""
    return sum(sums.get(("ep", EXPOSED), 0.0) for sums in traffic(step)) / len(step.programs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster")
    parser.add_argument("--link", type=float, default=50.0)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    link = options.link * 1e6
    print("| layout | | step, s | predicted | exposed all-to-alls, s | predicted |\n|---|---|---|---|---|---|")
    for name, layout in LAYOUTS.items():
        ranks = run_on_ranks(RANKS, measure, layout=layout, link=link, steps=options.steps)
        for which, overlap in enumerate((False, True)):
            seconds = max(statistics.median(rank[which][0]) for rank in ranks)
            exposed = statistics.mean(statistics.median(rank[which][1]) for rank in ranks)
            expected = ("", "")
            if options.cluster:
                expected = tuple(f"{each:.3f}" for each in predicted(layout, overlap, options.cluster, link))
            side = "overlapped" if overlap else "as before"
            print(f"| {name} | {side} | {seconds:.3f} | {expected[0]} | {exposed:.3f} | {expected[1]} |", flush=True)


if __name__ == "__main__":
    main()
