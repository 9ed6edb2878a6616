"""Prints what a step's kernels waste: `python -m tools.step_kernels RUN --cluster CLUSTER [KEY=VALUE ...]`, without a GPU.

RUN is a run file or `preset:NAME`. The recorder counts the kernels of the first pipeline rank. The tables are

- every matmul, what its tiles and waves leave idle of the device's multiprocessors, and the share of the predicted step that this
  is; those that waste most first;
- the bytes that memory-bound kernels move in one block's forward and backward: operator by operator, and in kernels that read and
  write every number once, as a run on CUDA chooses; and their share of a predicted step, the optimizer's update apart.
"""

import argparse
import sys
from dataclasses import replace

from fourfold.api.simulation import simulate
from fourfold.config import UserError
from fourfold.model.footprint import segment_footprint
from fourfold.model.work import Elementwise, Gemm, Work
from fourfold.simulate.step import Simulation
from fourfold.simulate.step import simulate as simulate_step
from tools.waves import H100_MULTIPROCESSORS, matmuls, waste

MOST_ROWS = 30


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run file, or preset:NAME")
    parser.add_argument("overrides", nargs="*", help="keys of the run file, as section.key=value")
    parser.add_argument("--cluster", default="dgx-h100:1", help="default: dgx-h100:1")
    parser.add_argument("--multiprocessors", type=int, help=f"default: the device's, or {H100_MULTIPROCESSORS}")
    options = parser.parse_args(arguments)
    if options.multiprocessors is not None and options.multiprocessors < 1:
        parser.error(f"--multiprocessors {options.multiprocessors}: allowed: 1 or more; what works: 132, an H100's")
    try:
        step = simulate(options.run, *options.overrides, cluster=options.cluster).summary.step.simulation
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    units = options.multiprocessors or step.prices.cluster.device.units or H100_MULTIPROCESSORS
    print("\n".join([*matmul_lines(step, units), "", *memory_lines(step)]))
    return 0


def matmul_lines(step: Simulation, units: int) -> list[str]:
    """A row for each shape of matmul."""
    found = matmuls(each.work for each in step.programs[0].instructions)
    rows = []
    for gemm, times in found.items():
        lost, seconds = waste(gemm, units), times * step.prices.kernel(gemm) / step.seconds
        rows.append((lost.share * seconds, seconds, gemm, times, lost))
    rows.sort(key=lambda row: row[0], reverse=True)
    total = sum(row[0] for row in rows)
    lines = [
        f"Matmuls of a step of {step.seconds:.4g} s on {units} multiprocessors: {100 * total:.1f} % of it waits for tiles, waves",
        f"{'rows':>8} {'columns':>8} {'inner':>8} {'groups':>6} {'times':>6} {'tile':>9} {'waves':>6} {'idle':>7} {'step':>7} "
        f"{'wasted':>7}",
    ]
    for wasted, seconds, gemm, times, lost in rows[:MOST_ROWS]:
        lines.append(
            f"{gemm.rows:>8} {gemm.columns:>8} {gemm.inner:>8} {gemm.groups:>6} {times:>6} {'x'.join(map(str, lost.tile)):>9} "
            f"{lost.waves:>6} {100 * lost.share:>5.1f} % {100 * seconds:>5.1f} % {100 * wasted:>5.2f} %{_role(gemm)}"
        )
    if len(rows) > MOST_ROWS:
        lines.append(f"and {len(rows) - MOST_ROWS} more shapes")
    return lines


def _role(gemm: Gemm) -> str:
    return "  weight gradient" if gemm.accumulates else ""


def memory_lines(step: Simulation) -> list[str]:
    """Bytes of a block, and shares of the step."""
    spec = step.spec
    view = step.views[0]
    policies = view.stages.policies
    block = next((each for each in view.stages.segments.values() if each.kind == "block"), None)
    lines = ["Memory-bound kernels:   MB of a block: forward  backward   share of the step   its seconds"]
    for name, kernels, fused in (("operator by operator", False, 0.0), ("in kernels of their own", True, 1.0)):
        sizes = ""
        if block is not None:
            shape = replace(spec.shape, kernels=kernels)
            footprint = segment_footprint(block, spec.model, shape, policies[block.name])
            sizes = f"{_bytes(footprint.forward) / 1e6:>16.1f} {_bytes(footprint.backward) / 1e6:>9.1f}"
        prices = replace(step.prices, kernels=replace(step.prices.kernels, fused=fused))
        priced = simulate_step(spec, prices)
        share = priced.spent[0].get("memory-bound kernels", 0.0) / priced.seconds
        lines.append(f"{name:<24}{sizes:>26}   {100 * share:>15.1f} %   {priced.seconds:>11.4g}")
    return lines


def _bytes(work: Work) -> int:
    return sum(item.bytes for item in work.items if isinstance(item, Elementwise))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
