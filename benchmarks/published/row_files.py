"""Published measurements as typed rows: files or folders of JSON, every value checked."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fields import Fields
from flags import flags_row
from fourfold.config import UserError
from model_names import stated_model
from row import GIGABYTES, ReportedFigures, Row, StatedHardware, StatedLayout, StatedModel, Unread

_LARGEST_FILE_BYTES = 64_000_000
_MOST_ROWS = 200_000
_MOST_FILES = 10_000


def read_rows(paths: Sequence[str | Path], strict: bool = True) -> tuple[list[Row], list[Unread]]:
    """All rows of the files and of the folders' `*.json`, in order of name, and the files that hold no rows with the reason.

    Raises `UserError`, which names the file, the row, the key, its value and what is allowed. Not `strict`: a row that cannot be
    read is a `Row` whose `unreadable` says why, and a file that cannot be is among the unread, unless none of all can.
    """
    rows: list[Row] = []
    unread: list[Unread] = []
    first: UserError | None = None
    for file in _files(paths):
        try:
            values = _load(file)
            if isinstance(values, dict):
                inner = _inner_list(values)
                if inner is None:
                    unread.append(Unread(file.name, "a table of tables, not a list of runs"))
                    continue
                values = inner
            if not isinstance(values, list):
                raise UserError(f"{file}: holds a {type(values).__name__}; allowed: a list of rows, each a table")
        except UserError as error:
            if strict:
                raise
            first = first or error
            unread.append(Unread(file.name, str(error).removeprefix(f"{file}: ")))
            continue
        if len(values) + len(rows) > _MOST_ROWS:
            raise UserError(f"{file}: with this file there are more than {_MOST_ROWS} rows; give fewer files")
        rows.extend(_row(value, file, index, strict) for index, value in enumerate(values))
    if first is not None and not rows:
        raise first
    return rows, unread


def _inner_list(table: dict[str, Any]) -> list[Any] | None:
    """The rows of a table that holds nothing but one list of them under `rows`, beside texts and numbers on it."""
    values = table.get("rows")
    others = [value for key, value in table.items() if key != "rows" and isinstance(value, dict | list)]
    return values if isinstance(values, list) and not others else None


def _files(paths: Sequence[str | Path]) -> list[Path]:
    """The files named, and those of the folders named, each once."""
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(path.glob("*.json"))
            if not inside:
                raise UserError(f"{path}: has no *.json file; give a folder that has some, or a file")
            found.update((file.resolve(), None) for file in inside)
        elif path.is_file():
            found[path.resolve()] = None
        else:
            raise UserError(f"{path}: there is no such file or folder")
    if not found:
        raise UserError("no file is given; give files or folders of JSON rows")
    if len(found) > _MOST_FILES:
        raise UserError(f"{len(found)} files are given; allowed: at most {_MOST_FILES}")
    return list(found)


def _load(file: Path) -> Any:
    try:
        size = file.stat().st_size
        if size > _LARGEST_FILE_BYTES:
            raise UserError(f"{file}: {size} bytes; allowed: at most {_LARGEST_FILE_BYTES}")
        return json.loads(file.read_bytes())
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: is not JSON: {str(error) or 'nested too deep'}") from error


def _row(value: Any, file: Path, index: int, strict: bool) -> Row:
    name = f"{file.stem}:{index}"
    try:
        if not isinstance(value, dict):
            raise UserError(
                f"{file.name}: row {index} is a {type(value).__name__}; allowed: a table of keys and values"
            )
        name = Fields(value, f"{file.name}: row {index}").text("id") or name
        fields = Fields(value, f"{file.name}: row {name}")
        read: Callable[[Fields, str, str], Row] = flags_row if "args" in value else _table_row
        return read(fields, name, file.stem)
    except UserError as error:
        if strict:
            raise
        nothing = (StatedModel(), StatedHardware(), StatedLayout(), ReportedFigures())
        return Row(name, file.stem, "", *nothing, unreadable=str(error).removeprefix(f"{file.name}: "))


def _table_row(row: Fields, name: str, file: str) -> Row:
    """A row of the common schema."""
    from_memory = row.texts("fields_from_memory")
    if row.table.get("from_memory"):
        from_memory = ("row", *from_memory)
    if "memory" in (row.inner("model").text("dims_source") or ""):
        from_memory = (*from_memory, "model")
    return Row(
        id=name,
        file=file,
        source=row.text("source") or "",
        model=stated_model(row),
        hardware=_hardware(row.inner("hardware")),
        layout=_layout(row.inner("parallel")),
        figures=_figures(row.inner("measured")),
        num_devices=row.count("n_gpus", high=10**7),
        sequence_length=row.count("seq_len"),
        global_sequences=row.count("global_batch"),
        microbatch_sequences=row.count("micro_batch"),
        accumulation=row.count("grad_accum"),
        framework=row.text("framework") or "",
        recompute=row.text("recompute"),
        schedule=row.text("schedule"),
        precision=row.text("precision"),
        task=row.text("task"),
        flops_convention=row.text("flops_convention") or "",
        notes=_notes(row),
        from_memory=tuple(dict.fromkeys(from_memory)),
        analytical=bool(row.flag("analytical")),
        remarks=tuple(row.remarks),
    )


_GRAPHS = {"true": "CUDA graphs", "full": "CUDA graphs", "false": "no CUDA graphs", "none": "no CUDA graphs"}


def _notes(row: Fields) -> str:
    """Notes that the row has in words of its own."""
    offload = row.text("offload")
    compiled = "" if row.table.get("compile") is not False else "not compiled"
    kernel = row.text("attention_kernel")
    graphs = (row.text("cuda_graphs") or "").replace("_", " ")
    text = (
        row.text("notes"),
        row.text("framework"),
        offload and f"offload: {offload}",
        compiled,
        kernel and f"{kernel.replace('_', ' ')} attention",
        graphs and _GRAPHS.get(graphs, f"{graphs} CUDA graphs"),
    )
    return "; ".join(filter(None, text))


def _hardware(hardware: Fields) -> StatedHardware:
    return StatedHardware(
        device=hardware.text("gpu") or "",
        devices_per_node=hardware.count("gpus_per_node", high=10**5),
        nvlink_domain=hardware.count("nvlink_domain", high=10**5),
        memory_gb=hardware.number("mem_gb", high=1e6),
        peak_bf16_flops=_scaled(
            hardware.number("peak_bf16_tflops", high=1e9) or hardware.number("peak_fp16_tflops", high=1e9), 1e12
        ),
        peak_fp8_flops=_scaled(hardware.number("peak_fp8_tflops", high=1e9), 1e12),
        internode=hardware.text("internode") or "",
    )


_CP_KEYS = ("cp_kind", "cp_method", "cp_type", "cp_comm_type")


def _layout(parallel: Fields) -> StatedLayout:
    words = parallel.table.get("zero")
    fsdp = parallel.table.get("fsdp")
    group = parallel.table.get("zero1_group")
    return StatedLayout(
        tp=parallel.count("tp", high=10**6),
        pp=parallel.count("pp", high=10**6),
        dp=parallel.count("dp", high=10**7),
        cp=parallel.count("cp", high=10**6),
        ep=parallel.count("ep", high=10**6),
        etp=parallel.count("etp", high=10**6),
        virtual_stages=parallel.count("vpp", high=10**5),
        layers_per_virtual_stage=parallel.count("vpp_layers", high=10**5),
        zero=None if isinstance(words, str) else parallel.count("zero", low=0, high=3),
        zero_text=words[:500] if isinstance(words, str) else "",
        fsdp=fsdp if isinstance(fsdp, bool) else isinstance(fsdp, str) or bool(parallel.count("fsdp", low=0)),
        shard_group=_group(parallel, "zero1_group", group) or _group(parallel, "fsdp", fsdp),
        sequence_parallel=parallel.flag("sp"),
        cp_text=next((text for key in _CP_KEYS if (text := parallel.text(key))), "")[:100],
    )


def _group(parallel: Fields, key: str, value: Any) -> int | None:
    """A number of ranks that share one copy of the state; words and -1 mean all."""
    if isinstance(value, bool | str) or value is None or value == -1:
        return None
    return parallel.count(key, low=0, high=10**7) or None


def _figures(measured: Fields) -> ReportedFigures:
    memory, kind = _memory(measured)
    return ReportedFigures(
        step_seconds=measured.number("step_time_s", low=1e-6 if measured.table.get("step_time_s") else 0.0) or None,
        tokens_per_second_per_device=measured.number("tokens_per_s_per_gpu") or None,
        tokens_per_second=measured.number("tokens_per_s") or measured.number("tokens_per_s_total") or None,
        samples_per_second=measured.number("samples_per_s") or None,
        samples_per_second_per_device=measured.number("samples_per_s_per_gpu") or None,
        days_for_300e9_tokens=measured.number("train_days_300B_tokens") or None,
        flops_per_second_per_device=_scaled(measured.number("tflops_per_gpu", high=1e9) or None, 1e12),
        flops_kind=measured.text("tflops_kind") or "",
        mfu=_mfu(measured),
        memory_bytes=memory,
        memory_kind=kind,
        last_rank_alone="last rank" in (measured.text("memory_rank") or ""),
        failed=bool(measured.flag("failed")) or bool(measured.flag("oom")),
    )


def _mfu(measured: Fields) -> float | None:
    """MFU as a share: `mfu` of at most 1 is one, anything else is percents."""
    percents, either = measured.number("mfu_pct", high=100), measured.number("mfu", high=100)
    if percents or not either:
        return _scaled(percents or None, 0.01)
    return either if either <= 1 else either / 100


_MEMORY_KEYS = (
    ("peak_alloc_gib", 2.0**30, "allocated"),
    ("peak_reserved_gib", 2.0**30, "reserved"),
    ("peak_alloc_gb", 1e9, "allocated"),
    ("peak_reserved_gb", 1e9, "reserved"),
    ("nvidia_smi_gib", 2.0**30, "device"),
    ("nvidia_smi_gb", 1e9, "device"),
    ("peak_mem_gib", 2.0**30, "unstated"),
    ("peak_mem_gb", 1e9, GIGABYTES),
    ("mem_gib", 2.0**30, "unstated"),
    ("mem_gb", 1e9, GIGABYTES),
)


_COUNTED = (("reserved", "reserved"), ("allocated", "allocated"), ("nvidia-smi|rocm-smi|driver", "device"))


def _memory(measured: Fields) -> tuple[float | None, str]:
    """The peak of one device in bytes, and what was counted, by its key or its words: the most exact figure that there is."""
    text = measured.text("mem_kind") or measured.text("memory_kind") or ""
    counted = next((kind for words, kind in _COUNTED if re.search(words, text, re.I)), None)
    for key, unit, kind in _MEMORY_KEYS:
        value = measured.number(key, high=1e9)
        if value and kind in ("unstated", GIGABYTES):
            return value * (2.0**30 if re.search("gib", text, re.I) else unit), counted or kind
        if value:
            return value * unit, kind
    return None, ""


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit
