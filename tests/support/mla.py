"""MLA of one rank on its part of random weights, with everything that a comparison needs."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.model import torch_operations
from fourfold.model.environment import Environment, Microbatch
from fourfold.model.kinds.kind import Pass
from fourfold.model.kinds.mla import MLA, MLAParameters
from fourfold.model.layer import HalfNorms, Layer, LayerParameters
from fourfold.model.layers import layers_of, ropes_of
from fourfold.model.norm import NormParameters
from fourfold.model.parallel import Parallel
from fourfold.model.weights import Deferred, Weight
from fourfold.runtime.collectives import make_groups
from tests.support import experts
from tests.support.differentiable import rebuilding
from tests.support.experts import random
from tests.support.split_model import CountingGroup

SPLIT = {"query_up": 0, "key_value_up": 0, "output": 1}
"""Which dim `tp` splits."""


@dataclass(frozen=True)
class Case:
    tp: int = 1
    sequence: bool = False
    keep: bool = True
    defers: bool = False


def full_weights(model: ModelConfig) -> dict[str, Tensor]:
    hidden, heads, rank = model.hidden_size, model.num_heads, model.key_value_rank or 0
    shapes: dict[str, tuple[int, ...]] = {
        "norm": (hidden,),
        "query_up": (heads * model.head_dim, model.query_rank or hidden),
        "key_value_down": (rank + model.rope_head_dim, hidden),
        "key_value_norm": (rank,),
        "key_value_up": (heads * (model.nope_head_dim + model.value_head_dim), rank),
        "output": (hidden, heads * model.value_head_dim),
    }
    if model.query_rank is not None:
        shapes |= {"query_down": (model.query_rank, hidden), "query_norm": (model.query_rank,)}
    tensors = {name: 0.4 * random(*shape, seed=20 + i) for i, (name, shape) in enumerate(shapes.items())}
    return {name: 1 + 0.2 * t if name.endswith("norm") else t for name, t in tensors.items()}


def tables(model: ModelConfig, length: int) -> tuple[Tensor, Tensor]:
    """cos and sin [length, 1, rope_head_dim / 2]."""
    angles = torch.outer(torch.arange(length).double(), 0.7 ** torch.arange(model.rope_head_dim // 2).double())
    return angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)


def microbatch(model: ModelConfig, sequences: int, length: int, dtype: torch.dtype = torch.float64) -> Microbatch:
    """Attention reads its shape and the tables alone."""
    tokens = torch.zeros(sequences, length, dtype=torch.int64)
    cos, sin = (table.to(dtype) for table in tables(model, length))
    return Microbatch(tokens, tokens, dict.fromkeys(ropes_of(model), (cos, sin)))


def mla_weights(weights: dict[str, Weight]) -> LayerParameters[Weight]:
    """A layer of which the mixer alone is there."""
    own = MLAParameters(
        **({"query_down": None, "query_norm": None} | {name: w for name, w in weights.items() if name != "norm"})
    )
    return LayerParameters(None, own, HalfNorms(NormParameters(weights["norm"]), None), HalfNorms(None, None))


def mla_layer(model: ModelConfig) -> Layer:
    layer = layers_of(model)[0]
    assert layer is not None
    return layer


def mla_mixer(model: ModelConfig) -> MLA:
    mixer = mla_layer(model).mixer
    assert isinstance(mixer, MLA)
    return mixer


def run_rank(rank: int, case: Case, model: ModelConfig, x: Tensor, projection: Tensor) -> dict[str, Any]:
    """x, projection [batch, seq, hidden] -> this rank's tokens of output and input gradient, its weights' gradients, bytes."""
    layout = experts.Case(tp=case.tp).layout
    group = CountingGroup(make_groups(layout, rank, ["tp"], 60.0)["tp"]) if case.tp > 1 else None
    parallel = Parallel(group, case.sequence)
    weights = {}
    for name, tensor in full_weights(model).items():
        data = tensor.chunk(case.tp, SPLIT[name])[rank].contiguous() if name in SPLIT else tensor
        weights[name] = Weight(data, torch.full_like(data, torch.nan))
        weights[name].fresh = True
    deferred = Deferred()
    for weight in weights.values():
        weight.deferred = deferred if case.defers else None
    bound, layer = mla_weights(weights), mla_layer(model)
    parts = case.tp if case.sequence else 1
    own, upstream = (t.view(-1, t.shape[-1]).chunk(parts)[rank if case.sequence else 0] for t in (x, projection))
    env, saved = Environment(torch_operations, model, parallel), rebuilding(case.keep)
    run = Pass(env, microbatch(model, *x.shape[:2]), saved)
    out = own + layer.mix(run, own, bound)
    marks = [len(group.started) if group is not None else 0]
    grad = layer.mix_backward(run, upstream, own, bound)
    marks.append(len(group.started) if group is not None else 0)
    deferred.run()
    gradients = {name: weight.grad for name, weight in weights.items()}
    return {
        "out": out, "x": grad, "gradients": gradients, "started": group.started if group is not None else [],
        "marks": marks,
    }  # fmt: skip
