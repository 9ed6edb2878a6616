"""What attention over a split sequence keeps and needs while it runs, line by line after the operators of this folder.

Where ranks differ (an early one computes on half of its queries, a late one on half of the keys) the larger is taken; with
documents, whose sizes are not known, a piece is taken to be as large as a row. Symbols: T tokens, h and K heads and kv heads after
the exchange, W the kernels' head size; e bytes of q, k and v, w those of sums.
"""

from fourfold.model.context.cost import AttentionShape, backward_work, forward_work
from fourfold.model.tape import Tape


def attention_forward(tape: Tape, shape: AttentionShape, graph: bool = True) -> None:
    """Allocates `attention`, the output, and what backward needs: `logsumexp`, and where heads were exchanged `heads_qkv` and
    `heads_out`; without a graph the output alone. q, k and v live meanwhile; they are kept if `keeps_inputs`."""
    tape.work += forward_work(shape)
    if shape.ulysses == 1:
        _forward(tape, shape)
    else:
        _exchange_before(tape, shape)
        _forward(tape, shape)
        tape.rename("attention", "heads_out")
        size = tape.live["heads_out"]
        tape.alloc(sent=size if shape.sequences > 1 else 0, received=size)
        tape.free("sent")
        tape.alloc(attention=size)
        tape.free("received")
    if not graph:
        tape.drop("logsumexp", "heads_qkv", "heads_out")


def keeps_inputs(shape: AttentionShape) -> bool:
    """Whether q, k and v stay for backward, and not their exchanged form."""
    return shape.ulysses == 1


def attention_backward(tape: Tape, shape: AttentionShape, inputs: tuple[str, ...] = ("qkv",)) -> None:
    """From `grad_attention` and what forward kept to `grad_heads`, the gradients of q, k and v. `inputs`: the names of those, freed
    at the end if they were kept."""
    tape.work += backward_work(shape)
    if shape.ulysses > 1:
        tape.release("attention")
        size = tape.live["grad_attention"]
        tape.alloc(sent=size, received=size)
        tape.free("sent", "grad_attention")
        tape.rename("received", "grad_attention")
    _backward(tape, shape)
    tape.release("attention")
    tape.drop("logsumexp", "heads_qkv", "heads_out", "grad_attention", *inputs)
    if shape.ulysses > 1:
        _exchange_after(tape, shape)


def _exchange_before(tape: Tape, shape: AttentionShape) -> None:
    """`SequenceToHeads`."""
    size = shape.head_elements * shape.element_bytes
    copied = shape.own_kv_heads * shape.ulysses > shape.kv_heads
    tape.alloc(copies=shape.key_value_elements * shape.element_bytes if copied else 0, sent=size, heads_qkv=size)
    tape.free("copies", "sent")


def _exchange_after(tape: Tape, shape: AttentionShape) -> None:
    """Its backward."""
    size = shape.head_elements * shape.element_bytes
    tape.rename("grad_heads", "whole_grads")
    tape.alloc(sent=size, received=size)
    tape.free("sent")
    tape.alloc(grad_heads=size)
    tape.free("received")
    if shape.own_kv_heads * shape.ulysses > shape.kv_heads:
        tokens, dims = shape.sequences * shape.tokens, shape.head_dim + shape.value_dim
        copies, sums = shape.key_value_elements, tokens * shape.kv_heads * dims
        tape.brief(sums * shape.element_bytes)
        tape.alloc(grad_heads=size - (copies - sums) * shape.element_bytes)
    tape.free("whole_grads")


def _padding(shape: AttentionShape, tokens: int) -> int:
    """Bytes of keys and values padded to the kernels' head size."""
    padded = (shape.width > shape.head_dim) + (shape.width > shape.value_dim)
    return padded * tokens * shape.own_kv_heads * shape.width * shape.element_bytes


def _forward(tape: Tape, shape: AttentionShape) -> None:
    """`LocalAttention`, `RingAttention` or `GatherAttention`."""
    tokens, heads, e, w = shape.whole_tokens, shape.own_heads, shape.element_bytes, shape.wide_bytes
    out, lse = tokens * heads * shape.width, tokens * heads * w
    kv = shape.key_value_elements * e
    if shape.width > shape.head_dim:
        tape.alloc(padded_q=out * e)
    if shape.ring > 1:
        tape.alloc(kv=kv * (1 + shape.ring) if shape.gather else 2 * kv)
    tape.alloc(padded_kv=_padding(shape, tokens))
    partial = out * (w if shape.ring > 1 else e)
    if shape.documents:
        tape.alloc(partial=partial, logsumexp=lse)
        tape.brief((out * e + lse) // shape.sequences)
    else:
        tape.alloc(partial=out * e, logsumexp=lse)
        if partial != out * e:
            tape.brief(partial)
            tape.alloc(partial=partial)
    tape.free("padded_kv")
    if shape.ring > 1:
        converted = partial if partial != out * e else 0
        padding = _padding(shape, tokens * shape.ring // 2 if shape.gather else tokens)
        tape.brief(padding, out * e, lse, max(2 * lse, lse + converted))
        tape.free("kv")
    if shape.width > shape.value_dim or partial != out * e:
        tape.alloc(attention=tokens * heads * shape.value_dim * e)
        tape.free("partial")
    else:
        tape.rename("partial", "attention")
    tape.drop("padded_q")


def _backward(tape: Tape, shape: AttentionShape) -> None:
    """Their backward passes: allocates `grad_heads`."""
    heads, e = shape.own_heads, shape.element_bytes
    d_q = shape.whole_tokens * heads * shape.width
    d_kv = 2 * shape.whole_tokens * shape.own_kv_heads * shape.width
    padded = (shape.width > shape.head_dim) + 2 * (shape.width > shape.value_dim)
    tape.alloc(padded=padded * d_q * e)
    if shape.ring == 1:
        tape.alloc(padded_kv=_padding(shape, shape.whole_tokens), grad_heads=(d_q + d_kv) * e)
        if shape.documents:
            tape.brief((d_q + d_kv) * e // shape.sequences)
        tape.free("padded", "padded_kv")
        return
    kv = shape.key_value_elements * e
    tape.alloc(kv=kv * (1 + shape.ring) if shape.gather else 2 * kv)
    tape.alloc(d_q=d_q * shape.wide_bytes)
    _own_work(tape, shape, "own_1", first=True)
    if shape.gather:
        _gather_steps(tape, shape, d_q * e, d_kv * e)
    else:
        _ring_steps(tape, shape, d_q * e, d_kv * e)
    tape.free("kv")
    _own_work(tape, shape, "own_2", first=False)
    _finish(tape, shape)
    tape.free("padded")


def _own_work(tape: Tape, shape: AttentionShape, name: str, first: bool) -> None:
    """Half of the kv heads (`own_work_in_two`): the gradients of their keys and values stay, as `name`."""
    part = shape.own_kv_heads // 2 if first else -(-shape.own_kv_heads // 2)
    if shape.own_kv_heads == 1:
        part = 1 if first else 0
    per_head = shape.whole_tokens * shape.width * shape.element_bytes
    padding = _padding(shape, shape.whole_tokens)
    tape.alloc(padded_kv=padding, **{name: 2 * part * per_head})
    tape.brief(part * shape.own_heads // shape.own_kv_heads * per_head)
    tape.free("padded_kv")


def _ring_steps(tape: Tape, shape: AttentionShape, d_q: int, d_kv: int) -> None:
    """Leaves `sums` and `landing`, the two buffers of the gradients that travel."""
    size = shape.key_value_elements * shape.wide_bytes
    for step in range(1, shape.ring):
        tape.alloc(padded_kv=_padding(shape, shape.whole_tokens))
        tape.brief(
            max(d_q + d_kv // 2, d_q // 2 + d_kv)
        )  # of an earlier rank's keys the front, or all of a later one's
        if step == 1:
            tape.alloc(shares=d_kv, sums=size)
            tape.free("shares")
        tape.free("padded_kv")
        tape.alloc(landing=size)


def _gather_steps(tape: Tape, shape: AttentionShape, d_q: int, d_kv: int) -> None:
    """Leaves `scattered`, the gradients of all ranks' chunks with where they go, and `sums`, this rank's."""
    size = shape.key_value_elements * shape.wide_bytes // 2
    others = (shape.ring - 1) * d_kv // 2
    landing = (shape.ring - 1) * size if shape.exchange else 0
    for step in (1, 2):
        tape.alloc(padded_kv=_padding(shape, shape.whole_tokens * shape.ring // 2))
        tape.brief((d_q if step == 1 else d_q // 2) + others)
        tape.alloc(shares=others)
        tape.alloc(scattered=step * shape.ring * size + (step - 1) * landing, sums=step * size)
        tape.alloc(scattered=step * (shape.ring * size + landing))
        tape.free("shares", "padded_kv")


def _finish(tape: Tape, shape: AttentionShape) -> None:
    """Sums in the format of q, k and v: `grad_heads`."""
    e, size = shape.element_bytes, shape.key_value_elements * shape.wide_bytes
    tape.drop("landing", "scattered")
    if shape.gather:
        tape.brief(size)
    tape.alloc(sums=size)
    tape.free("own_1", "own_2")
    if shape.wide_bytes == e:
        d_q = tape.live["d_q"]
        tape.free("d_q", "sums")
        tape.alloc(grad_heads=d_q + size)
        return
    d_q = shape.whole_tokens * shape.own_heads * shape.head_dim
    tape.alloc(grad_heads=(d_q + shape.key_value_elements) * e)
    tape.free("d_q", "sums")
