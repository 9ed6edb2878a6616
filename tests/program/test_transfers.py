"""Transfers between pipeline stages pair up, or the verifier says who waits for ever and where; no schedule deadlocks."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings

from fourfold.layout import Layout
from fourfold.program import Fault, Instruction, Op, Program, StepSpec, lower_pipeline
from fourfold.program.progress import check_progress
from fourfold.program.stage_map import stage_map
from tests.support.programs import evaluation, make_spec, training
from tests.support.schedules import NAMES, stages_of
from tests.support.strategies import lowerings


def _layout(**degrees: int) -> Layout:
    return replace(make_spec().layout, pp=2, **degrees)


def _program(pp_rank: int, *steps: Instruction) -> Program:
    return Program(pp_rank, "train", steps, {}, ())


def _transfer(op: Op, microbatch: int, peer: int) -> tuple[Instruction, Instruction]:
    step = Instruction(op, microbatch=microbatch, peer=peer)
    return step, Instruction(Op.WAIT, handle=step.short)


def _stages(microbatches: int = 2) -> list[list[Instruction]]:
    """Forward of every microbatch, then its gradient back, on either side of one boundary."""
    first, second = [], []
    for m in range(microbatches):
        first += _transfer(Op.SEND_ACTIVATION, m, 1)
        second += _transfer(Op.RECV_ACTIVATION, m, 0)
    for m in range(microbatches):
        second += _transfer(Op.SEND_GRADIENT, m, 0)
        first += _transfer(Op.RECV_GRADIENT, m, 1)
    return [first, second]


def _check(stages: list[list[Instruction]], layout: Layout | None = None) -> list[Fault]:
    layout = layout or _layout()
    programs = [_program(pp_rank, *steps) for pp_rank, steps in enumerate(stages)]
    by_rank = {rank: programs[layout.coordinates(rank)["pp"]] for rank in range(layout.world_size)}
    faults = check_progress(by_rank, layout)
    for fault in faults:
        assert by_rank[fault.rank].instructions[fault.index] is fault.instruction
    return faults


@pytest.mark.parametrize("degrees", [{}, {"dp_shard": 2}, {"dp_replicate": 2, "dp_shard": 2}], ids=str)
def test_paired_transfers_are_accepted_between_all_columns_of_the_mesh(degrees: dict[str, int]) -> None:
    assert _check(_stages(3), _layout(**degrees)) == []


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("position", range(4))
def test_a_transfer_without_its_partner_is_a_fault(stage: int, position: int) -> None:
    stages = _stages()
    transfers = [i for i, step in enumerate(stages[stage]) if step.op is not Op.WAIT]
    gone = stages[stage][transfers[position]]
    del stages[stage][transfers[position] : transfers[position] + 2]
    faults = _check(stages)
    assert faults
    # The k-th receive takes the k-th send: without its partner a transfer meets the next one, or nobody.
    kind = "activations" if gone.op in (Op.RECV_ACTIVATION, Op.SEND_ACTIVATION) else "gradients"
    assert kind in faults[0].message
    last = position % 2 == 1
    assert ("never" in faults[0].message) == last


def test_a_transfer_of_another_microbatch_does_not_stand_in() -> None:
    stages = _stages(1)
    stages[0][:2] = _transfer(Op.SEND_ACTIVATION, 1, 1)
    (fault,) = _check(stages)
    assert (fault.rank, fault.index) == (0, 0)
    assert "m1" in fault.message
    assert "m0" in fault.message


def test_a_gradient_does_not_stand_in_for_an_activation() -> None:
    stages = _stages(1)
    stages[0][:2] = _transfer(Op.SEND_GRADIENT, 0, 1)
    assert _check(stages)


def test_both_receiving_first_is_a_deadlock_and_so_is_both_sending_first() -> None:
    """A send is joined when the other end has started to receive: NCCL buffers nothing of this size."""
    send_down, receive_up = _transfer(Op.SEND_ACTIVATION, 0, 1), _transfer(Op.RECV_GRADIENT, 0, 1)
    send_up, receive_down = _transfer(Op.SEND_GRADIENT, 0, 0), _transfer(Op.RECV_ACTIVATION, 0, 0)
    assert _check([[*send_down, *receive_up], [*receive_down, *send_up]]) == []
    for first, second in (([*receive_up, *send_down], [*receive_down, *send_up]),
                          ([*send_down, *receive_up], [*send_up, *receive_down])):  # fmt: skip
        faults = _check([first, second])
        assert [(fault.rank, fault.index) for fault in faults] == [(0, 1), (1, 1)], "each at its first Wait"
        assert all("waits for ever" in fault.message for fault in faults)


def test_receives_that_are_started_early_do_not_block() -> None:
    """Starting is free: only a Wait must be matched."""
    (send_down, sent_down), (receive_up, received_up) = (
        _transfer(Op.SEND_ACTIVATION, 0, 1),
        _transfer(Op.RECV_GRADIENT, 0, 1),
    )
    (send_up, sent_up), (receive_down, received_down) = (
        _transfer(Op.SEND_GRADIENT, 0, 0),
        _transfer(Op.RECV_ACTIVATION, 0, 0),
    )
    first = [receive_up, send_down, sent_down, received_up]
    assert _check([first, [receive_down, received_down, send_up, sent_up]]) == []
    assert _check([first, [receive_down, send_up, sent_up, received_down]]) == []


def test_three_ranks_that_wait_in_a_ring_are_all_named() -> None:
    """Each sends to the next what it only sends after it has received from the one before."""
    layout = replace(make_spec().layout, pp=3)
    programs = {}
    for rank in range(3):
        receive = _transfer(Op.RECV_ACTIVATION, 0, (rank - 1) % 3)
        send = _transfer(Op.SEND_ACTIVATION, 0, (rank + 1) % 3)
        programs[rank] = _program(rank, *receive, *send)
    assert [fault.rank for fault in check_progress(programs, layout)] == [0, 1, 2]
    turned = [*programs[0].instructions[2:], *programs[0].instructions[:2]]
    assert check_progress({**programs, 0: programs[0].with_instructions(turned)}, layout) == []


def test_one_list_shared_by_both_stages_is_walked_when_it_transfers() -> None:
    program = _program(0, *_transfer(Op.RECV_ACTIVATION, 0, 0))
    layout = _layout()
    assert check_progress({0: program, 1: program}, layout)


# What lowering makes of schedules


def _blocks(pp: int, virtual: int) -> dict[str, int]:
    """Blocks enough for every stage to have a segment."""
    return {"num_layers": max(2, pp * virtual)}


def _walk(schedule: str, pp: int, virtual: int, microbatches: int) -> None:
    spec = make_spec(_blocks(pp, virtual), pp=pp, schedule=schedule, virtual_stages=virtual, accumulation=microbatches)
    for programs in (training(spec), evaluation(spec)):
        assert check_progress(programs, spec.layout) == [], (schedule, pp, virtual, microbatches)


@pytest.mark.parametrize("schedule", NAMES)
def test_no_schedule_deadlocks(schedule: str) -> None:
    counts = (1, 2, 3, 5, 8) if schedule != "auto" else (1, 3, 5)
    for pp in (1, 2, 3, 4):
        for virtual in stages_of(schedule, 2 if schedule == "auto" else 4):
            for microbatches in counts:
                _walk(schedule, pp, virtual, microbatches)


@pytest.mark.sweep
@pytest.mark.parametrize("pp", range(1, 9))
@pytest.mark.parametrize("schedule", NAMES)
def test_no_schedule_deadlocks_at_length(schedule: str, pp: int) -> None:
    for virtual in stages_of(schedule, 2 if schedule == "auto" else 4):
        for microbatches in range(1, 21) if schedule != "auto" else (1, 2, 3, 5, 8, 13, 20):
            _walk(schedule, pp, virtual, microbatches)


@settings(max_examples=60, deadline=None)
@given(lowerings(tensor=False))
def test_what_crosses_is_every_boundary_between_ranks_once_each_way(spec: StepSpec) -> None:
    """Hidden states down and their gradients up, for every microbatch, between neighbouring stages that are on different ranks."""
    layout = spec.layout
    expected: Counter[tuple[Op, int, int, str, int]] = Counter()
    for stage, (source, target) in enumerate(pairwise(layout.stage_ranks), start=1):
        segment = stage_map(spec).stages[stage][0].name
        for m in range(layout.num_microbatches) if source != target else ():
            expected[Op.SEND_ACTIVATION, source, target, segment, m] = 1
            expected[Op.RECV_ACTIVATION, target, source, segment, m] = 1
            expected[Op.SEND_GRADIENT, target, source, segment, m] = 1
            expected[Op.RECV_GRADIENT, source, target, segment, m] = 1
    found = Counter(
        (step.op, program.pp_rank, step.peer, step.segment, step.microbatch)
        for program in lower_pipeline(spec)
        for step in program.instructions
        if step.peer is not None
    )
    assert found == expected


@pytest.mark.parametrize("late", [0, 7, 11])
def test_a_deadlock_of_one_microbatch_is_found(late: int) -> None:
    """All microbatches are sent and come back in one order, but one: its gradient is waited for before it is sent."""
    stages: list[list[Instruction]] = [[], []]
    for m in range(12):
        ends = [_transfer(Op.SEND_ACTIVATION, m, 1), _transfer(Op.RECV_GRADIENT, m, 1)]
        for pair in reversed(ends) if m == late else ends:
            stages[0] += pair
        stages[1] += [*_transfer(Op.RECV_ACTIVATION, m, 0), *_transfer(Op.SEND_GRADIENT, m, 0)]
    faults = _check(stages)
    assert [(fault.rank, fault.index) for fault in faults] == [(0, 4 * late + 1), (1, 4 * late + 1)]
    assert all("waits for ever" in fault.message for fault in faults)
