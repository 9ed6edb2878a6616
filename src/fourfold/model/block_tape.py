"""A decoder block's passes, line by line after `operators.py`: attention and the gated feed-forward.

Symbols: T tokens, t those whose hidden states the rank holds, h hidden, q heads x head_dim, kv kv_heads x head_dim, f ffn, the
latter three this rank's; e bytes of the compute format, w bytes of the format of norms and losses.
"""

from fourfold.config import ModelConfig
from fourfold.model.context.cost import AttentionShape
from fourfold.model.context.memory import attention_backward as context_backward
from fourfold.model.context.memory import attention_forward as context_forward
from fourfold.model.context.memory import keeps_inputs
from fourfold.model.experts.cost import routed_backward, routed_forward
from fourfold.model.latent_tape import latent_backward, latent_forward
from fourfold.model.norm_tape import norm_forward, norm_product_backward
from fourfold.model.plain_feed_forward_tape import plain_backward, plain_forward
from fourfold.model.shape import Shape
from fourfold.model.spec import Segment
from fourfold.model.tape import Tape
from fourfold.model.tape import norm_backward as head_norm_backward
from fourfold.model.work import Attention


def block_forward(
    segment: Segment, model: ModelConfig, shape: Shape, keep: bool, graph: bool = True, tape: Tape | None = None
) -> Tape:
    """What is live at the end: the saved tensors (none without a graph) and `output`, beside what was before (`tape`)."""
    tape = tape if tape is not None else Tape()
    _attention_forward(tape, model, shape, keep, graph)
    if segment.moe:
        routed_forward(tape, model, shape, keep, graph)
    elif not model.gated:
        plain_forward(tape, model, shape, keep, graph)
    else:
        _feed_forward_forward(tape, model, shape, keep, graph)
    return tape


def block_backward(
    segment: Segment, model: ModelConfig, shape: Shape, saved: dict[str, int], keep: bool, apart: bool = False
) -> Tape:
    """What is live at the end: `grad`, and with `apart` the operands of weight gradients."""
    tape = Tape(apart)
    tape.alloc(**saved)
    if segment.moe:
        routed_backward(tape, model, shape, keep, _balance_axes(shape))
    elif not model.gated:
        plain_backward(tape, model, shape, keep)
    else:
        _feed_forward_backward(tape, model, shape, keep)
    _attention_backward(tape, model, shape, keep)
    return tape


def _balance_axes(shape: Shape) -> str | None:
    """The group over which a sequence's tokens are split."""
    degrees = {"cp": shape.cp_ring * shape.cp_ulysses, "tp": shape.tp}
    return "+".join(axis for axis, degree in degrees.items() if degree > 1) or None


def _attention_forward(tape: Tape, model: ModelConfig, shape: Shape, keep: bool, graph: bool) -> None:
    if model.is_latent:
        latent_forward(tape, model, shape, keep, graph)
    else:
        _projections_forward(tape, model, shape, keep, graph)
    _inner_forward(tape, model, shape, graph)
    width = _output_width(model, shape)
    tape.alloc(partial_1=shape.tokens * model.hidden_size * shape.element_bytes)
    tape.matmul(shape.tokens, model.hidden_size, width)
    tape.start_sum(shape, "partial_1", "middle")
    tape.finish_sum("partial_1")
    add_residual(tape, model, shape)
    if not graph:
        tape.free("attention")


def add_residual(tape: Tape, model: ModelConfig, shape: Shape) -> None:
    """The residual joins a product: within it on one rank, after the sum of several."""
    size = shape.hidden_tokens * model.hidden_size * shape.element_bytes
    tape.touch(size, 1 if shape.tp == 1 else 3, 1 if shape.tp == 1 else 2, launches=0 if shape.tp == 1 else 1)


def _output_width(model: ModelConfig, shape: Shape) -> int:
    """Of the attention's output, this rank's heads."""
    return shape.heads(model)[0] * (model.value_head_dim if model.is_latent else model.head_dim)


def _projections_forward(tape: Tape, model: ModelConfig, shape: Shape, keep: bool, graph: bool) -> None:
    """`QueryKeyValue`: allocates `qkv`."""
    tokens, h, e, w = shape.tokens, model.hidden_size, shape.element_bytes, shape.wide_bytes
    heads, kv_heads = shape.heads(model)
    q, kv = heads * model.head_dim, kv_heads * model.head_dim
    norm_forward(tape, model, shape, "1")
    tape.gather_tokens(shape, h, "gathered_1")
    tape.alloc(qkv=tokens * (q + 2 * kv) * e)
    tape.drop("gathered_1")
    tape.matmul(tokens, q + 2 * kv, h)
    if model.qk_norm:
        tape.alloc(unnormed=tokens * (q + kv) * e, head_scale=tokens * (heads + kv_heads) * w)
        tape.brief(tokens * (q + kv) * (e + (w if shape.converts else 0)))
        tape.touch(tokens * (q + kv) * e, 9, 2, launches=9)
    _rotate(tape, model, shape)
    if not keep:
        tape.free("normed_1")
    if not graph:
        tape.free("scale_1")
        tape.drop("unnormed", "head_scale")


def _attention_backward(tape: Tape, model: ModelConfig, shape: Shape, keep: bool) -> None:
    h, width = model.hidden_size, _output_width(model, shape)
    tape.gather_tokens(shape, h, "grad_output", later=True)
    tape.join("grad_output")
    upstream = "grad_output" if shape.sequence_parallel else "grad_middle"
    tape.product(shape, h, width, upstream, "concatenated" if "concatenated" in tape.live else "attention")
    tape.alloc(grad_attention=shape.tokens * width * shape.element_bytes)
    tape.matmul(shape.tokens, width, h)
    tape.release("grad_output")
    _inner_backward(tape, model, shape)
    if model.is_latent:
        latent_backward(tape, model, shape, keep)
    else:
        _projections_backward(tape, model, shape, keep)


def _projections_backward(tape: Tape, model: ModelConfig, shape: Shape, keep: bool) -> None:
    tokens, e = shape.tokens, shape.element_bytes
    heads, kv_heads = shape.heads(model)
    q, kv = heads * model.head_dim, kv_heads * model.head_dim
    tape.alloc(grad_qkv=tokens * (q + 2 * kv) * e)
    tape.touch(tokens * (q + 2 * kv) * e, 2, 1)  # three gradients side by side
    _rotate(tape, model, shape)
    if model.qk_norm:
        tape.alloc(query_copies=tokens * (2 * q * e + heads * shape.wide_bytes))
        head_norm_backward(tape, shape, tokens * heads, model.head_dim)
        tape.free("unnormed", "head_scale", "query_copies")
    norm_product_backward(tape, model, shape, "1", (q + 2 * kv, "grad_qkv"), "grad", keep)


def _rotate(tape: Tape, model: ModelConfig, shape: Shape) -> None:
    """`rotate_` of queries and keys, half of which are set aside."""
    if model.positions == "rope":
        size = shape.tokens * sum(shape.heads(model)) * model.head_dim * shape.element_bytes
        tape.brief(size // 2)
        tape.touch(size, 6, 2, launches=5)


def _inner_forward(tape: Tape, model: ModelConfig, shape: Shape, graph: bool) -> None:
    """Attention between the products: q, k, v (`qkv`) -> `attention`. Two products, each half of the square for causality."""
    split = _context_shape(model, shape)
    if split is not None:
        context_forward(tape, split, graph)
        if not graph or not keeps_inputs(split):
            tape.free("qkv")
        return
    heads, _ = shape.heads(model)
    tokens, e, q = shape.tokens, shape.element_bytes, heads * model.head_dim
    tape.alloc(attention=tokens * q * e, logsumexp=tokens * heads * shape.wide_bytes)
    _attend(tape, model, shape, backward=False)
    if shape.document_mask:
        tape.alloc(concatenated=tokens * q * e)
    if not graph:
        tape.drop("concatenated", "qkv", "logsumexp")


def _inner_backward(tape: Tape, model: ModelConfig, shape: Shape) -> None:
    """The gradients of q, k and v: `grad_heads`. Flash attention's backward does five products for two (Dao 2023)."""
    split = _context_shape(model, shape)
    if split is not None:
        context_backward(tape, split)
        return
    heads, kv_heads = shape.heads(model)
    q, kv = heads * model.head_dim, kv_heads * model.head_dim
    size = shape.tokens * (q + 2 * kv) * shape.element_bytes
    if shape.document_mask:  # each document's output goes as its gradients come; rows are joined at the end
        tape.release("concatenated")
        tape.free("attention")
    tape.alloc(grad_heads=size)
    if not shape.document_mask:
        tape.release("attention")
    tape.free("qkv", "logsumexp", "grad_attention")
    if shape.document_mask:
        tape.brief(shape.tokens * q * shape.element_bytes)
    _attend(tape, model, shape, backward=True)


def _attend(tape: Tape, model: ModelConfig, shape: Shape, backward: bool) -> None:
    """A kernel over whole sequences."""
    heads, kv_heads = shape.heads(model)
    length = shape.sequence_length
    tape.work.append(
        Attention(shape.sequences, length, length, heads, kv_heads, model.head_dim, model.head_dim, backward)
    )


def _context_shape(model: ModelConfig, shape: Shape) -> AttentionShape | None:
    """What `context_attention` sees, where it is what attends: the sequence is split, or values have another head size."""
    ranks, value_dim = shape.cp_ring * shape.cp_ulysses, model.value_head_dim if model.is_latent else model.head_dim
    if ranks == 1 and value_dim == model.head_dim:
        return None
    heads, kv_heads = shape.heads(model)
    return AttentionShape(
        sequences=shape.sequences,
        tokens=shape.sequence_length // ranks,
        heads=heads,
        kv_heads=heads if model.is_latent else kv_heads,
        head_dim=model.head_dim,
        value_dim=value_dim,
        element_bytes=shape.element_bytes,
        ring=shape.cp_ring,
        ulysses=shape.cp_ulysses,
        gather=shape.cp_gather,
        documents=shape.document_mask,
        exchange=shape.exchange,
    )


def _feed_forward_forward(tape: Tape, model: ModelConfig, shape: Shape, keep: bool, graph: bool) -> None:
    tokens, h, f, e = shape.tokens, model.hidden_size, model.ffn_size // shape.tp, shape.element_bytes
    norm_forward(tape, model, shape, "2")
    tape.gather_tokens(shape, h, "gathered_2")
    tape.alloc(gate_up=tokens * 2 * f * e)
    tape.matmul(tokens, 2 * f, h)
    tape.drop("gathered_2")
    if not keep:
        tape.free("normed_2")
    tape.alloc(product=tokens * f * e)
    tape.touch(tokens * f * e, 5, 3, launches=2)
    tape.alloc(partial_2=tokens * h * e)
    tape.matmul(tokens, h, f)
    tape.start_sum(shape, "partial_2", "output")
    tape.finish_sum("partial_2")
    add_residual(tape, model, shape)
    if not keep:
        tape.free("product")
    if not graph:
        tape.free("scale_2", "gate_up", "middle")


def _feed_forward_backward(tape: Tape, model: ModelConfig, shape: Shape, keep: bool) -> None:
    tokens, h, f, e = shape.tokens, model.hidden_size, model.ffn_size // shape.tp, shape.element_bytes
    tape.gather_tokens(shape, h, "upstream", later=True)
    tape.alloc(activated=tokens * f * e)
    tape.touch(tokens * f * e, 2, 0)
    if not keep:
        tape.alloc(product=tokens * f * e)
        tape.touch(tokens * f * e, 3, 3)
    tape.join("upstream")
    tape.product(shape, h, f, "upstream", "product")
    tape.release("product")
    tape.alloc(grad_product=tokens * f * e)
    tape.matmul(tokens, f, h)
    tape.release("upstream")
    tape.brief(tokens * f * e)
    tape.touch(tokens * f * e, 9, 5, launches=3)
    tape.free("activated", "grad_product")
    norm_product_backward(tape, model, shape, "2", (2 * f, "gate_up"), "grad_middle", keep)
    tape.free("middle", "scale_2")
