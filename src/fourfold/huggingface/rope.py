"""Rotary positions in a Hugging Face `config.json`: transformers 4 has `rope_theta` and `rope_scaling`, 5 one `rope_parameters`.

Where layers with a window have their own, `rope_parameters` has a table for each kind of layer, `rope_scaling` is of those with
full attention, and each kind has a key for its base.
"""

from collections.abc import Mapping
from typing import Any

from fourfold.config.errors import UserError, shortened
from fourfold.config.model_config import LongRopeScaling, ModelConfig, RopeScaling, YarnScaling
from fourfold.huggingface.key import number, require, require_one_value

_LLAMA31 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_ORIGINAL = "original_max_position_embeddings"
_PART = "partial_rotary_factor"
ROPE_KEYS = ("rope_theta", "rope_scaling", "yarn_scaling", "linear_scaling")
FULL = "full_attention"


def read_rope(raw: Mapping[str, Any], values: dict[str, Any], types: tuple[str, ...], source: str) -> None:
    """Fills `rope_theta` and the key of its scaling. `types`: the kinds of scaling that the family has. Raises
    `UserError` for another kind."""
    for key in ("rope_scaling", "rope_parameters"):
        if not isinstance(raw.get(key) or {}, dict):
            raise UserError(f"{source}: {key} = {raw[key]!r} must be an object or null")
    tables = [raw[key] for key in ("rope_parameters", "rope_scaling") if raw.get(key)]
    if len(tables) == 2 and _meaning(tables[0]) != _meaning(tables[1]):
        raise UserError(
            f"{source}: rope_scaling = {shortened(tables[1])} and rope_parameters = {shortened(tables[0])} contradict each other; "
            "keep one of them"
        )
    rope = {**tables[-1], **tables[0]} if tables else {}
    bases = {table["rope_theta"] for table in (raw, *tables) if isinstance(table.get("rope_theta"), (int, float, str))}
    if len(bases) > 1:
        raise UserError(
            f"{source}: rope_theta has the values {', '.join(map(str, sorted(bases, key=str)))}, beside and in rope_parameters or "
            "rope_scaling; keep one of them",
            key="rope_theta",
        )
    if rope.get("rope_theta") is not None:
        values["rope_theta"] = number(rope["rope_theta"], "rope_theta", source, float)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if raw.get(_ORIGINAL) is not None:  # beside the table it counts, whatever stands in it
        rope[_ORIGINAL] = raw[_ORIGINAL]
    if "rotary_fraction" in values and rope.get(_PART) is not None:
        stated = {_PART: raw.get(_PART), f"rope_parameters' {_PART}": rope[_PART]}
        require_one_value(stated, tuple(stated), source)
        values["rotary_fraction"] = number(rope[_PART], _PART, source, float)
    elif rope.get(_PART, 1) != 1:
        raise UserError(f"{source}: {_PART} = {rope[_PART]!r} is not supported; allowed: 1.0")
    if kind not in types:
        raise UserError(f"{source}: rope_type = {kind!r} is not supported; allowed: {', '.join(map(repr, types))}")
    if kind == "llama3":
        values["rope_scaling"] = _llama3(rope, source)
    elif kind == "yarn":
        values["yarn_scaling"] = _yarn(rope, source)
    elif kind == "longrope":
        values["longrope_scaling"] = _longrope(rope, values.get("max_position"), source)
    elif kind in ("linear", "dynamic"):
        values[f"{kind}_scaling"] = number(rope.get("factor"), "factor", source, float)


def read_ropes(
    raw: Mapping[str, Any], bases: Mapping[str, tuple[str, float]], types: tuple[str, ...], source: str
) -> dict[str, dict[str, Any]]:
    """`ROPE_KEYS` of each kind of layer. `bases`: the key and the usual value of its base."""
    nested = raw.get("rope_parameters") or {}
    wrong = "" if isinstance(nested, dict) else f" = {shortened(nested)}"
    wrong = wrong or next((f" has {shortened({key: nested[key]})}" for key in nested if key not in bases), "")
    wrong = wrong or next(
        (f" has {shortened({key: each})}" for key, each in nested.items() if not isinstance(each, dict)), ""
    )
    if wrong:
        raise UserError(
            f"{source}: rope_parameters{wrong}; allowed: an object for each of {', '.join(bases)}, for example "
            f'{{"{FULL}": {{"rope_type": "default", "rope_theta": 1000000.0}}}}, or null'
        )
    found: dict[str, dict[str, Any]] = {}
    for kind, (key, usual) in bases.items():
        found[kind] = {**dict.fromkeys(ROPE_KEYS), "rope_theta": usual, "linear_scaling": 1.0}
        own = {"rope_parameters": nested.get(kind), "rope_scaling": raw.get("rope_scaling") if kind == FULL else None}
        if raw.get(key) is not None:
            own["rope_theta"] = found[kind]["rope_theta"] = number(raw[key], key, source, float)
        read_rope(own, found[kind], types, source)
    return found


def write_ropes(models: Mapping[str, ModelConfig | None], bases: Mapping[str, tuple[str, float]]) -> dict[str, Any]:
    """The keys of both versions of transformers. `models`: one whose layers are all of a kind, by kind; None: there is no such
    layer."""
    kinds: dict[str, dict[str, Any]] = {}
    for kind, (_, usual) in bases.items():
        model = models[kind]
        usually = {"rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": usual}}
        kinds[kind] = write_rope(model) if model is not None else usually
    parameters = {kind: each["rope_parameters"] for kind, each in kinds.items()}
    return {
        **{key: parameters[kind]["rope_theta"] for kind, (key, _) in bases.items() if key},
        "rope_scaling": kinds[FULL]["rope_scaling"],
        "rope_parameters": parameters,
    }


def _meaning(table: dict[str, Any]) -> dict[str, Any]:
    """The scaling that a table states, without the base, which both forms may state elsewhere."""
    stated = {
        key: value
        for key, value in table.items()
        if value is not None and key not in ("rope_theta", "type", "rope_type")
    }
    if stated.get("partial_rotary_factor") == 1:
        del stated["partial_rotary_factor"]
    return {**stated, "rope_type": table.get("rope_type", table.get("type", "default"))}


def _llama3(rope: dict[str, Any], source: str) -> RopeScaling:
    for key, example in _LLAMA31.items():
        if key not in rope:
            raise UserError(f"{source}: rope_type = 'llama3' lacks the key {key!r}; Llama 3.1 has {example}")
    return RopeScaling(
        factor=number(rope["factor"], "factor", source, float),
        low_freq_factor=number(rope["low_freq_factor"], "low_freq_factor", source, float),
        high_freq_factor=number(rope["high_freq_factor"], "high_freq_factor", source, float),
        original_max_position=number(rope[_ORIGINAL], _ORIGINAL, source, int),
    )


def _yarn(rope: dict[str, Any], source: str) -> YarnScaling:
    for key, example in (("factor", 40.0), (_ORIGINAL, 4096)):
        if rope.get(key) is None:
            raise UserError(f"{source}: rope_type = 'yarn' lacks the key {key!r}; DeepSeek-V3 has {example}")
    require(rope, "truncate", (True, False), source)
    values: dict[str, Any] = {"truncate": rope.get("truncate", True)}
    for key in ("beta_fast", "beta_slow"):
        if rope.get(key):
            values[key] = number(rope[key], key, source, float)
    for key in ("mscale", "mscale_all_dim"):
        if rope.get(key) is not None:
            values[key] = number(rope[key], key, source, float, zero=True)
    if rope.get("attention_factor") is not None:
        values["attention_factor"] = number(rope["attention_factor"], "attention_factor", source, float)
    factor = number(rope["factor"], "factor", source, float)
    if factor < 1:
        raise UserError(f"{source}: rope scaling's factor = {factor} is not supported; allowed: at least 1")
    return YarnScaling(factor=factor, original_max_position=number(rope[_ORIGINAL], _ORIGINAL, source, int), **values)


def _longrope(rope: dict[str, Any], max_position: Any, source: str) -> LongRopeScaling:
    """`max_position`: of the stretched model, which says by how much it is where no factor does."""
    values: dict[str, Any] = {}
    for key in ("short_factor", "long_factor"):
        if not isinstance(rope.get(key), list):
            raise UserError(
                f"{source}: rope_type = 'longrope': {key} = {shortened(rope.get(key))} must be a list of positive numbers"
            )
        values[key] = tuple(number(each, key, source, float) for each in rope[key])
    longest = number(max_position, "max_position_embeddings", source, int)
    original = number(rope.get(_ORIGINAL) or longest, _ORIGINAL, source, int)
    if original < 2:
        raise UserError(
            f"{source}: {_ORIGINAL} = {original} is not supported for rope_type = 'longrope'; allowed: at least 2"
        )
    for key, usual in (("factor", longest / original), ("attention_factor", None)):
        stated = usual if rope.get(key) is None else rope[key]
        values[key] = None if stated is None else number(stated, key, source, float)
    return LongRopeScaling(original_max_position=original, **values)


def write_rope(model: ModelConfig) -> dict[str, Any]:
    """The keys of both versions of transformers."""
    scaling: dict[str, Any] = {"rope_type": "default"}
    if model.rope_scaling is not None:
        scaling = {
            "rope_type": "llama3",
            "factor": model.rope_scaling.factor,
            "low_freq_factor": model.rope_scaling.low_freq_factor,
            "high_freq_factor": model.rope_scaling.high_freq_factor,
            _ORIGINAL: model.rope_scaling.original_max_position,
        }
    elif model.yarn_scaling is not None:
        stated = model.yarn_scaling.model_dump(exclude_none=True)
        stated[_ORIGINAL] = stated.pop("original_max_position")
        if stated["truncate"]:  # as where it is left out
            del stated["truncate"]
        scaling = {"rope_type": "yarn", **stated}
    elif model.longrope_scaling is not None:
        stated = model.longrope_scaling.model_dump(exclude_none=True)
        stated[_ORIGINAL] = stated.pop("original_max_position")
        lists = {key: [*stated.pop(key)] for key in ("short_factor", "long_factor")}
        scaling = {"rope_type": "longrope", **stated, **lists}
    elif model.linear_scaling != 1:
        scaling = {"rope_type": "linear", "factor": model.linear_scaling}
    elif model.dynamic_scaling != 1:
        scaling = {"rope_type": "dynamic", "factor": model.dynamic_scaling}
    if model.rotary_fraction != 1:
        scaling[_PART] = model.rotary_fraction
    return {
        "rope_theta": model.rope_theta,
        "rope_scaling": scaling if scaling["rope_type"] != "default" else None,
        "rope_parameters": {**scaling, "rope_theta": model.rope_theta},
    }
