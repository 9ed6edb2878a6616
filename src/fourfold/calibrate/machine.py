"""All measurements of this machine, one number of ranks after the other, and what is fitted to them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from fourfold.calibrate.fit import Fit, fit_segments
from fourfold.calibrate.kernels import measure_attention, measure_products
from fourfold.calibrate.links import SIZES, measure_links
from fourfold.calibrate.ranks import Ranks
from fourfold.calibrate.steps import lowered, measure_layouts, measure_steps
from fourfold.config.hardware import Cluster, Device, Tier
from fourfold.cost.calibrated import calibrated_prices
from fourfold.cost.calibration import Crowd, constants_of
from fourfold.program.instruction import COMPUTE_OPS
from fourfold.simulate.step import simulate

Table = dict[str, Any]
Report = Callable[[str], None]

PRODUCT_CALLS = 260
"""Timings of one number of ranks, each a window: 5 x 5 x 5 shapes of two kinds, and attention."""
MODELS = (
    {"num_layers": 2, "hidden_size": 128, "num_heads": 4, "ffn_size": 384, "vocab_size": 1024},
    {"num_layers": 2, "hidden_size": 256, "num_heads": 8, "ffn_size": 704, "vocab_size": 2048},
    {"num_layers": 2, "hidden_size": 512, "num_heads": 8, "ffn_size": 1408, "vocab_size": 4096},
)
BATCHES = ((2, 1, 128), (4, 2, 256))
"""Sequences of a step and of a microbatch, tokens of a sequence."""


@dataclass(frozen=True)
class Budget:
    """Seconds of single timings, so that all of them take about as long as was asked for."""

    kernel: float
    link: float
    steps: float

    @staticmethod
    def of(seconds: float, crowds: int) -> "Budget":
        each = seconds / crowds
        return Budget(0.3 * each / PRODUCT_CALLS, 0.1 * each / 12, 0.25 * each / len(MODELS) / len(BATCHES))


def step_tables(dtype: str, quick: bool) -> list[Table]:
    """Run tables whose instructions are timed."""
    models, batches = (MODELS[:1], BATCHES[:1]) if quick else (MODELS, BATCHES)
    return [
        {
            "model": model,
            "batch": {"global_sequences": rows, "sequence_length": length, "steps": 1},
            "layout": {"microbatch_sequences": size},
            "precision": {"compute": dtype},
        }
        for model in models
        for rows, size, length in batches
    ]


def measure_machine(
    counts: Sequence[int], threads_of: Callable[[int], int], dtype: str, device: str, seconds: float, report: Report
) -> tuple[dict[str, Table], dict[int, Fit]]:
    """The `[calibration]` table, and how well its constants fit. `threads_of(ranks)`: of each rank."""
    budget, quick = Budget.of(seconds, len(counts)), seconds < 20
    calibration: dict[str, Any] = {"cores": threads_of(1) if device == "cpu" else 0}
    fits: dict[int, Fit] = {}
    begun = time.monotonic()
    tables = step_tables(dtype, quick)
    facts = [lowered(each, 1, device) for each in tables]
    base: tuple[Table, float] | None = None
    for index, ranks in enumerate(counts):
        past = time.monotonic() - begun
        left = seconds if not index else past / index * (len(counts) - index)
        report(f"{ranks} rank{'s' if ranks > 1 else ''} at once, some {left:.0f} s left")
        threads = threads_of(ranks)
        crowded = device == "cpu" and ranks * threads > calibration["cores"]
        with Ranks(ranks, threads, device) as group:
            answers = _mean_steps(group.run(measure_steps, tables=tables, active=ranks, window=budget.steps), ranks)
            step = sum(each["step"] for each in answers)
            if crowded and base is not None:
                kernels = _slowed(base[0], base[1] / step)
            else:
                kernels = _kernel_tables(group, dtype, budget)
                base = (kernels, step) if threads == 1 else base
            paces = _paces(group, tables[-1:], answers[-1]["step"], budget.steps)
            stack = {"threads": threads, "step_seconds": 0.0, "host_collective_seconds": 0.0, "paces": paces}
            table: Table = {"kernels": {**kernels, **dict.fromkeys(_KERNEL_CONSTANTS, 1.0)}, "stack": stack}
            if ranks > 1:
                table["links"] = _links(group, budget, quick)
            fit = fits[ranks] = fit_segments(facts, answers, _read(table, ranks))
            table["kernels"] = _slowed(kernels, 1 / fit.product_share)
            table["kernels"] |= {name: getattr(fit, name) for name in _KERNEL_CONSTANTS}
            table["stack"]["step_seconds"] = fit.step_seconds
            if ranks > 1 and device == "cpu":
                table["stack"]["delay_seconds"] = _delay(group, table, dtype, calibration["cores"])
        calibration[f"ranks_{ranks}"] = table
    return calibration, fits


_KERNEL_CONSTANTS = ("launch_seconds", "memory_bytes_per_second", "update_seconds", "update_bytes_per_second")


def _kernel_tables(group: Ranks, dtype: str, budget: Budget) -> Table:
    return {
        "products": _merged(group.run(measure_products, dtype=dtype, window=budget.kernel)),
        "attention": _merged(group.run(measure_attention, dtype=dtype, window=budget.kernel)),
    }


def _slowed(kernels: Table, share: float) -> Table:
    """Of ranks that take turns on the cores: the rates of as many as there are cores, and the share of them that is left. Single
    kernels are shorter than a turn, so they are not measured again."""

    def times(values: Any) -> Any:
        return [times(each) for each in values] if isinstance(values, list) else float(f"{values * share:.4g}")

    rates = ("plain", "accumulated", "forward", "backward")
    return {
        name: {key: times(values) if key in rates else values for key, values in part.items()}
        for name, part in kernels.items()
    }


def _links(group: Ranks, budget: Budget, quick: bool) -> Table:
    table: Table = _merged(
        group.run(measure_links, ranks=group.size, window=budget.link, sizes=SIZES[1:4] if quick else SIZES)
    )
    return table


def _merged(answers: list[Any]) -> Any:
    """The median over ranks, number by number."""
    first = answers[0]
    if isinstance(first, dict):
        return {key: _merged([each[key] for each in answers]) for key in first}
    if isinstance(first, list):
        return [_merged([each[index] for each in answers]) for index in range(len(first))]
    return first if isinstance(first, int) else float(f"{median(answers):.4g}")


def _mean_steps(answers: list[list[dict[str, float]]], active: int) -> list[dict[str, float]]:
    return [_merged([answers[rank][index] for rank in range(active)]) for index in range(len(answers[0]))]


def _paces(group: Ranks, tables: list[Table], together: float, window: float) -> list[float]:
    """How fast a rank computes while 1, 2, ... of them do, beside its pace when all do."""
    paces = []
    for active in range(1, group.size):
        answers = group.run(measure_steps, tables=tables, active=active, window=window / group.size)
        paces.append(max(1.0, together / _mean_steps(answers, active)[0]["step"]))
    return [*paces, 1.0]


def _delay(group: Ranks, table: Table, dtype: str, cores: int) -> float:
    """What collectives inside segments cost beside their time on idle cores: from steps that split layers or sequences
    in two; the least of them where ranks take turns on the cores, for there steps vary upwards."""
    rest = {"dp_shard": group.size // 2, "zero": 0, "microbatch_sequences": 2}
    layouts = ({"tp": 2, "sequence_parallel": True}, {"tp": 2}, {"cp": 2, "cp_method": "ring"})
    tables = [
        {
            "model": MODELS[1],
            "batch": {"global_sequences": 2 * group.size, "sequence_length": 256, "steps": 1},
            "layout": {**rest, **layout},
            "precision": {"compute": dtype},
        }
        for layout in layouts
    ]
    measured = group.run(measure_layouts, tables=tables, ranks=group.size, steps=5)
    found = []
    for index, each in enumerate(tables):
        facts = lowered(each, group.size, "cpu")
        prices = calibrated_prices(_cluster(table, group.size, cores), facts.layout, dtype)
        assert prices is not None
        simulation = simulate(facts, prices)
        steps = simulation.programs[0].instructions
        count = sum(len(step.collectives) for step in steps if step.op in COMPUTE_OPS)
        found.append((median(answer[index] for answer in measured) - simulation.seconds) / count)
    return max(0.0, min(found) if group.size * group.threads > cores else median(found))


def _cluster(table: Table, ranks: int, cores: int) -> Cluster:
    """One with this table alone."""
    device = Device("this", "this", "measured", 10**9, 1e9, {"fp32": 1e9})
    tiers = (Tier("loopback", "shared", max(2, ranks), 1e9, 1e-6),)
    return Cluster(
        "this", "this", "measured", device, ranks, tiers, calibration={"cores": cores, f"ranks_{ranks}": table}
    )


def _read(table: Table, ranks: int) -> Crowd:
    """The table as the cost model reads it."""
    found = constants_of(_cluster(table, ranks, 1))
    assert found is not None
    return found.crowds[ranks]


def describe(calibration: dict[str, Any], device: str, memory: int, dtype: str, name: str) -> Table:
    """The cluster file: what the tables say in the words of any cluster, and the tables."""
    counts = sorted(int(key[6:]) for key in calibration if key.startswith("ranks_"))
    most = counts[-1]
    alone = calibration[f"ranks_{counts[0]}"]["kernels"]
    peak = max(value for plane in alone["products"]["plain"] for row in plane for value in row)
    rate, latency = 1e9, 1e-4
    if most > 1:
        send = calibration[f"ranks_{most}"]["links"][f"group_{most}"]["send"]
        latency = send["seconds"][0]
        rate = most // 2 * send["bytes"][-1] / max(send["seconds"][-1] - latency, 1e-9)
    share = calibration["cores"] / max(calibration["cores"], most) if calibration["cores"] else 1.0
    table: Table = {
        "name": name,
        "source": f"measured by fourfold calibrate: torch {torch.__version__}, {dtype}, ranks at once: {counts}",
        "devices": most,
        "device": {
            "name": f"a rank's share of {name}"[:200],
            "source": "measured: the best matrix product, passes over memory within segments",
            "memory_bytes": memory // (most if device == "cpu" else 1),
            "memory_bytes_per_second": max(1e3, min(1e18, alone["memory_bytes_per_second"] * share)),
            "peak_flops_per_second": {dtype: peak * share},
        },
        "tiers": [
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
