"""A run's table as one of its stages has it: the keys that stages may change, and how they go into those of the run."""

from collections.abc import Mapping
from typing import Any

from fourfold.config.errors import UserError

STAGE_KEYS: dict[str, tuple[str, ...] | None] = {
    "batch": ("global_sequences", "sequence_length", "ramp"),
    "data": ("corpus", "document_mask", "document_tokens"),
    "spikes": None,
    "model": (
        *("rope_theta", "rope_scaling", "yarn_scaling", "linear_scaling", "longrope_scaling", "dynamic_scaling"),
        *("max_position", "sliding_window"),
        *("balance_loss", "balance_bias_speed", "z_loss", "logits_z_loss", "mtp_loss"),
    ),
    "layout": None,
    "optimizer": None,
}
"""Keys that a stage may change, by section; None: every key."""
_NEVER = {"optimizer": ("name",)}
_OPEN_WITH_LAYOUT = ("dp_shard", "virtual_stages", "sequence_parallel")
"""Keys that a stage's layout leaves open, as a run's does, unless it states them."""
OF_SCHEDULE = (
    *("warmup_steps", "warmup_tokens", "decay_fraction", "decay_steps", "decay_tokens", "decay_shape", "exponent"),
    *("points", "progress", "rate_at", "horizon_steps"),
)
"""Keys that another schedule does not take over."""


def stage_table(table: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The table of a run as stage `number`, from 1, has it, without a list of stages. Raises `UserError` where there is no such
    stage, or one changes what stays."""
    stages = table.get("stage")
    if not isinstance(stages, list) or not 1 <= number <= len(stages):
        count = len(stages) if isinstance(stages, list) else 0
        works = f"1 to {count}; a value that works: stage=1" if count else "none: this run has no [[stage]]"
        raise UserError(f"stage={number}: allowed: {works}")
    result = {name: section for name, section in table.items() if name != "stage"}
    for index, stage in enumerate(stages[:number], 1):
        stated = (
            {name: keys for name, keys in stage.items() if name in STAGE_KEYS and keys}
            if isinstance(stage, dict)
            else {}
        )
        _require_changeable(stated, index)
        result = _with(result, stated)
    return result


def _require_changeable(stated: Mapping[str, Any], number: int) -> None:
    for section, table in stated.items():
        if not isinstance(table, Mapping):
            raise UserError(
                f"stage {number}: {section} = {table!r} is no table; what works: [stage.{section}] with its keys"
            )
        allowed, never = STAGE_KEYS[section], _NEVER.get(section, ())
        for key in table:
            if key in never or (allowed is not None and key not in allowed):
                works = ", ".join(allowed) if allowed is not None else f"every other key of [{section}]"
                raise UserError(
                    f"stage {number}: {section}.{key} does not change within a run; allowed: {works}; what works: {section}.{key} "
                    f"in [{section}] of the run, or another run that begins from this one's weights"
                )


def _with(table: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """A run's table with a stage's keys in it."""
    result = {name: dict(section) if isinstance(section, Mapping) else section for name, section in table.items()}
    for section, keys in stated.items():
        own = result.setdefault(section, {})
        if not isinstance(own, dict):  # layout = "auto" is short for a section
            own = result[section] = {own: True}
        if section == "layout":
            for key in _OPEN_WITH_LAYOUT:
                own.pop(key, None)
        if section == "batch" and "global_sequences" in keys:
            own.pop("ramp", None)
        if section == "optimizer" and "schedule" in keys:  # it is another schedule, with lengths of its own
            for key in OF_SCHEDULE:
                own.pop(key, None)
        own.update(keys)
    return result
