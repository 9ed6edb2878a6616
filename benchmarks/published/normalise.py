"""Published rows as explicit cases, read once; nothing after this reads free text.

python benchmarks/published/normalise.py FILE.json... --out DIR

Writes a file of cases for each file of rows, for a person to review and for `fourfold validate`; says which rows are none, and why.
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from arrangement import Degrees, degrees_of, is_microbatch_open, layout_of
from case import NotACase, PublishedCase, Skip
from case_tables import case_file_text, case_table
from defaults import ImputedDefaults
from dimensions import model_of
from formats import are_states_open, moment_bytes_of, precision_of
from fourfold.config import UserError
from machine import device_of, network_of
from masks import attention_share
from measured import measured_of
from policies import is_recompute_open
from profiles import documented
from remarks import check_task, is_eager, offloaded_of, runs_transformer_engine
from row import Row
from row_files import read_rows
from software import ON_GPU, Trainer, on_platform, trainer_of, usual_trainer
from stated_kernels import kernels_of


def normalise(row: Row) -> PublishedCase | Skip:
    """The case that a row states, from its configuration alone, with its measured figures; or why it states none."""
    if row.unreadable is not None:
        return Skip(row.unreadable)
    try:
        return _case(row)
    except NotACase as error:
        return Skip(str(error))


def _case(row: Row) -> PublishedCase:
    imputed = ImputedDefaults(list(row.remarks))
    check_task(row, imputed)
    offloaded = offloaded_of(row, imputed)
    if row.sequence_length is None:
        raise NotACase(_first_missing(row))
    device = device_of(row.hardware, row, imputed)
    degrees = degrees_of(row, imputed)
    trainer = _trainer(row, device.key, degrees, imputed)
    makers = documented(trainer.framework, (trainer.year, trainer.release))
    model, vocab_size = model_of(row, trainer, degrees.tp, imputed)
    layout, global_sequences = layout_of(row, model, degrees, trainer, imputed)
    precision = precision_of(row, device.key, trainer, imputed)
    hardware = row.hardware
    peak = (hardware.peak_bf16_flops or device.peak("bf16")) if precision.low is None else hardware.peak_fp8_flops
    if precision.low == "nvfp4":
        peak = None
    measured = measured_of(
        row, trainer, model, global_sequences, degrees.num_devices, layout.recompute, _mfu_peak(row, peak), imputed
    )
    if measured.step_seconds is None and measured.memory_bytes is None and not measured.failed:
        raise NotACase("neither a step time nor memory is stated, or can be derived")
    return PublishedCase(
        id=row.id,
        file=row.file,
        source=row.source,
        software=trainer.profile,
        trainer=trainer.name,
        model_name=row.model.name,
        model=model,
        vocab_size=vocab_size,
        layout=replace(layout, outermost=makers.outermost),
        sequence_length=row.sequence_length,
        global_sequences=global_sequences,
        precision=precision,
        device=device.key,
        hardware=device,
        num_devices=degrees.num_devices,
        network=network_of(hardware, device.key, degrees.num_devices, row.notes, imputed),
        measured=measured,
        kernels=kernels_of(row, trainer, device.key, precision.low, imputed).completed(makers.kernels),
        attention_dropout=not model.gated or row.model.gated is False,
        moment_bytes=moment_bytes_of(row),
        even_stages=trainer.is_megatron_family,
        recompute_open=is_recompute_open(row),
        microbatch_open=is_microbatch_open(row),
        states_open=are_states_open(row),
        zero_open=row.layout.zero is None and not row.layout.zero_text and not row.layout.fsdp,
        offloaded=offloaded,
        overlap=makers.overlap,
        attention_share=attention_share(row.model, row.notes, row.sequence_length, imputed),
        eager=is_eager(row, trainer, imputed),
        narrow_operands=runs_transformer_engine(row),
        peak_flops=peak,
        from_memory=row.from_memory,
        defaults=tuple(imputed.entries),
    )


def _trainer(row: Row, device: str, degrees: Degrees, imputed: ImputedDefaults) -> Trainer:
    found = trainer_of(row.source, row.notes, row.framework)
    if found.framework == "maxtext" and not device.startswith("tpu"):
        return replace(found, framework=ON_GPU)
    if found.framework != "unknown":
        return on_platform(found, device)
    usual = usual_trainer(found, device, degrees.num_devices, degrees.tp, degrees.pp, row.layout.fsdp)
    return usual if usual == found else imputed.fill("software", usual)


def _mfu_peak(row: Row, peak: float | None) -> float | None:
    """The peak that the row's own MFU is a share of."""
    if re.search(r"bf16 peak", f"{row.notes} {row.flops_convention}", re.I):
        return row.hardware.peak_bf16_flops
    return peak


def _first_missing(row: Row) -> str:
    if row.model.num_layers is None and row.model.hidden_size is None:
        return "the model's dimensions are not stated"
    return "the sequence length is not stated"


def write_cases(rows: Sequence[Row], folder: Path) -> list[str]:
    """A file of cases for each file of rows; the rows that are no case, or none that a run file can say, with the reason."""
    tables: dict[str, list[dict[str, Any]]] = {}
    left_out = []
    for row in rows:
        case = normalise(row)
        try:
            if isinstance(case, Skip):
                raise UserError(case.reason)
            tables.setdefault(case.file, []).append(case_table(case))
        except UserError as error:
            left_out.append(f"{row.id}: {error}")
    folder.mkdir(parents=True, exist_ok=True)
    for file, cases in tables.items():
        (folder / f"{file}.toml").write_text(case_file_text(cases), encoding="utf-8")
    return left_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        rows, unread = read_rows(options.files, strict=False)
        left_out = write_cases(rows, options.out)
    except (UserError, OSError) as error:
        parser.error(str(error))
    print(f"{len(rows) - len(left_out)} of {len(rows)} rows are cases, in {options.out}")
    print("\n".join([*left_out, *(f"{file.file}: {file.reason}" for file in unread)]))


if __name__ == "__main__":
    main()
