"""Full tensors by name out of whole flat buffers."""

from collections.abc import Mapping

import torch

from fourfold.program.facts import Lowering


def full_tensors(facts: Lowering, buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """`buffers`: by unit, each [padded_numel] or longer."""
    full = {}
    for name, flat in facts.flats.items():
        for spec, start, end in flat.ranges():
            full[spec.name] = buffers[name][start:end].clone().view(spec.shape)
    return full
