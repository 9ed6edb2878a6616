"""Initial weights: a rank's shard of its part of a unit, from a Hugging Face folder."""

from collections.abc import Callable, Mapping

from torch import Tensor

from fourfold.checkpoint.boxes import box_numel
from fourfold.checkpoint.weight_folder import WeightFolder
from fourfold.layout import FlatLayout


def fill_from_folder(
    folder: WeightFolder,
    flat: FlatLayout,
    index: int,
    coordinates: Mapping[str, int],
    out: Tensor,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Fills `out` [flat.shard_numel] with shard `index` of the part of the rank at `coordinates`; the padding is 0.

    `folder` was checked against the model (`WeightFolder.check_against`). Only the tensors and rows that hold the shard are read.
    `advance` is called after each parameter.
    """
    out.zero_()
    shard_start, shard_end = flat.shard_range(index)
    for parameter, start, _ in flat.ranges():
        box = parameter.box(coordinates)
        low, high = max(start, shard_start), min(start + box_numel(box), shard_end)
        if low < high:
            values = folder.box(parameter.name, box, low - start, high - start)
            out[low - shard_start : high - shard_start] = values.to(out)
            advance()
