"""Which low-precision matmuls a CUDA device has, by its compute capability; what the planner knows of devices agrees."""

from unittest.mock import patch

import pytest
import torch

from fourfold.config import UserError
from fourfold.hardware import load_device
from fourfold.model import torch_operations
from fourfold.model.low_precision import ACTIVATION, WEIGHT, GemmRecipe, common_scales
from fourfold.model.torch_scaled import check_kernels, multiplied_on

CAPABILITIES = {
    "a100-sxm-80": (8, 0),
    "l40s": (8, 9),
    "rtx-4090": (8, 9),
    "h100-sxm": (9, 0),
    "h200-sxm": (9, 0),
    "b200": (10, 0),
    "b300": (10, 3),
    "gb300": (10, 3),
}


@pytest.mark.parametrize("name", CAPABILITIES)
def test_the_planner_and_the_run_know_the_same(name: str) -> None:
    assert load_device(name).executed_recipes == multiplied_on(CAPABILITIES[name])


def test_amds_devices_before_mi350_have_none() -> None:
    assert multiplied_on((9, 4), rocm=True) == ()
    assert multiplied_on((9, 5), rocm=True) == load_device("mi350x").executed_recipes


@pytest.mark.parametrize(
    ("recipe", "capability", "allowed"),
    [("fp8", (8, 0), "none"), ("mxfp8", (9, 0), "fp8, fp8-block"), ("fp8-block", (10, 0), "fp8, mxfp8")],
)
def test_a_run_on_a_device_without_them_is_refused(recipe: str, capability: tuple[int, int], allowed: str) -> None:
    device = torch.device("cuda", 0)
    with (
        patch.object(torch.cuda, "get_device_capability", return_value=capability),
        patch.object(torch.cuda, "get_device_name", return_value="a device"),
    ):
        with pytest.raises(UserError, match=f"gemm_dtype = '{recipe}'.*allowed there: {allowed}; what works: leave it"):
            check_kernels(GemmRecipe(recipe, kernels=True), device)  # type: ignore[arg-type]
        check_kernels(GemmRecipe(recipe), device)  # type: ignore[arg-type]
        check_kernels(None, device)


def test_a_scale_lies_where_cublas_reads_one() -> None:
    """At a multiple of 16 bytes, though both scales of a product come from one tensor. cuBLAS refuses the matmul of any other (seen
    on an H200 with CUDA 13.0)."""
    given = torch.full((16, 16), 3.0), torch.full((16, 16), 100.0)
    scales = common_scales(torch_operations, given, (ACTIVATION, WEIGHT), None)  # type: ignore[arg-type]
    assert [scale.data_ptr() % 16 for scale in scales] == [0, 0]
    assert [scale.item() for scale in scales] == [2.0**-7, 2.0**-2]
