"""Cases from files: `[[case]]` tables in the run file's words, each with its cluster, its software and what was measured; and runs
as cases, a finished one by its run file and `metrics.jsonl`, one of the literature by its preset's published figure."""

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import tomli_w
from pydantic import ValidationError

from fourfold.config import ModelSection, RunConfig, UserError, did_you_mean, parse_run
from fourfold.config.errors import lower_first, unknown_key
from fourfold.config.run_file import RUN_PRESET, load_table, require_trust
from fourfold.config.schema import ClusterSection, DataSection
from fourfold.config.section import Section
from fourfold.cost.kernel_choice import check_kernels
from fourfold.hardware import THIS, Cluster, is_path, load_cluster, parse_cluster
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.simulate.published import published_step
from fourfold.simulate.run_prices import software_names
from fourfold.validate.case import RATES, Case, MeasuredStep
from fourfold.validate.software import Software

Vocabulary = Callable[[ModelSection, DataSection], int | None]
"""The size of a run's tokenizer, where the model states no `vocab_size`."""

SECTIONS = ("model", "data", "batch", "layout", "precision", "optimizer")
OWN_KEYS = (
    "name",
    "source",
    "run",
    "cluster",
    "software",
    "measured",
    "attention_share",
    "device_memory_bytes",
    "about",
)
MOST_CASES = 100_000
_EXAMPLE = 'for example measured = { step_seconds = 2.35 }, cluster = "dgx-h100:64", software = "megatron-2025"'


def run_case(name: str, run: RunConfig, metrics: Iterable[Mapping[str, Any]], cluster: str | None = None) -> Case:
    """The case of a run of fourfold's own. `run`: as its folder's `run.toml` has it, complete; `metrics`: the objects of its
    `metrics.jsonl`, whose first step is left out: it warms up. `cluster` None: the run's own.

    Raises `UserError` where fewer than two steps were measured, or nothing says how fast the machine is."""
    first, seconds, peak = None, array("d"), None
    for row in metrics:
        if type(step := row.get("step")) is not int or step < 0:
            continue
        first = step if first is None else first
        if step > first:
            taken, held = _positive(row.get("step_seconds")), _positive(row.get("peak_memory_bytes"))
            seconds.extend([taken] if taken is not None else [])
            peak = held if peak is None else max(peak, held or 0.0)
    if not seconds:
        raise UserError(
            f"{name}: its metrics.jsonl has fewer than two steps; what works: the folder of a run that trained"
        )
    machine = cluster if cluster is not None else run.cluster.preset
    if machine == THIS:
        raise UserError(
            f"{name}: nothing says how fast its machine is; what works: fourfold calibrate --out this-machine.toml, then "
            "fourfold validate RUN_DIR --cluster this-machine.toml"
        )
    return Case(
        name=name,
        source=f"{name}/metrics.jsonl, median of {len(seconds)} steps",
        run=run,
        model=resolve_model(run.model),
        cluster=load_cluster(machine),
        software=Software(),
        measured=MeasuredStep(step_seconds=median(seconds), peak_memory_bytes=peak, memory_rank="first"),
    )


def preset_case(name: str, run: RunConfig) -> Case:
    """The case of a run preset. Raises `UserError` where its source states no figure."""
    model, cluster = resolve_model(run.model), load_cluster(run.cluster.preset)
    published = published_step(run, model, resolve_layout(run, model), cluster.device)
    if published is None:
        raise UserError(f"preset:{name}: no published figure is known of it; what works: fourfold validate presets")
    return Case(
        name=name,
        source=published.source,
        run=run,
        model=model,
        cluster=cluster,
        software=_software_of(run.cluster),
        measured=MeasuredStep(step_seconds=published.seconds),
    )


def _software_of(stated: ClusterSection) -> Software:
    name = stated.software or Software().name
    return Software.model_validate({"name": name, "gemm_dtype": stated.gemm_dtype, **stated.stated})


def _positive(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < 1e15 else None


def read_cases(path: Path, vocabulary: Vocabulary | None = None, trust: bool = False) -> list[Case]:
    """The cases of a file, in order. Keys above the first `[[case]]` hold for all of them; a case's own keys win, one by one.
    `trust`: a case may name Python code.

    Raises `UserError`, which names the file, the case, the key, its value and what is allowed."""
    table = load_table(path)
    cases = table.pop("case", None)
    if not isinstance(cases, list) or not cases or not all(isinstance(case, dict) for case in cases):
        raise UserError(f"{path}: holds no cases; state each as a table [[case]], {_EXAMPLE}")
    if len(cases) > MOST_CASES:
        raise UserError(f"{path}: {len(cases)} cases; allowed: at most {MOST_CASES}")
    return [_case(_merged(table, case), path, number, vocabulary, trust) for number, case in enumerate(cases, start=1)]


def _case(table: Mapping[str, Any], path: Path, number: int, vocabulary: Vocabulary | None, trust: bool) -> Case:
    name = _text(table, "name", f"{path}: case {number}") or f"{path.stem} {number}"
    where = f"{path}: case {name!r}"
    for key in table:
        if key not in (*SECTIONS, *OWN_KEYS):
            raise UserError(f"{where}: {unknown_key(repr(key), key, (*OWN_KEYS, *SECTIONS))}")
    for key in ("cluster", "measured"):
        if key not in table:
            raise UserError(f"{where}: key {key!r} is missing; {_EXAMPLE}")
    try:
        run = require_trust(_run(table, path, where), trust)
        size = vocabulary(run.model, run.data) if vocabulary and run.model.vocab_size is None else None
        model = resolve_model(run.model, size)
        cluster = _cluster(table["cluster"], path)
    except UserError as error:
        raise UserError(_prefixed(str(error), where)) from None
    stated = table.get("software", {})
    software = _section({"name": stated} if isinstance(stated, str) else stated, Software, f"{where}: software")
    _check_software(software, cluster, where)
    share = _number(table, "attention_share", 1.0, 0.5, where)
    memory = _number(table, "device_memory_bytes", 1e15, 80e9, where)
    if memory is not None:
        cluster = replace(cluster, device=replace(cluster.device, memory_bytes=round(memory)))
    measured = _section(table["measured"], MeasuredStep, f"{where}: measured")
    if measured == MeasuredStep():
        raise UserError(
            f"{where}: nothing is measured; state one of {', '.join(RATES)}, peak_memory_bytes or out_of_memory"
        )
    return Case(name, _text(table, "source", where), run, model, cluster, software, measured, share)


def _run(table: Mapping[str, Any], path: Path, where: str) -> RunConfig:
    """The run that a case names, with what it states itself."""
    named, base = _text(table, "run", where), {}
    if named:
        base = load_table(Path(named if named.startswith(RUN_PRESET) else _beside(named, path)))
    stated = {key: table[key] for key in SECTIONS if key in table}
    run = parse_run({key: value for key, value in _merged(base, stated).items() if key in SECTIONS}, source=where)
    if run.layout.auto:
        raise UserError(
            'layout = "auto": a case states the layout that ran; a value that works: [case.layout] with tp = 8'
        )
    return run


def _cluster(stated: Any, path: Path) -> Cluster:
    """A cluster by its name, the path of its file, or a table with the keys of such a file."""
    if isinstance(stated, str):
        return load_cluster(_beside(stated, path) if is_path(stated) else stated)
    if not isinstance(stated, dict):
        raise UserError(f'cluster = {stated!r}; allowed: a name, a file, or a table; a value that works: "dgx-h100:64"')
    cluster = parse_cluster(tomli_w.dumps(stated), "cluster")
    return replace(cluster, key=cluster.name)


def _check_software(software: Software, cluster: Cluster, where: str) -> None:
    if not software.is_known:
        hint = did_you_mean(software.name, software_names())
        raise UserError(
            f"{where}: software.name = {software.name!r}: nothing is known of it; {hint}allowed: fourfold, unknown, "
            f"{', '.join(software_names())}"
        )
    if not software.is_own:
        try:
            check_kernels(software, cluster.device.key)
        except UserError as error:
            raise UserError(f"{where}: software.{error}") from None
    else:
        general = ("name", "gemm_dtype", "context_bytes", "fragmentation")
        own = [key for key in software.model_fields_set if key not in general and getattr(software, key) is not None]
        if own:
            raise UserError(
                f"{where}: software.{sorted(own)[0]}: goes with other software; fourfold's program says what runs; leave it "
                'out, or state for example name = "torchtitan-2025"'
            )


Kind = TypeVar("Kind", bound=Section)


def _section(table: Any, kind: type[Kind], where: str) -> Kind:
    """A table by its schema. Raises `UserError`, one line a mistake."""
    if not isinstance(table, dict):
        raise UserError(f"{where} = {table!r}; allowed: a table with some of {', '.join(kind.model_fields)}")
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        raise UserError("\n".join(dict.fromkeys(f"{where}{_mistake(item, kind)}" for item in error.errors()))) from None


def _mistake(item: Any, kind: type[Section]) -> str:
    if not item["loc"]:
        return f": {item['msg'].removeprefix('Value error, ')}"
    key = str(item["loc"][0])
    if item["type"] == "extra_forbidden":
        return f": {unknown_key(repr(key), key, list(kind.model_fields))}"
    return f".{key} = {item['input']!r}: {lower_first(item['msg'])}"


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`; tables key by key, but for those that are one statement."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if key == "software" and isinstance(below, str):
            below = {"name": below}
        both = isinstance(value, dict) and isinstance(below, dict) and key not in ("cluster", "measured")
        merged[key] = {**below, **value} if both and isinstance(below, dict) else value
    return merged


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise UserError(f'{where}: {key} = {value!r}; allowed: a text; for example {key} = "llama3-8b on 64 H100"')
    return value


def _number(table: Mapping[str, Any], key: str, most: float, example: float, where: str) -> float | None:
    value = table.get(key)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most):
        return value
    raise UserError(f"{where}: {key} = {value!r}; allowed: above 0, at most {most:g}; a value that works: {example:g}")


def _beside(named: str, path: Path) -> str:
    """A file that a case names, which stands where the case's own file does."""
    return str(path.parent / named)


def _prefixed(message: str, where: str) -> str:
    return "\n".join(line if line.startswith(where) else f"{where}: {line}" for line in message.split("\n"))
