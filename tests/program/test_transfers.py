"""Hand-made programs of two pipeline stages: transfers pair up, or the verifier says who waits for ever and where."""

from dataclasses import replace

import pytest

from fourfold.layout import Layout
from fourfold.program import Fault, Instruction, Op, Program
from fourfold.program.progress import check_progress
from tests.support.programs import make_facts


def _layout(**degrees: int) -> Layout:
    return replace(make_facts().layout, pp=2, **degrees)


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
    lonely = "receive" if gone.op in (Op.RECV_ACTIVATION, Op.RECV_GRADIENT) else "wait"
    assert any(lonely in fault.message for fault in faults)


def test_a_transfer_of_another_microbatch_does_not_stand_in() -> None:
    stages = _stages(1)
    stages[0][:2] = _transfer(Op.SEND_ACTIVATION, 1, 1)
    assert {fault.rank for fault in _check(stages)} == {0, 1}


def test_a_gradient_does_not_stand_in_for_an_activation() -> None:
    stages = _stages(1)
    stages[0][:2] = _transfer(Op.SEND_GRADIENT, 0, 1)
    assert _check(stages)


def test_both_receiving_first_is_a_deadlock() -> None:
    send_down, receive_up = _transfer(Op.SEND_ACTIVATION, 0, 1), _transfer(Op.RECV_GRADIENT, 0, 1)
    send_up, receive_down = _transfer(Op.SEND_GRADIENT, 0, 0), _transfer(Op.RECV_ACTIVATION, 0, 0)
    assert _check([[*send_down, *receive_up], [*send_up, *receive_down]]) == []
    faults = _check([[*receive_up, *send_down], [*receive_down, *send_up]])
    assert [(fault.rank, fault.index) for fault in faults] == [(0, 0), (1, 0)]
    assert "waits for ever" in faults[0].message


def test_one_list_shared_by_both_stages_is_walked_when_it_transfers() -> None:
    program = _program(0, *_transfer(Op.RECV_ACTIVATION, 0, 0))
    layout = _layout()
    assert check_progress({0: program, 1: program}, layout)
