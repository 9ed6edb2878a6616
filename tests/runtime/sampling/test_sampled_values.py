"""Numbers that a sampled step measures of every layer equal those that one process of transformers has of full tensors, whatever
the layout."""

import pytest

from tests.support.combinations import MODELS, combination, faults_of, spec_of
from tests.support.parity_check import check_bytes, check_values, expected_record
from tests.support.parity_ranks import run_rank
from tests.support.parity_runs import run_table
from tests.support.ranks import run_on_ranks
from tests.support.sampled_reference import sampled_reference

SAMPLED = {"metrics": {"every_steps": 1}}
WITHOUT_MTP = [name for name in sorted(MODELS) if not MODELS[name].get("mtp_layers")]
RANKS = (4, 2, 8, 4, 1, 4, 8)
CASES = [
    *range(6),
    *(pytest.param(number, marks=pytest.mark.rest) for number in range(6, 12)),
    *(pytest.param(number, marks=pytest.mark.sweep) for number in range(12, 21)),
]


@pytest.mark.parametrize("number", CASES)
def test_a_sampled_step_measures_what_one_process_computes(number: int) -> None:
    ranks = RANKS[number % len(RANKS)]
    each = combination(7000 + number, ranks, 1, MODELS[WITHOUT_MTP[number % len(WITHOUT_MTP)]])
    print(f"\n{each}")
    sections = {**each.sections, **SAMPLED, "batch": {**each.sections["batch"], "steps": 2}}
    faults = faults_of(spec_of(sections, ranks))
    assert not faults, faults[0]
    table = run_table(**sections)
    results = run_on_ranks(ranks, run_rank, table=table, ranks=ranks)
    check_bytes(table, results)
    check_values(
        table,
        results,
        1e-9,
        expected_record({name: x for name, x in table.items() if name not in ("metrics", "faults")}),
    )
    check_samples(results[0]["samples"], sampled_reference(table), 1e-9)


def check_samples(
    found: dict[str, list[float | None]], expected: dict[str, list[float | None]], tolerance: float
) -> None:
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert [value is None for value in found[name]] == [value is None for value in values], name
        measured, wanted = ([value for value in each if value is not None] for each in (found[name], values))
        assert measured == pytest.approx(wanted, rel=tolerance), name
