"""The verifier accepts right programs alone: programs broken at random run on symbols, in an interpreter without a verifier."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings

from fourfold.program import Program, StepSpec, lower_pipeline, verify
from tests.support.edited_runs import difference, run_of
from tests.support.program_mutations.halves_and_ties import reduced_with_a_part_that_nothing_has_written
from tests.support.programs import by_rank, evaluation, make_spec, training
from tests.support.random_edits import CASES, broken, given_to_ranks
from tests.support.strategies import lowerings, overlapping
from tests.support.symbolic import run_symbolically
from tests.support.symbolic_values import Wrong


@settings(max_examples=20, deadline=None)
@given(lowerings(max_ranks=8))
def test_every_lowered_program_does_one_training_step(spec: StepSpec) -> None:
    run_symbolically(training(spec), spec)
    run_symbolically(evaluation(spec), spec)


@pytest.mark.sweep
@settings(max_examples=1000, deadline=None)
@given(lowerings(max_ranks=24))
def test_every_lowered_program_does_one_training_step_at_length(spec: StepSpec) -> None:
    run_symbolically(training(spec), spec)
    run_symbolically(evaluation(spec), spec)


@settings(max_examples=12, deadline=None)
@given(overlapping(max_ranks=8))
def test_every_program_that_overlaps_all_to_alls_does_one_training_step(spec: StepSpec) -> None:
    assert verify(training(spec), spec) == []
    run_symbolically(training(spec), spec)


def _search(case: dict[str, Any], number: int, seed: int, share: float = 1.0) -> Counter[str]:
    """Random programs, judged by the verifier; by the interpreter all that it accepts and `share` of those that it refuses."""
    spec = make_spec(**case)
    programs, rng = lower_pipeline(spec), random.Random(seed)
    seen: Counter[str] = Counter()
    for _ in range(number):
        pp_rank = rng.randrange(spec.layout.pp)
        mutant = broken(programs[pp_rank], rng)
        if mutant == programs[pp_rank]:
            continue
        given = given_to_ranks(programs, mutant, spec, rng)
        faults = verify(given, spec)
        if faults and rng.random() >= share:
            seen["refused"] += 1
            continue
        problem = _problem(given, spec)
        assert faults or problem is None, f"accepted, though {problem}: {[s.short for s in mutant.instructions]}"
        seen[f"{'wrong' if problem else 'right'}, {'refused' if faults else 'accepted'}"] += 1
    return seen


def _problem(programs: dict[int, Program], spec: StepSpec) -> str | None:
    """Why the programs do not do a training step; None where they do."""
    try:
        run_symbolically(programs, spec)
    except Wrong as wrong:
        return str(wrong)
    return None


@pytest.mark.grid(1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_whatever_is_accepted_is_right(case: dict[str, Any]) -> None:
    seen = _search(case, 60, 1, share=0.3)
    judged = seen.total() - seen["refused"]
    assert seen["wrong, accepted"] == 0
    assert seen["wrong, refused"] > 5, "most random edits break a program"
    assert seen["right, accepted"] > 0, "some do not, and are let through"
    assert seen["right, refused"] < 0.2 * judged, "few are refused that would do"


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(2, 7))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_whatever_is_accepted_is_right_at_length(case: dict[str, Any], seed: int) -> None:
    assert _search(case, 1500, seed, share=0.02)["wrong, accepted"] == 0


@pytest.mark.grid(1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_whatever_is_accepted_computes_the_same_numbers(case: dict[str, Any]) -> None:
    """Numbers of transformers in one process, on real ranks whose memory holds NaN until it is written."""
    table, spec = run_of(case)
    programs, rng = lower_pipeline(spec), random.Random(3)
    assert difference(table, by_rank(programs, spec)) is None
    tried = 0
    while tried < 3:
        given = given_to_ranks(programs, broken(rng.choice(programs), rng), spec, rng)
        if given != by_rank(programs, spec) and not verify(given, spec):
            assert difference(table, given) is None, [step.short for step in given[0].instructions]
            tried += 1


def test_an_unwritten_part_is_seen() -> None:
    """A buffer that is reduced between the halves of its backward gives no number: memory is what this test says it is."""
    table, spec = run_of({"pp": 2, "accumulation": 2, "zero": 2, "dp_shard": 2, "schedule": "zb_h1"})
    programs = lower_pipeline(spec)
    found = list(reduced_with_a_part_that_nothing_has_written(programs, spec))
    assert found
    assert difference(table, by_rank(found[0], spec))
