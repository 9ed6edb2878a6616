"""The certificate of a checkpoint: which program made it, under which versions, and a chain of digests over all steps before it."""

import platform
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import torch

from fourfold.config import RunConfig
from fourfold.config.own_code import own_code
from fourfold.program import Program, digest
from fourfold.runtime.step import StepResult


def extend(chain: str, step: int, result: StepResult) -> str:
    """The chain with one more step: SHA-256 of the chain before, the step, and the bits of its loss and gradient norm."""
    text = f"{chain} {step} {float(result.loss).hex()} {float(result.grad_norm).hex()}"
    return sha256(text.encode()).hexdigest()


def certificate(config: RunConfig, program: Program, chain: str, chosen: Mapping[str, str]) -> dict[str, Any]:
    """The values that a checkpoint's `info` has beside the cursor. `chain` is empty before the first step; equal chains mean equal
    losses and gradient norms of every step, bit for bit. `program`: rank 0's; `chosen`: what computed `attention`, `norms` and
    `matmuls`, by name."""
    return {
        "chain": chain,
        **chosen,
        "program": digest(program),
        "versions": {"fourfold": own_code().version, "torch": torch.__version__, "python": platform.python_version()},
        "config": config.model_dump(mode="json"),
    }
