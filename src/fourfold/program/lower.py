"""Lowering: from a schedule's compute order to a whole program, one small pass after another."""

from collections.abc import Iterator

from fourfold.program.expand import expand_segments, insert_loads, insert_recompute
from fourfold.program.facts import Lowering
from fourfold.program.gathers import insert_gathers
from fourfold.program.instruction import Instruction, Program
from fourfold.program.reductions import insert_reductions
from fourfold.program.schedule import Orders, forward_orders
from fourfold.program.transfers import TransferPlan, insert_transfers, plan_transfers
from fourfold.program.update import append_update, sum_counts


def lower_step(facts: Lowering) -> Program:
    """One training step of the ranks at `facts.pp_rank`."""
    return _with_data_parallelism(_computed(facts, plan_transfers(facts.orders, facts)), facts)


def _computed(facts: Lowering, plan: TransferPlan) -> list[Instruction]:
    """What the ranks compute and send from stage to stage, which does not depend on how data parallelism is divided."""
    groups = expand_segments(facts.orders[facts.pp_rank], facts)
    steps = insert_transfers(groups, plan, facts)
    steps = insert_recompute(steps, facts)
    return insert_loads(steps)


def _with_data_parallelism(steps: list[Instruction], facts: Lowering) -> Program:
    steps = insert_gathers(steps, facts)
    steps = insert_reductions(steps, facts)
    steps = append_update(steps, facts)
    steps = sum_counts(steps, facts)
    return assemble("train", steps, facts)


def lower_evaluation(facts: Lowering, plan: TransferPlan | None = None) -> Program:
    """The loss of the microbatches, forward only."""
    orders = _evaluation_orders(facts)
    groups = expand_segments(orders[facts.pp_rank], facts, training=False)
    steps = insert_transfers(groups, plan or plan_transfers(orders, facts), facts)
    steps = insert_loads(steps)
    steps = insert_gathers(steps, facts)
    steps = sum_counts(steps, facts)
    return assemble("evaluate", steps, facts)


def _evaluation_orders(facts: Lowering) -> Orders:
    return forward_orders(facts.layout.stage_ranks, facts.layout.num_microbatches)


def lower_pipeline(facts: Lowering, kind: str = "train") -> list[Program]:
    """The program of every pipeline rank: ranks that differ in other coordinates alone run the same list."""
    if kind == "train":
        return list(each_program(facts))
    plan = plan_transfers(_evaluation_orders(facts), facts)
    return [lower_evaluation(facts.at(rank), plan) for rank in range(facts.layout.pp)]


def each_program(facts: Lowering) -> Iterator[Program]:
    """The training step of every pipeline rank, lowered when it is asked for."""
    known, number, plan = facts.computed, facts.layout.num_microbatches, None
    for rank in range(facts.layout.pp):
        each = facts.at(rank)
        steps = known.get((number, rank))
        if steps is None:
            plan = plan or plan_transfers(facts.orders, facts)
            steps = known[number, rank] = _computed(each, plan)
        yield _with_data_parallelism(steps, each)


def assemble(kind: str, steps: list[Instruction], facts: Lowering) -> Program:
    """Collects the buffers that the instructions make, with their bytes, and those that outlive the step."""
    resident = ["rope"]
    for unit in facts.flats:
        resident.append(facts.values_buffer(unit))
        if kind == "train":
            resident += [f"master/{unit}"] if facts.mixed else []
            resident.append(f"optimizer/{unit}")
    resident += [f"router/{segment.name}" for segment in facts.moe_segments]
    names = set(resident)
    for step in steps:
        names.update(step.writes)
    sizes = {n: facts.buffer_bytes(n) for n in sorted(names)}
    return Program(facts.pp_rank, kind, tuple(steps), sizes, tuple(resident))
