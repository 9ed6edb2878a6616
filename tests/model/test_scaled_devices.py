"""Which low-precision matmuls a CUDA device has, by its compute capability; what the planner knows of devices agrees."""

from unittest.mock import patch

import pytest
import torch

from fourfold.config import UserError
from fourfold.hardware import load_device
from fourfold.model.low_precision import GemmRecipe, Operand, ScaleTile
from fourfold.model.torch_scaled import SCALE_ALIGNMENT, check_kernels, multiplied_on, scales_of

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
    """Both scales of a product travel in one tensor, the second 4 bytes behind the first."""
    both = torch.tensor([[2.0, 0.5]])
    for place, value in ((both[:, :1], 2.0), (both[:, 1:], 0.5)):
        scale = scales_of(Operand(torch.zeros(16, 16), place, ScaleTile(None, None)), "fp8")
        assert (scale.data_ptr() % SCALE_ALIGNMENT, scale.item(), scale.shape) == (0, value, ())
