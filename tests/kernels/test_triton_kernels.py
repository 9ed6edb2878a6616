"""The Triton kernels of norms, cross-entropy, SwiGLU and rotary embedding: run by Triton's interpreter, and compiled for GPUs that
are not here."""

import json
import sys
from pathlib import Path

import pytest
import torch

from tests.support.subprocesses import run_without_pytest

pytest.importorskip("triton", reason="Triton is not installed")
A100, H100 = 80, 90
KERNELS = {"forward_kernel", "backward_kernel", "statistics_kernel", "gradient_kernel"}
KERNELS |= {"swiglu_kernel", "swiglu_backward_kernel", "weighted_kernel", "weighted_backward_kernel", "rotate_kernel"}


@pytest.mark.parametrize(
    ("capability", "dtype", "width"),
    [
        (H100, "bf16", 4096),
        *(pytest.param(*more, marks=pytest.mark.rest) for more in ((A100, "bf16", 16384), (H100, "fp32", 576))),
    ],
)
def test_kernels_compile_for_a_gpu_that_is_not_here(tmp_path: Path, capability: int, dtype: str, width: int) -> None:
    """A thread's registers hold all but a few of its numbers."""
    command = [sys.executable, "-m", "tests.support.compile_fused", str(capability), dtype, str(width)]
    spilled = json.loads(run_without_pytest(command, {"TRITON_CACHE_DIR": str(tmp_path)}).stdout)
    assert set(spilled) == KERNELS
    assert max(spilled.values()) <= 16


@pytest.mark.parametrize(
    ("checks", "chosen", "number"),
    [
        ("norm_checks.py", "not rest", 3),
        ("loss_checks.py", "not rest", 3),
        ("pointwise_checks.py", "not rest", 2),
        pytest.param("norm_checks.py", "rest", 4, marks=pytest.mark.rest),
        pytest.param("loss_checks.py", "rest", 1, marks=pytest.mark.rest),
    ],
)
def test_kernels_equal_fp64(tmp_path: Path, checks: str, chosen: str, number: int) -> None:
    interpreted = "0" if torch.cuda.is_available() else "1"
    path = Path(__file__).with_name(checks)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", chosen, str(path)]
    done = run_without_pytest(command, {"TRITON_INTERPRET": interpreted, "TRITON_CACHE_DIR": str(tmp_path)})
    assert f"{number} passed" in done.stdout
