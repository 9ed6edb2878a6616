"""Overrides of a software profile: its GEMM dtype, its context, its allocator's fragmentation."""

from dataclasses import replace

import pytest

import fourfold as ff
from fourfold.config import ModelSection, UserError
from fourfold.config.schema import PrecisionSection
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.model.work import Attention, Gemm
from fourfold.plan.candidate import Candidate
from fourfold.plan.pricing import Pricer
from fourfold.plan.request import Request
from fourfold.plan.search import search
from fourfold.simulate.run_prices import NO_OVERRIDES, SoftwareOverrides, software_named

MODEL = resolve_model(ModelSection(preset="llama3-8b"))
GEMM, SCORES = Gemm(8192, 4096, 14336), Attention(1, 8192, 8192, 32, 8, 128, 128)


def asked(
    software_overrides: SoftwareOverrides = NO_OVERRIDES, cluster: str = "dgx-h100:8", dtype: str = "bf16"
) -> Request:
    precision = PrecisionSection(compute=dtype)
    return Request.of(MODEL, load_cluster(cluster), 8192, 64, precision, software_overrides=software_overrides)


def test_low_precision_gemms_are_faster_and_nothing_else_is() -> None:
    plain, low = asked().template, asked(SoftwareOverrides(gemm_dtype="fp8")).template
    assert low.kernel(GEMM) < 0.8 * plain.kernel(GEMM)
    assert low.kernel(SCORES) == plain.kernel(SCORES)
    assert low.plain.kernel(GEMM) == plain.kernel(GEMM), "the head's"


def test_a_gradient_is_added_in_a_pass_of_its_own_where_formats_differ() -> None:
    """This project's matmuls add themselves to a sum of their own format."""
    gradient = replace(GEMM, accumulates=True)
    template = asked().template
    added = template.software.gradient_bytes * gradient.rows * gradient.columns
    extra = template.kernel(gradient) - template.kernel(GEMM)
    assert extra == pytest.approx(
        added / (template.cluster.device.memory_bytes_per_second * template.kernels.memory_share)
    )
    alike = Request.of(
        MODEL, load_cluster("dgx-h100:8"), 8192, 64, PrecisionSection(compute="bf16", gradients="bf16")
    ).template
    assert alike.software.gradient_bytes == 0.0 < template.software.gradient_bytes


def test_scales_of_blocks_cost_more() -> None:
    tensors, blocks = (asked(SoftwareOverrides(gemm_dtype=each)).template.kernel(GEMM) for each in ("fp8", "fp8-block"))
    assert blocks > tensors
    narrow = asked(SoftwareOverrides(gemm_dtype="nvfp4"), "dgx-b200:8").template.kernel(GEMM)
    assert narrow < asked(SoftwareOverrides(gemm_dtype="mxfp8"), "dgx-b200:8").template.kernel(GEMM)


def test_attention_of_the_run_files_software_is_priced_as_it_states() -> None:
    """Scores that are written cost time and, unless they are computed again, memory; another software has its own attention."""
    stated = ("flash", "unfused", "recomputed")
    flash, unfused, recomputed = (ff.simulate("preset:gpt3-175b", f"cluster.attention={each}") for each in stated)
    assert flash.step_seconds < unfused.step_seconds < recomputed.step_seconds
    assert flash.memory_bytes == recomputed.memory_bytes < unfused.memory_bytes
    same = ff.simulate("preset:gpt3-175b", "cluster.attention=flash", software="nemo").step_seconds
    assert ff.simulate("preset:gpt3-175b", software="nemo").step_seconds == same
    with pytest.raises(UserError, match="fourfold writes no matrix of scores"):
        ff.simulate("preset:gpt3-175b", "cluster.software=fourfold")


@pytest.mark.parametrize(
    "software_overrides",
    [SoftwareOverrides(gemm_dtype="fp8"), SoftwareOverrides(context_bytes=4 * 10**9, fragmentation=0.2)],
)
def test_bounds_hold_and_the_search_keeps_the_overrides(software_overrides: SoftwareOverrides) -> None:
    found = search(asked(software_overrides), keep=10)
    assert all(each.bound_seconds <= each.seconds * 1.001 for each in found.best)
    assert all(each.memory_bytes <= asked().memory_bytes for each in found.best)
    assert found.best[0].seconds != search(asked(), keep=1).best[0].seconds
    assert found.request.on(load_cluster("dgx-h100:16")).software == found.request.software


def test_context_and_fragmentation_come_upon_what_the_program_holds() -> None:
    layout = Candidate(1, 1, "ring", 1, 1, 1, "none", 1, "1f1b", 1, 1, 8, 3)
    own = software_named(None)
    usual, more = (
        Pricer(asked(software_overrides)).predict(layout)
        for software_overrides in (NO_OVERRIDES, SoftwareOverrides(None, 3 * 10**9, 0.5))
    )
    (program,) = {peak.bytes for peak in usual.simulation.peaks}
    assert usual.device_bytes == (int(program * (1 + own.fragmentation)) + int(own.context_bytes),)
    assert more.device_bytes == (int(program * 1.5) + 3 * 10**9,)


@pytest.mark.parametrize(
    ("software_overrides", "cluster", "dtype", "part"),
    [
        (
            SoftwareOverrides(gemm_dtype="fp8"),
            "dgx-a100:8",
            "bf16",
            "has no such matmuls; it has none below 16 bits",
        ),
        (SoftwareOverrides(gemm_dtype="nvfp4"), "dgx-h100:8", "bf16", "allowed there: fp8, fp8-block, mxfp8"),
        (SoftwareOverrides(gemm_dtype="fp8"), "dgx-h100:8", "fp32", "this one is in fp32"),
    ],
)
def test_gemm_dtypes_that_a_device_does_not_have_are_refused(
    software_overrides: SoftwareOverrides, cluster: str, dtype: str, part: str
) -> None:
    with pytest.raises(UserError) as error:
        asked(software_overrides, cluster, dtype)
    assert part in str(error.value)


def test_no_overrides_change_nothing() -> None:
    software = software_named("megatron-2025")
    assert NO_OVERRIDES.applied_to(software) == software
    assert SoftwareOverrides(fragmentation=0.1).applied_to(software) == replace(software, fragmentation=0.1)
