"""SwiGLU (Shazeer 2020), its gradients, and rotary position embedding (Su et al. 2021) as Triton kernels, which read and write each
number once. With TRITON_INTERPRET=1 they run on a CPU. `pointwise_launches` launches them."""

import triton
import triton.language as tl

from fourfold.fused.norm_kernels import load


@triton.jit
def swiglu_kernel(gate_up, out, gate_up_stride, out_stride, width, BLOCK: tl.constexpr, SUM_DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A block of a row: out = silu(gate) up, of gate_up [2 width]."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    place = gate_up + row * gate_up_stride + columns
    gate, up = load(place, inside, SUM_DTYPE), load(place + width, inside, SUM_DTYPE)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * out_stride + columns, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def swiglu_backward_kernel(  # type: ignore[no-untyped-def]
    grad, gate_up, grad_stride, gate_up_stride, width, BLOCK: tl.constexpr, SUM_DTYPE: tl.constexpr
):
    """A block of a row: the gradients of gate and up, in their place, from that of silu(gate) up."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    place = gate_up + row * gate_up_stride + columns
    gate, up = load(place, inside, SUM_DTYPE), load(place + width, inside, SUM_DTYPE)
    g = load(grad + row * grad_stride + columns, inside, SUM_DTYPE)
    share = 1.0 / (1.0 + tl.exp(-gate))
    grad_gate = g * up * share * (1.0 + gate * (1.0 - share))
    tl.store(place, grad_gate.to(gate_up.dtype.element_ty), mask=inside)
    tl.store(place + width, (g * gate * share).to(gate_up.dtype.element_ty), mask=inside)


@triton.jit
def weighted_kernel(  # type: ignore[no-untyped-def]
    gate_up, weight, out, gate_up_stride, out_stride, width, BLOCK: tl.constexpr, SUM_DTYPE: tl.constexpr
):
    """A block of a row: out = silu(gate) up times the row's weight."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    place = gate_up + row * gate_up_stride + columns
    gate, up = load(place, inside, SUM_DTYPE), load(place + width, inside, SUM_DTYPE)
    result = gate * (1.0 / (1.0 + tl.exp(-gate))) * up * tl.load(weight + row).to(SUM_DTYPE)
    tl.store(out + row * out_stride + columns, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def weighted_backward_kernel(  # type: ignore[no-untyped-def]
    grad,
    gate_up,
    weight,
    out,
    grad_weight,
    grad_stride,
    gate_up_stride,
    out_stride,
    width,
    BLOCK: tl.constexpr,
    SUM_DTYPE: tl.constexpr,
):
    """A row: silu(gate) up times its weight once more; in the place of gate and up their gradients, from that of this;
    and
    the weight's own gradient, the sum of grad silu(gate) up."""
    row = tl.program_id(0).to(tl.int64)
    factor = tl.load(weight + row).to(SUM_DTYPE)
    total = tl.zeros([BLOCK], SUM_DTYPE)
    for first in range(0, width, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        inside = columns < width
        place = gate_up + row * gate_up_stride + columns
        gate, up = load(place, inside, SUM_DTYPE), load(place + width, inside, SUM_DTYPE)
        g = load(grad + row * grad_stride + columns, inside, SUM_DTYPE)
        share = 1.0 / (1.0 + tl.exp(-gate))
        total += g * gate * share * up
        weighted = gate * share * up * factor
        tl.store(out + row * out_stride + columns, weighted.to(out.dtype.element_ty), mask=inside)
        g = g * factor
        grad_gate = g * up * share * (1.0 + gate * (1.0 - share))
        tl.store(place, grad_gate.to(gate_up.dtype.element_ty), mask=inside)
        tl.store(place + width, (g * gate * share).to(gate_up.dtype.element_ty), mask=inside)
    tl.store(grad_weight + row, tl.sum(total).to(grad_weight.dtype.element_ty))


@triton.jit
def rotate_kernel(  # type: ignore[no-untyped-def]
    x,
    out,
    cos,
    sin,
    x_batch_stride,
    x_token_stride,
    x_head_stride,
    out_batch_stride,
    out_token_stride,
    out_head_stride,
    table_stride,
    tokens,
    table_rows,
    heads,
    half,
    STEP: tl.constexpr,
    OFFSET: tl.constexpr,
    SIGN: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    SUM_DTYPE: tl.constexpr,
):
    """All heads of a token, from x to `out`, which may be the same: pairs of elements `OFFSET` from each other, turned by their
    angle times `SIGN`. The first elements of neighbouring pairs lie `STEP` from each other."""
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, HALF)[None, :]
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    inside = (pair < half) & (head < heads)
    table = (token % table_rows) * table_stride + pair
    cosine = load(cos + table, pair < half, SUM_DTYPE)
    sine = SIGN * load(sin + table, pair < half, SUM_DTYPE)
    batch, position, step = token // tokens, token % tokens, pair * STEP
    source = x + batch * x_batch_stride + position * x_token_stride + head * x_head_stride + step
    place = out + batch * out_batch_stride + position * out_token_stride + head * out_head_stride + step
    first, second = load(source, inside, SUM_DTYPE), load(source + OFFSET, inside, SUM_DTYPE)
    tl.store(place, (first * cosine - second * sine).to(out.dtype.element_ty), mask=inside)
    tl.store(place + OFFSET, (second * cosine + first * sine).to(out.dtype.element_ty), mask=inside)
