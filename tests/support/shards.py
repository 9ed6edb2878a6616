"""Full tensors by name out of full flat buffers."""

from collections.abc import Mapping

import torch

from fourfold.program import StepSpec, rank_view


def full_tensors(spec: StepSpec, buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """`buffers`: by unit, each [padded_numel] or longer."""
    full = {}
    for name, flat in rank_view(spec).flats.items():
        for part, start, end in flat.ranges():
            full[part.name] = buffers[name][start:end].clone().view(part.shape)
    return full
