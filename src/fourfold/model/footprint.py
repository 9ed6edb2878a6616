"""Bytes, arithmetic and collectives of every segment, by formula: what its forward keeps, what it needs while it runs.

Tapes (`block_tape.py`, `head_tape.py`) follow the segments' functions line by line, allocating and freeing as they do, so that a
program's memory is the runtime's memory and its collectives are the runtime's collectives.
"""

from dataclasses import dataclass
from functools import lru_cache

from fourfold.config import ModelConfig
from fourfold.model.block_tape import block_backward, block_forward
from fourfold.model.head_tape import embedding_backward, embedding_forward, head_backward, head_forward
from fourfold.model.multi_token_tape import module_backward, module_forward
from fourfold.model.shape import Shape, chunk_tokens
from fourfold.model.spec import Segment, build_segments
from fourfold.model.tape import replay
from fourfold.model.work import NOTHING, Phase

__all__ = ["Footprint", "Shape", "chunk_tokens", "segment_footprint"]


@dataclass(frozen=True)
class Footprint:
    """Bytes and work of one segment on one microbatch, on one rank.

    Workspaces are above what is live before and what is written: signed, for a backward writes its gradient when much of what was
    saved is freed, and what was saved may become what is deferred. A recomputed forward repeats the forward's work.
    """

    saved_bytes: int
    output_bytes: int
    forward_workspace_bytes: int
    recompute_workspace_bytes: int
    backward_workspace_bytes: int
    forward: Phase = NOTHING
    backward: Phase = NOTHING
    input_gradient: Phase = NOTHING
    weight_gradient: Phase = NOTHING
    deferred_bytes: int = 0
    """Kept between the input gradient and the weight gradients, where they are apart; the upstream gradient included."""
    input_workspace_bytes: int = 0
    weight_workspace_bytes: int = 0
    operand_bytes: int = 0
    """Of `saved_bytes`, what products alone read."""
    attended_bytes: int = 0
    """Of `saved_bytes`, attention's output, which its own backward reads beside a product."""


def segment_footprint(segment: Segment, model: ModelConfig, shape: Shape, policy: str) -> Footprint:
    """The footprint of any segment. `policy`: none, selective or full recompute. Segments of a kind have the same."""
    return _of_kind(segment.kind, segment.moe, segment.depth, model, shape, policy)


@lru_cache(maxsize=512)
def _of_kind(kind: str, moe: bool, depth: int, model: ModelConfig, shape: Shape, policy: str) -> Footprint:
    if kind == "embedding":
        return _embedding(model, shape)
    if kind == "head":
        return _head(model, shape)
    segment = next(s for s in build_segments(model) if (s.kind, s.moe, s.depth) == (kind, moe, depth))
    return _block(segment, model, shape, policy)


def _embedding(model: ModelConfig, shape: Shape) -> Footprint:
    forward, backward = embedding_forward(model, shape), embedding_backward(model, shape)
    output = forward.live["output"]
    return Footprint(
        saved_bytes=0,
        output_bytes=output,
        forward_workspace_bytes=forward.peak - output,
        recompute_workspace_bytes=0,
        backward_workspace_bytes=backward.peak,
        forward=Phase(tuple(forward.work)),
        backward=Phase(tuple(backward.work)),
    )


def _head(model: ModelConfig, shape: Shape) -> Footprint:
    forward, backward = head_forward(model, shape), head_backward(model, shape)
    return Footprint(
        saved_bytes=0,
        output_bytes=0,
        forward_workspace_bytes=forward.peak,
        recompute_workspace_bytes=0,
        backward_workspace_bytes=backward.peak - backward.live["grad"],
        forward=Phase(tuple(forward.work)),
        backward=Phase(tuple(backward.work)),
    )


def _is_input(name: str) -> bool:
    """Whether a saved tensor is read by products alone: what norms and gated products put out, tokens that came to experts."""
    return name.startswith("normed_") or name in ("product", "shared_product", "rows", "both")


def _block(segment: Segment, model: ModelConfig, shape: Shape, policy: str) -> Footprint:
    keep = policy != "selective"
    run_forward, run_backward = (module_forward, module_backward) if segment.depth else (block_forward, block_backward)
    with_graph = run_forward(segment, model, shape, keep)
    saved = dict(with_graph.live)
    output = saved.pop("output")
    total, saved_sizes = sum(saved.values()), dict(saved)
    forward = run_forward(segment, model, shape, keep=False, graph=False) if policy == "full" else with_graph
    backward = run_backward(segment, model, shape, saved, keep)
    apart = run_backward(segment, model, shape, saved, keep, apart=True)
    operands = apart.operands()
    names = {name for product in apart.products for name in product.operands}
    if "upstream" in names - set(operands):  # the gradient that came in, which then outlives its buffer
        operands["upstream"] = output
    weight = replay(apart.products, operands)
    deferred = sum(operands.values())
    return Footprint(
        saved_bytes=total,
        output_bytes=output,
        forward_workspace_bytes=max(0, forward.peak - forward.total),
        # A recomputed block's output exists until its forward returns, beside what it saves.
        recompute_workspace_bytes=max(0, with_graph.peak - total) if policy == "full" else 0,
        backward_workspace_bytes=backward.peak - total - backward.live["grad"],
        forward=Phase(tuple(forward.work)),
        backward=Phase(tuple(backward.work)),
        input_gradient=Phase(tuple(apart.work)),
        weight_gradient=Phase(tuple(weight.work)),
        deferred_bytes=deferred,
        input_workspace_bytes=apart.peak - total - backward.live["grad"] - deferred,
        weight_workspace_bytes=weight.peak - deferred,
        operand_bytes=sum(size for name, size in saved_sizes.items() if _is_input(name)),
        attended_bytes=saved_sizes.get("attention", 0),
    )
