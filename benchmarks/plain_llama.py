"""A Llama in plain torch, as a careful user would write it: the model that every peer of the benchmark trains."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The dimensions of a dense Llama: no biases, head untied from the embedding. The default has 29.4e6 parameters."""

    vocab_size: int = 4096
    hidden_size: int = 512
    num_layers: int = 8
    num_heads: int = 8
    num_kv_heads: int = 4
    ffn_size: int = 1536
    max_position: int = 512
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dim (Zhang & Sennrich 2019)."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rope_tables(shape: Shape) -> tuple[Tensor, Tensor]:
    """cos and sin [max_position, 1, head_dim / 2] of the angles position * theta^(-2i / head_dim) (Su et al. 2021)."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
    angles = torch.outer(torch.arange(shape.max_position, dtype=torch.float64), shape.rope_theta**-exponents)
    return angles.cos().float().unsqueeze(1), angles.sin().float().unsqueeze(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [B, T, H, D], halves paired (i, i + D/2) as in Hugging Face's Llama."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.head_dim = shape.head_dim
        kv_size = shape.num_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        heads = (*x.shape[:2], -1, self.head_dim)
        q = rotate(self.q_proj(x).view(heads), cos, sin).transpose(1, 2)  # [B, H, T, D]
        k = rotate(self.k_proj(x).view(heads), cos, sin).transpose(1, 2)  # [B, Hkv, T, D]
        v = self.v_proj(x).view(heads).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020): down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.ffn_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.ffn_size, bias=False)
        self.down_proj = nn.Linear(shape.ffn_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.mlp = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, blocks, final norm: tokens [B, T] -> hidden states [B, T, hidden]."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.norm_eps)
        cos, sin = rope_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class PlainLlama(nn.Module):
    """Tokens and targets [B, T] -> the sum of the token losses / `divisor`. Parameters bear Hugging Face's names."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.model = Decoder(shape)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor, divisor: float) -> Tensor:
        return self.loss(self.model(tokens), targets, divisor)

    def loss(self, hidden: Tensor, targets: Tensor, divisor: float) -> Tensor:
        """The head: hidden states [B, T, hidden] -> the sum of the token losses / `divisor`."""
        logits = self.lm_head(hidden)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / divisor


def initial_weights(shape: Shape, seed: int = 0) -> dict[str, Tensor]:
    """Name -> fp32 tensor, the same on every rank: matrices normal with deviation 0.02, norms one."""
    with torch.device("meta"):
        named = {name: parameter.shape for name, parameter in PlainLlama(shape).named_parameters()}
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(size) if len(size) == 1 else torch.empty(size).normal_(0.0, 0.02, generator=generator)
        for name, size in named.items()
    }
