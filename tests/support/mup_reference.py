"""muP's groups of AdamW parameters as Microsoft's `mup.MuAdamW` makes them: by how many dims grow with the width."""

from typing import Any

import torch

from fourfold.config import ModelConfig


def mup_groups(parameters: dict[str, torch.nn.Parameter], model: ModelConfig, section: Any) -> list[dict[str, Any]]:
    """One group a parameter of a transformers model. Matrices with a fan-in that grows have lr / width_mult and decay x width_mult;
    those with a fixed fan-in, and vectors, what is stated."""
    width_mult = model.hidden_size / (model.mup_base_hidden_size or 1)
    groups = []
    for name, parameter in parameters.items():
        lr, decay = section.lr, section.weight_decay if parameter.dim() > 1 else 0.0
        if parameter.dim() > 1 and "embed" not in name:
            lr, decay = lr / width_mult, decay * width_mult
        if "q_proj" in name:  # scores by 1 / head_dim in place of 1 / sqrt(head_dim), as a scale of the query
            scale = ((model.mup_base_head_dim or model.head_dim) / model.head_dim) ** 0.5
            lr, decay = lr * scale, decay / scale
        groups.append({"params": [parameter], "lr": lr, "weight_decay": decay})
    return groups
