"""A person's own block on shape-only tensors: what one trace on tensors without data saw, played into a recording."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fourfold.config import ModelConfig
from fourfold.model.own.events import Event, Gone, Made, Ran, TracedBlock, TracedShape
from fourfold.model.recorder.recording import Recording, Storage
from fourfold.model.recorder.shape_tensor import ShapeTensor
from fourfold.model.weights import Weight
from fourfold.model.work import Attention, Gemm


@dataclass(frozen=True)
class RecordedGraph:
    """Activations of a forward: its inputs, and the tensors that autograd saved."""

    inputs: tuple[ShapeTensor, ...]
    saved: tuple[ShapeTensor, ...]
    traced: TracedBlock


@lru_cache(maxsize=256)
def traced_block(model: ModelConfig, shape: TracedShape) -> TracedBlock:
    """The trace, made once. The one place of the planner's half that imports torch, for a person's own block alone."""
    from fourfold.model.own.trace import trace_block

    return trace_block(model, shape)


def own_flops_per_token(model: ModelConfig, length: int) -> tuple[float, float]:
    """FLOPs of one block's forward, (matmuls, attention), for each token of a sequence of this length."""
    shape = TracedShape(1, length, (length, 1, model.head_dim // 2), False, "fp32", "fp32")
    items = [event.item for event in traced_block(model, shape).plain if isinstance(event, Ran)]
    kinds = ([item.flops for item in items if isinstance(item, kind)] for kind in (Gemm, Attention))
    matmuls, attention = (sum(flops) / length for flops in kinds)
    return matmuls, attention


def replay_forward(
    recording: Recording,
    model: ModelConfig,
    inputs: list[ShapeTensor],
    document_lengths: Sequence[Sequence[int]] | None,
    weights: Mapping[str, Weight],
    keeps: bool,
) -> tuple[ShapeTensor, RecordedGraph | None]:
    """`Operations.run_own` on shape-only tensors."""
    x, cos, _ = inputs
    gradients = next(iter(weights.values())).grad.dtype
    sequences, length, _ = x.shape
    shape = TracedShape(sequences, length, cos.shape, document_lengths is not None, x.dtype, gradients)
    traced = traced_block(model, shape)
    live: dict[int, ShapeTensor] = {}
    _replay_events(recording, traced.forward if keeps else traced.plain, live)
    out = _dense(live[traced.output if keeps else traced.plain_output], x)
    if not keeps:
        return out, None
    return out, RecordedGraph(tuple(inputs), tuple(live[number] for number in traced.saved), traced)


def replay_backward(
    recording: Recording, given: list[ShapeTensor | RecordedGraph], weights: Mapping[str, Weight]
) -> ShapeTensor:
    """`Operations.run_own_backward` on shape-only tensors."""
    graph = given[1]
    given.clear()
    assert isinstance(graph, RecordedGraph)
    inputs, traced = graph.inputs, graph.traced
    live = dict(zip(traced.saved, graph.saved, strict=True))
    del graph
    _replay_events(recording, traced.backward, live)
    return _dense(live[traced.gradient], inputs[0])


def _replay_events(recording: Recording, events: tuple[Event, ...], live: dict[int, ShapeTensor]) -> None:
    for event in events:
        if isinstance(event, Made):
            size = event.bytes
            live[event.number] = ShapeTensor(recording, Storage(recording, size), (size,), "bool", size)
        elif isinstance(event, Gone):
            del live[event.number]
        else:
            recording.work.append(event.item)
            for number in event.read:
                if number in live:
                    live[number].storage.read = recording.passes


def _dense(memory: ShapeTensor, like: ShapeTensor) -> ShapeTensor:
    return ShapeTensor(memory.recording, memory.storage, like.shape, like.dtype, like.nbytes)
