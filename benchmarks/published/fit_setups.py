"""Writes `src/fourfold/explore/accuracy/setups.json`: the set-ups of the published runs that ship, as the page states them.

    python benchmarks/published/fit_setups.py benchmarks/published/rows

A set-up names a cluster and a software that ship; what a run's source says beyond their words stands beside it. Nothing of it
depends on constants. `fit_evidence.py` writes it too."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from as_case import as_case
from case import PublishedCase
from fourfold.api.simulation import simulate
from fourfold.config import ModelConfig, UserError, parse_run, preset_names
from fourfold.config.kernel_choice import CHOICES
from fourfold.evidence import PublishedRun, published_runs
from fourfold.explore.catalog import flat_overrides
from fourfold.explore.setup import body_of, read_setup
from fourfold.hardware import cluster_names, load_cluster
from fourfold.hardware.files import named_with
from fourfold.huggingface import resolve_model
from fourfold.validate import Pair, Software, null_times
from row_command import cases_of, row_parser, rows_or_exit

TABLE = Path(__file__).parents[2] / "src" / "fourfold" / "explore" / "accuracy" / "setups.json"
_STATED = ("name", "gemm_dtype", "attention_recomputed", "overlap", *CHOICES)
"""Keys of a case's software that a set-up states, or that are not asked for."""


def setup_of(case: PublishedCase) -> dict[str, Any]:
    """`device_flops`: model FLOPs of a step on one device. `keys`: of the run file, dotted, and options of `fourfold simulate`;
    None where no cluster that ships has so many of the devices, or where the page cannot answer. `unsaid`: what they cannot say."""
    found: dict[str, Any] = {
        "device_flops": float(f"{case.model_flops / case.num_devices:.6g}"),
        "keys": None,
        "unsaid": [],
    }
    name = cluster_name(case)
    if name is None:
        return found
    ours = as_case(case)
    keys = {key: value for key, value in flat_overrides(ours.run).items() if not key.startswith("model.")}
    keys.pop("batch.steps", None)
    keys |= {key: value for key, value in _software(ours.software).items() if value is not None}
    keys |= {"cluster": name, **model_keys(ours.model, case.sequence_length)}
    return {**found, "keys": keys, "unsaid": unsaid(case, name)} if _runs(keys) else found


def _software(software: Software) -> dict[str, Any]:
    """Keys of the software: its kernels are the run file's to say, and count with the software that it names."""
    words = {key: word for key, word in software.stated.items() if word != "flash"}
    if software.attention == "unfused" and software.attention_recomputed:
        words["attention"] = "recomputed"
    if not words:
        return {"software": software.name, "gemm_dtype": software.gemm_dtype}
    kernels = {f"cluster.{key}": word for key, word in words.items()}
    return {"cluster.software": software.name, **kernels, "gemm_dtype": software.gemm_dtype}


def _runs(keys: dict[str, Any]) -> bool:
    """Whether the page answers: nothing here computes in fp16, for example, where a device has no bf16."""
    setup = read_setup(body_of(keys))
    try:
        simulate(setup.run_input, setup.stated, **setup.options)
    except UserError:
        return False
    return True


def cluster_name(case: PublishedCase) -> str | None:
    """The cluster with the run's devices whose nodes and network are nearest to its own; None where none that ships has so many."""
    fitting = []
    for name in cluster_names():
        if load_cluster(name).device.key != case.device:
            continue
        try:
            cluster = load_cluster(named_with(name, case.num_devices))
        except UserError:
            continue
        inner = min(case.network.nvlink_domain, case.num_devices)
        beyond = case.network.internode_bytes_per_second or cluster.levels[-1].bytes_per_second
        off = abs(cluster.levels[-1].bytes_per_second / beyond - 1) if case.num_devices > inner else 0.0
        fitting.append((cluster.levels[0].devices != inner, off, named_with(name, case.num_devices)))
    return min(fitting)[-1] if fitting else None


def unsaid(case: PublishedCase, name: str) -> list[str]:
    """Words for the settings of a run that a set-up on this cluster cannot state."""
    software, cluster = as_case(case).software, load_cluster(name)
    stated = {key: value for key, value in software if key not in _STATED and value not in (None, False)}
    words = [
        key.replace("_", " ") if value is True else f"{key.replace('_', ' ')} {value}" for key, value in stated.items()
    ]
    if software.overlap is False:
        words.append("no overlap")
    if case.attention_share != 1:
        words.append(f"attention share {case.attention_share:.2g}")
    rate, inner = case.network.internode_bytes_per_second, min(case.network.nvlink_domain, case.num_devices)
    if cluster.levels[0].devices != inner and case.num_devices > 1:
        words.append(f"nodes of {inner}")
    if rate is not None and case.num_devices > inner and abs(rate / cluster.levels[-1].bytes_per_second - 1) > 0.1:
        words.append(f"network of {rate / 1e9:.3g} GB/s")
    if abs(case.hardware.memory_bytes / cluster.device.memory_bytes - 1) > 0.02:
        words.append(f"devices of {case.hardware.memory_bytes / 1e9:.3g} GB")
    return words


def model_keys(model: ModelConfig, sequence_length: int) -> dict[str, Any]:
    """The fewest keys of `[model]` that give the model: of a preset, and what is different from it."""
    wanted = _plain(model)
    best = _dotted(wanted)
    for preset, resolved in _presets().items():
        own = _dotted({key: value for key, value in wanted.items() if resolved.get(key) != value})
        keys = {"model.preset": preset, **own}
        if resolved.keys() <= wanted.keys() and len(keys) < len(best) and _plain(_resolved(keys)) == wanted:
            best = keys
    return best if _resolved(best).max_position >= sequence_length else {**best, "model.max_position": sequence_length}


def _dotted(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {f"model.{key}": value for key, value in keys.items()}


def _resolved(keys: Mapping[str, Any]) -> ModelConfig:
    table = {"model": {key.removeprefix("model."): value for key, value in keys.items()}}
    run = parse_run({**table, "batch": {"global_sequences": 1, "sequence_length": 1}}, source="model")
    return resolve_model(run.model)


@lru_cache(maxsize=1)
def _presets() -> dict[str, dict[str, Any]]:
    """By preset, what it states; those without a vocabulary left out."""
    found = {}
    for name in preset_names():
        with suppress(UserError):
            found[name] = _plain(_resolved({"model.preset": name}))
    return found


def _plain(model: ModelConfig) -> dict[str, Any]:
    """Keys that a run file states of a model: those that are not so by default. The longest sequence is its own matter."""
    usual = {field.name: field.default for field in fields(model)}
    found = _without_none(asdict(model))
    return {key: value for key, value in found.items() if value != usual[key] and value != [] and key != "max_position"}


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list | tuple) else value


def table_text(setups: Mapping[str, Mapping[str, Any]]) -> str:
    """The table, one line a run."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(each, ensure_ascii=False)}" for name, each in setups.items())
    return f"{{\n{lines}\n}}\n"


def with_null(setups: Mapping[str, Mapping[str, Any]], runs: Sequence[PublishedRun]) -> dict[str, dict[str, Any]]:
    """Set-ups with `null_step_seconds`: one constant share of the peak for each device and format, fitted on these very runs."""
    pairs = [
        Pair(
            group=run.id,
            null_group=(run.shape.device, run.shape.gemm_dtype),
            device_flops=setups[run.id]["device_flops"],
            measured_seconds=run.step_seconds,
        )
        for run in runs
    ]
    times = null_times(pairs)
    return {
        run.id: {**setups[run.id], "null_step_seconds": float(f"{seconds:.4g}")}
        for run, seconds in zip(runs, times, strict=True)
    }


def write_setups(cases: Iterable[PublishedCase], runs: Sequence[PublishedRun]) -> int:
    """Writes the set-ups of these runs; the number of those that the page can open."""
    known = {case.id: case for case in cases}
    setups = with_null({run.id: setup_of(known[run.id]) for run in runs}, runs)
    TABLE.write_text(table_text(setups), encoding="utf-8")
    return sum(each["keys"] is not None for each in setups.values())


def main() -> None:
    parser = row_parser(__doc__)
    cases = cases_of(rows_or_exit(parser, parser.parse_args().folders))
    runs = published_runs()
    print(f"{write_setups(cases, runs)} of {len(runs)} runs have a set-up in {TABLE}")


if __name__ == "__main__":
    main()
