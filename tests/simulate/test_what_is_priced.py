"""Prices come from what instructions declare: alter one and time, bytes and memory follow; nothing beside the program is asked."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fourfold.model.work import NOTHING, Elementwise, Gemm, Start, Work
from fourfold.program import Instruction, Op, Program, lower_pipeline, memory_peak
from fourfold.program.liveness import ledger
from fourfold.simulate.step import Simulation, simulate
from tests.support.programs import altered, make_spec
from tests.support.simulated import real_prices

SPEC = make_spec(
    {"num_layers": 4, "hidden_size": 256, "num_heads": 8, "num_kv_heads": 8, "ffn_size": 1024},
    sequence_length=512, accumulation=4, tp=2, sequence_parallel=True, pp=2, dp_shard=2, zero=1, transport="native",
)  # fmt: skip
PRICES = real_prices(SPEC)
PROGRAMS = lower_pipeline(SPEC)


def simulated(change: Callable[[Instruction], Instruction] = lambda step: step) -> Simulation:
    programs = [each.with_instructions([change(step) for step in each.instructions]) for each in PROGRAMS]
    return simulate(SPEC, PRICES, programs)


def computes_nothing(step: Instruction) -> Instruction:
    """The instruction without its FLOPs and its segment's collectives."""
    items = tuple(item for item in step.work.items if not isinstance(item, Gemm))
    return step._replace(work=Work(items)) if step.op in (Op.FORWARD, Op.BACKWARD) else step


def test_without_flops_a_step_takes_less_time() -> None:
    full, less = simulated(), simulated(computes_nothing)
    assert sum(step.flops for step in less.programs[0].instructions) < 0.5 * sum(
        step.flops for step in full.programs[0].instructions
    )
    assert less.seconds < 0.8 * full.seconds


def test_without_collectives_inside_segments_a_step_takes_less_time_and_sends_less() -> None:
    def silent(step: Instruction) -> Instruction:
        return altered(step, collectives=()) if step.op in (Op.FORWARD, Op.BACKWARD) else step

    full, less = simulated(), simulated(silent)
    assert less.seconds < full.seconds
    for each, quiet in zip(PROGRAMS, less.programs, strict=True):
        before, after = ledger(each), ledger(quiet)
        assert {axes for axes in before if before[axes] != after[axes]} == {"tp"}
        assert after["tp"] < 0.1 * before["tp"]
    assert not any("tp" in name for spent in less.spent for name in spent)


@pytest.mark.parametrize(
    "ops",
    [
        {Op.FORWARD},
        {Op.BACKWARD},
        {Op.UPDATE},
        {Op.CLIP_NORM},
        {Op.PARAMETER_ALL_GATHER},
        {Op.REDUCE},
        {Op.SEND_ACTIVATION, Op.RECV_ACTIVATION},
    ],
    ids=lambda ops: "+".join(sorted(op.value for op in ops)),
)
def test_instructions_with_a_hundred_times_the_work_take_longer(ops: set[Op]) -> None:
    def heavier(step: Instruction) -> Instruction:
        if step.op not in ops:
            return step
        items = tuple(
            Start(replace(item.collective, bytes=100 * item.collective.bytes), item.name)
            if isinstance(item, Start)
            else Elementwise(100 * item.bytes, 100 * item.least_bytes, item.launches)
            if isinstance(item, Elementwise)
            else replace(item, rows=100 * item.rows)
            if isinstance(item, Gemm)
            else item
            for item in step.work.items
        )
        return step._replace(work=Work(items))

    assert simulated(heavier).seconds > simulated().seconds


def test_nothing_declared_costs_nothing() -> None:
    empty = simulated(lambda step: step._replace(work=NOTHING) if step.op in (Op.FORWARD, Op.BACKWARD) else step)
    passes = [each for rank in empty.passes for each in rank]
    assert passes
    assert all(each.seconds == 0 for each in passes)


@pytest.mark.parametrize("kind", ["saved", "hidden", "params", "optimizer"])
def test_a_buffer_that_is_larger_fills_more(kind: str) -> None:
    def larger(program: Program) -> Program:
        sizes = {n: size * (2 if n.startswith(f"{kind}/") else 1) for n, size in program.buffers.items()}
        return replace(program, buffers=sizes)

    grown = simulate(SPEC, PRICES, [larger(program) for program in PROGRAMS])
    assert all(a > b for a, b in zip(grown.device_bytes, simulated().device_bytes, strict=True))


def test_a_larger_workspace_moves_the_peak() -> None:
    def altered(step: Instruction) -> Instruction:
        return step._replace(workspace_bytes=10**9) if step.op is Op.BACKWARD else step

    for program, altered_one in zip(PROGRAMS, simulated(altered).programs, strict=True):
        assert memory_peak(altered_one).bytes > memory_peak(program).bytes
        assert memory_peak(altered_one).workspace_bytes == 10**9
