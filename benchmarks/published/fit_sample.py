"""The rows that constants are fitted on, and those of them that tell of links, families and devices."""

import random
from collections import defaultdict
from pathlib import Path

from case import PublishedCase
from fit_table import MEASURED, family_of
from fourfold.validate import Prediction
from machine import DEVICE_KEYS

COLLECTED = {path.stem for path in (Path(__file__).parent / "rows").glob("*.json")}
"""Rows that this project collected say nothing of links, families and devices that tuned runs and single operators were measured
on: half of them ran on devices of less power or on other networks, and what is slow there is the software's. They do tell of a
device that no other rows have (GH200, H200, an A100 of 64 GB)."""
DISTURBED = (
    "aws_dsv3",
    "aws_kimi",
    "aws_qwen3_235b",
    "nanotron_old_bench_slow",
    "torchao_float8_limited_b200",
    "torchtitan_by_veomni_128gpu",
    "together_",
)
"""Files, by how they begin, of runs that something outside their configuration held up (a cluster being brought up, limited power,
all-to-alls at a fraction of their network's rate), or whose machine is inferred: they are predicted, and inform nothing.
Neither do runs on a device of no table: what is not known of it would be taken for its software's."""
UNEXPLAINED = ("nanotron_playbook_failed",)
"""Files of runs that failed, for want of memory or otherwise."""
SWEEP_FACTOR = 4.0
NEAR = 0.7
"""Share of a device's memory: a run that is predicted to hold less says nothing by having run."""


def telling(cases: list[PublishedCase]) -> list[PublishedCase]:
    """Without those that inform nothing."""
    return [
        case
        for case in cases
        if "row" not in case.from_memory and not case.file.startswith(DISTURBED) and case.device in DEVICE_KEYS
    ]


def tuned_devices(cases: list[PublishedCase]) -> frozenset[str]:
    """Devices that other rows than this project's own have."""
    return frozenset(case.device for case in cases if case.file not in COLLECTED)


def says_nothing(part: str, case: PublishedCase, tuned: frozenset[str]) -> bool:
    """Whether a case tells nothing of links, of a family, or of the device. `tuned`: as `tuned_devices`."""
    if case.file not in COLLECTED or part == "software":
        return False
    measured = family_of(case.device) in MEASURED
    return part == "link" or (measured and (part == "family" or case.device in tuned))


def chosen(cases: list[PublishedCase], per_file: int, of_sweep: int) -> list[PublishedCase]:
    """Rows to fit step times on: of each file as many, of sweeps more; none far from the best of its cell or of over 16 stages. The
    rows of one file do not depend on what others hold."""
    by_file, best = defaultdict(list), {}
    for case in cases:
        if case.measured.step_seconds and case.measured.time_counts:
            by_file[case.file].append(case)
            best[case.cell] = min(best.get(case.cell, 1e30), case.measured.step_seconds)
    kept = []
    for file, mine in sorted(by_file.items()):
        near = [c for c in mine if c.layout.pp <= 16 and (c.measured.step_seconds or 0) < SWEEP_FACTOR * best[c.cell]]
        kept += random.Random(file).sample(near, min(of_sweep if "sweep" in file else per_file, len(near)))
    return kept


def is_measured(case: PublishedCase) -> bool:
    """Whether it says what a run that ended well held."""
    return bool(case.measured.memory_bytes) and not case.measured.failed


def is_telling(case: PublishedCase, found: Prediction) -> bool:
    """Whether its memory was measured, or it came as near to its device's as the constants may be wrong."""
    if is_measured(case):
        return True
    share = (found.memory_bytes or 0.0) / case.hardware.memory_bytes
    return share < 1 / NEAR if case.measured.failed else share > NEAR


def with_memory(cases: list[PublishedCase], per_file: int) -> list[PublishedCase]:
    """Rows to fit memory on: of each file as many, of at most 16 stages, nothing of them in the host's memory. Where none was
    measured, those that say all that memory depends on, and ran, or ran out of it."""
    by_file = defaultdict(list)
    for case in cases:
        left_open = case.microbatch_open or case.recompute_open or case.zero_open
        told = is_measured(case) or not (left_open or case.file in UNEXPLAINED)
        if told and not case.offloaded and case.layout.pp <= 16:
            by_file[case.file].append(case)
    return [
        case for file, mine in by_file.items() for case in random.Random(file).sample(mine, min(len(mine), per_file))
    ]
