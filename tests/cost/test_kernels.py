"""Laws of kernels: none is faster than its device's peak or memory; shapes that fill it are faster than those that do not."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.cost.kernels import Kernels, attention_seconds, gemm_seconds, kernel_bytes, kernel_seconds, pass_seconds
from fourfold.hardware import load_device
from fourfold.model.work import Attention, Elementwise, Gemm

H100 = load_device("h100-sxm")
KERNELS = Kernels()
SIZES = st.integers(1, 40_000)


@settings(max_examples=100, deadline=None)
@given(SIZES, SIZES, SIZES, st.booleans(), st.sampled_from((1, 1, 8)))
def test_a_matmul_is_no_faster_than_peak_and_memory(m: int, n: int, k: int, adds: bool, groups: int) -> None:
    gemm = Gemm(m * groups, n, k * groups if adds else k, adds, groups)
    seconds = gemm_seconds(gemm, H100, KERNELS, "bf16", 2)
    assert seconds >= gemm.flops / H100.peak("bf16")
    assert seconds >= 2 * m * n / H100.memory_bytes_per_second


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 200))
def test_a_larger_matmul_takes_no_less(m: int, n: int, k: int) -> None:
    def seconds(m: int, n: int, k: int) -> float:
        return gemm_seconds(Gemm(128 * m, 128 * n, 128 * k), H100, KERNELS, "bf16", 2)

    one = seconds(m, n, k)
    assert min(seconds(2 * m, n, k), seconds(m, 2 * n, k), seconds(m, n, 2 * k)) >= one * (1 - 1e-9)


def test_one_large_matmul_is_faster_than_its_parts() -> None:
    full = gemm_seconds(Gemm(8192, 8192, 8192), H100, KERNELS, "bf16", 2)
    parts = 64 * gemm_seconds(Gemm(128, 8192, 8192), H100, KERNELS, "bf16", 2)
    assert full < parts
    experts = gemm_seconds(Gemm(8192, 8192, 8192, groups=64), H100, KERNELS, "bf16", 2)
    assert full < experts


def test_a_large_matmul_reaches_the_fitted_share() -> None:
    gemm = Gemm(16384, 16384, 16384)
    share = gemm.flops / H100.peak("bf16") / gemm_seconds(gemm, H100, KERNELS, "bf16", 2)
    assert share == pytest.approx(KERNELS.gemm_share, rel=0.02)


def test_low_precision_is_faster_on_large_matmuls_and_cost_conversions() -> None:
    large = Gemm(16384, 16384, 16384)
    assert kernel_seconds(large, H100, KERNELS, "fp8", "bf16", 2) < kernel_seconds(
        large, H100, KERNELS, "bf16", "bf16", 2
    )
    thin = Gemm(16384, 128, 16384)
    assert kernel_seconds(thin, H100, KERNELS, "fp8", "bf16", 2) > kernel_seconds(
        thin, H100, KERNELS, "bf16", "bf16", 2
    )


@pytest.mark.parametrize("groups", [1, 8])
def test_a_gradient_that_is_added_in_a_pass_of_its_own_costs_that_pass_whatever_the_tokens(groups: int) -> None:
    separate = replace(KERNELS, gradient_bytes=10.0)

    def seconds(tokens: int, kernels: Kernels, adds: bool = True) -> float:
        gemm = Gemm(4096 * (1 if adds else groups), 8192, tokens * groups, adds, groups)
        return kernel_seconds(gemm, H100, kernels, "bf16", "bf16", 2)

    added = 10 * groups * 4096 * 8192 / (H100.memory_bytes_per_second * KERNELS.memory_share)
    for tokens in (2048, 16384):
        assert seconds(tokens, separate) - seconds(tokens, KERNELS) == pytest.approx(added)
    assert seconds(2048, separate, adds=False) == seconds(2048, KERNELS, adds=False), "a product of tokens is stored"


@pytest.mark.parametrize("backward", [False, True])
def test_attention_is_no_faster_than_peak_and_written_scores_are_slower(backward: bool) -> None:
    attention = Attention(1, 8192, 8192, 32, 8, 128, 128, backward)
    flash = attention_seconds(attention, H100, KERNELS, "bf16", 2)
    written = attention_seconds(attention, H100, replace(KERNELS, fused_attention=False), "bf16", 2)
    again = attention_seconds(
        attention, H100, replace(KERNELS, fused_attention=False, attention_recomputed=True), "bf16", 2
    )
    assert attention.flops / H100.peak("bf16") < flash < written <= again
    assert (again > written) == backward


@pytest.mark.parametrize("backward", [False, True])
def test_written_scores_cost_more_dropped_out_and_in_fp32(backward: bool) -> None:
    attention, written = Attention(1, 8192, 8192, 32, 8, 128, 128, backward), replace(KERNELS, fused_attention=False)
    plain, dropped, fp32 = (
        attention_seconds(attention, H100, replace(written, attention_dropout=dropout, fp32_scores=fp32), "bf16", 2)
        for dropout, fp32 in ((False, False), (True, False), (False, True))
    )
    passes = 7 if backward else 4
    one = 32 * 8192**2 * 2 / (H100.memory_bytes_per_second * KERNELS.memory_share)
    assert dropped - plain == pytest.approx(3 * one)
    assert fp32 - plain == pytest.approx(passes * one)


def test_backward_of_attention_does_five_matmuls_for_two() -> None:
    forward, backward = (Attention(1, 4096, 4096, 8, 8, 128, 128, b) for b in (False, True))
    assert backward.flops == pytest.approx(2.5 * forward.flops)


def test_fused_passes_move_the_least() -> None:
    item = Elementwise(8_000_000, 2_000_000, launches=4)
    times = [pass_seconds(item, H100, replace(KERNELS, fused=fused)) for fused in (0.0, 0.5, 1.0)]
    assert times == sorted(times, reverse=True)
    assert times[2] == pytest.approx(2e6 / (H100.memory_bytes_per_second * KERNELS.memory_share))
    assert kernel_seconds(Elementwise(8, 8, 0), H100, KERNELS, "bf16", "bf16", 2) < KERNELS.launch_seconds


@pytest.mark.parametrize(
    "item",
    [
        Gemm(64, 4096, 64),
        Gemm(4096, 4096, 64, accumulates=True),
        Elementwise(10**9, 10**8, 3),
        Attention(1, 64, 64, 32, 8, 128, 128),
    ],
)
@pytest.mark.parametrize("gemm_dtype", ["bf16", "fp8"])
def test_no_kernel_moves_its_bytes_faster_than_memory(item: Gemm | Attention | Elementwise, gemm_dtype: str) -> None:
    moved = kernel_bytes(item, KERNELS, gemm_dtype, "bf16", 2)
    seconds = kernel_seconds(item, H100, KERNELS, gemm_dtype, "bf16", 2)
    assert seconds >= moved / (H100.memory_bytes_per_second * KERNELS.memory_share)
    alone = replace(KERNELS, launch_seconds=0.0)
    if isinstance(item, Elementwise):
        rate = H100.memory_bytes_per_second * KERNELS.memory_share
        assert kernel_seconds(item, H100, alone, gemm_dtype, "bf16", 2) == pytest.approx(moved / rate)
