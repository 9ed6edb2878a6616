"""Attention by PyTorch's own kernel with an explicit mask, and its gradients by autograd: what tiled attention must equal."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from fourfold.model.visible import Visible

SCALE = 0.37


@dataclass(frozen=True)
class Problem:
    """The inputs of attention, heads before tokens, and the answers that it must give."""

    visible: Visible
    grad: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    gradients: tuple[Tensor, ...]


def problem(
    visible: Visible,
    dtype: torch.dtype = torch.float64,
    batch: int = 1,
    kv_heads: int = 1,
    group: int = 1,
    widths: tuple[int, int] = (8, 8),
    is_strided: bool = False,
    rounded: torch.dtype | None = None,
) -> Problem:
    """Seeded inputs. `widths`: of queries and keys, and of values. `is_strided`: views into larger tensors, tokens before heads.
    `rounded`: a format whose numbers the inputs are."""
    generator = torch.Generator().manual_seed(7)

    def draw(heads: int, tokens: int, width: int) -> Tensor:
        if not is_strided:
            return rounding(torch.randn(batch, heads, tokens, width, dtype=dtype, generator=generator))
        larger = rounding(torch.randn(batch, tokens, heads, width + 3, dtype=dtype, generator=generator))
        return larger.transpose(1, 2)[..., :width]

    def rounding(x: Tensor) -> Tensor:
        return x.to(rounded or dtype).to(dtype)

    width, value = widths
    q = draw(kv_heads * group, visible.queries, width).requires_grad_()
    k, v = (draw(kv_heads, visible.keys, n).requires_grad_() for n in (width, value))
    grad = draw(kv_heads * group, visible.queries, value)
    mask = seen(visible)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=SCALE, enable_gqa=True)
    out = torch.where(mask.any(-1, keepdim=True), out, 0.0)
    gradients = torch.autograd.grad(out, (q, k, v), grad)
    with torch.no_grad():
        scores = q @ k.repeat_interleave(group, 1).mT * SCALE
        lse = scores.masked_fill(~mask, float("-inf")).logsumexp(-1)
    return Problem(visible, grad, *(x.detach() for x in (q, k, v, out, lse)), gradients)


def seen(visible: Visible) -> Tensor:
    """[queries, keys]: whether the query sees the key, pair by pair."""
    key = np.arange(visible.keys)
    return torch.as_tensor((key >= visible.first[:, None]) & (key < visible.last[:, None]))


def intervals(longest: int) -> st.SearchStrategy[Visible]:
    """Documents side by side, causal or not; rectangles; and any intervals that never move back, some of them empty."""
    documents = st.lists(st.integers(1, longest // 2), min_size=1, max_size=6).filter(
        lambda sizes: sum(sizes) <= longest
    )
    one_each = st.integers(1, longest // 4).map(lambda count: [1] * count)
    lengths = st.builds(Visible.documents, documents | one_each, st.booleans())
    rectangles = st.builds(Visible.full, st.integers(1, longest), st.integers(1, longest))

    def monotone(pairs: list[tuple[int, int]]) -> Visible:
        first, last = (np.sort(np.array(ends, np.int32)) for ends in zip(*pairs, strict=True))
        return Visible(first, last, longest)

    ends = st.tuples(st.integers(0, longest), st.integers(0, longest))
    return lengths | rectangles | st.lists(ends, min_size=1, max_size=longest).map(monotone)
