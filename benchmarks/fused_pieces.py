"""The memory-bound pieces of a step, as segments call them: run on tensors they are timed, on shape-only tensors they are
counted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from fourfold.config import ModelConfig
from fourfold.config.optimizers import AdamWSection
from fourfold.model.environment import Environment
from fourfold.model.head import summed_loss_and_gradient
from fourfold.model.layers import final_norm
from fourfold.model.norm import normalize, normalize_backward
from fourfold.model.operations import Array, Groups
from fourfold.model.rope import rotate_
from fourfold.model.shape import chunk_tokens
from fourfold.model.swiglu import swiglu, swiglu_again, swiglu_backward_by_blocks
from fourfold.model.weights import Weight
from fourfold.runtime.updates import UPDATES

Arrays = Mapping[str, Array]
ADAMW, RATE, DECAY = AdamWSection(), 1e-3, 0.1
"""The optimizer, its learning rate and weight decay."""
EXPERTS = 8
"""Experts of the grouped matmul; each has as many rows."""


@dataclass(frozen=True)
class Input:
    """An array of a piece. `kind`: `compute` and `fp32` are random numbers in that format, `zeros` are fp32; `cos`, `sin`; `below`
    the number `limit` and `count`, a scalar, are int64; `ends`, int32, divide `limit` rows evenly."""

    shape: tuple[int, ...]
    kind: str = "compute"
    limit: int = 0


@dataclass(frozen=True)
class Piece:
    """`run` may overwrite its inputs; it gives its results. `times`: how often the step of one microbatch has it."""

    name: str
    inputs: Mapping[str, Input]
    run: Callable[[Environment, Arrays], tuple[Array, ...]]
    times: float


def dense_pieces(model: ModelConfig, tokens: int, accelerator: bool) -> list[Piece]:
    """The pieces of a dense model, of a microbatch of one sequence. Under selective recomputation `SwiGLU again + backward` takes
    the place of `SwiGLU backward`."""
    hidden, ffn, blocks = model.hidden_size, model.ffn_size, model.num_layers
    rows = min(tokens, chunk_tokens(model.vocab_size, accelerator))
    x, half = Input((tokens, hidden)), (tokens, 1, model.head_dim // 2)
    statistics = {
        "scale": Input((tokens, 1), "fp32"),
        "weight": Input((hidden,)),
        "weight_grad": Input((hidden,), "zeros"),
    }
    heads = Input((1, tokens, model.num_heads + model.num_kv_heads, model.head_dim))
    gate_up, activated = Input((tokens, 2 * ffn)), Input((tokens, ffn))
    logits = {
        "logits": Input((rows, model.vocab_size)),
        "target": Input((rows,), "below", model.vocab_size),
        "count": Input((), "count"),
    }
    return [
        Piece("RMSNorm", {"x": x, "weight": Input((hidden,))}, _norm, 2 * blocks + 1),
        Piece(
            "RMSNorm backward + residual",
            {"grad": x, "x": x, "residual": x, **statistics},
            _norm_backward,
            2 * blocks + 1,
        ),
        Piece("RoPE", {"x": heads, "cos": Input(half, "cos"), "sin": Input(half, "sin")}, _rope, 2 * blocks),
        Piece("SwiGLU", {"gate_up": gate_up}, _swiglu, blocks),
        Piece("SwiGLU backward", {"grad": activated, "gate_up": gate_up}, _swiglu_backward, blocks),
        Piece("SwiGLU again + backward", {"grad": activated, "gate_up": gate_up}, _swiglu_again_backward, blocks),
        Piece("cross-entropy + gradient", logits, _cross_entropy, tokens / rows),
    ]


def expert_pieces(model: ModelConfig, tokens: int) -> list[Piece]:
    """A block's tokens to their experts and back, on one rank, and one of the experts' matmuls."""
    pairs, hidden = tokens * model.top_k, model.hidden_size
    rows = Input((pairs, hidden))
    matmul = {"rows": rows, "matrices": Input((EXPERTS, hidden, hidden)), "ends": Input((EXPERTS,), "ends", pairs)}
    to = {"tokens": Input((tokens, hidden)), "pairs": Input((pairs,), "below", pairs)}
    back = {"rows": rows, "places": Input((tokens, model.top_k), "below", pairs)}
    return [
        Piece("token permutation, to experts", to, _to_experts, 2 * model.num_layers),
        Piece("token permutation, back", back, _back, 2 * model.num_layers),
        Piece("grouped matmul", matmul, _grouped_matmul, 6 * model.num_layers),
    ]


def update_piece(numel: int, parameters: int) -> Piece:
    """AdamW on a flat shard, so many elements at a time."""
    return Piece("AdamW", dict.fromkeys("wgmv", Input((numel,), "fp32")), _adamw, parameters / numel)


def _norm(env: Environment, a: Arrays) -> tuple[Array, ...]:
    weights: Any = SimpleNamespace(weight=Weight(a["weight"], None), bias=None)
    return (normalize(env.ops, final_norm(env.model), a["x"], weights)[0],)


def _norm_backward(env: Environment, a: Arrays) -> tuple[Array, ...]:
    weights: Any = SimpleNamespace(weight=Weight(a["weight"], a["weight_grad"]), bias=None)
    with env.ops.fused():
        grad = normalize_backward(env.ops, final_norm(env.model), a["grad"], a["x"], (a["scale"],), weights)
        return grad.add_(a["residual"]), a["weight_grad"]


def _rope(env: Environment, a: Arrays) -> tuple[Array, ...]:
    with env.ops.fused():
        rotate_(env.ops, a["x"], a["cos"], a["sin"])
    return (a["x"],)


def _swiglu(env: Environment, a: Arrays) -> tuple[Array, ...]:
    with env.ops.fused():
        return (swiglu(env.ops, a["gate_up"]),)


def _swiglu_backward(env: Environment, a: Arrays) -> tuple[Array, ...]:
    swiglu_backward_by_blocks(env.ops, [a["grad"], None], a["gate_up"])
    return (a["gate_up"],)


def _swiglu_again_backward(env: Environment, a: Arrays) -> tuple[Array, ...]:
    activated, down_input = swiglu_again(env.ops, a["gate_up"])
    swiglu_backward_by_blocks(env.ops, [a["grad"], activated], a["gate_up"])
    return down_input, a["gate_up"]


def _cross_entropy(env: Environment, a: Arrays) -> tuple[Array, ...]:
    with env.ops.fused():
        return summed_loss_and_gradient(env, [a["logits"]], a["target"], a["count"])


def _to_experts(env: Environment, a: Arrays) -> tuple[Array, ...]:
    with env.ops.fused():
        return (env.ops.take(a["tokens"], a["pairs"] // env.model.top_k),)


def _back(env: Environment, a: Arrays) -> tuple[Array, ...]:
    with env.ops.fused():
        return (env.ops.sum_rows(a["places"], a["rows"], None),)


def _grouped_matmul(env: Environment, a: Arrays) -> tuple[Array, ...]:
    size = a["rows"].shape[0] // EXPERTS
    return (env.ops.grouped_matmul(a["rows"], a["matrices"], Groups((size,) * EXPERTS, a["ends"])),)


def _adamw(env: Environment, a: Arrays) -> tuple[Array, ...]:
    one = torch.ones((), device=a["w"].device)
    UPDATES["adamw"](a["w"], a["g"], [a["m"], a["v"]], ADAMW, RATE, one, DECAY, None, None)
    return (a["w"],)
