"""All measurements of this machine, one number of ranks after the other, round after round; and what is fitted to them.

The cluster file that is written has tables of what was measured, and what they say in the words of any cluster.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, NamedTuple

import torch

from fourfold.calibrate.budget import TimeAccount
from fourfold.calibrate.fit import fit_segments
from fourfold.calibrate.kernels import Libraries, choose_library, library_text
from fourfold.calibrate.ranks import Ranks, answer
from fourfold.calibrate.rounds import (
    TOGETHER,
    Measurements,
    Table,
    drift,
    layout_tables,
    measure_round,
    merged,
    step_tables,
)
from fourfold.calibrate.steps import table_spec
from fourfold.cost.calibration import ContentionProfile, calibrated_prices, constants_of
from fourfold.hardware import Cluster, Device, Level
from fourfold.simulate.step import simulate

Report = Callable[[str], None]

PER_SECOND = ("memory_bytes_per_second", "update_bytes_per_second")
SECONDS = ("launch_seconds", "update_seconds")


def describe(
    calibration: dict[str, Any], device: str, memory: int, dtype: str, name: str, by_library: Sequence[str] = ()
) -> Table:
    """The cluster file: what the tables say in the words of any cluster, and the tables. `by_library`: the kinds of matmuls that
    oneDNN computed."""
    counts = sorted(int(key[6:]) for key in calibration if key.startswith("ranks_"))
    most = counts[-1]
    alone = calibration[f"ranks_{counts[0]}"]["kernels"]
    peak = best_matmul(alone)
    rate, latency = 1e9, 1e-4
    if most > 1:
        send = calibration[f"ranks_{most}"]["links"][f"group_{most}"]["send"]
        latency = send["seconds"][0]
        rate = most // 2 * send["bytes"][-1] / max(send["seconds"][-1] - latency, 1e-9)
    share = calibration["cores"] / max(calibration["cores"], most) if calibration["cores"] else 1.0
    library = library_text(by_library)
    table: Table = {
        "name": name,
        "source": f"measured by fourfold calibrate: torch {torch.__version__}, {dtype}{library}, ranks at once: {counts}",
        "devices": most,
        "device": {
            "name": f"a rank's share of {name}"[:200],
            "source": "measured: the best matmul, memory-bound kernels within segments",
            "memory_bytes": memory // (most if device == "cpu" else 1),
            "memory_bytes_per_second": max(1e3, min(1e18, alone["memory_bytes_per_second"] * share)),
            "peak_flops_per_second": {dtype: peak * share},
        },
        "levels": [
            {
                "name": "loopback" if device == "cpu" else "links",
                "kind": "shared" if device == "cpu" else "switch",
                "devices": max(2, most),
                "bytes_per_second": rate if device == "cpu" else rate / max(1, most // 2),
                "latency_seconds": min(latency, 1.0),
            }
        ],
        "calibration": calibration,
    }
    if device == "cuda":
        table["device"]["units"] = torch.cuda.get_device_properties(0).multi_processor_count
    return table


def best_matmul(kernels: dict[str, Any]) -> float:
    """FLOP/s of the best of a rank's matmuls, of its table of kernels."""
    return max(value for plane in kernels["gemms"]["plain"] for row in plane for value in row)


class Findings(NamedTuple):
    """`calibration`: the table of a cluster file. `fits`: how well constants describe segments, by numbers of ranks that have cores
    of their own. `drift`: how much slower the slowest round was than the fastest, as a share. `by_library`: the kinds of matmuls
    that oneDNN computes, by numbers of ranks."""

    calibration: dict[str, Any]
    fits: dict[int, float]
    drift: float
    by_library: dict[int, tuple[str, ...]]


def measure_machine(
    counts: Sequence[int],
    threads_of: Callable[[int], int],
    dtype: str,
    device: str,
    account: TimeAccount,
    report: Report,
) -> Findings:
    """`threads_of(ranks)`: of each rank."""
    cores = threads_of(1) if device == "cpu" else 0
    base = max((n for n in counts if threads_of(n) == 1 and n <= cores), default=0)
    rounds: dict[int, list[Measurements]] = {ranks: [] for ranks in counts}
    quick: dict[int, bool] = {}
    libraries: dict[int, Libraries] = {}
    with ExitStack() as open_groups:
        groups = {ranks: open_groups.enter_context(Ranks(ranks, threads_of(ranks), device)) for ranks in counts}
        for group in groups.values():
            group.run(answer)  # its start is no part of what it measures
        while (job := account.next_job()) is not None:
            which = f", round {job.number} of {job.rounds}" if job.rounds > 1 else ""
            report(f"{job.ranks} rank{'s' if job.ranks > 1 else ''} at once{which}, some {account.left():.0f} s left")
            alone = not base or job.ranks <= base
            group = groups[job.ranks]
            if job.ranks not in libraries:
                libraries[job.ranks] = group.run(choose_library, table=step_tables(dtype, job.budget.quick)[-1])[0]
            chosen = libraries[job.ranks].by_onednn
            rounds[job.ranks].append(measure_round(group, dtype, device, job.budget, alone, chosen))
            quick[job.ranks] = job.budget.quick
    calibration: dict[str, Any] = {"cores": cores}
    fits: dict[int, float] = {}
    for ranks in counts:
        measured, threads = merged(rounds[ranks]), threads_of(ranks)
        table: Table = {
            "software": {
                "threads": threads,
                "host_collective_seconds": 0.0,
                "relative_speeds": _relative_speeds(measured),
            }
        }
        if ranks > 1:
            table["links"] = measured.links
        if measured.kernels is not None:
            table["kernels"], table["software"]["step_seconds"], fits[ranks] = _described(
                measured, table, ranks, dtype, device, quick[ranks]
            )
        else:
            free = calibration[f"ranks_{base}"]
            share = min(
                free["software"]["relative_speeds"][0] / table["software"]["relative_speeds"][0],
                cores / (ranks * threads),
            )
            table["kernels"] = _slowed(free["kernels"], share)
            table["software"]["step_seconds"] = free["software"]["step_seconds"] / share
        table["kernels"]["gemms"]["torch_speeds"] = dict(libraries[ranks].torch_speeds)
        if ranks > 1 and device == "cpu":
            table["software"]["delay_seconds"] = _delay(measured.layouts, table, ranks, dtype, cores)
        calibration[f"ranks_{ranks}"] = table
    by_library = {ranks: found.by_onednn for ranks, found in libraries.items()}
    return Findings(calibration, fits, max(drift(each) for each in rounds.values()), by_library)


def _described(
    measured: Measurements, table: Table, ranks: int, dtype: str, device: str, quick: bool
) -> tuple[Table, float, float]:
    """Kernels with what single operators cost, from whole segments; seconds of a step beside its instructions; how well all of
    it describes segments."""
    assert measured.kernels is not None
    specs = [table_spec(each, 1, device) for each in step_tables(dtype, quick)]
    unknown: Table = {
        **table,
        "kernels": {**measured.kernels, **dict.fromkeys((*PER_SECOND, *SECONDS), 1.0)},
        "software": {**table["software"], "step_seconds": 0.0},
    }
    fit = fit_segments(specs, measured.steps, _read(unknown, ranks))
    kernels = _slowed(measured.kernels, 1 / fit.gemm_share)
    kernels |= {name: getattr(fit, name) for name in (*PER_SECOND, *SECONDS)}
    return _slowed(kernels, 1 / _until_the_last(measured)), fit.step_seconds, fit.error


def _until_the_last(measured: Measurements) -> float:
    """How many times as long as a rank's own step it takes until the last of all ranks that begin one together has made it: ranks
    of a run wait for one another, and each is at times the slowest."""
    if not measured.together:
        return 1.0
    own = [each["step"] for each in measured.steps[TOGETHER]]
    return max(1.0, median(last / step for last, step in zip(measured.together[-1], own, strict=True)))


def _slowed(constants: Mapping[str, Any], share: float) -> Table:
    """Constants on a share of the cores: rates times it, seconds over it, sizes as they are."""

    def times(values: Any) -> Any:
        return [times(each) for each in values] if isinstance(values, list) else float(f"{values * share:.4g}")

    rates, found = ("plain", "accumulated", "forward", "backward", *PER_SECOND), dict[str, Any]()
    for name, value in constants.items():
        if isinstance(value, Mapping):
            found[name] = _slowed(value, share)
        elif name in rates:
            found[name] = times(value)
        else:
            found[name] = value / share if isinstance(value, float) else value
    return found


def _relative_speeds(measured: Measurements) -> list[float]:
    """How fast a rank computes while 1, 2 and more of them do, relative to its speed while all do."""
    if not measured.together:
        return [1.0]
    last = measured.together[-1]
    return [max(1.0, median(b / a for a, b in zip(each, last, strict=True))) for each in measured.together]


def _delay(measured: Sequence[float], table: Table, ranks: int, dtype: str, cores: int) -> float:
    """Seconds that a segment's own collective costs beside its time on idle cores: from steps that split layers or sequences."""
    found = []
    for each, seconds in zip(layout_tables(dtype, ranks), measured, strict=True):
        spec = table_spec(each, ranks, "cpu")
        prices = calibrated_prices(_cluster(table, ranks, cores), spec.layout, dtype)
        assert prices is not None
        simulation = simulate(spec, prices)
        steps = simulation.programs[0].instructions
        count = sum(len(step.collectives) for step in steps if step.op.is_compute)
        found.append((seconds - simulation.seconds) / count)
    return max(0.0, median(found))


def _cluster(table: Table, ranks: int, cores: int) -> Cluster:
    """One with this table alone."""
    device = Device("this", "this", "measured", 10**9, 1e9, {"fp32": 1e9})
    levels = (Level("loopback", "shared", max(2, ranks), 1e9, 1e-6),)
    return Cluster(
        "this",
        "this",
        "measured",
        ranks,
        device=device,
        levels=levels,
        calibration={"cores": cores, f"ranks_{ranks}": table},
    )


def _read(table: Table, ranks: int) -> ContentionProfile:
    """The table as the cost model reads it."""
    found = constants_of(_cluster(table, ranks, 1))
    assert found is not None
    return found.profiles[ranks]
