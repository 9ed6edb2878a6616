"""Which layers of a model look back through a window, as its `config.json` says: `layer_types`, or the rule of its family."""

from collections.abc import Mapping, Sequence
from typing import Any

from fourfold.config.errors import UserError, shortened
from fourfold.config.model_config import LAYER_KEYS, OFF, ModelConfig, exceptions_of
from fourfold.huggingface.key import number, require
from fourfold.huggingface.rope import FULL

SLIDING, CHUNKED, LINEAR, CONVOLUTION = "sliding_attention", "chunked_attention", "linear_attention", "conv"
_OF_MIXERS = {"gated_delta": LINEAR, "kimi_delta": LINEAR, "short_convolution": CONVOLUTION}
_WINDOW, _FULL_LAYERS = 4096, 28
"""Values that transformers takes where `sliding_window` and `max_window_layers` are left out."""


def stated_kinds(
    raw: Mapping[str, Any], num_layers: int, source: str, allowed: Sequence[str] = (FULL, SLIDING)
) -> list[str] | None:
    """The kind of every layer; None where `layer_types` is left out or null. Raises `UserError` for a kind that there is not."""
    kinds = raw.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or any(kind not in allowed for kind in kinds):
        raise UserError(
            f"{source}: layer_types = {shortened(kinds)} is not supported; allowed: a list of "
            f"{' and '.join(map(repr, allowed))}, or null"
        )
    if num_layers and len(kinds) != num_layers:
        raise UserError(
            f"{source}: layer_types has {len(kinds)} entries and num_hidden_layers is {num_layers}; state one for each layer"
        )
    return kinds


def read_switched_window(raw: Mapping[str, Any], values: dict[str, Any], source: str, split: bool = True) -> None:
    """Fills `sliding_window` and `exceptions` for families in which `use_sliding_window` switches it: the window of the
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
        windowed = SLIDING in kinds
        if windowed and window is None:
            raise UserError(
                f"{source}: layer_types has {SLIDING!r}, and use_sliding_window is not true or sliding_window is null; state "
                f"both, for example sliding_window = 4096, or {FULL!r} for each layer"
            )
        if window is not None and not split and set(kinds) != {SLIDING}:
            raise _all_or_none(kinds, source)
    if windowed:
        values["sliding_window"] = window
        if kinds is None:
            kinds = [FULL if layer < first else SLIDING for layer in range(layers)]
        values["exceptions"] = exceptions_of([{"sliding_window": OFF} if kind == FULL else {} for kind in kinds])


def read_period(
    raw: Mapping[str, Any],
    values: dict[str, Any],
    source: str,
    period: int,
    ropes: Mapping[str, Mapping[str, Any]] | None = None,
    usual_window: int = _WINDOW,
) -> None:
    """Fills `sliding_window` and `exceptions` for families in which, without `layer_types`, the last of each so many layers has no
    window. `ropes`: the rotary keys of each kind of layer, where they differ."""
    layers = values.get("num_layers", 0)
    kinds = stated_kinds(raw, layers, source)
    if kinds is None:
        kinds = [SLIDING if (layer + 1) % period else FULL for layer in range(layers)]
    own: dict[str, dict[str, Any]] = {kind: {**(ropes or {}).get(kind, {})} for kind in (FULL, SLIDING)}
    own[FULL]["sliding_window"] = OFF
    if SLIDING in kinds:
        own[SLIDING]["sliding_window"] = number(raw.get("sliding_window", usual_window), "sliding_window", source, int)
    common = dict(own[SLIDING if SLIDING in kinds else FULL])
    for kind in kinds:  # a layer can have a scaling of its own, and not none
        common.update({key: None for key, value in own[kind].items() if value is None})
    values.update({key: value for key, value in common.items() if value is not None})
    differ = {kind: {key: value for key, value in own[kind].items() if value != common[key]} for kind in set(kinds)}
    values["exceptions"] = exceptions_of([differ[kind] for kind in kinds])


def read_mixers(values: dict[str, Any], kinds: Sequence[str], mixer: str, **attending: Any) -> None:
    """Fills `mixer` and `exceptions` for families in which some layers, of another kind than `FULL`, have that mixer. `attending`:
    what the others have beside attention."""
    if set(kinds) - {FULL}:
        values["mixer"] = mixer
        own = {"mixer": "attention", **attending}
        values["exceptions"] = exceptions_of([own if kind == FULL else {} for kind in kinds])


def other_mixers(model: ModelConfig, mixer: str) -> dict[str, Any]:
    """The `mixer` of a layer that has neither attention nor that one, by which families tell such layers apart."""
    others = [each.mixer for each in model.layer_configs if each.mixer not in ("attention", mixer)]
    return {"mixer": others[0]} if others else {}


def require_same_layers(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    """Raises `UserError` where `layer_types` says anything but that all layers are alike, as in families that do not read it."""
    kinds = stated_kinds(raw, values.get("num_layers", 0), source)
    if kinds is not None and set(kinds) != {SLIDING if values.get("sliding_window") else FULL}:
        raise _all_or_none(kinds, source)


def layer_types(model: ModelConfig) -> list[str]:
    """The kind of every layer."""
    layers = (model.of_layer(layer) for layer in range(model.num_layers))
    return [_kind(each) for each in layers]


def _kind(layer: ModelConfig) -> str:
    if layer.mixer != "attention":
        return _OF_MIXERS[layer.mixer]
    return SLIDING if layer.sliding_window else CHUNKED if layer.attention_chunk else FULL


def window_of(model: ModelConfig) -> int | None:
    """The window of the layers that have one, the widest if there are several; None where no layer has."""
    return max((each.sliding_window for each in model.layer_configs if each.sliding_window), default=None)


def of_kinds(model: ModelConfig) -> dict[str, ModelConfig | None]:
    """A model whose layers are all of a kind, for layers with and without a window; None where there are none of that kind."""
    kinds = layer_types(model)
    return {kind: model.of_layer(kinds.index(kind)) if kind in kinds else None for kind in (FULL, SLIDING)}


def two_kinds(model: ModelConfig) -> dict[str, Any]:
    """`exceptions` where layers that have a window, or those that have none, are not alike."""
    kinds = {(bool(each.sliding_window), *(getattr(each, key) for key in LAYER_KEYS)) for each in model.layer_configs}
    return {"exceptions": model.exceptions} if len(kinds) > len({kind[0] for kind in kinds}) else {}


def one_window(model: ModelConfig) -> dict[str, Any]:
    """`exceptions` where layers have windows of several widths, for families that state one."""
    widths = {each.sliding_window for each in model.layer_configs if each.sliding_window}
    return {"exceptions": model.exceptions} if len(widths) > 1 else {}


def _all_or_none(kinds: list[str], source: str) -> UserError:
    return UserError(
        f"{source}: layer_types = {shortened(kinds)}: in this family all layers have the window of sliding_window, or none has; "
        f"allowed: null, or {SLIDING!r} for each layer with a window, {FULL!r} for each without"
    )
