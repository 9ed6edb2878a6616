"""The record of one Hugging Face family, as data: its `config.json`, its models, its tensors on disk."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from fourfold.config.model_config import ModelConfig
from fourfold.huggingface.key import Key

_DEFAULTS = {f.name: f.default for f in fields(ModelConfig)}

DECODER: dict[str, Any] = {
    "norm": "rms",
    "activation": "silu",
    "gated": True,
    "linear_bias": False,
    "positions": "rope",
    "qkv_bias": False,
    "qk_norm": False,
    "full_attention_layers": (),
}
"""Values of `ModelConfig` that every model of Llama's form has."""
GROUPED: dict[str, Any] = {**DECODER, "key_value_rank": None, "rope_interleave": False}
"""Values of `ModelConfig` that every model of Llama's form with grouped-query attention has."""
DENSE: dict[str, Any] = {**GROUPED, "num_experts": 0}
SOFTMAX: dict[str, Any] = {
    "router": "softmax",
    "routed_scaling": 1.0,
    "num_expert_groups": 1,
    "num_shared_experts": 0,
    "balance_bias_speed": 0.0,
}
"""Values of models with a softmax router and without shared experts."""
FALSE = (False, None)
"""Allowed values of a key that must be false, null or left out."""
SILU = ("silu", "swish")


@dataclass(frozen=True)
class Rename:
    """One module of a block on disk: ours, one below another where there are several (fused), perhaps transposed."""

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False


@dataclass(frozen=True)
class TensorNames:
    """A family's names of tensors on disk that differ from those in `model/spec.py`.

    `outside`: tensors outside of blocks, (our name, theirs). `block`: the prefix of the modules that `modules` lists. `experts`:
    folder and names of gate, up and down of each expert. `optional_prefix`: some folders leave it out.
    """

    outside: tuple[tuple[str, str], ...] = ()
    block: str = "model.layers.{}."
    modules: tuple[Rename, ...] = ()
    experts: tuple[str, str, str, str] | None = None
    optional_prefix: str = ""


def _nothing(model: ModelConfig) -> dict[str, Any]:
    return {}


def _read_nothing(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    pass


@dataclass(frozen=True)
class Family:
    """A Hugging Face family that fourfold reads, trains and writes.

    `config.json`: `name` is its `model_type`, `architecture` its class in transformers, `keys` state our dimensions. `states`: keys
    that must have one of these values, the first of which is written. `lacks`: keys of other families that must be false or left
    out. `dropouts`: keys of dropout, with the values that transformers takes where they are left out; 0.0 is written. `constants`
    are written and never read. `read(raw, values, source)` and `write(model)` treat what these cannot express; `reads`: their keys.

    Models: `fixed` are values of `ModelConfig` that all models of the family have, `usual` those that hold where a run file does
    not say otherwise, `needs` fields that must not be 0. `rope_types`: kinds of rotary positions; empty where positions are
    learned. `departs(model)`: our fields, with values, that the family cannot have, beside these.

    Tensors: `tensors` are their names on disk; `balance_bias`: whether routers have a balancing bias there.
    """

    name: str
    architecture: str
    keys: tuple[Key, ...]
    fixed: Mapping[str, Any]
    usual: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    rope_types: tuple[str, ...] = ("default", "llama3", "yarn")
    departs: Callable[[ModelConfig], dict[str, Any]] = _nothing
    states: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    dropouts: Mapping[str, float] = field(default_factory=lambda: {"attention_dropout": 0.0})
    constants: Mapping[str, Any] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    read: Callable[[Mapping[str, Any], dict[str, Any], str], None] = _read_nothing
    write: Callable[[ModelConfig], dict[str, Any]] = _nothing
    tensors: TensorNames = TensorNames()
    balance_bias: bool = False

    @property
    def implied(self) -> dict[str, Any]:
        """Values that the family's name implies where a run file states none."""
        fixed = {key: value for key, value in self.fixed.items() if value != _DEFAULTS[key]}
        return {**fixed, **self.usual}

    def departures(self, model: ModelConfig) -> dict[str, Any]:
        """The model's values that the family cannot have, by key."""
        result = {key: getattr(model, key) for key, value in self.fixed.items() if getattr(model, key) != value}
        result.update({key: 0 for key in self.needs if not getattr(model, key)})
        if model.block is not None:
            result["block"] = model.block
        for kind, key in (("llama3", "rope_scaling"), ("yarn", "yarn_scaling")):
            if getattr(model, key) is not None and kind not in self.rope_types:
                result[key] = getattr(model, key)
        return {**result, **self.departs(model)}

    def their_name(self, key: str) -> str:
        """The key of `config.json` that states a dimension of ours."""
        return next((k.theirs for k in self.keys if k.ours == key), key)


def width_departs(model: ModelConfig) -> dict[str, Any]:
    """`head_dim`, for families whose heads together are as wide as the hidden state."""
    return {} if model.num_heads * model.head_dim == model.hidden_size else {"head_dim": model.head_dim}
