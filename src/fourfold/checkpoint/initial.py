"""Initial weights: a rank's shard of its part of a unit, from a Hugging Face folder."""

from collections.abc import Mapping

from torch import Tensor

from fourfold.checkpoint.weight_folder import WeightFolder
from fourfold.layout import FlatLayout


def fill_from_folder(
    folder: WeightFolder, flat: FlatLayout, index: int, coordinates: Mapping[str, int], out: Tensor
) -> None:
    """Fills `out` [flat.shard_numel] with shard `index` of the part of the rank at `coordinates`; the padding is 0.

    `folder` was checked against the model (`WeightFolder.check_against`). Only the tensors and rows that hold the shard are read.
    """
    out.zero_()
    shard_start, shard_end = flat.shard_range(index)
    for parameter, start, end in flat.ranges():
        low, high = max(start, shard_start), min(end, shard_end)
        if low < high:
            values = folder.box(parameter.name, parameter.box(coordinates), low - start, high - start)
            out[low - shard_start : high - shard_start] = values.to(out)
