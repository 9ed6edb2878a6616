"""What the verifier accepts is right: programs broken at random are run on symbols, by an interpreter that knows no verifier."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings

from fourfold.program import Instruction, Lowering, Op, Program, lower_step, verify
from tests.support.programs import make_facts, on_all_ranks
from tests.support.strategies import lowerings
from tests.support.symbolic import Wrong, run_symbolically

CASES = [
    {"accumulation": 2},
    {"dp_shard": 2, "zero": 0, "accumulation": 2},
    {"dp_shard": 3, "zero": 1, "accumulation": 2},
    {"dp_shard": 2, "zero": 2, "accumulation": 2, "model": {"tie_embeddings": True}},
    {"dp_shard": 2, "zero": 3, "recompute": "full:1"},
    {"dp_shard": 2, "zero": 3, "accumulation": 2, "prefetch": 3, "model": {"tie_embeddings": True}},
    {"dp_replicate": 2, "dp_shard": 2, "zero": 0},
    {"dp_replicate": 2, "dp_shard": 2, "zero": 1, "transport": "native"},
    {"dp_replicate": 2, "dp_shard": 2, "zero": 2, "accumulation": 2},
    {"dp_replicate": 2, "dp_shard": 2, "zero": 3, "accumulation": 2, "recompute": "full"},
]


@settings(max_examples=60, deadline=None)
@given(lowerings())
def test_every_lowered_program_does_one_training_step(facts: Lowering) -> None:
    run_symbolically(lower_step(facts), facts)


@pytest.mark.sweep
@settings(max_examples=1500, deadline=None)
@given(lowerings())
def test_every_lowered_program_does_one_training_step_at_length(facts: Lowering) -> None:
    run_symbolically(lower_step(facts), facts)


def _broken(program: Program, rng: random.Random) -> Program:
    """One to three random edits: instructions moved a little or far, exchanged, dropped, doubled, or altered in one word."""
    steps = list(program.instructions)
    for _ in range(rng.choice([1, 1, 2, 3])):
        i = rng.randrange(len(steps))
        near = min(len(steps) - 1, max(0, i + rng.choice([-6, -3, -2, -1, 1, 2, 3, 6])))
        j = rng.choice([near, near, rng.randrange(len(steps))])
        edit = rng.choice(["move", "move", "move", "exchange", "drop", "double", "with its wait", "alter", "frees"])
        if edit == "move":
            steps.insert(j, steps.pop(i))
        elif edit == "exchange":
            steps[i], steps[j] = steps[j], steps[i]
        elif edit == "drop":
            del steps[i]
        elif edit == "double":
            steps.insert(j, steps[i])
        elif edit == "with its wait":  # dropped, or moved to another place, together
            waits = [k for k, step in enumerate(steps) if step.handle == steps[i].short]
            pair = [steps[k] for k in [i, *waits[:1]]]
            for k in sorted([i, *waits[:1]], reverse=True):
                del steps[k]
            if rng.random() < 0.5:
                at = rng.randrange(len(steps) + 1)
                steps[at:at] = pair
        elif edit == "frees":
            steps[i], steps[j] = replace(steps[i], frees=steps[j].frees), replace(steps[j], frees=steps[i].frees)
        else:
            steps[i] = _altered(steps[i], steps[j])
    return program.with_instructions(steps)


def _altered(step: Instruction, other: Instruction) -> Instruction:
    if step.op is Op.WAIT or other.op is Op.WAIT:
        return replace(step, frees=())
    if step.op is Op.REDUCE and len(step.collectives) > 1:
        return replace(step, collectives=step.collectives[:1])
    return replace(step, microbatch=other.microbatch) if step.microbatch is not None else other


def _search(case: dict[str, object], number: int, seed: int) -> Counter[str]:
    facts = make_facts(**case)  # type: ignore[arg-type]
    program, rng = lower_step(facts), random.Random(seed)
    seen: Counter[str] = Counter()
    for _ in range(number):
        mutant = _broken(program, rng)
        if mutant == program:
            continue
        faults = verify(on_all_ranks(mutant, facts), facts)
        problem = _problem(mutant, facts)
        assert faults or problem is None, f"accepted, though {problem}: {[s.short for s in mutant.instructions]}"
        seen[f"{'wrong' if problem else 'right'}, {'refused' if faults else 'accepted'}"] += 1
    return seen


def _problem(program: Program, facts: Lowering) -> str | None:
    """Why the program does not do a training step; None where it does."""
    try:
        run_symbolically(program, facts)
    except Wrong as wrong:
        return str(wrong)
    return None


@pytest.mark.parametrize("case", CASES, ids=str)
def test_whatever_is_accepted_is_right(case: dict[str, object]) -> None:
    seen = _search(case, 250, 1)
    assert seen["wrong, accepted"] == 0
    assert seen["wrong, refused"] > 50, "most random edits break a program"
    assert seen["right, accepted"] > 10, "some do not, and are let through"
    assert seen["right, refused"] < 0.1 * seen.total(), "few are refused that would do"


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(2, 12))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_whatever_is_accepted_is_right_at_length(case: dict[str, object], seed: int) -> None:
    assert _search(case, 3000, seed)["wrong, accepted"] == 0
