"""RMSNorm (Zhang & Sennrich 2019) as two Triton kernels. With TRITON_INTERPRET=1 they run on a CPU. `norm_launches` launches them.

Every number of a row is read once and written once; sums are in `SUM_DTYPE`. Programs of the backward add the weight's gradient
over rows of their own, in order, so that it has the same bits each time.
"""

import triton
import triton.language as tl


@triton.jit
def load(place, inside, SUM_DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Numbers of a row in the format of sums, with 0 beyond its end."""
    return tl.load(place, mask=inside, other=0.0).to(SUM_DTYPE)


@triton.jit
def forward_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    out,
    scale,
    residual,
    x_stride,
    out_stride,
    residual_stride,
    width,
    EPS: tl.constexpr,
    IS_AGAIN: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    SUM_DTYPE: tl.constexpr,
):
    """One row: out = x s w with s = 1 / sqrt(mean(x^2) + eps), which goes into `scale`, or `IS_AGAIN` comes from there. A
    residual is added to x first, and their sum, rounded, takes its place."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    place = x + row * x_stride + columns
    values = load(place, inside, SUM_DTYPE)
    if HAS_RESIDUAL:
        total = values + load(residual + row * residual_stride + columns, inside, SUM_DTYPE)
        rounded = total.to(x.dtype.element_ty)
        tl.store(place, rounded, mask=inside)
        values = rounded.to(SUM_DTYPE)
    gain = load(weight + columns, inside, SUM_DTYPE)
    if IS_AGAIN:
        factor = tl.load(scale + row)
    else:
        factor = 1.0 / tl.sqrt(tl.sum(values * values) / width + EPS)
        tl.store(scale + row, factor)
    tl.store(out + row * out_stride + columns, (values * factor * gain).to(out.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(  # type: ignore[no-untyped-def]
    grad,
    x,
    scale,
    weight,
    residual,
    grad_x,
    parts,
    grad_stride,
    x_stride,
    residual_stride,
    grad_x_stride,
    rows,
    rows_each,
    width,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    SUM_DTYPE: tl.constexpr,
):
    """`rows_each` rows: grad_x = s (g w - x s^2 mean(g w x)) + residual; their part of the weight's gradient, the sum of g x s."""
    program = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    total = tl.zeros([BLOCK], SUM_DTYPE)
    first = program * rows_each
    for row in range(first, tl.minimum(first + rows_each, rows)):
        g = load(grad + row * grad_stride + columns, inside, SUM_DTYPE)
        factor = tl.load(scale + row)
        normed = load(x + row * x_stride + columns, inside, SUM_DTYPE) * factor
        total += g * normed
        g = g * load(weight + columns, inside, SUM_DTYPE)  # from the cache: registers are few
        result = factor * (g - normed * (tl.sum(g * normed) / width))
        if HAS_RESIDUAL:
            result += load(residual + row * residual_stride + columns, inside, SUM_DTYPE)
        tl.store(grad_x + row * grad_x_stride + columns, result.to(grad_x.dtype.element_ty), mask=inside)
    tl.store(parts + program * width + columns, total, mask=inside)
