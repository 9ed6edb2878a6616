"""Compiles a schedule's compute order to a full program, by one small pass after another."""

from collections.abc import Iterator, Sequence

from fourfold.program.buffers import values
from fourfold.program.capabilities import buffer_bytes, into_step, reduction, resident
from fourfold.program.compiled import CompiledStages, PipelinePlan, compile_stages, compute_orders
from fourfold.program.expand import expand_segments, insert_loads
from fourfold.program.gathers import insert_gathers
from fourfold.program.pattern import Step, Steps
from fourfold.program.program import BufferKind, Buffers, Program
from fourfold.program.reductions import insert_reductions
from fourfold.program.replicas import insert_checksum
from fourfold.program.schedule import Orders, forward_orders
from fourfold.program.sizes import saved_parts, state_buffers
from fourfold.program.spec import StepSpec
from fourfold.program.transfers import TransferPlan, insert_transfers, plan_transfers
from fourfold.program.update import append_update, sum_counts
from fourfold.program.view import RankView


def lower_step(view: RankView) -> Program:
    """One training step of one pipeline rank."""
    orders = compute_orders(view.spec, view.stages, view.footprints)
    return _with_data_parallelism(compile_stages(view, PipelinePlan(orders, view.stages, view.spec)), view)


def lower_evaluation(view: RankView) -> Program:
    """The loss of the microbatches on one pipeline rank, forward only."""
    orders = forward_orders(view.stages.ranks, view.spec.layout.num_microbatches)
    return _evaluation(view, orders, plan_transfers(orders, view.stages))


def _evaluation(view: RankView, orders: Orders, plan: TransferPlan) -> Program:
    groups = expand_segments(orders[view.pp_rank], view, training=False)
    steps = insert_transfers(groups, plan, view)
    steps = insert_loads(steps)
    steps = insert_gathers(steps, view)
    steps = sum_counts(steps, view.spec)
    return _assemble("evaluate", steps, view)


def lower_pipeline(spec: StepSpec, kind: str = "train", compiled: CompiledStages | None = None) -> list[Program]:
    """The program of every pipeline rank: ranks that differ in other coordinates alone run the same list. `compiled`: what is
    known of the spec's stages."""
    compiled = compiled or CompiledStages(spec)
    views = compiled.views(spec)
    if kind == "train":
        return list(each_program(compiled, views))
    orders = forward_orders(spec.layout.stage_ranks, spec.layout.num_microbatches)
    plan = plan_transfers(orders, compiled.stages)
    return [_evaluation(view, orders, plan) for view in views]


def each_program(compiled: CompiledStages, views: Sequence[RankView]) -> Iterator[Program]:
    """The training step of every pipeline rank, each compiled when it is asked for."""
    for view, steps in zip(views, compiled.instructions(views), strict=True):
        yield compiled.program(view, steps, _with_data_parallelism)


def _with_data_parallelism(steps: list[Step], view: RankView) -> Program:
    steps = insert_gathers(steps, view)
    steps = insert_reductions(steps, view, reduction)
    steps = append_update(steps, view)
    steps = insert_checksum(steps, view)
    steps = into_step(steps, view)
    steps = sum_counts(steps, view.spec)
    return _assemble("train", steps, view)


def _assemble(kind: str, steps: list[Step], view: RankView) -> Program:
    """Collects the buffers that the instructions make, with their bytes, and those that outlive the step."""
    outliving = ["rope"]
    for unit, flat in view.flats.items():
        outliving.append(values(flat))
        if kind == "train":
            outliving += [resident(view.spec, state) for state in state_buffers(view, unit)]
    outliving += [f"router/{segment.name}" for segment in view.moe_segments]
    instructions = Steps(steps)
    shared, own = set(outliving), dict[str, set[int]]()
    for pattern, microbatches in instructions.microbatches.items():
        for text, is_own in pattern.writes:
            if is_own:
                own.setdefault(text, set()).update(microbatches)  # type: ignore[arg-type]
            else:
                shared.add(text)
    buffers = Buffers(
        [
            *(BufferKind(name, buffer_bytes(view, name)) for name in shared),
            *(BufferKind(text, buffer_bytes(view, f"{text}/m0"), frozenset(numbers)) for text, numbers in own.items()),
        ]
    )
    return Program(view.pp_rank, kind, instructions, buffers, tuple(outliving), saved_parts(view, kind))
