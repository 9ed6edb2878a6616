"""A model as a list of segments: what each computes, its parameters, and the flat buffers that they lie in."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import sqrt
from typing import Any, Literal

from fourfold.config import ModelConfig
from fourfold.model.embedding import EmbeddingParameters
from fourfold.model.head import HeadParameters
from fourfold.model.layer import Layer
from fourfold.model.layers import final_norm, layers_of
from fourfold.model.multi_token import ModuleParameters
from fourfold.model.mup import mup_factors
from fourfold.model.norm import Norm
from fourfold.model.own.declare import own_parameters
from fourfold.model.own.segment import OwnParameters
from fourfold.model.parameter import Declared, Domain, ParameterSpec, Widths, declared_in, gain, mapped, replicated
from fourfold.model.weights import Weight, WeightUnit

__all__ = ["Domain", "ParameterSpec", "Segment", "UnitSpec", "bind_weights", "build_segments"]


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
    """Vectors that stand as matrices of one row are none: a depthwise convolution's, a gate's."""
    return spec.weight_decay and len(spec.shape) > 1 and min(spec.shape[-2:]) > 1


@dataclass(frozen=True)
class Segment:
    """The smallest part of a model that a program addresses: `embed`, a block `b0`, `b1`, ..., an MTP module `mtp0`, ..., which
    is a block with something before it, or `head`.

    Its own parameters make one *unit*, a flat buffer, of the same name; a block's experts a second one, `b0.experts`. `units` are
    the names of the units that it reads: its own, and for a head with tied embeddings, and for an MTP module, the embedding's too.
    `depth`: which MTP module, from 1; 0: none. `layer_kind`: what a block computes; `layer_type`: which of the model's different
    ones that is; `declared`: the parameters that its function reads, as a record."""

    name: str
    kind: Literal["embedding", "block", "head"]
    own: tuple[UnitSpec, ...]
    units: tuple[str, ...]
    layer: int | None = None
    depth: int = 0
    layer_kind: Layer | None = None
    layer_type: int = 0
    declared: Any = field(default=None, compare=False, repr=False)

    @property
    def parameters(self) -> tuple[ParameterSpec, ...]:
        """All own parameters."""
        return tuple(p for unit in self.own for p in unit.parameters)

    @property
    def moe(self) -> bool:
        """Whether it has experts."""
        return self.layer_kind is not None and self.layer_kind.is_routed

    @property
    def numel(self) -> int:
        return sum(unit.numel for unit in self.own)


@lru_cache(maxsize=64)
def build_segments(model: ModelConfig) -> tuple[Segment, ...]:
    """The segments of a model in forward order."""
    return segments_of(model, layers_of(model))


def segments_of(model: ModelConfig, layers: Sequence[Layer | None]) -> tuple[Segment, ...]:
    """Embedding, head and the sizes of a model around some layers, those of its MTP modules last. None: a person's own block.

    In each unit, matrices come first and are decayed (then what else a person's own block decays); norm weights and biases follow
    and are not. Within that, parameters whose gradients are summed over the same tensor-parallel ranks stand together.
    Initialisation: normal with `init_std`, truncated at three standard deviations; the projections that write into the residual
    stream are scaled by 1/sqrt(2 * num_layers) (Radford et al. 2019, section 2.3; Shoeybi et al. 2019, section 4).
    """
    hidden, vocab = model.hidden_size, model.vocab_size
    table = ParameterSpec("model.embed_tokens.weight", (vocab, hidden), model.init_std, True, 0)
    positions = None
    if model.positions == "learned":
        shape = (model.max_position, hidden)
        positions = replicated("model.embed_positions.weight", shape, model.init_std, "sequence")
    embedding: EmbeddingParameters[Declared] = EmbeddingParameters(table, positions)
    norm = final_norm(model).declare("model.norm", hidden)
    depths = tuple(
        Norm().declare(f"{_prefix(model.num_layers + k)}shared_head.norm", hidden) for k in range(model.mtp_layers)
    )
    tied = model.tie_embeddings
    unembedding = None if tied else ParameterSpec("lm_head.weight", (vocab, hidden), model.init_std, True, 0)
    head: HeadParameters[Declared] = HeadParameters(unembedding, norm, depths)
    segments = (
        _segment("embed", "embedding", embedding),
        *(_block(model, f"b{layer}", layer, kind) for layer, kind in enumerate(layers[: model.num_layers])),
        *(_module(model, k, embedding, layers[model.num_layers + k]) for k in range(model.mtp_layers)),
        _segment("head", "head", head, replace(head, tied=embedding) if tied else head, ("embed",) if tied else ()),
    )
    types: dict[Layer | None, int] = {}
    return tuple(
        replace(
            each,
            own=tuple(_parametrized(model, unit) for unit in each.own),
            layer_type=types.setdefault(each.layer_kind, len(types)) if each.kind == "block" else 0,
        )
        for each in segments
    )


def bind_weights(segment: Segment, units: Mapping[str, WeightUnit]) -> Any:
    """The record of weights that the segment's function takes. `units`: by unit name, at least those in `segment.units`."""
    own = {each.name: units[unit.name] for unit in segment.own for each in unit.parameters}

    def weight(declared: Declared) -> Weight:
        first, last = (declared, None) if isinstance(declared, ParameterSpec) else (declared[0], declared[-1])
        unit = own.get(first.name) or units["embed"]
        return unit.weight(first.name, None if last is None else last.name)

    return mapped(segment.declared, weight)


def _segment(
    name: str,
    kind: Literal["embedding", "block", "head"],
    own: Any,
    reads: Any = None,
    other_units: tuple[str, ...] = (),
    **what: Any,
) -> Segment:
    """`own`: the record of its own parameters; `reads`: of all that its function reads, if others are among them."""
    parameters = list(declared_in(own))
    dense = parameters if kind != "block" else _packed(each for each in parameters if each.domain == "dense")
    units = [UnitSpec(name, "dense", tuple(dense))]
    experts = tuple(each for each in parameters if each.domain == "expert")
    if experts:
        units.append(UnitSpec(f"{name}.experts", "expert", experts))
    names = (*(unit.name for unit in units), *other_units)
    return Segment(name, kind, tuple(units), names, declared=own if reads is None else reads, **what)


def _prefix(layer: int) -> str:
    """Prefix of the names of a block's tensors; as in released weights, MTP modules are numbered on from the last block."""
    return f"model.layers.{layer}."


def _widths(model: ModelConfig) -> Widths:
    return Widths(model.hidden_size, model.init_std, model.init_std / sqrt(2 * model.num_layers))


def _block(model: ModelConfig, name: str, layer: int, kind: Layer | None) -> Segment:
    if kind is None:
        return _segment(name, "block", _own(model, _prefix(layer)), layer=layer)
    return _segment(name, "block", kind.declare(_widths(model), _prefix(layer)), layer=layer, layer_kind=kind)


def _own(model: ModelConfig, prefix: str) -> OwnParameters[Declared]:
    """The parameters of a person's own block. Every rank has it unsplit."""
    return OwnParameters(
        {
            each.name: ParameterSpec(prefix + each.name, each.shape, each.init_std, each.weight_decay, None)
            for each in own_parameters(model)
        }
    )


def _module(model: ModelConfig, index: int, embedding: EmbeddingParameters[Declared], kind: Layer | None) -> Segment:
    """An MTP module (DeepSeek-V3, section 2.2): norms of hidden state and embedding, a projection, a block."""
    hidden, layer, name = model.hidden_size, model.num_layers + index, f"mtp{index}"
    prefix = _prefix(layer)
    assert kind is not None
    projection = replicated(f"{prefix}eh_proj.weight", (hidden, 2 * hidden), model.init_std, "sequence")
    embedding_norm, hidden_norm = (gain(f"{prefix}{which}.weight", hidden) for which in ("enorm", "hnorm"))
    own: ModuleParameters[Declared] = ModuleParameters(
        kind.declare(_widths(model), prefix), projection, embedding_norm, hidden_norm, None
    )
    reads = replace(own, embedding=embedding)
    return _segment(name, "block", own, reads, ("embed",), layer=layer, layer_kind=kind, depth=index + 1)


def _parametrized(model: ModelConfig, unit: UnitSpec) -> UnitSpec:
    """The unit with the initialisation and learning rates of `model/mup.py`."""
    if model.mup_base_hidden_size is None:
        return unit
    found = []
    for spec in unit.parameters:
        std, rate = mup_factors(model, spec.name, spec.weight_decay)
        found.append(replace(spec, init_std=spec.init_std and spec.init_std * std, lr_scale=rate))
    return replace(unit, parameters=tuple(found))


def _packed(parameters: Iterable[ParameterSpec]) -> list[ParameterSpec]:
    """In the order in which they lie in their flat buffer."""
    return sorted(parameters, key=_place)


def _place(spec: ParameterSpec) -> float:
    """Where a parameter stands in its flat buffer: decayed or not, and next to those that are summed with it."""
    if spec.weight_decay and not _is_matrix(spec):
        return 3.5
    if spec.weight_decay:
        return 1 if spec.kv_heads else {"never": 0, "sequence": 2, "always": 3}[spec.summed]
    return 7 if spec.kv_heads else {"always": 4, "sequence": 5, "never": 6}[spec.summed]
