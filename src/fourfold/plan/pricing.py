"""Sharper prices of one layout than its bound: the timeline of its schedule, the simulation of its program."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace

from fourfold.config import UserError
from fourfold.layout import resolve_layout
from fourfold.plan.blocks import BlockPricer
from fourfold.plan.bound import Bounder, Bounds
from fourfold.plan.budget import COMPUTE, INSTRUCTION, MEMORY, ROW, SHAPE, SHARPER, SIMULATION, TIMELINE, SearchBudget
from fourfold.plan.candidate import BlockShape, Candidate
from fourfold.plan.outlook import NEAR_LIMIT, Outlook
from fourfold.plan.request import Request
from fourfold.program.compiled import CompiledStages
from fourfold.program.resolve import resolve_step
from fourfold.program.spec import StepSpec
from fourfold.simulate.prediction import StepPrediction, predict_memory, predict_step, simulated_microbatches
from fourfold.simulate.stage_times import estimate_makespan
from fourfold.simulate.summary import StepSummary

OVERLAPPED = 0.9
"""How much less than by its passes alone a step may take whose all-to-alls of experts run behind another microbatch."""
KEPT = 200_000
"""Instructions of programs that are kept for others of their kind."""


@dataclass(frozen=True)
class Priced:
    """A layout that was simulated. `device_bytes`: of every pipeline rank. `weight`: its score over its seconds (`plan.outlook`);
    `out_of_memory`: the probability that it runs out of memory."""

    candidate: Candidate
    seconds: float
    device_bytes: tuple[int, ...]
    bound_seconds: float = 0.0
    weight: float = 1.0
    out_of_memory: float = 0.0

    @property
    def is_near_limit(self) -> bool:
        """Whether it is likelier to run out of memory than a careful person would accept."""
        return self.out_of_memory > NEAR_LIMIT

    @property
    def score(self) -> float:
        """Seconds by which layouts are ordered: those of the step, and more for what is not plain."""
        return self.seconds * self.weight

    @property
    def memory_bytes(self) -> int:
        """Memory of the fullest device."""
        return max(self.device_bytes)


def candidate_spec(request: Request, candidate: Candidate) -> StepSpec:
    """The step of a layout. Raises `UserError` where it cannot be."""
    config = request.run(request.section(candidate))
    return resolve_step(config, request.model, resolve_layout(config, request.model), request.transport)


def family(candidate: Candidate) -> Candidate:
    """The layout whose data parallelism is divided in no way but ZeRO's over all of it."""
    return replace(candidate, dp_replicate=1, dp_shard=candidate.dp)


def computation(candidate: Candidate) -> Candidate:
    """The layout that computes the same and says nothing of how data parallelism is divided."""
    return replace(family(candidate), zero=0, outermost="pp", offload_optimizer=False)


class Pricer:
    """Prices of single layouts. Layouts that differ only in how data parallelism is divided and placed share all other parts of
    their programs; those that differ only in how it is divided share their timelines. The next layout reuses what was
    computed, and the step of the best layout that fits is kept. Work is spent from `budget`. `blocks`: prices for bounds."""

    def __init__(self, request: Request, budget: SearchBudget | None = None) -> None:
        self.request = request
        self.budget = budget or SearchBudget(float("inf"))
        self.blocks = BlockPricer(request)
        software = replace(request.software, overlap_experts=True)
        self._overlapping = BlockPricer(replace(request, template=replace(request.template, software=software)))
        self._overlapped: dict[BlockShape, float] = {}
        self.outlook = Outlook(request)
        self._best: list[tuple[float, Candidate, StepPrediction]] = []
        self._figures: dict[Candidate, tuple[float, tuple[int, ...]] | str] = {}
        self._held: dict[Candidate, dict[int, int]] = {}
        self._recent: OrderedDict[Candidate, CompiledStages] = OrderedDict()
        self._timelines: dict[Candidate, float] = {}
        self._bounders: dict[tuple[object, ...], Bounder] = {}
        self._bounds: dict[tuple[object, ...], Bounds | None] = {}
        self._ratios: dict[tuple[str, int, int, int, bool, str], float] = {}

    def within(self, request: Request, budget: SearchBudget) -> "Pricer":
        """For the same step under other constraints, with all that is computed here and there, and a budget of its own."""
        other = copy(self)
        other.request, other.budget = request, budget
        return other

    def predict(self, candidate: Candidate) -> StepPrediction:
        """The step that the runtime would execute. Raises `UserError` where the layout cannot be, or the host's memory is too small
        for what it offloads."""
        if self._best and candidate == self._best[0][1]:
            return self._best[0][2]
        spec = candidate_spec(self.request, candidate)
        compiled = self._compiled(candidate, spec)
        step = predict_step(spec, self.request.prices(spec.layout), compiled)
        self.budget.spend(SIMULATION + INSTRUCTION * compiled.num_instructions)
        self._check_host(candidate, step)
        held = max(step.device_bytes)
        score = step.seconds * self.outlook.weight(candidate)
        if held <= self.request.memory_bytes and (not self._best or score < self._best[0][0]):
            self._best[:] = [(score, candidate, step)]
        return step

    def figures(self, candidate: Candidate) -> tuple[float, tuple[int, ...]]:
        """Seconds, and the peak memory of every pipeline rank's devices, of that step; they are kept. Raises `UserError` as
        `predict` does."""
        known = self._figures.get(candidate)
        if known is None:
            try:
                step = self.predict(candidate)
                known = step.seconds, tuple(step.device_bytes)
                self._held[candidate] = dict(enumerate(known[1]))
            except UserError as error:
                known = str(error)
            self._figures[candidate] = known
        if isinstance(known, str):
            raise UserError(known)
        return known

    def summary(self, candidate: Candidate) -> StepSummary:
        """The figures of that step. Raises `UserError` as `predict` does."""
        request, step = self.request, self.predict(candidate)
        share = request.memory_bytes / request.cluster.device.memory_bytes
        return StepSummary(step, request.global_sequences // (candidate.dp * candidate.microbatch_sequences), share)

    def _check_host(self, candidate: Candidate, step: StepPrediction) -> None:
        most = self.request.host_bytes
        if most == float("inf") or not (candidate.activations or candidate.offload_optimizer):
            return
        needed = step.host_bytes
        if needed > most:
            raise UserError(
                f"{candidate.words()}: needs {needed / 1e9:.4g} GB of the host's memory for each device; allowed: {most / 1e9:.4g} "
                "GB, the cluster's host_memory_bytes_per_device; what works: layout.offload_optimizer=false"
            )

    def price(self, candidate: Candidate, bound_seconds: float = 0.0) -> Priced | str:
        """Simulates a layout; a message where it cannot be."""
        try:
            return self.priced(candidate, *self.figures(candidate), bound_seconds)
        except UserError as error:
            return str(error)

    def priced(
        self, candidate: Candidate, seconds: float, device_bytes: tuple[int, ...], bound_seconds: float = 0.0
    ) -> Priced:
        """A layout with these figures, and its score."""
        outlook, held = self.outlook, max(device_bytes)
        about = (outlook.weight(candidate), outlook.probability(held))
        return Priced(candidate, seconds, device_bytes, bound_seconds, *about)

    def held(self, candidate: Candidate) -> list[int] | None:
        """Peak memory of the devices of every pipeline rank, from programs alone; None where the layout cannot be."""
        try:
            held = dict(self._rank_bytes(candidate, range(candidate.pp)))
        except UserError:
            return None
        return [held[rank] for rank in range(candidate.pp)]

    def fits(self, candidate: Candidate) -> bool:
        """Whether the layout can be and fits, without its time."""
        most = self.request.memory_bytes
        try:
            return all(held <= most for _, held in self._rank_bytes(candidate, range(candidate.pp)))
        except UserError:
            return False

    def end_ranks_bytes(self, candidate: Candidate) -> int:
        """The largest peak memory of the first two pipeline ranks and the last, from their programs alone. One of them is usually
        the fullest. Raises `UserError` where the layout cannot be."""
        ends = sorted({0, min(1, candidate.pp - 1), candidate.pp - 1})
        return max(held for _, held in self._rank_bytes(candidate, ends))

    def _rank_bytes(self, candidate: Candidate, ranks: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Pipeline ranks and the peak memory of their devices: those that are known first, others as they are asked for, which are
        kept. Raises `UserError` where the layout cannot be."""
        known = self._held.setdefault(candidate, {})
        missing = [rank for rank in ranks if rank not in known]
        yield from [(rank, known[rank]) for rank in ranks if rank in known]
        if not missing:
            return
        spec = candidate_spec(self.request, candidate)
        compiled = self._compiled(candidate, spec)
        try:
            found = predict_memory(spec, self.request.prices(spec.layout), compiled, missing)
            for rank, held in zip(missing, found, strict=True):
                known[rank] = held
                yield rank, held
        finally:
            share = sum(rank in known for rank in missing) / candidate.pp
            self.budget.spend(MEMORY * share * (SIMULATION + INSTRUCTION * compiled.num_instructions))

    def end_ranks_exceed(self, candidate: Candidate, most_bytes: float) -> bool:
        """Whether the end ranks of a long pipeline tell that it holds more, or cannot be: a simulation takes all ranks."""
        with suppress(UserError):
            return candidate.pp > 2 and self.end_ranks_bytes(candidate) > most_bytes
        return True

    def fitting(self, candidate: Candidate, most_bytes: float, bound_seconds: float = 0.0) -> Priced | None:
        """Simulates a layout, unless the end ranks tell that it holds more than so many bytes; None where it does, or cannot be."""
        if self.end_ranks_exceed(candidate, most_bytes):
            return None
        priced = self.price(candidate, bound_seconds)
        return priced if isinstance(priced, Priced) and priced.memory_bytes <= most_bytes else None

    def bound(self, candidate: Candidate, mixes: bool = True) -> tuple[float, float, bool]:
        """Bounds of the seconds, from its timeline and its traffic, and of the bytes of one layout; whether it fits only by what
        its blocks do with their activations. `mixes`: whether that counts. Raises `UserError` where it cannot be."""
        policy, _, some = candidate.recompute.partition(":")
        plain = not some and not candidate.activations
        shape = replace(candidate.shape, recompute=policy if plain else "none")
        key = (shape, candidate.offload_optimizer, self.request.memory_bytes, mixes)
        if key not in self._bounds:
            self._bounds[key] = self._bounder(candidate.offload_optimizer, mixes).bounds(shape)
            self.budget.spend(SHAPE + ROW * len(self._bounds[key] or ()))
        fields = ("pp", "schedule", "virtual_stages", "dp_shard", "dp_replicate", "zero")
        table = self._bounds[key]
        rows = table.where({name: getattr(candidate, name) for name in fields}) if table is not None else None
        left = self.overlapped_share(candidate)
        if not rows:
            return left * self.timeline(candidate, 0.0), 0.0, False
        parts = rows.parts(0)
        if plain:
            seconds = parts.around(self.timeline(candidate, parts.compute))
            return left * seconds, float(rows.memory_bytes[0]), bool(rows.is_mixed[0])
        # what its blocks do with their activations changes the timeline, not the traffic
        seconds = parts._replace(spared=0.0).around(self.timeline(candidate, 0.0))
        return left * seconds, 0.0, False

    def _bounder(self, states_away: bool, mixes: bool) -> Bounder:
        """The bounds of layouts whatever their constraints, but for what these say of recomputation."""
        request = self.request
        key = (request.memory_bytes, states_away, mixes, request.constraints.states("recompute"))
        if key not in self._bounders:
            kept = request.constraints.without(
                limit for limit in request.constraints.limits if limit.key != "recompute"
            )
            free = replace(request, constraints=kept, offload_optimizer=states_away or request.offload_optimizer)
            self._bounders[key] = Bounder(free, blocks=self.blocks, mixes=mixes)
        return self._bounders[key]

    def overlapped_share(self, candidate: Candidate) -> float:
        """Share of the time of passes in one piece, which bounds and timelines are of, that is left at least; 1 where nothing runs
        behind another microbatch."""
        shape = candidate.shape
        if not candidate.overlap_experts:
            return 1.0
        if shape not in self._overlapped:
            alone, beside = (each.price(shape) for each in (self.blocks, self._overlapping))
            share = (beside.forward_seconds + beside.backward_seconds) / (
                alone.forward_seconds + alone.backward_seconds
            )
            self._overlapped[shape] = OVERLAPPED * share
            self.budget.spend(SHARPER)
        return self._overlapped[shape]

    @property
    def drawn(self) -> int:
        """Number of timelines so far."""
        return len(self._timelines)

    def timeline(self, candidate: Candidate, bound: float) -> float:
        """Seconds of its schedule alone, never less than the bound. Raises `UserError` where the layout cannot be."""
        key = replace(family(candidate), zero=0, offload_optimizer=False)
        if key not in self._timelines:
            spec = candidate_spec(self.request, candidate)
            self._timelines[key] = estimate_makespan(spec, self.request.prices(spec.layout))
            self.budget.spend(TIMELINE + COMPUTE * len(spec.layout.segments_per_stage) * simulated_microbatches(spec))
        return max(bound, self._timelines[key])

    def like(self, candidate: Candidate, bound: float) -> float:
        """Seconds of a layout's schedule: the bound times what another shape's timeline was over its own bound, in the same
        pipeline. Raises `UserError` as `timeline` does."""
        each = candidate.dp * candidate.microbatch_sequences
        pipeline = (candidate.schedule, candidate.pp, candidate.virtual_stages, each)
        key = (*pipeline, candidate.recompute == "full", candidate.outermost)
        if key not in self._ratios:
            self._ratios[key] = self.timeline(candidate, bound) / bound if candidate.pp > 1 else 1.0
        return bound * self._ratios[key]

    def _compiled(self, candidate: Candidate, spec: StepSpec) -> CompiledStages:
        """The stages compiled for the first layout of the same computation, as long as that is kept."""
        key = computation(candidate)
        if key in self._recent:
            self._recent.move_to_end(key)
            return self._recent[key]
        while self._recent and sum(each.num_instructions for each in self._recent.values()) > KEPT:
            self._recent.popitem(last=False)
        for each in self._recent.values():
            each.forget_programs()
        self._recent[key] = CompiledStages(spec)
        return self._recent[key]
