"""SwiGLU (Shazeer 2020), its gradients, and rotary position embedding (Su et al. 2021) as Triton kernels, which read and write each
number once, and their launches. With TRITON_INTERPRET=1 they run on a CPU."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fourfold.kernels.triton_rows import constants, dense_rows, load, sum_format

BLOCK, NUMBERS_OF_HEADS = 2048, 2048
"""Numbers of a program: of a row of SwiGLU; of a token's heads."""


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


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up: gate_up [T, 2 f] -> [T, f]."""
    return _activated(swiglu_kernel, gate_up)


def _activated(kernel: Any, gate_up: Tensor, *beside: Tensor) -> Tensor:
    """Launches a kernel that reads gate_up [T, 2 f] and what is `beside`; its result, [T, f]."""
    gate_up = dense_rows(gate_up)
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        sizes = constants(gate_up.dtype, width, BLOCK)
        kernel[(rows, triton.cdiv(width, sizes["BLOCK"]))](
            gate_up, *beside, out, gate_up.stride(0), out.stride(0), width, **sizes
        )
    return out


def swiglu_backward_(grad: Tensor, gate_up: Tensor) -> None:
    """Puts the gradients of gate and up in their place in gate_up [T, 2 f]. grad [T, f]: of silu(gate) * up."""
    assert gate_up.stride(-1) == 1, "rows are written in place"
    grad = dense_rows(grad)
    rows, width = grad.shape
    if grad.numel():
        sizes = constants(gate_up.dtype, width, BLOCK)
        kernel: Any = swiglu_backward_kernel
        kernel[(rows, triton.cdiv(width, sizes["BLOCK"]))](
            grad, gate_up, grad.stride(0), gate_up.stride(0), width, **sizes
        )


def weighted(gate_up: Tensor, weights: Tensor) -> Tensor:
    """silu(gate) * up of every row times its weight: gate_up [m, 2 f], weights [m] -> [m, f]."""
    return _activated(weighted_kernel, gate_up, weights.contiguous())


def weighted_backward_(grad: Tensor, gate_up: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """`weighted` once more, and the gradient of the weights; puts those of gate and up in their place. grad [m, f]."""
    assert gate_up.stride(-1) == 1, "rows are written in place"
    grad, weights = dense_rows(grad), weights.contiguous()
    rows, width = grad.shape
    out, grad_weights = (
        torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device),
        torch.zeros_like(weights),
    )
    if grad.numel():
        kernel: Any = weighted_backward_kernel
        kernel[(rows,)](
            *(grad, gate_up, weights, out, grad_weights, grad.stride(0), gate_up.stride(0), out.stride(0), width),
            **constants(gate_up.dtype, width, BLOCK),
        )
    return out, grad_weights


def rotate(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, interleave: bool, inverse: bool) -> None:
    """`model.rope.rotate_` of x into `out`, which may be x itself: x [batch, seq, heads, d], cos and sin [seq, 1, d / 2] or [batch,
    seq, 1, d / 2]."""
    assert out.stride(-1) == 1, "heads are written where they lie"
    if x.stride(-1) != 1:
        x = x.contiguous()
    batch, tokens, heads, width = x.shape
    half = width // 2
    cos, sin = (table.reshape(-1, half).contiguous() for table in (cos, sin))
    if x.numel():
        block = triton.next_power_of_2(half)
        at_once = min(triton.next_power_of_2(heads), max(1, NUMBERS_OF_HEADS // block))
        kernel: Any = rotate_kernel
        kernel[(batch * tokens, triton.cdiv(heads, at_once))](
            *(x, out, cos, sin, *x.stride()[:3], *out.stride()[:3], half, tokens, len(cos), heads, half),
            STEP=2 if interleave else 1,
            OFFSET=1 if interleave else half,
            SIGN=-1 if inverse else 1,
            HEADS=at_once,
            HALF=block,
            SUM_DTYPE=sum_format(x.dtype),
            num_warps=4,
        )


def rotate_(x: Tensor, cos: Tensor, sin: Tensor, interleave: bool, inverse: bool) -> None:
    """`model.rope.rotate_`."""
    rotate(x, x, cos, sin, interleave, inverse)


def rotate_into(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> None:
    """`model.rope.rotate_into`."""
    rotate(x, out, cos, sin, False, inverse)
