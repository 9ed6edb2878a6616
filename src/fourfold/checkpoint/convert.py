"""A checkpoint written in another form, without ranks: as another layout would have saved it, or as a Hugging Face folder. One
rank's tensors are in memory at a time."""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourfold.checkpoint import folders
from fourfold.checkpoint.huggingface import write_huggingface
from fourfold.checkpoint.load import check_fits, fill_shards
from fourfold.checkpoint.manifest import Manifest, read_manifest
from fourfold.checkpoint.origin import Origin
from fourfold.checkpoint.reader import ParameterReader, read_parameters
from fourfold.checkpoint.save import attempt_of, commit, layout_degrees, prepare, write_part
from fourfold.checkpoint.saved_state import SavedState
from fourfold.checkpoint.unit_shard import UnitShard, balance_bias_extra, extra_name, unit_shard
from fourfold.config import ModelConfig, RunFailure, UserError
from fourfold.huggingface.tensors import balance_bias, has_balance_bias
from fourfold.layout.flat import shard_index
from fourfold.model.spec import build_segments
from fourfold.model.torch_operations import torch_dtype
from fourfold.program.spec import StepSpec
from fourfold.program.view import rank_view


def reshard_checkpoint(path: Path, root: Path, spec: StepSpec, info: Mapping[str, Any]) -> Path:
    """Writes the checkpoint `path` below `root` under the layout of `spec`; returns its folder there.

    `info`: keys that differ from those saved. Raises `UserError` where a checkpoint of this step stands there, and `RunFailure`
    when the checkpoint is damaged or of another model, or the disk does not take it.
    """
    manifest = read_manifest(path)
    folder = folders.step_folder(root, manifest.step)
    if folder.exists():
        raise UserError(f"{folder} exists and is not overwritten; name another folder")
    saved = SavedState(path, manifest)
    units = [unit.name for segment in spec.segments for unit in segment.own]
    extras = {name: saved.file(record.file).read_checked(extra_name(name)) for name, record in manifest.extras.items()}
    try:
        prepare(folder, sum(file.size_bytes for file in manifest.files.values()))
        attempt = attempt_of(folder) or ""
        for rank in range(spec.layout.world_size):
            shards = _empty_shards(spec, rank, manifest)
            if rank == 0:
                check_fits(path, manifest, shards, set(units))
            own = {unit: shard for unit, shard in shards.items() if shard.is_writer}
            fill_shards(saved, own)
            write_part(folder, manifest.step, rank, own, extras if rank == 0 else {}, attempt, None)
        commit(folder, manifest.step, {**manifest.info, **info}, attempt, layout_degrees(spec.layout), units)
    except OSError as error:
        raise RunFailure(
            f"{folder} was not written: {error}; name a folder on a disk with room that you can write"
        ) from error
    return folder


def _empty_shards(spec: StepSpec, rank: int, manifest: Manifest) -> dict[str, UnitShard]:
    layout = spec.layout
    view = rank_view(spec, layout.coordinates(rank)["pp"])
    shards = {}
    for name, flat in view.flats.items():
        record, index, tensors = manifest.units.get(name), shard_index(layout, flat, rank), dict[str, Tensor]()
        own = unit_shard(flat, index, tensors, layout, rank, record.without if record else None)
        start, end = flat.shard_range(index)
        for role, dtype in record.dtypes.items() if record else ():
            numel = max(0, end - max(start, own.first(role)))
            tensors[role] = torch.empty(numel, dtype=torch_dtype(dtype))
        shards[name] = own
    return shards


def export_checkpoint(
    checkpoint: Path,
    model: ModelConfig,
    out: Path,
    *,
    dtype: str = "fp32",
    tokenizer_file: Path | None = None,
    eos: int | None = None,
    origin: Origin | None = None,
    max_shard_bytes: float = 5e9,
) -> None:
    """Writes the parameters of `checkpoint` (`.../step-NNNNNN`, saved under any layout) as a Hugging Face folder `out`.

    `model`: the model that the checkpoint was trained as. The rest as in `write_huggingface`. A part of one parameter is in memory
    at a time. Raises `UserError` when the model is another or `out` is not empty, `RunFailure` when the checkpoint is damaged or
    the disk is full.
    """
    reader = read_parameters(checkpoint)
    wanted = {spec.name: spec.shape for segment in build_segments(model) for spec in segment.parameters}
    for name in {**wanted, **reader.shapes}:
        saved, expected = reader.shapes.get(name), wanted.get(name)
        if saved != expected:
            raise UserError(
                f"{checkpoint} was saved by another model: {name} is {_show(saved)} there and {_show(expected)} in this "
                f"one; give the run file that saved it"
            )
    write_huggingface(
        out,
        model,
        chain(reader.pieces(), _balance_biases(reader, model)),
        dtype=dtype,
        tokenizer_file=tokenizer_file,
        eos=eos,
        origin=origin,
        max_shard_bytes=max_shard_bytes,
    )


def _balance_biases(reader: ParameterReader, model: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    if not has_balance_bias(model.family):
        return
    for layer in range(model.num_layers + model.mtp_layers):
        if balance_bias_extra(layer) in reader.extras:
            yield balance_bias(layer), reader.extra(balance_bias_extra(layer))


def _show(shape: tuple[int, ...] | None) -> str:
    return str(list(shape)) if shape is not None else "absent"
