"""The plain Llama with fewer and larger matmuls: q, k and v in one, gate and up in one, as fourfold stores them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plain_llama import Attention, FeedForward, PlainLlama, rotate


class FusedAttention(nn.Module):
    """`Attention` with one input projection; q and k are rotated together."""

    def __init__(self, plain: Attention):
        super().__init__()
        self.head_dim = plain.head_dim
        self.sizes = [module.out_features // plain.head_dim for module in (plain.q_proj, plain.k_proj, plain.v_proj)]
        self.qkv_proj = joined(plain.q_proj, plain.k_proj, plain.v_proj)
        self.o_proj = plain.o_proj

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        heads, kv_heads, _ = self.sizes
        qkv = self.qkv_proj(x).view(*x.shape[:2], -1, self.head_dim)
        q_k, v = qkv.split((heads + kv_heads, kv_heads), dim=2)
        q, k = rotate(q_k, cos, sin).transpose(1, 2).split((heads, kv_heads), dim=1)  # [B, H, T, D], [B, Hkv, T, D]
        mixed = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class FusedFeedForward(nn.Module):
    """`FeedForward` with one input projection."""

    def __init__(self, plain: FeedForward):
        super().__init__()
        self.gate_up_proj = joined(plain.gate_proj, plain.up_proj)
        self.down_proj = plain.down_proj

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


def joined(*modules: nn.Linear) -> nn.Linear:
    """One projection that gives the outputs of several, side by side."""
    weight = torch.cat([module.weight.detach() for module in modules])
    result = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    result.weight = nn.Parameter(weight)
    return result


def fuse(model: PlainLlama) -> None:
    """Fuses every block of the model, which keeps its weights."""
    for layer in model.model.layers:
        layer.self_attn, layer.mlp = FusedAttention(layer.self_attn), FusedFeedForward(layer.mlp)
