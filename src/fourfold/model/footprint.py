"""Bytes and arithmetic of every segment, by formula: what its forward keeps, what it needs while it runs, its FLOPs.

The formulas follow `operators.py` and `head.py` line by line (a `Tape` allocates and frees as they do), so that a
program's memory is the runtime's memory. Symbols: T tokens of a microbatch, h hidden, q heads x head_dim,
kv kv_heads x head_dim, f ffn, V vocabulary; e bytes of the compute format, w bytes of the format of norms and losses.
"""

from dataclasses import dataclass

from fourfold.config import DTYPE_BYTES, ModelConfig
from fourfold.model.spec import Segment
from fourfold.model.traffic import Traffic

LOGITS_CHUNK_ELEMENTS = 2**21
MIN_CHUNK_TOKENS = 128


def chunk_tokens(vocab_size: int) -> int:
    """Tokens whose logits the head holds at once."""
    return max(MIN_CHUNK_TOKENS, LOGITS_CHUNK_ELEMENTS // vocab_size)


@dataclass(frozen=True)
class Shape:
    """One microbatch on one rank: `sequences` of `sequence_length` tokens, computed in `compute` with gradients in `gradients`."""

    sequences: int
    sequence_length: int
    compute: str
    gradients: str
    document_mask: bool
    tp: int = 1
    sequence_parallel: bool = False
    tp_copies: int = 1
    cp_ring: int = 1
    cp_ulysses: int = 1
    cp_gather: bool = False
    ep: int = 1
    etp: int = 1

    @property
    def tokens(self) -> int:
        """Tokens of the microbatch on one rank of `tp`, before sequence parallelism splits them."""
        return self.sequences * self.sequence_length // (self.cp_ring * self.cp_ulysses)

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.compute]

    @property
    def wide_bytes(self) -> int:
        return max(4, self.element_bytes)

    @property
    def converts(self) -> bool:
        """Whether norms work on converted copies (bf16)."""
        return self.wide_bytes != self.element_bytes

    def product_temporary(self, rows: int, columns: int) -> int:
        """Bytes of a weight gradient's product where it cannot be added in place, formats differing."""
        return 0 if self.compute == self.gradients else rows * columns * self.element_bytes


@dataclass(frozen=True)
class Footprint:
    """Bytes and FLOPs of one segment on one microbatch. Workspaces are above what is live before and what is written."""

    saved_bytes: int
    output_bytes: int
    forward_workspace_bytes: int
    recompute_workspace_bytes: int
    backward_workspace_bytes: int
    forward_flops: int
    backward_flops: int
    deferred_bytes: int = 0
    """Kept between the input gradient and the weight gradients, where they are apart."""
    input_workspace_bytes: int = 0
    weight_workspace_bytes: int = 0
    input_flops: int = 0
    weight_flops: int = 0
    forward_collectives: tuple[Traffic, ...] = ()
    backward_collectives: tuple[Traffic, ...] = ()
    input_collectives: tuple[Traffic, ...] = ()
    weight_collectives: tuple[Traffic, ...] = ()


class Tape:
    """Named allocations; remembers the peak."""

    def __init__(self) -> None:
        self.live: dict[str, int] = {}
        self.peak = 0

    def alloc(self, **sizes: int) -> None:
        self.live.update(sizes)
        self.peak = max(self.peak, self.total)

    def free(self, *names: str) -> None:
        for name in names:
            del self.live[name]

    def brief(self, *sizes: int) -> None:
        """An allocation freed at once."""
        self.peak = max(self.peak, self.total + sum(sizes))

    @property
    def total(self) -> int:
        return sum(self.live.values())


def segment_footprint(segment: Segment, model: ModelConfig, shape: Shape, policy: str) -> Footprint:
    """The footprint of any segment. `policy`: none, selective or full recompute."""
    if segment.kind == "block":
        return _block(model, shape, policy)
    hidden = shape.tokens * model.hidden_size * shape.element_bytes
    if segment.kind == "embedding":
        return Footprint(0, hidden, 0, 0, 0 if shape.compute == shape.gradients else 2 * hidden, 0, 0)
    logits = 2 * shape.tokens * model.hidden_size * model.vocab_size
    backward = _head_backward_peak(model, shape) - hidden
    return Footprint(0, 0, _head_forward_peak(model, shape), 0, max(0, backward), logits, 3 * logits)


def _norm_forward(tape: Tape, shape: Shape, width: int, name: str) -> None:
    """`rms_norm`: allocates `scale_{name}` and `normed_{name}`."""
    elements = shape.tokens * width
    tape.alloc(**{f"scale_{name}": shape.tokens * shape.wide_bytes})
    if shape.converts:
        tape.brief(elements * 8)
    tape.alloc(**{f"normed_{name}": elements * shape.element_bytes})


def _norm_backward(tape: Tape, shape: Shape, width: int) -> None:
    """`rms_norm_backward`: the projected gradient, and converted copies for bf16."""
    elements = shape.tokens * width
    tape.brief(elements * shape.wide_bytes * (3 if shape.converts else 1))


def _block(model: ModelConfig, shape: Shape, policy: str) -> Footprint:
    tokens, e = shape.tokens, shape.element_bytes
    h, f = model.hidden_size, model.ffn_size
    q, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    output = tokens * h * e
    kept = policy != "selective"
    with_graph = _block_forward(model, shape, keep=kept)
    saved = dict(with_graph.live)
    del saved["output"]
    without = _block_forward(model, shape, keep=False, graph=False)
    forward_tape = without if policy == "full" else with_graph
    forward_end = output if policy == "full" else with_graph.total
    # A recomputed block's output exists until its forward returns, beside what it saves.
    recompute_workspace = max(0, with_graph.peak - sum(saved.values())) if policy == "full" else 0
    backward_peak = _block_backward(model, shape, saved, keep=kept)
    linear = 2 * tokens * (h * (q + 2 * kv) + q * h + 3 * h * f)
    attention = 2 * tokens * shape.sequence_length * q  # two products, each half of the square for causality
    return Footprint(
        saved_bytes=sum(saved.values()),
        output_bytes=output,
        forward_workspace_bytes=max(0, forward_tape.peak - forward_end),
        recompute_workspace_bytes=recompute_workspace,
        backward_workspace_bytes=max(0, backward_peak - sum(saved.values()) - output),
        forward_flops=linear + attention,
        backward_flops=2 * linear + 5 * attention // 2,  # flash attention's backward does five products for two
    )


def _block_forward(model: ModelConfig, shape: Shape, keep: bool, graph: bool = True) -> Tape:
    """What is live at the end: the saved tensors (none without a graph) and `output`."""
    tokens, e, w = shape.tokens, shape.element_bytes, shape.wide_bytes
    h, f = model.hidden_size, model.ffn_size
    q, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    tape = Tape()
    _norm_forward(tape, shape, h, "1")
    tape.alloc(qkv=tokens * (q + 2 * kv) * e)
    if model.qk_norm:
        heads = model.num_heads + model.num_kv_heads
        tape.alloc(unnormed=tokens * (q + kv) * e, head_scale=tokens * heads * w)
        tape.brief(tokens * (q + kv) * (e + (8 if shape.converts else 0)))
    tape.brief(tokens * (q + kv) // 2 * e)
    if not keep:
        tape.free("normed_1")
    if not graph:
        tape.free("scale_1")
        if model.qk_norm:
            tape.free("unnormed", "head_scale")
    tape.alloc(attention=tokens * q * e, logsumexp=tokens * model.num_heads * w)
    if shape.document_mask:
        tape.alloc(concatenated=tokens * q * e)
        if not graph:
            tape.free("concatenated")
    if not graph:
        tape.free("qkv", "logsumexp")
    tape.alloc(middle=tokens * h * e)
    if not graph:
        tape.free("attention")
    _norm_forward(tape, shape, h, "2")
    tape.alloc(gate_up=tokens * 2 * f * e)
    if not keep:
        tape.free("normed_2")
    tape.alloc(product=tokens * f * e, output=tokens * h * e)
    if not keep:
        tape.free("product")
    if not graph:
        tape.free("scale_2", "gate_up", "middle")
    return tape


def _block_backward(model: ModelConfig, shape: Shape, saved: dict[str, int], keep: bool) -> int:
    tokens, e = shape.tokens, shape.element_bytes
    h, f = model.hidden_size, model.ffn_size
    q, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    tape = Tape()
    tape.alloc(**saved)
    tape.alloc(activated=tokens * f * e)
    if not keep:
        tape.alloc(product=tokens * f * e)
    tape.brief(shape.product_temporary(h, f))
    tape.free("product")
    tape.alloc(grad_product=tokens * f * e)
    tape.brief(tokens * f * e)
    tape.free("activated", "grad_product")
    if not keep:
        tape.brief(8 * tokens * h if shape.converts else 0)
        tape.alloc(normed_2=tokens * h * e)
    tape.brief(shape.product_temporary(2 * f, h))
    tape.free("normed_2")
    tape.alloc(grad_middle=tokens * h * e)
    tape.free("gate_up")
    _norm_backward(tape, shape, h)
    tape.free("middle", "scale_2")
    tape.brief(shape.product_temporary(h, q))
    tape.alloc(grad_attention=tokens * q * e)
    if shape.document_mask:
        tape.free("concatenated")
    tape.alloc(grad_heads=tokens * (q + 2 * kv) * e * (2 if shape.document_mask else 1))
    tape.free("qkv", "attention", "logsumexp", "grad_attention")
    tape.alloc(grad_qkv=tokens * (q + 2 * kv) * e)
    tape.brief(tokens * (q + kv) // 2 * e)
    if model.qk_norm:
        tape.brief(tokens * q * (e + shape.wide_bytes * (3 if shape.converts else 1)))
        tape.free("unnormed", "head_scale")
    if not keep:
        tape.brief(8 * tokens * h if shape.converts else 0)
        tape.alloc(normed_1=tokens * h * e)
    tape.brief(shape.product_temporary(q + 2 * kv, h))
    tape.free("normed_1")
    tape.alloc(grad=tokens * h * e)
    _norm_backward(tape, shape, h)
    return tape.peak


def _head_forward_peak(model: ModelConfig, shape: Shape) -> int:
    tape = Tape()
    _norm_forward(tape, shape, model.hidden_size, "head")
    _logits(tape, model, shape)
    return tape.peak


def _head_backward_peak(model: ModelConfig, shape: Shape) -> int:
    tape = Tape()
    _norm_forward(tape, shape, model.hidden_size, "head")
    chunk = min(shape.tokens, chunk_tokens(model.vocab_size)) * model.vocab_size
    _logits(tape, model, shape)
    if shape.converts:
        tape.brief(chunk * (shape.wide_bytes + shape.element_bytes))
    tape.brief(chunk * shape.element_bytes + shape.product_temporary(model.vocab_size, model.hidden_size))
    _norm_backward(tape, shape, model.hidden_size)
    return tape.peak


def _logits(tape: Tape, model: ModelConfig, shape: Shape) -> None:
    chunk = min(shape.tokens, chunk_tokens(model.vocab_size)) * model.vocab_size
    if shape.converts:
        tape.brief(chunk * (shape.wide_bytes + shape.element_bytes))
    tape.brief(2 * chunk * shape.wide_bytes)
