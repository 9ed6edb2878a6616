"""Which layers of a model look back through a window, as its `config.json` says: `layer_types`, or the rule of its family."""

from collections.abc import Mapping
from typing import Any

from fourfold.config.errors import UserError, shortened
from fourfold.config.model_config import ModelConfig
from fourfold.huggingface.key import number, require

_FULL, _SLIDING = "full_attention", "sliding_attention"
_WINDOW, _FULL_LAYERS = 4096, 28
"""Values that transformers takes where `sliding_window` and `max_window_layers` are left out."""


def stated_kinds(raw: Mapping[str, Any], num_layers: int, source: str) -> list[str] | None:
    """The kind of every layer; None where `layer_types` is left out or null. Raises `UserError` for a kind that there is not."""
    kinds = raw.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or any(kind not in (_FULL, _SLIDING) for kind in kinds):
        raise UserError(
            f"{source}: layer_types = {shortened(kinds)} is not supported; allowed: a list of {_FULL!r} and {_SLIDING!r}, or null"
        )
    if num_layers and len(kinds) != num_layers:
        raise UserError(
            f"{source}: layer_types has {len(kinds)} entries and num_hidden_layers is {num_layers}; state one for each layer"
        )
    return kinds


def read_switched_window(raw: Mapping[str, Any], values: dict[str, Any], source: str, split: bool = True) -> None:
    """Fills `sliding_window` and `full_attention_layers` for families in which `use_sliding_window` switches it: the window of the
    layers that have one. Without `layer_types`, these are the layers from `max_window_layers` on (`split`), or all."""
    require(raw, "use_sliding_window", (False, True), source)
    window = None
    if raw.get("use_sliding_window") and raw.get("sliding_window", _WINDOW) is not None:
        window = number(raw.get("sliding_window", _WINDOW), "sliding_window", source, int)
    layers = values.get("num_layers", 0)
    first = (
        number(raw.get("max_window_layers", _FULL_LAYERS), "max_window_layers", source, int, zero=True) if split else 0
    )
    kinds = stated_kinds(raw, layers, source)
    if kinds is None:
        windowed = window is not None and (first < layers or not layers)
    else:
        windowed = _SLIDING in kinds
        if windowed and window is None:
            raise UserError(
                f"{source}: layer_types has {_SLIDING!r}, and use_sliding_window is not true or sliding_window is null; state "
                f"both, for example sliding_window = 4096, or {_FULL!r} for each layer"
            )
        if window is not None and not split and set(kinds) != {_SLIDING}:
            raise _all_or_none(kinds, source)
    if windowed:
        values["sliding_window"] = window
        full = range(min(first, layers)) if kinds is None else [i for i, kind in enumerate(kinds) if kind == _FULL]
        values["full_attention_layers"] = tuple(full)


def require_same_layers(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    """Raises `UserError` where `layer_types` says anything but that all layers are alike, as in families that do not read it."""
    kinds = stated_kinds(raw, values.get("num_layers", 0), source)
    if kinds is not None and set(kinds) != {_SLIDING if values.get("sliding_window") else _FULL}:
        raise _all_or_none(kinds, source)


def layer_types(model: ModelConfig) -> list[str]:
    """The kind of every layer of a model with a window."""
    return [_FULL if layer in model.full_attention_layers else _SLIDING for layer in range(model.num_layers)]


def _all_or_none(kinds: list[str], source: str) -> UserError:
    return UserError(
        f"{source}: layer_types = {shortened(kinds)}: in this family all layers have the window of sliding_window, or none has; "
        f"allowed: null, or {_SLIDING!r} for each layer with a window, {_FULL!r} for each without"
    )
