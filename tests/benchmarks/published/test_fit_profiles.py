"""The fit of some software profiles: only what was asked for moves, and no profile follows another."""

from dataclasses import replace

import numpy as np
import pytest

import fit_file
from case import PublishedCase
from fit_profiles import model_of, started
from fit_rows import TimedRows
from fit_table import NAMES, Constants, constants_of, copied, moved_by
from normalise import normalise
from tests.support.published import ROWS

PRIOR, SHIPPED = fit_file.read(fit_file.PRIOR), fit_file.read(fit_file.FITTED)


def case(software: str, file: str) -> PublishedCase:
    found = normalise(replace(ROWS["torchtitan:1"], file=file, id=file))
    assert isinstance(found, PublishedCase)
    return replace(found, software=software, trainer=f"{software}-2025")


def slow(software: str, base: dict) -> TimedRows:
    """Twenty rows predicted 10 % too fast, whose time is inverse to the speed of matmuls and to that of experts."""
    cases = [case(software, f"file{number}") for number in range(20)]
    slopes, constants = np.zeros((20, len(NAMES))), Constants(base)
    for name in ("gemm_speed", "expert_speed"):
        slopes[:, NAMES.index(("software", name))] = -0.5
    slopes[:, NAMES.index(("device", "gemm_share"))] = -0.5
    values = np.array([[np.log(max(constants.of(part, c, name), 1e-30)) for part, name in NAMES] for c in cases])
    return TimedRows(cases, np.full(20, np.log(0.9)), slopes, values)


@pytest.mark.parametrize(
    ("only", "moves"),
    [("deepspeed", {"gemm_speed", "expert_speed"}), ("deepspeed:expert_speed", {"expert_speed"})],
)
def test_only_what_is_asked_for_moves(only: str, moves: set[str]) -> None:
    base = started(PRIOR, SHIPPED, [only])
    model = model_of([slow("deepspeed", base)], base, [only])
    table = moved_by(base, model.departures(), {"deepspeed"})
    before, after = Constants(base), Constants(table)
    for part, name in NAMES:
        owner = {"link": "", "device": "a100-sxm-80", "software": "deepspeed"}[part]
        moved = after.value(part, owner, name) != pytest.approx(before.value(part, owner, name), rel=1e-4)
        assert moved == (part == "software" and name in moves), (part, name)
    for profile in set(SHIPPED["software"]) - {"deepspeed"}:
        for _, name in (each for each in NAMES if each[0] == "software"):
            assert after.value("software", profile, name) == Constants(SHIPPED).value("software", profile, name)


def test_a_year_does_not_follow_its_framework_that_is_fitted_alone() -> None:
    base = started(PRIOR, SHIPPED, ["torchtitan"])
    table = moved_by(base, model_of([slow("torchtitan", base)], base, ["torchtitan"]).departures(), {"torchtitan"})
    for name in ("gemm_speed", "expert_speed", "saved_bytes"):
        shipped = Constants(SHIPPED).value("software", "torchtitan-2026", name)
        assert Constants(table).value("software", "torchtitan-2026", name) == shipped


def test_a_profile_that_is_new_is_the_priors_its_memory_too() -> None:
    without = {**SHIPPED, "software": {name: each for name, each in SHIPPED["software"].items() if name != "automodel"}}
    entry = started(PRIOR, without, ["automodel"])["software"]["automodel"]
    stated = PRIOR["software"]["automodel"]
    assert {key: entry[key] for key in stated} == stated
    assert entry["host_launch_seconds"] == PRIOR["software"]["default"]["host_launch_seconds"]


def test_a_copied_table_has_the_software_that_it_is_copied_from() -> None:
    """Words and lists of what software does too: they are part of the key under which prices are kept."""
    base = started(PRIOR, SHIPPED, ["meta"])
    for name in base["software"]:
        found = constants_of(copied(base)).software(name)
        assert found == constants_of(base).software(name)
        assert hash(found)
