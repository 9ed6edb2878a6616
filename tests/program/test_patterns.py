"""Checks look at one instruction for many, and at one microbatch for many: they say what a look at each of them would say."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from fourfold.program import Instruction, Op, Program, StepSpec, lower_pipeline, memory_curve, verify
from fourfold.program.partitions import Partition
from fourfold.program.pattern import Steps, patterned
from fourfold.program.verify import check_buffers
from tests.support.programs import by_rank, evaluation_pipeline, make_spec
from tests.support.strategies import lowerings

CASES: list[dict[str, Any]] = [
    {"accumulation": 12},
    {"dp_shard": 2, "zero": 2, "accumulation": 12, "recompute": "full:1"},
    {"dp_shard": 2, "zero": 3, "accumulation": 12, "prefetch": 2},
    {"pp": 2, "accumulation": 12, "schedule": "zb_h1", "dp_shard": 2, "zero": 1},
    {"pp": 2, "accumulation": 12, "recompute": "full", "model": {"tie_embeddings": True}},
]


@settings(max_examples=40, deadline=None)
@given(lowerings())
def test_instructions_are_written_out_as_they_were_read(spec: StepSpec) -> None:
    for program in (*lower_pipeline(spec), *evaluation_pipeline(spec)):
        steps = patterned(program.steps.instructions)
        assert Steps(steps).instructions == program.steps.instructions
        own = program.steps.steps
        assert [m for _, m in steps] == [m for _, m in own]
        assert len({pattern for pattern, _ in steps}) <= len({pattern for pattern, _ in own})


ODD = [
    Instruction(Op.FORWARD, "b0", 3, reads=("hidden/b0/m3", "hidden/b0/m4", "hidden/b0/m03", "/m3", "x/m3/m3")),
    Instruction(Op.FORWARD, "b0", 4, reads=("hidden/b0/m4", "hidden/b0/m4", "hidden/b0/m03", "/m3", "x/m3/m3")),
    Instruction(Op.FORWARD, "b0", -1, reads=("hidden/b0/m-1",)),
    Instruction(Op.FORWARD, "b0", 2**40, reads=(f"hidden/b0/m{2**40}",)),
    Instruction(Op.WAIT, handle="R> b4 m07 r0", frees=("hidden/b4/m7",)),
    Instruction(Op.WAIT, handle="R> b4 m7 r0", frees=("hidden/b4/m8", "hidden/b4/m7")),
    Instruction(Op.WAIT, handle="m7", microbatch=2),
    Instruction(Op.WAIT),
    Instruction(Op.GATHER, handle="G b0 m1", microbatch=1, writes=("a/m1",)),
]


def test_odd_instructions_are_kept_as_they_are() -> None:
    assert Steps(patterned([*ODD, *ODD])).instructions == (*ODD, *ODD)


def _broken(program: Program, rng: random.Random) -> Program:
    """One random edit, most often of one microbatch alone."""
    steps = list(program.instructions)
    i, j = rng.randrange(len(steps)), rng.randrange(len(steps))
    match rng.randrange(7):
        case 0:
            del steps[i]
        case 1:
            steps.insert(j, steps.pop(i))
        case 2:
            steps[i], steps[j] = steps[j], steps[i]
        case 3:
            steps.insert(j, steps[i])
        case 4:
            steps[i] = steps[i]._replace(frees=steps[j].frees)
        case 5:
            steps[i] = steps[i]._replace(reads=(*steps[i].reads, *steps[j].reads))
        case 6:
            steps[i] = steps[i]._replace(writes=(*steps[i].writes, *steps[j].writes))
    return program.with_instructions(steps)


def _mutants(case: dict[str, Any], number: int) -> Iterator[Program]:
    programs, rng = lower_pipeline(make_spec(**case)), random.Random(str(case))
    for _ in range(number):
        yield _broken(programs[rng.randrange(len(programs))], rng)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_partitions_have_the_faults_of_the_uncut_list(case: dict[str, Any]) -> None:
    seen = set[bool]()
    for mutant in _mutants(case, 300):
        uncut = mutant.with_instructions(list(mutant.instructions))
        every = Partition([range(len(uncut.instructions))], lambda _, steps=uncut.instructions: steps)  # type: ignore[misc]
        vars(uncut)["partitions"] = (every, [])
        faults = sorted(map(str, check_buffers(0, mutant)))
        assert faults == sorted(map(str, check_buffers(0, uncut)))
        seen.add(bool(faults))
    assert seen == {False, True}


def _curve(program: Program) -> list[int]:
    """By the names of buffers alone."""
    live, curve = set(program.resident), []
    for step in program.instructions:
        live |= set(step.writes)
        curve.append(sum(program.buffers[name] for name in live) + step.workspace_bytes)
        live -= set(step.frees)
    return curve


@pytest.mark.parametrize("case", CASES, ids=str)
def test_memory_is_that_of_the_names(case: dict[str, Any]) -> None:
    for mutant in _mutants(case, 20):
        assert memory_curve(mutant) == _curve(mutant)
        uneven = {name: size + number for number, (name, size) in enumerate(mutant.buffers.items())}
        assert memory_curve(replace(mutant, buffers=uneven)) == _curve(replace(mutant, buffers=uneven))


def _one_microbatch_changed(program: Program, m: int) -> Iterator[Program]:
    """The list with one instruction of this microbatch left out, moved to the end, or changed in what it names."""
    steps = list(program.instructions)
    for index, step in enumerate(steps):
        if step.microbatch != m and f" m{m}" not in (step.handle or ""):
            continue
        rest = [*steps[:index], *steps[index + 1 :]]
        yield program.with_instructions(rest)
        if step.op is not Op.WAIT:  # to wait later is no fault
            yield program.with_instructions([*rest, step])
        for key in ("reads", "writes", "frees"):
            names = getattr(step, key)
            if names and names[-1].endswith(f"/m{m}"):
                changed = step._replace(**{key: (*names[:-1], names[-1].replace(f"m{m}", f"m{m - 1}") + "/x")})
                yield program.with_instructions([*steps[:index], changed, *steps[index + 1 :]])
                fewer = step._replace(**{key: names[:-1]})
                yield program.with_instructions([*steps[:index], fewer, *steps[index + 1 :]])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_fault_of_one_microbatch_on_one_rank_is_found(case: dict[str, Any]) -> None:
    """The first microbatch and the first rank of every class are right."""
    spec = make_spec(**case)
    programs = lower_pipeline(spec)
    right = by_rank(programs, spec)
    last = spec.layout.world_size - 1
    for changed in _one_microbatch_changed(programs[-1], 7):
        faults = verify({**right, last: changed}, spec)
        assert faults, "not caught"
        assert {fault.rank for fault in faults} <= set(right)
        for fault in faults:
            assert fault.instruction is None or fault.instruction in (
                *changed.instructions,
                *right[fault.rank].instructions,
            )


def test_equal_partitions_name_every_microbatch_that_is_wrong() -> None:
    (program,) = lower_pipeline(make_spec(accumulation=12))
    steps = [s._replace(frees=()) if s.op is Op.BACKWARD and s.segment == "b1" else s for s in program.instructions]
    faults = check_buffers(3, program.with_instructions(steps))
    told = [str(fault) for fault in faults]
    for m in range(12):
        assert sum(f"saved/b1/m{m} " in each for each in told) == 1
