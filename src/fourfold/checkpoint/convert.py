"""From a run's checkpoint to a Hugging Face folder."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from torch import Tensor

from fourfold.checkpoint.huggingface import write_huggingface
from fourfold.checkpoint.origin import Origin
from fourfold.checkpoint.reader import ParameterReader, read_parameters
from fourfold.checkpoint.unit_shard import balance_bias_extra
from fourfold.config import ModelConfig, UserError
from fourfold.huggingface.tensors import balance_bias, has_balance_bias
from fourfold.model.spec import build_segments


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
