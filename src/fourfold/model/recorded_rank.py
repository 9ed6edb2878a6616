"""One rank's view of a segment in shape-only tensors: its own forward and backward, run and recorded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fourfold.config import ModelConfig
from fourfold.model.block import block_backward, block_backward_parts, block_forward, block_forward_parts
from fourfold.model.context.largest import largest_score_
from fourfold.model.depths import losses, losses_backward
from fourfold.model.embedding import embedding_backward, embedding_forward
from fourfold.model.environment import SELECTIVE, Environment, Microbatch, Saved
from fourfold.model.experts.balance import Balancing
from fourfold.model.experts.parts import Parts, PassInParts
from fourfold.model.layers import reads_positions, ropes_of
from fourfold.model.local_parameter import local_parameter
from fourfold.model.parallel import ContextParallel, Parallel
from fourfold.model.recorder.operations import RecorderOperations
from fourfold.model.recorder.recording import RecordedGroup, Recording
from fourfold.model.recorder.shape_tensor import ShapeTensor
from fourfold.model.shape import Shape
from fourfold.model.spec import Segment, UnitSpec, bind_weights, build_segments
from fourfold.model.weights import Weight, WeightUnit, deferring
from fourfold.model.work import NO_PARTS, NOTHING, SavedParts, Work, sends, without_foreign_joins


@dataclass(frozen=True)
class Footprint:
    """Bytes and work of one segment on one microbatch, on one rank. `saved_tensors`: pieces of memory that what it saves lies in.

    Workspaces are above what is live before and what is written: signed, for a backward writes its gradient when much of what was
    saved is freed, and what was saved may become what is deferred. A recomputed forward repeats the forward's work.
    """

    saved_bytes: int
    output_bytes: int
    forward_workspace_bytes: int
    recompute_workspace_bytes: int
    backward_workspace_bytes: int
    forward: Work = NOTHING
    backward: Work = NOTHING
    saved_parts: SavedParts = NO_PARTS
    saved_tensors: int = 0


@dataclass(frozen=True)
class Halves:
    """The backward of one segment as two instructions.

    `deferred_bytes`: kept between the input gradient and the weight gradients; the upstream gradient included.
    """

    input_gradient: Work = NOTHING
    weight_gradient: Work = NOTHING
    deferred_bytes: int = 0
    input_workspace_bytes: int = 0
    weight_workspace_bytes: int = 0


@dataclass(frozen=True)
class ScoresFootprint:
    """The search for the largest score in what a block saves."""

    work: Work = NOTHING
    workspace_bytes: int = 0


@dataclass(frozen=True)
class PartsFootprint:
    """A pass over a routed block in three parts, with all-to-alls after the first and after the second.

    `held_bytes`: what is live between two parts beside the pass's inputs, while they run. Workspaces as in `Footprint`.
    """

    parts: tuple[Work, Work, Work] = (NOTHING, NOTHING, NOTHING)
    all_to_alls: tuple[Work, Work] = (NOTHING, NOTHING)
    held_bytes: tuple[int, int] = (0, 0)
    workspace_bytes: tuple[int, int, int] = (0, 0, 0)


class RecordedUnit(WeightUnit):
    """A unit's weights as shape-only tensors that lie outside, of the shapes that one rank has."""

    def __init__(self, unit: UnitSpec, shape: Shape, ops: RecorderOperations) -> None:
        super().__init__()
        self._shapes = {p.name: local_parameter(p, unit.domain, shape.degree).shape for p in unit.parameters}
        self._formats, self._ops = (shape.compute, shape.gradients), ops

    def make(self, first: str, last: str | None) -> Weight:
        names = list(self._shapes)
        run = names[names.index(first) : names.index(last or first) + 1]
        shape = self._shapes[first]
        if last is not None:
            shape = (sum(self._shapes[name][0] for name in run), *shape[1:])
        data, grad = (self._ops.outside(shape, dtype) for dtype in self._formats)
        data.storage.parameters = tuple(run)
        return Weight(data, grad)


class RecordedRank:
    """One rank's view of a segment, in shape-only tensors: everything outside of it is there and not counted."""

    def __init__(self, segment: Segment, model: ModelConfig, shape: Shape, ring_rank: int = 0) -> None:
        self.segment = segment
        self.model = model
        self.shape = shape
        self.recording = Recording(staging=shape.exchange)
        self.ops = RecorderOperations(self.recording, not shape.exchange, shape.kernels)
        self.env = Environment(self.ops, model, self._parallel(ring_rank), shape.recipe)
        self.units = self._units()
        self.weights: Any = bind_weights(segment, self.units)
        self.batch = self._microbatch()
        self.balancing = self._balancing() if segment.moe else None

    def footprint(self, policy: str) -> Footprint:
        if self.segment.kind == "embedding":
            return self._embedding()
        return self._head() if self.segment.kind == "head" else self._block(policy)

    # What is there

    def _parallel(self, ring_rank: int) -> Parallel:
        shape = self.shape

        def group(axes: str, size: int, index: int = 0) -> Any:
            return RecordedGroup(self.recording, axes, size, index) if size > 1 else None

        context = None
        if shape.cp_ring * shape.cp_ulysses > 1:
            ring = group("cp_ring", shape.cp_ring, ring_rank)
            context = ContextParallel(ring, group("cp_ulysses", shape.cp_ulysses), shape.cp_gather)
        return Parallel(
            tp=group("tp", shape.tp, shape.tp - 1),  # the last one has the vocabulary's padding
            sequence=shape.sequence_parallel,
            tp_copies=shape.tp_copies,
            scales=group(*self._sharing()),
            context=context,
            ep=group("ep", shape.ep),
            etp=group("etp", shape.etp),
        )

    def _sharing(self) -> tuple[str, int]:
        """The group of the ranks that share a microbatch: its axes, and how many they are."""
        split = {"cp": self.shape.cp_ring * self.shape.cp_ulysses, "tp": self.shape.tp}
        return "+".join(axis for axis, degree in split.items() if degree > 1), split["cp"] * split["tp"]

    def _units(self) -> dict[str, "RecordedUnit"]:
        """The units that the segment reads: its own, and perhaps the embedding's."""
        segments = [self.segment]
        if "embed" in self.segment.units and self.segment.name != "embed":
            segments.append(build_segments(self.model)[0])
        return {unit.name: RecordedUnit(unit, self.shape, self.ops) for segment in segments for unit in segment.own}

    def _microbatch(self) -> Microbatch:
        shape, model, outside = self.shape, self.model, self.ops.outside
        tokens = (shape.sequences, shape.tokens // shape.sequences)
        places = tokens if shape.document_mask else tokens[1:]
        ahead = outside((model.mtp_layers, *tokens), "int64") if model.mtp_layers else None
        return Microbatch(
            tokens=outside(tokens, "int64"),
            targets=outside(tokens, "int64"),
            rope={
                rope: (
                    outside((*places, 1, rope.width // 2), shape.compute),
                    outside((*places, 1, rope.width // 2), shape.compute),
                )
                for rope in ropes_of(model)
            },
            document_lengths=[[shape.sequence_length]] * shape.sequences if shape.document_mask else None,
            positions=outside(tokens, "int64") if reads_positions(model, shape.document_mask) else None,
            ahead_tokens=ahead,
            ahead_targets=ahead,
        )

    def _balancing(self) -> Balancing:
        shape, experts = self.shape, self.model.num_experts
        axes, size = self._sharing()
        bias_dtype = "fp64" if shape.compute == "fp64" else "fp32"
        return Balancing(
            sequences=shape.sequences,
            sequence_length=shape.sequence_length,
            global_sequences=shape.sequences,
            groups=(RecordedGroup(self.recording, axes, size),) if axes else (),
            bias=self.ops.outside((experts,), bias_dtype) if self.model.router == "sigmoid" else None,
            load=self.ops.outside((experts,), "fp64"),
            losses=self.ops.outside((2,), "fp64"),
        )

    def hidden(self, depths: int = 1) -> ShapeTensor:
        return self.ops.outside((depths * self.shape.hidden_tokens, self.model.hidden_size), self.shape.compute)

    # Passes

    def _embedding(self) -> Footprint:
        recording, batch = self.recording, self.batch
        recording.begin()
        out = embedding_forward(self.env, batch.tokens, self.weights, batch.positions)
        output, forward, peak = out.nbytes, recording.recorded(), recording.peak
        del out
        recording.begin()
        embedding_backward(self.env, batch.tokens, self.hidden(), self.weights, batch.positions)
        return Footprint(
            saved_bytes=0,
            output_bytes=output,
            forward_workspace_bytes=peak - output,
            recompute_workspace_bytes=0,
            backward_workspace_bytes=recording.peak,
            forward=forward,
            backward=recording.recorded(),
        )

    def _head(self) -> Footprint:
        recording, depths = self.recording, 1 + self.model.mtp_layers
        x = self.hidden(depths)
        recording.begin()
        losses(self.env, x, self.batch, self.weights)
        forward, forward_peak = recording.recorded(), recording.peak
        recording.begin()
        _, grad = losses_backward(self.env, x, self.batch, self.weights, self.ops.outside((depths,), "int64"))
        return Footprint(
            saved_bytes=0,
            output_bytes=0,
            forward_workspace_bytes=forward_peak,
            recompute_workspace_bytes=0,
            backward_workspace_bytes=recording.peak - grad.nbytes,
            forward=forward,
            backward=recording.recorded(),
        )

    def _block(self, policy: str) -> Footprint:
        rebuilt = SELECTIVE if policy == "selective" else ()
        x = self.hidden(max(1, self.segment.depth))
        saved, forward = self._forward(x, Saved(rebuilt))
        attended, tensors = saved.bytes_of("attention"), self.recording.storages
        recompute, saved_bytes, output, grad = forward.peak - forward.left, forward.left, forward.output, x.nbytes
        full = self._backward(x, saved)
        if policy == "full":
            _, forward = self._forward(x, Saved(keeps=False))
        return Footprint(
            saved_bytes=saved_bytes,
            output_bytes=output,
            forward_workspace_bytes=max(0, forward.peak - forward.left - output),
            # A recomputed block's output exists until its forward returns, beside what it saves.
            recompute_workspace_bytes=max(0, recompute) if policy == "full" else 0,
            backward_workspace_bytes=full.peak - saved_bytes - grad,
            forward=forward.phase,
            backward=full.phase,
            saved_parts=SavedParts(full.operands, attended),
            saved_tensors=tensors,
        )

    def _forward(self, x: ShapeTensor, saved: Saved) -> "tuple[Saved, _Pass]":
        recording = self.recording
        recording.begin()
        out = block_forward(self.segment, self.env, x, self.weights, self.batch, saved, self.balancing)
        return saved, _Pass(recording.recorded(), recording.peak, recording.live - out.nbytes, out.nbytes)

    def _backward(self, x: ShapeTensor, saved: Saved) -> "_Pass":
        """Empties `saved`. The upstream gradient is live throughout, and counted elsewhere."""
        recording, upstream = self.recording, self._upstream()
        grad = block_backward(self.segment, self.env, upstream, x, self.weights, self.batch, saved, self.balancing)
        peak = recording.peak - upstream.nbytes
        return _Pass(recording.recorded(), peak, 0, grad.nbytes, recording.operand_bytes)

    def halves(self, policy: str) -> Halves:
        """Records a block's split backward: the input gradient, then the weight gradients. The first leaves the operands of the
        second, the block's input and the upstream gradient among them where they are."""
        x = self.ops.make(
            (max(1, self.segment.depth) * self.shape.hidden_tokens, self.model.hidden_size), self.shape.compute
        )
        saved, forward = self._forward(x, Saved(SELECTIVE if policy == "selective" else ()))
        recording, upstream = self.recording, self._upstream()
        with deferring(self.units.values()) as pending:
            grad = block_backward(self.segment, self.env, upstream, x, self.weights, self.batch, saved, self.balancing)
        phase, peak, output = recording.recorded(), recording.peak - upstream.nbytes, grad.nbytes
        del upstream, grad, x
        deferred = recording.live
        recording.begin()
        pending.run()
        return Halves(
            input_gradient=phase,
            weight_gradient=recording.recorded(),
            deferred_bytes=deferred,
            input_workspace_bytes=peak - forward.left - output - deferred,
            weight_workspace_bytes=recording.peak - deferred,
        )

    def scores(self) -> ScoresFootprint:
        """Records the search for the largest score of a block that attends, between its forward and its backward."""
        layer = self.segment.layer_kind
        assert layer is not None
        saved, _ = self._forward(self.hidden(max(1, self.segment.depth)), Saved())
        recording, into = self.recording, self.ops.outside((), "fp64")
        before = recording.live
        recording.begin()
        largest_score_(into, self.env, layer.mixer, self.batch, saved.part("mixer"))
        return ScoresFootprint(recording.recorded(), recording.peak - before)

    def parts(self, policy: str) -> tuple[PartsFootprint, PartsFootprint]:
        """Records a routed block's forward and backward, each in parts."""
        x, rebuilt = self.hidden(max(1, self.segment.depth)), ()
        if policy == "selective":
            rebuilt = SELECTIVE  # type: ignore[assignment]
        saved = Saved(rebuilt, keeps=policy != "full")
        forward = self._in_parts(
            lambda env: block_forward_parts(self.segment, env, x, self.weights, self.batch, saved, self.balancing)
        )
        if policy == "full":
            saved = self._forward(x, Saved())[0]
        upstream = self._upstream()
        return forward, self._in_parts(
            lambda env: block_backward_parts(
                self.segment, env, upstream, x, self.weights, self.batch, saved, self.balancing
            ),
            upstream.nbytes,
        )

    def _in_parts(self, run: Callable[[Environment], Parts], beside: int = 0) -> PartsFootprint:
        """`beside`: bytes that are live throughout and counted elsewhere."""
        recording, pass_in_parts = self.recording, PassInParts(self.env, run)
        works, sent, live, workspaces = [], [], [recording.live - beside], []
        out = None
        for last in (False, False, True):
            recording.begin()
            out = pass_in_parts.advance()
            works.append(without_foreign_joins(recording.recorded()))
            live.append(recording.live - beside)
            workspaces.append(recording.peak - beside - live[-2] - live[-1])
            if not last:
                recording.begin()
                pass_in_parts.start()
                sent.append(sends(*recording.recorded().collectives))
        assert out is not None
        return PartsFootprint(tuple(works), tuple(sent), tuple(live[1:3]), tuple(workspaces))  # type: ignore[arg-type]

    def _upstream(self) -> ShapeTensor:
        depths = self.segment.depth + 1 if self.segment.depth else 1
        upstream = self.ops.make((depths * self.shape.hidden_tokens, self.model.hidden_size), self.shape.compute)
        self.recording.begin()
        return upstream


@dataclass(frozen=True)
class _Pass:
    """A recorded pass: the bytes of its peak, of what is left beside its output, of its output; `operands`: as `operand_bytes`."""

    phase: Work
    peak: int
    left: int
    output: int
    operands: int = 0
