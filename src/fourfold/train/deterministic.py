"""`run.deterministic`: a rank whose kernels repeat their bits, set before it has a device or a communicator.

Operations that repeat theirs are not touched: our own kernels add in a fixed order and use no atomics, sums over ranks on gloo have
one order. Others are replaced or refused: by PyTorch where an operator has no other version, by a trial where a back end
of attention, norms, cross-entropy or SwiGLU gives other bits the second time (`kernels/trials.py`).
"""

import os
from collections.abc import MutableMapping

import torch

from fourfold.config import UserError
from fourfold.config.schema import RunSection

WORKSPACE, WORKSPACES = "CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8")
"""cuBLAS takes another algorithm when another stream holds its workspace, but not with these (cuBLAS, Results reproducibility)."""
NCCL = {"NCCL_ALGO": "Ring", "NCCL_NVLS_ENABLE": "0", "NCCL_COLLNET_ENABLE": "0"}
"""Rings alone: trees and sums in switches add in an order that depends on who is there first, or on the tuner's choice."""


def be_deterministic(section: RunSection, environment: MutableMapping[str, str] = os.environ) -> None:
    """Does nothing where the run does not ask for it. Raises `UserError` for variables that contradict it."""
    if not section.deterministic:
        return
    for name, allowed in {WORKSPACE: WORKSPACES, **{key: (value,) for key, value in NCCL.items()}}.items():
        stated = environment.setdefault(name, allowed[0])
        if stated not in allowed:
            raise UserError(
                f"run.deterministic = true, but {name} = {stated!r} in the environment; allowed: {', '.join(allowed)}; what "
                f"works: unset it"
            )
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
