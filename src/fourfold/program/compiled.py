"""Computation and transfers of all pipeline ranks: the half of a step that data parallelism does not change."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import starmap

from fourfold.model.footprint import Footprint, Halves
from fourfold.program.capabilities import interleave, into_stages
from fourfold.program.expand import expand_segments, insert_loads, insert_recompute
from fourfold.program.footprints import Footprints
from fourfold.program.pattern import Step
from fourfold.program.program import Program
from fourfold.program.replay import insert_replays, unsplit_first
from fourfold.program.schedule import Orders, StageTimes, find_schedule, schedule_orders
from fourfold.program.spec import StepSpec
from fourfold.program.stage_map import StageMap, stage_map
from fourfold.program.transfers import TransferPlan, insert_transfers, plan_transfers
from fourfold.program.view import RankView, rank_views


class CompiledStages:
    """A cache: compute orders and instructions without data parallelism, by number of microbatches; the last spec's programs.

    Specs share it that differ in `dp_replicate`, `dp_shard`, `zero`, the order of the mesh's axes, the number of microbatches and
    `checksum` alone. Whoever compiles several such steps keeps it: the search (`plan.pricing`), a prediction from two shorter
    steps.
    """

    def __init__(self, spec: StepSpec) -> None:
        self.stages = stage_map(spec)
        self.footprints = Footprints(spec.model, spec.shape)
        self._orders: dict[int, Orders] = {}
        self._instructions: dict[tuple[int, int], list[Step]] = {}
        self._views: tuple[RankView, ...] = ()
        self._programs: dict[tuple[int, int], tuple[StepSpec, Program]] = {}

    @property
    def num_instructions(self) -> int:
        """Instructions that are kept, those of whole programs aside."""
        return sum(map(len, self._instructions.values()))

    def program(self, view: RankView, steps: list[Step], made: Callable[[list[Step], RankView], Program]) -> Program:
        """The whole program of a pipeline rank, as it is `made` of its computation and transfers: that of the last step that shares
        these is kept."""
        key = (view.spec.layout.num_microbatches, view.pp_rank)
        known = self._programs.get(key)
        if known is None or known[0] != view.spec:
            known = self._programs[key] = view.spec, made(steps, view)
        return known[1]

    def forget_programs(self) -> None:
        """Lets go of what was kept of whole programs."""
        self._programs.clear()

    def views(self, spec: StepSpec) -> tuple[RankView, ...]:
        """The step as every pipeline rank sees it. Those of the last step are kept, which another number of microbatches changes
        in nothing else."""
        if not self._views or self._views[0].spec.with_microbatches(1) != spec.with_microbatches(1):
            self._views = rank_views(spec, self.stages, self.footprints)
        return tuple(replace(view, spec=spec) for view in self._views)

    def orders(self, spec: StepSpec) -> Orders:
        """The compute order of every pipeline rank."""
        number = spec.layout.num_microbatches
        if number not in self._orders:
            self._orders[number] = compute_orders(spec, self.stages, self.footprints)
        return self._orders[number]

    def instructions(self, views: Sequence[RankView]) -> Iterator[list[Step]]:
        """The computation and transfers of every pipeline rank, each compiled when it is asked for."""
        plan = None
        for view in views:
            key = (view.spec.layout.num_microbatches, view.pp_rank)
            if key not in self._instructions:
                orders = self.orders(view.spec)
                plan = plan or PipelinePlan(orders, self.stages, view.spec)
                self._instructions[key] = compile_stages(view, plan)
            yield self._instructions[key]


class PipelinePlan:
    """The orders of all ranks, the entries of them that run in turns, and the transfers between them."""

    def __init__(self, orders: Orders, stages: StageMap, spec: StepSpec) -> None:
        self.orders = orders
        self.turns = interleave(spec, orders, stages)
        self.transfers: TransferPlan = plan_transfers(orders, stages, self.turns.places if self.turns else None)


def compile_stages(view: RankView, plan: PipelinePlan) -> list[Step]:
    """The computation and transfers of one pipeline rank."""
    groups = plan.turns.expand(view) if plan.turns else expand_segments(plan.orders[view.pp_rank], view)
    steps = insert_transfers(groups, plan.transfers, view)
    steps = insert_loads(insert_replays(insert_recompute(steps, view), view))
    return into_stages(steps, view)


def compute_orders(spec: StepSpec, stages: StageMap, footprints: Footprints) -> Orders:
    """Every rank's order, as the layout's schedule says."""
    layout = spec.layout
    times = stage_flops(stages, footprints) if find_schedule(layout.schedule).needs_times else None
    ordered = -(-layout.num_microbatches // spec.microbatches_per_slot)
    orders = schedule_orders(layout.schedule, layout.pp, layout.virtual_stages, ordered, times)
    if spec.microbatches_per_slot > 1:
        orders = _one_by_one(orders, spec)
    return tuple(map(unsplit_first, orders)) if spec.replay else orders


def _one_by_one(orders: Orders, spec: StepSpec) -> Orders:
    """The order of slots as one of their microbatches, which are neighbours."""
    per_slot, count = spec.microbatches_per_slot, spec.layout.num_microbatches
    return tuple(
        tuple(
            entry._replace(microbatch=m)
            for entry in order
            for m in range(per_slot * entry.microbatch, min(per_slot * (entry.microbatch + 1), count))
        )
        for order in orders
    )


def stage_flops(stages: StageMap, footprints: Footprints) -> StageTimes:
    """FLOPs of each stage's forward, input gradient and weight gradient, as times without prices; transfers as if free."""
    parts = [
        [(footprints.of(s, stages.policies[s.name]), footprints.halves(s, stages.policies[s.name])) for s in stage]
        for stage in stages.stages
    ]

    def sums(number: Callable[[Footprint, Halves], int]) -> tuple[float, ...]:
        return tuple(float(sum(starmap(number, stage))) for stage in parts)

    return StageTimes(
        forward=sums(lambda f, _: f.forward.flops),
        input_gradient=sums(lambda f, h: f.backward.flops - h.weight_gradient.flops),
        weight_gradient=sums(lambda _, h: h.weight_gradient.flops),
        activations=sums(lambda f, _: f.saved_bytes + f.output_bytes),
        weight_activations=sums(lambda _, h: h.deferred_bytes),
    )
