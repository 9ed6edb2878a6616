"""Cost of one microbatch on the ranks that share it, whatever the pipeline and the data parallelism around them.

Everything of a layout that changes what a segment computes: tensor and context parallelism, experts, the microbatch's size, the
recompute policy. There are some hundreds of such shapes and millions of layouts, so each is priced once, by the segments' own work.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from fourfold.cost.memory import kept_bytes
from fourfold.layout import Layout
from fourfold.layout.mesh import tensor_head_degree
from fourfold.model.footprint import Footprint, Shape, segment_footprint, weight_gradient_work
from fourfold.model.interpolated_footprint import KNOTS, between
from fourfold.model.spec import Segment, build_segments
from fourfold.model.work import Work
from fourfold.plan.candidate import BlockShape
from fourfold.plan.request import Request
from fourfold.plan.space import MICROBATCHES
from fourfold.program.resolve import gemm_recipe
from fourfold.program.schedule import BUILT_IN, usual_schedule
from fourfold.program.spec import StepSpec
from fourfold.simulate.durations import Durations

FLOOR_SHARE = 0.98
"""Share of the scaled price that is a bound: tokens do not always divide evenly."""
_PAIRED = next(schedule.name for schedule in BUILT_IN if schedule.pairs_passes)


@dataclass(frozen=True)
class BlockPrice:
    """Costs of all segments of the model, one microbatch, one rank of each pipeline stage together.

    `forward_seconds`, `backward_seconds` (recomputation included), `weight_seconds`: the part of the latter that can be deferred.
    `saved_bytes`: what blocks keep for backward, their inputs included; `transient_bytes`: the most that one block needs besides.
    `head_seconds`, `embedding_seconds`, and `block_seconds` of the cheapest block: both passes of these alone.
    """

    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    weight_seconds: float = 0.0
    saved_bytes: float = 0.0
    transient_bytes: float = 0.0
    head_seconds: float = 0.0
    embedding_seconds: float = 0.0
    block_seconds: float = 0.0

    def joined(self, other: "BlockPrice", count: int) -> "BlockPrice":
        """With `count` of another."""
        return BlockPrice(
            self.forward_seconds + count * other.forward_seconds,
            self.backward_seconds + count * other.backward_seconds,
            self.weight_seconds + count * other.weight_seconds,
            self.saved_bytes + count * other.saved_bytes,
            max(self.transient_bytes, other.transient_bytes),
            self.head_seconds + other.head_seconds,
            self.embedding_seconds + other.embedding_seconds,
            min(self.block_seconds or other.block_seconds, other.block_seconds or self.block_seconds),
        )

    def scaled(self, factor: float) -> "BlockPrice":
        """All costs times a factor."""
        return BlockPrice(*(factor * value for value in vars(self).values()))


@dataclass(frozen=True)
class _Passes:
    """Price of one segment on one microbatch, as in `BlockPrice`. `kept_bytes` beside the input: from forward to backward, or,
    where all is recomputed, during the backward alone."""

    forward: float
    backward: float
    weight: float
    input_bytes: int
    kept_bytes: int
    workspace_bytes: int

    def price(self, kind: str, full: bool) -> BlockPrice:
        if kind == "head":
            return BlockPrice(backward_seconds=self.backward, head_seconds=self.backward)
        if kind == "embedding":
            return BlockPrice(self.forward, self.backward, embedding_seconds=self.forward + self.backward)
        backward = self.backward + (self.forward if full else 0.0)
        return BlockPrice(
            forward_seconds=self.forward,
            backward_seconds=backward,
            block_seconds=self.forward + backward,
            weight_seconds=self.weight,
            saved_bytes=self.input_bytes + (0 if full else self.kept_bytes),
            transient_bytes=(self.kept_bytes if full else 0) + max(0, self.workspace_bytes),
        )


class Way(NamedTuple):
    """A way of all blocks with their activations of a microbatch: bytes that the device is spared, seconds that this costs at
    least, and bytes that lie in the host's memory."""

    spared_bytes: float
    seconds: float
    host_bytes: float


class BlockPricer:
    """Prices every kind of segment once for each shape that it can tell apart, and counts them. An MTP module
    is a block with a product before it, and counts as a block: bounds stay bounds."""

    def __init__(self, request: Request) -> None:
        self.request = request
        kinds: dict[tuple[str, int], tuple[Segment, int]] = {}
        for segment in build_segments(request.model):
            key = (segment.kind, segment.layer_type)
            first, count = kinds.get(key, (segment, 0))
            kinds[key] = (first, count + 1)
        self._kinds = tuple(kinds.values())
        self._totals: dict[BlockShape, BlockPrice] = {}
        self._known: dict[tuple[str, BlockShape], BlockPrice] = {}
        self._passes: dict[tuple[str, BlockShape], _Passes] = {}
        self._footprints: dict[tuple[str, Shape, str], tuple[Footprint, Work]] = {}
        sizes = request.constraints.choices("microbatch_sequences", MICROBATCHES, {})
        tried = {size for size in sizes if request.global_sequences % size == 0}
        self._derives = {n for n in tried if KNOTS[1] < n < KNOTS[2]} if tried.issuperset(KNOTS) else set()

    def price(self, shape: BlockShape) -> BlockPrice:
        """The price of all segments."""
        total = self._totals.get(shape)
        if total is None:
            total = BlockPrice()
            for segment, count in self._kinds:
                total = total.joined(self._segment(segment, shape), count)
            self._totals[shape] = total
        return total

    def ways(self, shape: BlockShape) -> list[Way]:
        """The ways of blocks without recomputation with their activations of one microbatch (`plan/moves/activations.py`):
        rebuild some, run the forward again, or copy them to the host's memory; seconds are of what computation does not hide."""
        kept = self.price(shape)
        full = self.price(replace(shape, recompute="full"))
        policies = {"none": kept}
        if self.request.model.block is None:
            policies["selective"] = self.price(replace(shape, recompute="selective"))
        slower = {name: max(0.0, each.backward_seconds - kept.backward_seconds) for name, each in policies.items()}
        found = [Way(kept.saved_bytes - each.saved_bytes, slower[name], 0.0) for name, each in policies.items()]
        found.append(Way(kept.saved_bytes - full.saved_bytes, full.backward_seconds - kept.backward_seconds, 0.0))
        if self.request.offload and self.request.can_offload:
            for name, each in policies.items():
                size = each.saved_bytes - full.saved_bytes
                copy = self.request.template.host_copy(1e9) / 1e9 * size
                shown = max(0.0, copy - self.request.kept.prefetch * kept.forward_seconds)
                found.append(Way(kept.saved_bytes - full.saved_bytes, 2 * shown + slower[name], size))
        return [each for each in found if each.spared_bytes > 0]

    def floor_ways(self, shape: BlockShape) -> list[Way]:
        """Ways to hold less, for a floor of the shape's price."""
        most = replace(shape, microbatch_sequences=MICROBATCHES[-1], cp=1, cp_method="ring")
        tokens = min(1.0, shape.microbatch_sequences / most.microbatch_sequences / shape.cp)
        more = tokens / FLOOR_SHARE
        return [
            Way(more * spared, tokens * FLOOR_SHARE * seconds, more * host) for spared, seconds, host in self.ways(most)
        ]

    def floor(self, shape: BlockShape, without_context: bool = False) -> BlockPrice:
        """A lower bound of the price, from the shape that has the most tokens: time and bytes are affine in tokens. Without context
        parallelism, which adds to them, too. One recording serves all such shapes."""
        most = replace(shape, microbatch_sequences=MICROBATCHES[-1])
        tokens = shape.microbatch_sequences / most.microbatch_sequences
        if without_context:
            most, tokens = replace(most, cp=1, cp_method="ring"), tokens / shape.cp
        return self.price(most).scaled(FLOOR_SHARE * min(1.0, tokens))

    def _segment(self, segment: Segment, shape: BlockShape) -> BlockPrice:
        if not segment.moe:
            shape = replace(shape, ep=1, etp=1)
        if segment.kind != "block":
            shape = replace(shape, recompute="none", cp_method="ring")
        key = (segment.name, shape)
        if key not in self._known:
            self._known[key] = self._price(segment, shape)
        return self._known[key]

    def _price(self, segment: Segment, shape: BlockShape) -> BlockPrice:
        """Recomputing a whole block changes what is kept and when a forward runs, not what passes cost."""
        full = shape.recompute == "full"
        key = (segment.name, replace(shape, recompute="none") if full else shape)
        passes = self._passes.get(key)
        if passes is None:
            passes = self._passes[key] = self._recorded(segment, key[1])
        return passes.price(segment.kind, full)

    def _recorded(self, segment: Segment, shape: BlockShape) -> _Passes:
        """The passes of a shape, from its recording, or from those of other microbatches."""
        spec, request = _shape_spec(self.request, shape), self.request
        costs = Durations(request.prices(spec.layout))
        footprint, weight_gradient = self._footprint(segment, spec.shape, shape.recompute)

        def seconds(work: Work) -> float:
            return costs.work(work, segment.kind == "head").seconds

        return _Passes(
            forward=seconds(footprint.forward),
            backward=seconds(footprint.backward),
            weight=seconds(weight_gradient),
            input_bytes=footprint.output_bytes,
            kept_bytes=kept_bytes(footprint.saved_bytes, footprint.saved_parts, request.software),
            workspace_bytes=footprint.backward_workspace_bytes,
        )

    def _footprint(self, segment: Segment, shape: Shape, policy: str) -> tuple[Footprint, Work]:
        """A segment's footprint, and the work of its weight gradients."""
        key = (segment.name, shape, policy)
        if key in self._footprints:
            return self._footprints[key]
        model = self.request.model
        if self._derives and shape.sequences in self._derives and shape.tokens // shape.sequences % shape.tp == 0:
            first, second, last = (self._footprint(segment, replace(shape, sequences=n), policy) for n in KNOTS)
            derived = between((first, second, last), shape.sequences)
            if derived is not None:
                return derived
        found = segment_footprint(segment, model, shape, policy), weight_gradient_work(segment, model, shape)
        if shape.sequences in KNOTS:
            self._footprints[key] = found
        return found


def _shape_spec(request: Request, shape: BlockShape) -> StepSpec:
    """One replica without a pipeline: the data axes beside it change nothing inside a segment. The schedule does where a software
    profile hides what goes to experts beside the other pass of a pair: no schedule hides more."""
    model = request.model
    layout = Layout(
        pp=1,
        dp_replicate=1,
        dp_shard=-(-shape.ep * shape.etp // (shape.cp * shape.tp)),
        cp=shape.cp,
        tp=shape.tp,
        zero=0,
        schedule=_PAIRED if request.software.overlap_experts else usual_schedule(1).name,
        microbatch_sequences=shape.microbatch_sequences,
        num_microbatches=1,
        sequence_length=request.sequence_length,
        recompute=("none", *[shape.recompute] * (model.num_layers + model.mtp_layers), "none"),  # type: ignore[arg-type]
        prefetch=request.kept.prefetch,
        cp_method=shape.cp_method,
        cp_ulysses=shape.ulysses,
        sequence_parallel=request.sequence_parallel and shape.tp > 1,
        ep=shape.ep,
        etp=shape.etp,
        tp_head=shape.tp if model.is_mla else tensor_head_degree(shape.tp, model.num_kv_heads),
    )
    formats = (request.precision.compute, request.precision.master_format, request.precision.gradients_format)
    recipe = gemm_recipe(request.precision, request.transport)
    spec = StepSpec(model, layout, *formats, request.document_mask, request.transport, request.optimizer.step_spec)
    return replace(spec, recipe=recipe)
