"""Published cases as a file of `[[case]]` tables: what `fourfold validate` reads, and what a person reviews."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from math import prod
from typing import Any

from as_case import as_case
from case import PublishedCase
from defaults import DEFAULTS
from fourfold.config import ModelConfig, UserError
from fourfold.hardware import Cluster, Device, Level, device_names, load_device
from fourfold.validate import Case

SHARED = (
    "source",
    "model",
    "batch",
    "layout",
    "precision",
    "cluster",
    "software",
    "attention_share",
    "device_memory_bytes",
)
"""Keys that stand above the first case where all cases say the same."""
_ALWAYS = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "vocab_size")


def case_table(case: PublishedCase) -> dict[str, Any]:
    """A case in the run file's words; `about`: what is no setting of the run. Raises `UserError` where no run file can say it."""
    run = as_case(case)
    table: dict[str, Any] = {
        "name": run.name,
        "source": run.source,
        "model": _model(run.model),
        "batch": run.run.batch.model_dump(exclude_none=True, exclude_defaults=True),
        "layout": run.run.layout.model_dump(exclude_defaults=True),
        "precision": run.run.precision.model_dump(exclude_none=True, exclude={"gemm_gradients"}),
        "cluster": _cluster(run, case),
        "software": run.software.model_dump(exclude_none=True),
        "measured": run.measured.model_dump(exclude_none=True, exclude_defaults=True),
    }
    if run.attention_share != 1.0:
        table["attention_share"] = run.attention_share
    if isinstance(table["cluster"]["device"], str) and run.cluster.device != load_device(run.cluster.device.key):
        table["device_memory_bytes"] = run.cluster.device.memory_bytes
    return {**table, "about": _about(case)}


def _model(model: ModelConfig) -> dict[str, Any]:
    defaults = {field.name: field.default for field in fields(ModelConfig)}
    stated = {key: value for key, value in vars(model).items() if key in _ALWAYS or value != defaults[key]}
    return {
        key: value for key, value in stated.items() if value is not None and key != "family"
    }  # families imply options


def _cluster(run: Case, case: PublishedCase) -> dict[str, Any]:
    cluster = run.cluster
    torus = cluster.levels[0].dimensions
    if len(cluster.levels) > 1 and torus and prod(torus) != cluster.levels[0].devices:
        raise UserError(f"a part of a torus {torus} beside a network: its shape is not stated")
    levels = [_level(level) for level in cluster.levels]
    return {
        "name": f"{cluster.device.name}, {case.network.devices_per_node} a node"[:200],
        "source": (case.network.internode or "not stated").strip()[:4000],
        "device": _device(cluster),
        "devices": levels[-1]["devices"],
        "levels": levels,
    }


def _level(level: Level) -> dict[str, Any]:
    """A torus is stated whole, however few of its devices are used: its links are those of the whole."""
    usual = {"dimensions": (), "wrap_multiple": 1, "part_multiple": None, "scalable": False}
    table = {key: value for key, value in asdict(level).items() if key not in usual or value != usual[key]}
    if level.dimensions:
        table |= {"dimensions": list(level.dimensions), "devices": max(level.devices, prod(level.dimensions))}
    return table


def _device(cluster: Cluster) -> str | dict[str, Any]:
    """A known device by its name, whatever its memory; one that a row describes in figures."""
    device: Device = cluster.device
    if device.key in device_names():
        return device.key
    table = {key: value for key, value in asdict(device).items() if value is not None and key != "key"}
    return {**table, "source": device.source or "not stated"}


def _about(case: PublishedCase) -> dict[str, Any]:
    left_open = [name for name in ("microbatch", "recompute", "zero", "states") if getattr(case, f"{name}_open")]
    about = {
        "file": case.file,
        "model": case.model_name,
        "vocabulary_before_padding": case.vocab_size,
        "step_time_from": case.measured.step_from,
        "step_time_counts": None if case.measured.time_counts else False,
        "reported_mfu": case.measured.mfu,
        "from_memory": list(case.from_memory),
        "left_open": left_open,
        "assumed": [_short(text) for text in case.defaults],
    }
    return {key: value for key, value in about.items() if value not in (None, "", [])}


def _short(text: str) -> str:
    """A remark; what `DEFAULTS` says at length by its key, and the value that was taken."""
    for key, sentence in DEFAULTS.items():
        if text.endswith(sentence):
            return text.removesuffix(sentence).removesuffix(": ") or key
    return text


def case_file_text(cases: Sequence[Mapping[str, Any]]) -> str:
    """The TOML text of a file's cases: a line a section, what all share first."""
    first = cases[0]
    shared = {key: first[key] for key in SHARED if key in first and all(case.get(key) == first[key] for case in cases)}
    parts = ["".join(f"{key} = {_inline(value)}\n" for key, value in shared.items())]
    for case in cases:
        own = {key: value for key, value in case.items() if key not in shared and key != "about"}
        lines = ["[[case]]", *(f"{key} = {_inline(value)}" for key, value in own.items()), "[case.about]"]
        lines += [f"{key} = {_inline(value)}" for key, value in case["about"].items()]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _inline(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_inline(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)
