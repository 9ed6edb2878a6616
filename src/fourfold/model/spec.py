"""A model as a list of segments, and each segment's parameters as data: names, shapes, initialisation, sharding rule."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod, sqrt
from typing import Literal

from fourfold.config import ModelConfig
from fourfold.model.mup import mup_factors
from fourfold.model.own.declare import own_parameters

Domain = Literal["dense", "expert"]
POSITIONS = "model.embed_positions.weight"
"""The table of learned positions, [max_position, hidden]."""


@dataclass(frozen=True)
class ParameterSpec:
    """One full parameter. `name` is its Hugging Face name; `init_std` None means ones (a norm's weight), 0.0 means zeros.

    Sharding rule: `tensor_dim` is the dim that tensor parallelism splits (`tp` for dense parameters, `etp` for experts'; None:
    replicated), `kv_heads` that its parts are key and value heads, which several ranks hold copies of where there are fewer heads
    than ranks. Dim 0 of an expert parameter is the experts, split over `ep`. `summed`: for a replicated parameter, when its
    gradient is a partial sum on every tensor-parallel rank: `always`, or under sequence parallelism alone (`sequence`).
    `head_rows`: rows of the matrices that each head of an up-projection from a latent has, which follow each other. `lr_scale`: its
    learning rate is `optimizer.lr` times this.
    """

    name: str
    shape: tuple[int, ...]
    init_std: float | None
    weight_decay: bool
    tensor_dim: int | None
    kv_heads: bool = False
    summed: Literal["never", "sequence", "always"] = "never"
    head_rows: tuple[int, ...] = ()
    lr_scale: float = 1.0

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class UnitSpec:
    """The parameters that make one flat buffer: all dense ones of a segment, or all its experts'."""

    name: str
    domain: Domain
    parameters: tuple[ParameterSpec, ...]

    @property
    def numel(self) -> int:
        return sum(p.numel for p in self.parameters)

    @property
    def matrices(self) -> tuple[ParameterSpec, ...]:
        """Hidden matrices and batches of them, which come first. Rows of the embedding and of the head are tokens'."""
        return () if self.name in ("embed", "head") else tuple(filter(_is_matrix, self.parameters))


def _is_matrix(spec: ParameterSpec) -> bool:
    return spec.weight_decay and len(spec.shape) > 1


@dataclass(frozen=True)
class Segment:
    """The smallest part of a model that a program addresses: `embed`, a block `b0`, `b1`, ..., an MTP module `mtp0`, ..., which
    is a block with something before it, or `head`.

    Its own parameters make one *unit*, a flat buffer, of the same name; a block's experts a second one, `b0.experts`.
    `units` are the names of the units that it reads: its own, and for a head with tied embeddings, and for an MTP module, the
    embedding's too. `depth`: which MTP module, from 1; 0: none.
    """

    name: str
    kind: Literal["embedding", "block", "head"]
    own: tuple[UnitSpec, ...]
    units: tuple[str, ...]
    layer: int | None = None
    moe: bool = False
    depth: int = 0

    @property
    def parameters(self) -> tuple[ParameterSpec, ...]:
        """All own parameters."""
        return tuple(p for unit in self.own for p in unit.parameters)

    @property
    def numel(self) -> int:
        return sum(unit.numel for unit in self.own)


@lru_cache(maxsize=64)
def build_segments(model: ModelConfig) -> tuple[Segment, ...]:
    """The segments of a model in forward order.

    In each unit, matrices come first and are decayed (then what else a person's own block decays); norm weights and biases follow
    and are not. Within that, parameters whose gradients are summed over the same tensor-parallel ranks stand together.
    Initialisation: normal with `init_std`, truncated at three standard deviations; the projections that write into the residual
    stream are scaled by 1/sqrt(2 * num_layers) (Radford et al. 2019, section 2.3; Shoeybi et al. 2019, section 4).
    """
    hidden, vocab = model.hidden_size, model.vocab_size
    embedding = ParameterSpec("model.embed_tokens.weight", (vocab, hidden), model.init_std, True, 0)
    tables = [embedding]
    if model.positions == "learned":
        shape = (model.max_position, hidden)
        tables.append(ParameterSpec(POSITIONS, shape, model.init_std, True, None, summed="sequence"))
    norm = _norms(model, "model.norm")
    unembedding = ParameterSpec("lm_head.weight", (vocab, hidden), model.init_std, True, 0)
    norm += [_norm(f"{_module_prefix(model, k)}shared_head.norm.weight", hidden) for k in range(model.mtp_layers)]
    head_own = tuple(norm) if model.tie_embeddings else (unembedding, *norm)
    head_units = ("head", "embed") if model.tie_embeddings else ("head",)
    segments = (
        Segment("embed", "embedding", (UnitSpec("embed", "dense", tuple(tables)),), ("embed",)),
        *(_block(model, layer) for layer in range(model.num_layers)),
        *(_module(model, k) for k in range(model.mtp_layers)),
        Segment("head", "head", (UnitSpec("head", "dense", head_own),), head_units),
    )
    return tuple(replace(each, own=tuple(_parametrized(model, unit) for unit in each.own)) for each in segments)


def _parametrized(model: ModelConfig, unit: UnitSpec) -> UnitSpec:
    """The unit with the initialisation and learning rates of `model/mup.py`."""
    if model.mup_base_hidden_size is None:
        return unit
    found = []
    for spec in unit.parameters:
        std, rate = mup_factors(model, spec.name, spec.weight_decay)
        found.append(replace(spec, init_std=spec.init_std and spec.init_std * std, lr_scale=rate))
    return replace(unit, parameters=tuple(found))


def _norm(name: str, width: int, summed: Literal["sequence", "always"] = "sequence") -> ParameterSpec:
    return ParameterSpec(name, (width,), None, False, None, summed=summed)


def _norms(model: ModelConfig, name: str) -> list[ParameterSpec]:
    """A norm of the residual stream: its weight, and for a LayerNorm its bias."""
    weight = _norm(f"{name}.weight", model.hidden_size)
    return [weight] if model.norm == "rms" else [weight, _bias(f"{name}.bias", model.hidden_size)]


def _bias(name: str, width: int) -> ParameterSpec:
    """A bias that every tensor-parallel rank holds: of a norm, or of a projection into the residual stream."""
    return ParameterSpec(name, (width,), 0.0, False, None, summed="sequence")


def _block(model: ModelConfig, layer: int) -> Segment:
    prefix, name = f"model.layers.{layer}.", f"b{layer}"
    if model.block is not None:
        return Segment(name, "block", (_own(model, prefix, name),), (name,), layer)
    moe = model.is_moe(layer)
    attention = _mla(model, prefix) if model.is_mla else _grouped_attention(model, prefix)
    norms = [n for name in ("input_layernorm", "post_attention_layernorm") for n in _norms(model, prefix + name)]
    feed_forward = _routed_feed_forward(model, prefix) if moe else _feed_forward(model, f"{prefix}mlp.", model.ffn_size)
    dense = sorted((*feed_forward, *attention, *norms), key=_place)
    own = [UnitSpec(name, "dense", tuple(dense))]
    if moe:
        own.append(UnitSpec(f"{name}.experts", "expert", _experts(model, prefix)))
    return Segment(name, "block", tuple(own), tuple(unit.name for unit in own), layer, moe)


def _own(model: ModelConfig, prefix: str, name: str) -> UnitSpec:
    """The unit of a person's own block. Every rank has it unsplit."""
    declared = own_parameters(model)
    parameters = [ParameterSpec(prefix + p.name, p.shape, p.init_std, p.weight_decay, None) for p in declared]
    return UnitSpec(name, "dense", tuple(sorted(parameters, key=_place)))


def _module_prefix(model: ModelConfig, index: int) -> str:
    """Prefix of an MTP module's tensors; as in released weights, modules are numbered on from the last block."""
    return f"model.layers.{model.num_layers + index}."


def _module(model: ModelConfig, index: int) -> Segment:
    """An MTP module (DeepSeek-V3, section 2.2): norms of hidden state and embedding, a projection, a block."""
    hidden, prefix, name = model.hidden_size, _module_prefix(model, index), f"mtp{index}"
    block = _block(model, model.num_layers + index)
    projection = ParameterSpec(
        f"{prefix}eh_proj.weight", (hidden, 2 * hidden), model.init_std, True, None, summed="sequence"
    )
    norms = [_norm(f"{prefix}{which}.weight", hidden) for which in ("enorm", "hnorm")]
    dense, *experts = block.own
    own = (
        UnitSpec(name, "dense", tuple(sorted((*dense.parameters, projection, *norms), key=_place))),
        *(UnitSpec(f"{name}.experts", "expert", unit.parameters) for unit in experts),
    )
    units = (*(unit.name for unit in own), "embed")
    return Segment(name, "block", own, units, block.layer, block.moe, index + 1)


def _place(spec: ParameterSpec) -> float:
    """Where a parameter stands in its flat buffer: decayed or not, and next to those that are summed with it."""
    if spec.weight_decay and not _is_matrix(spec):
        return 3.5
    if spec.weight_decay:
        return 1 if spec.kv_heads else {"never": 0, "sequence": 2, "always": 3}[spec.summed]
    return 7 if spec.kv_heads else {"always": 4, "sequence": 5, "never": 6}[spec.summed]


def _grouped_attention(model: ModelConfig, prefix: str) -> list[ParameterSpec]:
    """Grouped-query attention (Ainslie et al. 2023)."""
    hidden, std = model.hidden_size, model.init_std
    query, key_value = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    prefix += "self_attn."
    out = ParameterSpec(f"{prefix}o_proj.weight", (hidden, query), std / sqrt(2 * model.num_layers), True, 1)
    parameters = [out]
    for name, rows, shared in (("q_proj", query, False), ("k_proj", key_value, True), ("v_proj", key_value, True)):
        parameters.append(ParameterSpec(f"{prefix}{name}.weight", (rows, hidden), std, True, 0, kv_heads=shared))
        if model.qkv_bias:
            parameters.append(ParameterSpec(f"{prefix}{name}.bias", (rows,), 0.0, False, 0, kv_heads=shared))
    if model.linear_bias:
        parameters.append(_bias(f"{prefix}o_proj.bias", hidden))
    if model.qk_norm:
        parameters += [_norm(f"{prefix}{name}.weight", model.head_dim, "always") for name in ("q_norm", "k_norm")]
    return parameters


def _mla(model: ModelConfig, prefix: str) -> list[ParameterSpec]:
    """Multi-head latent attention: low-rank projections are replicated, those per head split."""
    hidden, std, heads = model.hidden_size, model.init_std, model.num_heads
    rank = model.key_value_rank or 0
    prefix += "self_attn."

    def down(name: str, rows: int) -> ParameterSpec:
        return ParameterSpec(f"{prefix}{name}.weight", (rows, hidden), std, True, None, summed="sequence")

    def up(name: str, head_rows: tuple[int, ...], columns: int) -> ParameterSpec:
        shape = (heads * sum(head_rows), columns)
        return ParameterSpec(f"{prefix}{name}.weight", shape, std, True, 0, head_rows=head_rows)

    residual_std = std / sqrt(2 * model.num_layers)
    parameters = [
        ParameterSpec(f"{prefix}o_proj.weight", (hidden, heads * model.value_head_dim), residual_std, True, 1),
        up("kv_b_proj", (model.nope_head_dim, model.value_head_dim), rank),
        down("kv_a_proj_with_mqa", rank + model.rope_head_dim),
        _norm(f"{prefix}kv_a_layernorm.weight", rank),
    ]
    if model.query_rank is None:
        query = heads * model.head_dim
        return [*parameters, ParameterSpec(f"{prefix}q_proj.weight", (query, hidden), std, True, 0)]
    return [
        *parameters,
        up("q_b_proj", (model.head_dim,), model.query_rank),
        down("q_a_proj", model.query_rank),
        _norm(f"{prefix}q_a_layernorm.weight", model.query_rank),
    ]


def _feed_forward(model: ModelConfig, prefix: str, ffn: int) -> list[ParameterSpec]:
    """SwiGLU (Shazeer 2020), or without a gate the feed-forward of Vaswani et al. 2017, with or without biases."""
    hidden, std = model.hidden_size, model.init_std
    residual_std = std / sqrt(2 * model.num_layers)
    inputs = ("gate_proj", "up_proj") if model.gated else ("up_proj",)
    parameters = [ParameterSpec(f"{prefix}{name}.weight", (ffn, hidden), std, True, 0) for name in inputs]
    parameters.append(ParameterSpec(f"{prefix}down_proj.weight", (hidden, ffn), residual_std, True, 1))
    if model.linear_bias:
        parameters += [ParameterSpec(f"{prefix}{name}.bias", (ffn,), 0.0, False, 0) for name in inputs]
        parameters.append(_bias(f"{prefix}down_proj.bias", hidden))
    return parameters


def _routed_feed_forward(model: ModelConfig, prefix: str) -> list[ParameterSpec]:
    """The dense part of a mixture of experts: the router, which sees each token on one rank alone, and the shared experts."""
    shape = (model.num_experts, model.hidden_size)
    parameters = [ParameterSpec(f"{prefix}mlp.gate.weight", shape, model.init_std, True, None, summed="always")]
    if model.num_shared_experts:
        ffn = model.num_shared_experts * model.moe_ffn_size
        parameters += _feed_forward(model, f"{prefix}mlp.shared_experts.", ffn)
    return parameters


def _experts(model: ModelConfig, prefix: str) -> tuple[ParameterSpec, ...]:
    """Every expert's SwiGLU, stacked: gate_up [experts, 2, ffn, hidden], down [experts, hidden, ffn]."""
    experts, ffn, hidden, std = model.num_experts, model.moe_ffn_size, model.hidden_size, model.init_std
    residual_std = std / sqrt(2 * model.num_layers)
    return (
        ParameterSpec(f"{prefix}mlp.experts.gate_up_proj", (experts, 2, ffn, hidden), std, True, 2),
        ParameterSpec(f"{prefix}mlp.experts.down_proj", (experts, hidden, ffn), residual_std, True, 2),
    )
