"""The routed feed-forward written plainly, with loops and autograd, on all tokens at once; and one rank's part of everything."""

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.layout import Layout
from fourfold.model import torch_operations
from fourfold.model.environment import Environment, Microbatch, Saved
from fourfold.model.experts.balance import Balancing
from fourfold.model.experts.parts import run_through
from fourfold.model.experts.router import Routing
from fourfold.model.experts.swiglu import ExpertParameters
from fourfold.model.footprint import Shape
from fourfold.model.kinds.feed_forward import GatedParameters
from fourfold.model.kinds.kind import Pass
from fourfold.model.kinds.routed import RoutedFeedForward, RoutedParameters
from fourfold.model.layer import HalfNorms, Layer, LayerParameters
from fourfold.model.layers import layers_of
from fourfold.model.norm import NormParameters
from fourfold.model.parallel import Parallel
from fourfold.model.weights import Deferred, Weight
from fourfold.runtime.collectives import make_groups
from tests.support.differentiable import rebuilding
from tests.support.split_model import CountingGroup

MIXTRAL = ModelConfig(
    1, 16, 2, 2, 8, 24, 31, family="mixtral", num_experts=8, top_k=2, moe_ffn_size=12, router="softmax"
)
QWEN = replace(MIXTRAL, family="qwen3_moe", top_k=3, normalize_top_k=False)
DEEPSEEK = replace(
    MIXTRAL, family="deepseek_v3", top_k=3, num_shared_experts=1, router="sigmoid", routed_scaling=2.5,
    num_expert_groups=4, top_groups=2,
)  # fmt: skip
GPT_OSS = replace(
    MIXTRAL,
    family="gpt_oss",
    top_k=3,
    activation="clamped_swiglu",
    swiglu_limit=0.8,
    router_bias=True,
    expert_bias=True,
)
LLAMA4 = replace(
    MIXTRAL,
    family="llama4_text",
    top_k=2,
    num_shared_experts=1,
    router="sigmoid",
    normalize_top_k=False,
    expert_scaling="input",
)
AUXILIARY = {"balance_loss": 0.3, "z_loss": 0.2}


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 1, shape))


def full_weights(model: ModelConfig) -> dict[str, Tensor]:
    """Whole weights; the router favours expert 0 and spurns the last for every token of `hidden_states`."""
    experts, ffn, hidden = model.num_experts, model.moe_ffn_size, model.hidden_size
    tensors = {
        "norm": 1 + 0.1 * random(hidden, seed=2),
        "router": 0.3 * random(experts, hidden, seed=3),
        "gate_up": random(experts, 2, ffn, hidden, seed=4) * 0.3,
        "down": random(experts, hidden, ffn, seed=5) * 0.3,
    }
    tensors["router"][0, 0], tensors["router"][-1, 0] = 1.5, -2.5
    if model.expert_bias:
        tensors["router_bias"] = 0.3 * random(experts, seed=10)
        tensors["gate_up_bias"] = 0.5 * random(experts, 2, ffn, seed=11)
        tensors["down_bias"] = random(experts, hidden, seed=12)
    if model.num_shared_experts:
        shared = model.num_shared_experts * ffn
        tensors["shared_gate_up"] = random(2, shared, hidden, seed=6) * 0.3
        tensors["shared_down"] = random(hidden, shared, seed=7) * 0.3
    return tensors


def hidden_states(data: int, sequences: int, length: int, hidden: int) -> Tensor:
    """[data ranks, sequences, length, hidden]"""
    x = random(data, sequences, length, hidden)
    x[..., 0] = 3 + 0.1 * x[..., 0]
    return x


def plain_choice(
    normed: Tensor, router: Tensor, bias: Tensor | None, model: ModelConfig, added: Tensor | float = 0.0
) -> tuple[Tensor, ...]:
    """normed [tokens, hidden] -> logits, normalised probabilities, experts, weights."""
    logits = normed @ router.t() + added
    if model.router == "softmax":
        scores = probabilities = logits.softmax(-1)
        experts = scores.topk(model.top_k).indices
    else:
        scores = logits.sigmoid()
        probabilities = scores / scores.sum(-1, keepdim=True)
        preference = scores.detach() if bias is None else scores.detach() + bias
        rows = []
        for row in preference:
            groups = row.view(model.num_expert_groups, -1)
            best = groups.sort(descending=True).values[:, :2].sum(1).topk(model.top_groups).indices
            allowed = torch.full_like(groups, -torch.inf)
            allowed[best] = groups[best]
            rows.append(allowed.view(-1).topk(model.top_k).indices)
        experts = torch.stack(rows)
    weights = scores.gather(1, experts)
    if model.normalize_top_k:
        weights = weights / weights.sum(-1, keepdim=True)
    return logits, probabilities, experts, weights * model.routed_scaling


def plain_routed(
    x: Tensor, w: dict[str, Tensor], model: ModelConfig, bias: Tensor | None, parts: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x [rows, length, hidden] of a full global batch -> output, balance loss, z-loss, load [experts]. `parts`: the tokens (of x
    laid flat) of each rank's microbatch, in its order, within which the capacity counts."""
    rows, length, hidden = x.shape
    flat = x.reshape(-1, hidden)
    normed = flat * (flat.square().mean(-1, keepdim=True) + model.norm_eps).rsqrt() * w["norm"]
    logits, probabilities, experts, weights = plain_choice(normed, w["router"], bias, model, w.get("router_bias", 0.0))
    out = flat
    if model.num_shared_experts:
        gate, up = w["shared_gate_up"]
        out = out + (F.silu(normed @ gate.t()) * (normed @ up.t())) @ w["shared_down"].t()
    kept = torch.ones_like(experts, dtype=torch.bool)
    for part in parts if model.capacity_factor is not None else []:
        limit = ceil(model.capacity_factor * model.top_k * len(part) / model.num_experts)
        taken = [0] * model.num_experts
        for token in part.tolist():
            for slot, expert in enumerate(experts[token].tolist()):
                kept[token, slot] = taken[expert] < limit
                taken[expert] += 1
    for expert in range(model.num_experts):
        share = (weights * ((experts == expert) & kept)).sum(-1, keepdim=True)
        before, behind = (share, 1.0) if model.expert_scaling == "input" else (1.0, share)
        gate, up = ((normed * before) @ each.t() for each in w["gate_up"][expert])
        if model.expert_bias:
            gate, up = (each + bias for each, bias in zip((gate, up), w["gate_up_bias"][expert], strict=True))
        inner = F.silu(gate) * up
        if model.activation == "clamped_swiglu":
            gate = gate.clamp(max=model.swiglu_limit)
            up = up.clamp(-model.swiglu_limit, model.swiglu_limit)
            inner = gate * torch.sigmoid(model.swiglu_alpha * gate) * (up + 1)
        result = inner @ w["down"][expert].t() + (w["down_bias"][expert] if model.expert_bias else 0.0)
        out = out + result * behind
    load = torch.stack([(experts == e).sum() for e in range(model.num_experts)])
    chosen = F.one_hot(experts, model.num_experts).sum(1).view(rows, length, -1).to(x.dtype)
    frequency = chosen.sum(1) * model.num_experts / (model.top_k * length)
    mean = probabilities.view(rows, length, -1).mean(1)
    balance = model.balance_loss * (frequency * mean).sum(-1).mean()
    z = model.z_loss * torch.logsumexp(logits, -1).square().mean()
    return out.view_as(x), balance, z, load


def plain_gradients(
    x: Tensor, projection: Tensor, w: dict[str, Tensor], model: ModelConfig, bias: Tensor | None, parts: list[Tensor]
) -> dict[str, Tensor]:
    """The output, losses and load, and every gradient of (output * projection).sum() + the losses."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in (w | {"x": x}).items()}
    out, balance, z, load = plain_routed(leaves["x"], leaves, model, bias, parts)
    ((out * projection).sum() + balance + z).backward()
    result = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    return result | {"output": out.detach(), "losses": torch.stack((balance, z)).detach(), "load": load}


@dataclass(frozen=True)
class Case:
    """Degrees of a mesh; with capacity and sequence parallelism or not."""

    dp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    etp: int = 1
    sequence: bool = False
    keep: bool = True
    defers: bool = False
    sequences: int = 3
    length: int = 8

    @property
    def layout(self) -> Layout:
        return Layout(
            dp_shard=self.dp, cp=self.cp, tp=self.tp, microbatch_sequences=self.sequences, num_microbatches=1,
            sequence_length=self.length, recompute=("none",),
            sequence_parallel=self.sequence, ep=self.ep, etp=self.etp,
        )  # fmt: skip

    @property
    def shape(self) -> Shape:
        return Shape(
            self.sequences, self.length, "fp64", "fp64", False, tp=self.tp, sequence_parallel=self.sequence,
            cp_ring=self.cp, ep=self.ep, etp=self.etp,
        )  # fmt: skip

    def tokens(self, rank: int, split: bool) -> Tensor:
        """The rank's tokens among all of the global batch laid flat; only its part among `tp` if split."""
        layout = self.layout
        own = layout.coordinates(rank)
        rows = torch.tensor(layout.rows(rank, 0))
        tokens = (rows.unsqueeze(1) * self.length + torch.tensor(layout.positions(rank))).view(-1)
        return tokens.view(self.tp, -1)[own["tp"]] if split else tokens


def shard(w: dict[str, Tensor], case: Case, rank: int) -> dict[str, Tensor]:
    """One rank's part of full tensors, or of their gradients (views)."""
    own = case.layout.coordinates(rank)
    parts = {"norm": w["norm"], "router": w["router"]}
    for name, dim in (("gate_up", 2), ("down", 2), ("gate_up_bias", 2), ("down_bias", 1)):
        if name in w:
            parts[name] = w[name].chunk(case.ep, 0)[own["ep"]].chunk(case.etp, dim)[own["etp"]]
    if "router_bias" in w:
        parts["router_bias"] = w["router_bias"]
    if "shared_down" in w:
        parts["shared_gate_up"] = w["shared_gate_up"].chunk(case.tp, 1)[own["tp"]]
        parts["shared_down"] = w["shared_down"].chunk(case.tp, 1)[own["tp"]]
    return parts


def bind(parts: dict[str, Tensor], fresh: bool = True) -> dict[str, Weight]:
    """Weights whose gradient buffers hold garbage until the first gradient."""
    weights = {}
    for name, part in parts.items():
        data = part.clone(memory_format=torch.contiguous_format)
        if name == "shared_gate_up":
            data = data.flatten(0, 1)
        weights[name] = Weight(data, torch.full_like(data, torch.nan if fresh else 0.0))
        weights[name].fresh = fresh
    return weights


def routed_weights(weights: dict[str, Weight]) -> LayerParameters[Weight]:
    """A layer of which the routed feed-forward alone is there."""
    shared = None
    if "shared_down" in weights:
        shared = GatedParameters(weights["shared_gate_up"], weights["shared_down"])
    names = ("gate_up", "down", "gate_up_bias", "down_bias")
    experts = ExpertParameters(*(weights.get(name) for name in names))
    own = RoutedParameters(weights["router"], shared, experts, weights.get("router_bias"))
    return LayerParameters(own, None, HalfNorms(None, None), HalfNorms(NormParameters(weights["norm"]), None))


def routed_layer(model: ModelConfig) -> Layer:
    layer = layers_of(model)[-1]
    assert layer is not None
    return layer


def routing_of(model: ModelConfig) -> Routing:
    feed_forward = routed_layer(model).feed_forward
    assert isinstance(feed_forward, RoutedFeedForward)
    return feed_forward.routing


def routed_pass(env: Environment, balancing: Balancing, saved: Saved) -> Pass:
    """A routed feed-forward reads nothing of the microbatch but its balancing."""
    nothing: Any = None
    return Pass(env, Microbatch(nothing, nothing, {}), saved, balancing)


def run_rank(
    rank: int, case: Case, model: ModelConfig, x: Tensor, projection: Tensor, bias: Tensor | None
) -> dict[str, Any]:
    """One rank's forward and backward; x, projection [rows, length, hidden] of the global batch."""
    layout = case.layout
    names = [name for name, size in (("tp", case.tp), ("ep", case.ep), ("etp", case.etp), ("cp+tp", case.cp * case.tp))]
    groups: dict[str, CountingGroup] = {}
    if layout.world_size > 1:
        active = [name for name in names if layout.group_size(tuple(name.split("+"))) > 1]
        groups = {n: CountingGroup(group) for n, group in make_groups(layout, rank, active, 60.0).items()}
    parallel = Parallel(groups.get("tp"), case.sequence, ep=groups.get("ep"), etp=groups.get("etp"))
    tokens = case.tokens(rank, case.sequence)
    balancing = Balancing(
        case.sequences, case.length, case.sequences * case.dp,
        groups=(groups["cp+tp"],) if "cp+tp" in groups else (), bias=bias,
        load=torch.zeros(model.num_experts, dtype=torch.int64), losses=torch.zeros(2, dtype=x.dtype),
    )  # fmt: skip
    weights = bind(shard(full_weights(model), case, rank))
    deferred = Deferred()
    for weight in weights.values():
        weight.deferred = deferred if case.defers else None
    env, own, saved = (
        Environment(torch_operations, model, parallel),
        x.view(-1, x.shape[-1])[tokens],
        rebuilding(case.keep),
    )
    layer, bound, run = routed_layer(model), routed_weights(weights), routed_pass(env, balancing, saved)
    out = run_through(layer.feed(run, own, bound))
    forward = {name: len(group.started) for name, group in groups.items()}
    upstream = projection.view(-1, x.shape[-1])[tokens]
    grad = run_through(layer.feed_backward(run, upstream, bound))
    num_deferred = len(deferred)
    deferred.run()
    return {
        "x": grad, "output": out, "losses": balancing.losses, "load": balancing.load, "num_deferred": num_deferred,
        "gradients": {name: weight.grad for name, weight in weights.items()},
        "forward": {name: group.started[: forward[name]] for name, group in groups.items()},
        "backward": {name: group.started[forward[name] :] for name, group in groups.items()},
        "sent_bytes": {name: group.sent_bytes - group.surplus_bytes for name, group in groups.items()},
    }  # fmt: skip


def assemble(results: list[dict[str, Any]], case: Case, model: ModelConfig, x: Tensor) -> dict[str, Tensor]:
    """All ranks' results as those of one: gradients summed over exactly the ranks that the parameters' rules name."""
    full = {name: torch.zeros_like(tensor) for name, tensor in full_weights(model).items()}
    flat = {name: torch.zeros_like(x).view(-1, x.shape[-1]) for name in ("x", "output")}
    for rank, result in enumerate(results):
        places = shard(full, case, rank)
        for name, grad in result["gradients"].items():
            copies = name == "norm" and not case.sequence and case.layout.coordinates(rank)["tp"] > 0
            if not copies:
                places[name].add_(grad.view_as(places[name]))
        for name, tensor in flat.items():
            tensor[case.tokens(rank, case.sequence)] = result[name]
    totals = {name: sum(result[name] for result in results) for name in ("losses", "load")}
    return full | {name: tensor.view_as(x) for name, tensor in flat.items()} | totals
