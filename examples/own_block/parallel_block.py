"""A block that fourfold has not built in: attention and feed-forward side by side, with layer scale.

y = x + scale * (attention(norm(x)) + feed_forward(norm(x))): one norm for both (GPT-J; PaLM, Chowdhery et al. 2022, section 2), and
a learned scale for each channel of what is added (CaiT, Touvron et al. 2021). Attention has rotary positions, the feed-forward is
SwiGLU; one matmul projects the input of both.
"""

from collections.abc import Mapping
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.model.own import OwnBlock, OwnInputs, OwnParameter


def parameters(model: ModelConfig) -> list[OwnParameter]:
    """One layer's: norm and scale [hidden]; input [heads + 2 kv_heads of head_dim, then 2 ffn, hidden]; output [hidden, ...]."""
    hidden, ffn = model.hidden_size, model.ffn_size
    heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    inner = model.num_heads * model.head_dim + ffn
    std = model.init_std
    return [
        OwnParameter("norm.weight", (hidden,), None, weight_decay=False),
        OwnParameter("input.weight", (heads + 2 * ffn, hidden), std),
        OwnParameter("output.weight", (hidden, inner), std / sqrt(2 * model.num_layers)),
        OwnParameter("scale", (hidden,), None, weight_decay=False),
    ]


def forward(x: Tensor, weights: Mapping[str, Tensor], inputs: OwnInputs, model: ModelConfig) -> Tensor:
    """x [batch, seq, hidden] -> [batch, seq, hidden]."""
    query, key = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    normed = F.rms_norm(x, (model.hidden_size,), weights["norm.weight"], model.norm_eps)
    q, k, v, gate, up = F.linear(normed, weights["input.weight"]).split([query, key, key, *[model.ffn_size] * 2], -1)
    q, k, v = (part.unflatten(-1, (-1, model.head_dim)) for part in (q, k, v))
    attended = attend(rotate(q, inputs), rotate(k, inputs), v, inputs)
    both = torch.cat((attended.flatten(2), F.silu(gate) * up), -1)
    return x + weights["scale"] * F.linear(both, weights["output.weight"])


def rotate(x: Tensor, inputs: OwnInputs) -> Tensor:
    """Rotary positions; pairs are half a head apart. x [batch, seq, heads, head_dim]."""
    first, second = x.chunk(2, -1)
    cos, sin = inputs.cos, inputs.sin
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def attend(q: Tensor, k: Tensor, v: Tensor, inputs: OwnInputs) -> Tensor:
    """Causal attention; where documents are masked, within each document. q, k, v and the result [batch, seq, heads, head_dim]."""
    heads = q.shape[2]
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    mask = None
    if inputs.document_lengths is not None:
        rows = [torch.cat([torch.full((n,), i) for i, n in enumerate(row)]) for row in inputs.document_lengths]
        document = torch.stack(rows).to(q.device)
        mask = (document.unsqueeze(1) == document.unsqueeze(2)).tril().unsqueeze(1)
    grouped = k.shape[1] != heads
    out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=grouped)
    return out.transpose(1, 2)


BLOCK = OwnBlock(parameters, forward)
