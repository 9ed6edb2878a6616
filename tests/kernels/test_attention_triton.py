"""The Triton kernels: run by Triton's interpreter, and compiled by its compiler for GPUs that are not here."""

import json
import sys
from pathlib import Path

import pytest
import torch

from tests.support.subprocesses import run_without_pytest

pytest.importorskip("triton", reason="Triton is not installed")
A100, H100 = 80, 90
SHARED = {A100: 163 * 1024, H100: 227 * 1024}
"""Bytes of shared memory that one program may take, by compute capability."""


@pytest.mark.parametrize(
    ("capability", "dtype", "widths"),
    [
        pytest.param(H100, "bf16", (128, 128), id="H100, bf16", marks=pytest.mark.rest),
        *(
            pytest.param(capability, dtype, widths, marks=pytest.mark.sweep, id=f"sm_{capability}, {dtype}, {widths}")
            for capability in SHARED
            for dtype in ("bf16", "fp32")
            for widths in ((64, 64), (128, 128), (192, 128))
        ),
    ],
)
def test_kernels_compile_for_a_gpu_that_is_not_here(
    tmp_path: Path, capability: int, dtype: str, widths: tuple[int, int]
) -> None:
    """Which is all that can be known of them here."""
    command = [sys.executable, "-m", "tests.support.compile_kernels", str(capability), dtype, *map(str, widths)]
    done = run_without_pytest(command, {"TRITON_CACHE_DIR": str(tmp_path)})
    shared = json.loads(done.stdout)
    assert set(shared) == {"forward_kernel", "keys_kernel", "queries_kernel"}
    assert max(shared.values()) <= SHARED[capability]


@pytest.mark.parametrize(("chosen", "number"), [("not rest", 5), pytest.param("rest", 13, marks=pytest.mark.rest)])
def test_kernels_equal_attention_with_a_mask(tmp_path: Path, chosen: str, number: int) -> None:
    interpreted = "0" if torch.cuda.is_available() else "1"
    checks = Path(__file__).with_name("attention_checks.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", chosen, str(checks)]
    done = run_without_pytest(command, {"TRITON_INTERPRET": interpreted, "TRITON_CACHE_DIR": str(tmp_path)})
    assert f"{number} passed" in done.stdout
