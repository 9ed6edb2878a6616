"""The record of one Hugging Face family, as data: its `config.json`, its models, its tensors on disk."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from fourfold.config.model_config import ModelConfig, differences
from fourfold.huggingface.key import Key

TRAINING = frozenset(
    {"family", "block", "tie_embeddings", "max_position", "init_std", "mup_base_hidden_size", "mup_base_head_dim"}
    | {"delta_step_bias"}
    | {"balance_loss", "z_loss", "logits_z_loss", "capacity_factor", "mtp_loss"}
)
"""Keys of `ModelConfig` that any family may have: they change nothing that its weights compute, or stand in each `config.json`."""
SCALINGS = {
    "rope_scaling": "llama3",
    "yarn_scaling": "yarn",
    "linear_scaling": "linear",
    "dynamic_scaling": "dynamic",
    "longrope_scaling": "longrope",
}
"""Our keys of scaled rotary frequencies, with their names in `config.json`."""
FALSE = (False, None)
"""Allowed values of a key that must be false, null or left out."""
SILU = ("silu", "swish")


@dataclass(frozen=True)
class Rename:
    """One module of a block on disk: ours, one below another where there are several (fused), perhaps transposed. `beside`: only in
    blocks that have this module of ours too."""

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False
    beside: str = ""


@dataclass(frozen=True)
class EqualParts:
    """Modules of a block whose rows transformers lays one below another and saves in parts of equal size, whatever theirs are."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]


@dataclass(frozen=True)
class Stacked:
    """All experts of a block in one tensor on disk, in `folder`: gate_up_proj [experts, hidden, 2 ffn] and down_proj [experts, ffn,
    hidden], and their biases. `interleaved`: an up follows each gate, else all ups follow all gates."""

    folder: str = "mlp.experts"
    interleaved: bool = False


@dataclass(frozen=True)
class TensorNames:
    """A family's names of tensors on disk that differ from those in `model/spec.py`.

    `outside`: tensors outside of blocks, (our name, theirs). `block`: the prefix of the modules that `modules` lists. `experts`:
    folder and names of gate, up and down of each expert; `stacked`: where they are one tensor. `read_too`: other names of modules,
    in what transformers saves; `equal_parts`: other sizes. `optional_prefix`: some folders leave it out.
    """

    outside: tuple[tuple[str, str], ...] = ()
    block: str = "model.layers.{}."
    modules: tuple[Rename, ...] = ()
    experts: tuple[str, str, str, str] | None = None
    stacked: Stacked | None = None
    read_too: tuple[Rename, ...] = ()
    equal_parts: tuple[EqualParts, ...] = ()
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

    Models: a key of `ModelConfig` that the family's `config.json` does not state has its default in all models of the family, or
    the value in `fixed`; `usual` are values that hold where a run file does not say otherwise. `may`: keys that `read` and `write`
    treat; `by_layer`: keys that `exceptions` may state; `needs`: keys that must not be 0. `rope_types`: kinds of rotary
    positions; empty where positions are learned; `ropes`: where layers with a window have their own, the key and the usual value of
    the base of each kind of layer. `departs(model)`: our keys, with values, that it cannot have, beside these.

    Tensors: `tensors` are their names on disk; `balance_bias`: whether routers have a balancing bias there.
    """

    name: str
    architecture: str
    keys: tuple[Key, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    usual: Mapping[str, Any] = field(default_factory=dict)
    may: tuple[str, ...] = ()
    by_layer: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    rope_types: tuple[str, ...] = ("default", *SCALINGS.values())
    ropes: Mapping[str, tuple[str, float]] = field(default_factory=dict)
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
        return {**self.fixed, **self.usual}

    @property
    def has_experts(self) -> bool:
        """Whether its models may have experts."""
        return any(key.ours == "num_experts" for key in self.keys)

    def departures(self, model: ModelConfig) -> dict[str, Any]:
        """The model's values that the family cannot have, by key."""
        free = TRAINING | {key.ours for key in self.keys} | set(self.may)
        free |= {key for key, kind in SCALINGS.items() if kind in self.rope_types}
        free |= {"exceptions"} if self.by_layer else set()
        allowed = {each.name: each.default for each in fields(ModelConfig) if each.name not in free} | dict(self.fixed)
        result = {
            key: value
            for key, usual in allowed.items()
            if usual is not MISSING and (value := getattr(model, key)) != usual
        }
        result.update({key: 0 for key in self.needs if not getattr(model, key)})
        if model.block is not None:
            result["block"] = model.block
        if any(differences(each).keys() - {*self.by_layer} for each in model.exceptions):
            result["exceptions"] = model.exceptions
        return {**result, **self.departs(model)}

    def their_name(self, key: str) -> str:
        """The key of `config.json` that states a dimension of ours."""
        return next((k.theirs for k in self.keys if k.ours == key), key)


def width_departs(model: ModelConfig) -> dict[str, Any]:
    """`head_dim`, for families whose heads together are as wide as the hidden state."""
    return {} if model.num_heads * model.head_dim == model.hidden_size else {"head_dim": model.head_dim}
