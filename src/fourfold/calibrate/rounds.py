"""One round of measurements of so many ranks at once, and several rounds as one.

A machine's speed changes from minute to minute, on shared ones by a tenth or more: every number of ranks is measured in each of
several rounds, and what is compared (1, 2, ... ranks that compute beside each other) is measured by turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from statistics import median
from typing import Any

from fourfold.calibrate.budget import Budget
from fourfold.calibrate.kernels import measure_attention, measure_gemms
from fourfold.calibrate.links import SIZES, measure_links
from fourfold.calibrate.ranks import Ranks
from fourfold.calibrate.steps import measure_layouts, measure_steps, measure_together

Table = dict[str, Any]

MODELS = (
    {"num_layers": 2, "hidden_size": 128, "num_heads": 4, "ffn_size": 384, "vocab_size": 1024},
    {"num_layers": 2, "hidden_size": 256, "num_heads": 8, "ffn_size": 704, "vocab_size": 2048},
    {"num_layers": 2, "hidden_size": 512, "num_heads": 8, "ffn_size": 1408, "vocab_size": 4096},
)
BATCHES = ((2, 1, 128), (4, 2, 256))
"""Sequences of a step and of a microbatch, tokens of a sequence."""
LAYOUTS = ({"tp": 2, "sequence_parallel": True}, {"tp": 2}, {"cp": 2, "cp_method": "ring"})
"""Layouts that split layers or sequences in two: they have collectives in segments."""


@dataclass(frozen=True)
class Measurements:
    """`kernels`: products and attention by themselves. `steps`: of each run table, seconds of a step and of each kind of
    instruction, all ranks at once. Neither where ranks take turns on the cores, for which single kernels are too short.
    `together[n]`: of some of the tables, seconds until n + 1 ranks that begin a step together, each for itself, have all made it.
    `layouts`: seconds of a step of `LAYOUTS`."""

    kernels: Table | None
    steps: list[Table]
    together: list[list[float]]
    links: Table
    layouts: list[float]


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


def layout_tables(dtype: str, ranks: int) -> list[Table]:
    """Run tables of `LAYOUTS`, for so many ranks."""
    rest = {"dp_shard": ranks // 2, "zero": 0, "microbatch_sequences": 2}
    return [
        {
            "model": MODELS[1],
            "batch": {"global_sequences": 2 * ranks, "sequence_length": 256, "steps": 1},
            "layout": {**rest, **layout},
            "precision": {"compute": dtype},
        }
        for layout in LAYOUTS
    ]


def measure_round(
    group: Ranks, dtype: str, device: str, budget: Budget, alone: bool, by_library: tuple[str, ...]
) -> Measurements:
    """All measurements of the group's ranks. `alone`: each rank has cores or a device of its own. `by_library`: the kinds of
    matmuls that oneDNN computes."""
    run = partial(group.run, by_library=by_library)
    tables, several = step_tables(dtype, budget.quick), group.size > 1
    kernels, steps = None, []
    if alone:
        kernels = {
            "gemms": _middle(run(measure_gemms, dtype=dtype, window=budget.kernel)),
            "attention": _middle(group.run(measure_attention, dtype=dtype, window=budget.kernel)),
        }
        steps = _middle(run(measure_steps, tables=tables, window=budget.steps))
    together, links, layouts = [], {}, []
    if several:
        turns = run(measure_together, tables=tables[:: len(BATCHES)], window=budget.steps)
        together = slowest(turns)
        sizes = SIZES[1:4] if budget.quick else SIZES
        links = _middle(group.run(measure_links, ranks=group.size, window=budget.link, sizes=sizes))
    if several and device == "cpu":
        answers = run(measure_layouts, tables=layout_tables(dtype, group.size), ranks=group.size, steps=3)
        layouts = _middle(answers)
    return Measurements(kernels, steps, together, links, layouts)


def merged(rounds: Sequence[Measurements]) -> Measurements:
    """The median of all rounds, number by number: one that something else disturbed has no part in it."""
    return Measurements(
        **{each.name: _middle([getattr(one, each.name) for one in rounds]) for each in fields(Measurements)}
    )


def drift(rounds: Sequence[Measurements]) -> float:
    """How much longer the steps of the slowest round took than those of the fastest, as a share."""
    totals = [sum(each.together[-1] if each.together else [table["step"] for table in each.steps]) for each in rounds]
    return max(totals) / min(totals) - 1


def slowest(ranks: Sequence[list[list[list[float]]]]) -> list[list[float]]:
    """The median over steps of what the last rank took; steps in the innermost lists."""
    return [
        [median(map(max, zip(*steps, strict=True))) for steps in zip(*tables, strict=True)]
        for tables in zip(*ranks, strict=True)
    ]


def _middle(answers: Sequence[Any]) -> Any:
    """The median, number by number; None of nothing."""
    first = answers[0]
    if first is None:
        return None
    if isinstance(first, dict):
        return {key: _middle([each[key] for each in answers]) for key in first}
    if isinstance(first, list):
        return [_middle([each[index] for each in answers]) for index in range(len(first))]
    return first if isinstance(first, int) else float(f"{median(answers):.6g}")
