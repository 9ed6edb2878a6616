"""The tiles of `model.tiled_attention` as three Triton kernels: forward, gradients of keys and values, gradient of queries.

A program holds one tile and walks through the tiles that see it, whose range the host computes from `Visible`. The gradient of
queries has a kernel of its own, which computes the scores once more: adding to it from many programs at once would give other bits
each time. With TRITON_INTERPRET=1 the kernels run on a CPU. `triton_attention` launches them.
"""

import triton
import triton.language as tl


@triton.jit
def _load(base, tokens, columns, stride, count, width):  # type: ignore[no-untyped-def]
    """Rows `tokens` of [tokens, width], with 0 beyond their count and beyond the width."""
    inside = (tokens < count)[:, None] & (columns < width)[None, :]
    return tl.load(base + tokens[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _store(base, tokens, columns, stride, count, width, values):  # type: ignore[no-untyped-def]
    inside = (tokens < count)[:, None] & (columns < width)[None, :]
    tl.store(base + tokens[:, None] * stride + columns[None, :], values.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _masked_scores(q, k, first, last, keys, SCALE: tl.constexpr, SUM_DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """[queries, keys]: scale q k^T, -inf where a query does not see a key."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee", out_dtype=SUM_DTYPE) * SCALE
    seen = (keys[None, :] >= first[:, None]) & (keys[None, :] < last[:, None])
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def forward_kernel(  # type: ignore[no-untyped-def]
    q, k, v, out, lse, first, last, begins, ends, q_strides, k_strides, v_strides, out_strides,
    heads, group, queries, keys, width, value, QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
    VALUE: tl.constexpr, SCALE: tl.constexpr, SUM_DTYPE: tl.constexpr, LOWEST: tl.constexpr,
):  # fmt: skip
    """Program (i, batch x head): one tile of queries."""
    tile, batch, head = tl.program_id(0), tl.program_id(1) // heads, tl.program_id(1) % heads
    rows, columns, values = tile * QUERIES + tl.arange(0, QUERIES), tl.arange(0, WIDTH), tl.arange(0, VALUE)
    k += batch.to(tl.int64) * k_strides[0] + (head // group) * k_strides[2]
    v += batch.to(tl.int64) * v_strides[0] + (head // group) * v_strides[2]
    q_tile = _load(
        q + batch.to(tl.int64) * q_strides[0] + head * q_strides[2], rows, columns, q_strides[1], queries, width
    )
    seen_from = tl.load(first + rows, mask=rows < queries, other=0)
    seen_to = tl.load(last + rows, mask=rows < queries, other=0)
    maximum = tl.full([QUERIES], float("-inf"), SUM_DTYPE)
    total = tl.zeros([QUERIES], SUM_DTYPE)
    weighted = tl.zeros([QUERIES, VALUE], SUM_DTYPE)
    for start in range(tl.load(begins + tile), tl.load(ends + tile), KEYS):
        at = start + tl.arange(0, KEYS)
        k_tile = _load(k, at, columns, k_strides[1], keys, width)
        v_tile = _load(v, at, values, v_strides[1], keys, value)
        scores = _masked_scores(q_tile, k_tile, seen_from, seen_to, at, SCALE, SUM_DTYPE)
        grown = tl.maximum(maximum, tl.max(scores, 1))
        shift = tl.maximum(grown, LOWEST)
        weights = tl.exp(scores - shift[:, None])
        correction = tl.exp(maximum - shift)
        total = total * correction + tl.sum(weights, 1)
        weighted = weighted * correction[:, None]
        weighted += tl.dot(weights.to(v_tile.dtype), v_tile, input_precision="ieee", out_dtype=SUM_DTYPE)
        maximum = grown
    any_key = total > 0
    weighted = tl.where(any_key[:, None], weighted / tl.where(any_key, total, 1.0)[:, None], 0.0)
    _store(
        out + batch.to(tl.int64) * out_strides[0] + head * out_strides[2],
        rows,
        values,
        out_strides[1],
        queries,
        value,
        weighted,
    )
    result = tl.where(any_key, maximum + tl.log(tl.where(any_key, total, 1.0)), float("-inf"))
    tl.store(lse + tl.program_id(1).to(tl.int64) * queries + rows, result, mask=rows < queries)


@triton.jit
def _tile_gradient(  # type: ignore[no-untyped-def]
    q_tile,
    k_tile,
    v_tile,
    grad_tile,
    seen_from,
    seen_to,
    at,
    lse_tile,
    shared,
    SCALE: tl.constexpr,
    SUM_DTYPE: tl.constexpr,
    LOWEST: tl.constexpr,
):
    """P and dS of one tile, [queries, keys]: P = exp(S - L), dS = scale P * (dO V^T - D)."""
    scores = _masked_scores(q_tile, k_tile, seen_from, seen_to, at, SCALE, SUM_DTYPE)
    weights = tl.exp(scores - tl.maximum(lse_tile, LOWEST)[:, None])
    d_weights = tl.dot(grad_tile, tl.trans(v_tile), input_precision="ieee", out_dtype=SUM_DTYPE)
    return weights, weights * (d_weights - shared[:, None]) * SCALE


@triton.jit
def keys_kernel(  # type: ignore[no-untyped-def]
    q, k, v, grad, lse, shared, d_k, d_v, first, last, begins, ends, q_strides, k_strides, v_strides, grad_strides,
    d_k_strides, d_v_strides, heads, group, queries, keys, width, value, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    WIDTH: tl.constexpr, VALUE: tl.constexpr, SCALE: tl.constexpr, SUM_DTYPE: tl.constexpr, LOWEST: tl.constexpr,
):  # fmt: skip
    """Program (j, batch x kv_head): one tile of keys, and all heads of queries that share it."""
    kv_heads = heads // group
    tile, batch, kv_head = tl.program_id(0), tl.program_id(1) // kv_heads, tl.program_id(1) % kv_heads
    at, columns, values = tile * KEYS + tl.arange(0, KEYS), tl.arange(0, WIDTH), tl.arange(0, VALUE)
    k_tile = _load(
        k + batch.to(tl.int64) * k_strides[0] + kv_head * k_strides[2], at, columns, k_strides[1], keys, width
    )
    v_tile = _load(
        v + batch.to(tl.int64) * v_strides[0] + kv_head * v_strides[2], at, values, v_strides[1], keys, value
    )
    k_sum, v_sum = tl.zeros([KEYS, WIDTH], SUM_DTYPE), tl.zeros([KEYS, VALUE], SUM_DTYPE)
    for head in range(kv_head * group, (kv_head + 1) * group):
        q_base = q + batch.to(tl.int64) * q_strides[0] + head * q_strides[2]
        grad_base = grad + batch.to(tl.int64) * grad_strides[0] + head * grad_strides[2]
        row = (batch * heads + head).to(tl.int64) * queries
        for start in range(tl.load(begins + tile), tl.load(ends + tile), QUERIES):
            rows = start + tl.arange(0, QUERIES)
            seen_from = tl.load(first + rows, mask=rows < queries, other=0)
            seen_to = tl.load(last + rows, mask=rows < queries, other=0)
            q_tile = _load(q_base, rows, columns, q_strides[1], queries, width)
            grad_tile = _load(grad_base, rows, values, grad_strides[1], queries, value)
            lse_tile = tl.load(lse + row + rows, mask=rows < queries, other=0.0)
            shared_tile = tl.load(shared + row + rows, mask=rows < queries, other=0.0)
            weights, d_scores = _tile_gradient(
                q_tile,
                k_tile,
                v_tile,
                grad_tile,
                seen_from,
                seen_to,
                at,
                lse_tile,
                shared_tile,
                SCALE,
                SUM_DTYPE,
                LOWEST,
            )
            v_sum += tl.dot(
                tl.trans(weights).to(grad_tile.dtype), grad_tile, input_precision="ieee", out_dtype=SUM_DTYPE
            )
            k_sum += tl.dot(tl.trans(d_scores).to(q_tile.dtype), q_tile, input_precision="ieee", out_dtype=SUM_DTYPE)
    _store(
        d_k + batch.to(tl.int64) * d_k_strides[0] + kv_head * d_k_strides[2],
        at,
        columns,
        d_k_strides[1],
        keys,
        width,
        k_sum,
    )
    _store(
        d_v + batch.to(tl.int64) * d_v_strides[0] + kv_head * d_v_strides[2],
        at,
        values,
        d_v_strides[1],
        keys,
        value,
        v_sum,
    )


@triton.jit
def queries_kernel(  # type: ignore[no-untyped-def]
    q, k, v, grad, lse, shared, d_q, first, last, begins, ends, q_strides, k_strides, v_strides, grad_strides,
    d_q_strides, heads, group, queries, keys, width, value, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    WIDTH: tl.constexpr, VALUE: tl.constexpr, SCALE: tl.constexpr, SUM_DTYPE: tl.constexpr, LOWEST: tl.constexpr,
):  # fmt: skip
    """Program (i, batch x head): one tile of queries."""
    tile, batch, head = tl.program_id(0), tl.program_id(1) // heads, tl.program_id(1) % heads
    rows, columns, values = tile * QUERIES + tl.arange(0, QUERIES), tl.arange(0, WIDTH), tl.arange(0, VALUE)
    k += batch.to(tl.int64) * k_strides[0] + (head // group) * k_strides[2]
    v += batch.to(tl.int64) * v_strides[0] + (head // group) * v_strides[2]
    q_tile = _load(
        q + batch.to(tl.int64) * q_strides[0] + head * q_strides[2], rows, columns, q_strides[1], queries, width
    )
    grad_tile = _load(
        grad + batch.to(tl.int64) * grad_strides[0] + head * grad_strides[2],
        rows,
        values,
        grad_strides[1],
        queries,
        value,
    )
    seen_from = tl.load(first + rows, mask=rows < queries, other=0)
    seen_to = tl.load(last + rows, mask=rows < queries, other=0)
    row = tl.program_id(1).to(tl.int64) * queries
    lse_tile = tl.load(lse + row + rows, mask=rows < queries, other=0.0)
    shared_tile = tl.load(shared + row + rows, mask=rows < queries, other=0.0)
    q_sum = tl.zeros([QUERIES, WIDTH], SUM_DTYPE)
    for start in range(tl.load(begins + tile), tl.load(ends + tile), KEYS):
        at = start + tl.arange(0, KEYS)
        k_tile = _load(k, at, columns, k_strides[1], keys, width)
        v_tile = _load(v, at, values, v_strides[1], keys, value)
        _, d_scores = _tile_gradient(
            q_tile, k_tile, v_tile, grad_tile, seen_from, seen_to, at, lse_tile, shared_tile, SCALE, SUM_DTYPE, LOWEST
        )
        q_sum += tl.dot(d_scores.to(k_tile.dtype), k_tile, input_precision="ieee", out_dtype=SUM_DTYPE)
    _store(
        d_q + batch.to(tl.int64) * d_q_strides[0] + head * d_q_strides[2],
        rows,
        columns,
        d_q_strides[1],
        queries,
        width,
        q_sum,
    )
