"""Overrides of a software profile: its GEMM dtype, its context, its allocator's fragmentation."""

from dataclasses import replace

import pytest

import fourfold as ff
from fourfold.config import ModelSection, UserError
from fourfold.config.schema import GemmDtype, PrecisionSection
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.model.recorded_rank import RecordedRank
from fourfold.model.work import Attention, Elementwise, Gemm
from fourfold.plan.candidate import Candidate
from fourfold.plan.pricing import Pricer, candidate_spec
from fourfold.plan.request import Request
from fourfold.plan.search import search
from fourfold.plan.space import block_shapes
from fourfold.simulate.run_prices import NO_OVERRIDES, SoftwareOverrides, software_named

MODEL = resolve_model(ModelSection(preset="llama3-8b"))
GEMM, SCORES = Gemm(8192, 4096, 14336), Attention(1, 8192, 8192, 32, 8, 128, 128)


def asked(
    software_overrides: SoftwareOverrides = NO_OVERRIDES,
    cluster: str = "dgx-h100:8",
    dtype: str = "bf16",
    software: str | None = None,
) -> Request:
    precision = PrecisionSection(compute=dtype)
    return Request.of(
        MODEL, load_cluster(cluster), 8192, 64, precision, software, software_overrides=software_overrides
    )


def test_low_precision_gemms_are_faster_and_nothing_else_is() -> None:
    plain, low = (
        asked(each, software="megatron-2025").template for each in (NO_OVERRIDES, SoftwareOverrides(gemm_dtype="fp8"))
    )
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
    def seconds(gemm_dtype: GemmDtype, cluster: str) -> float:
        return asked(SoftwareOverrides(gemm_dtype=gemm_dtype), cluster, "bf16", "megatron-2025").template.kernel(GEMM)

    assert seconds("fp8-block", "dgx-h100:8") > seconds("fp8", "dgx-h100:8")
    assert seconds("nvfp4", "dgx-b200:8") < seconds("mxfp8", "dgx-b200:8")


def test_attention_of_the_run_files_software_is_priced_as_it_states() -> None:
    """Scores that are written cost time and, unless they are computed again, memory; another software has its own attention."""
    stated = ("flash", "unfused", "recomputed")
    flash, unfused, recomputed = (ff.simulate("preset:gpt3-175b", f"cluster.attention={each}") for each in stated)
    assert flash.step_seconds < unfused.step_seconds < recomputed.step_seconds
    assert flash.memory_bytes == recomputed.memory_bytes < unfused.memory_bytes
    same = ff.simulate("preset:gpt3-175b", "cluster.attention=flash", software="nemo").step_seconds
    assert ff.simulate("preset:gpt3-175b", software="nemo").step_seconds == same
    with pytest.raises(
        UserError, match="fourfold's own program says what runs; allowed with its own software: attention=flash"
    ):
        ff.simulate("preset:gpt3-175b", "cluster.software=fourfold")


@pytest.mark.parametrize(
    "software_overrides",
    [SoftwareOverrides(gemm_dtype="fp8"), SoftwareOverrides(context_bytes=4 * 10**9, fragmentation=0.2)],
)
def test_bounds_hold_and_the_search_keeps_the_overrides(software_overrides: SoftwareOverrides) -> None:
    found = search(asked(software_overrides), keep=10, fixed={"cp": 1})
    assert all(each.bound_seconds <= each.seconds * 1.001 for each in found.best)
    assert all(each.memory_bytes <= asked().memory_bytes for each in found.best)
    assert found.best[0].seconds != search(asked(), keep=1, fixed={"cp": 1}).best[0].seconds
    assert found.request.on(load_cluster("dgx-h100:16")).software == found.request.software


def test_context_and_fragmentation_come_upon_what_the_program_holds() -> None:
    layout = Candidate(recompute="none", virtual_stages=1, dp_shard=8, zero=3)
    own = software_named(None)
    usual, more = (
        Pricer(asked(software_overrides)).predict(layout)
        for software_overrides in (NO_OVERRIDES, SoftwareOverrides(None, 3 * 10**9, 0.5))
    )
    (program,) = {peak.bytes for peak in usual.simulation.peaks}
    beside = int(own.context_bytes) + int(own.communicator_bytes)  # one communicator, of all ranks
    assert usual.device_bytes == (int(program * (1 + own.fragmentation)) + beside,)
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


@pytest.mark.parametrize("recipe", ["fp8", "fp8-block"])
def test_fourfolds_own_matmuls_are_priced_as_they_run(recipe: GemmDtype) -> None:
    """The option is the run file's key: quantization has kernels of its own, and the matmuls that state the recipe are faster."""
    low = asked(SoftwareOverrides(gemm_dtype=recipe))
    assert (low.precision.gemm_dtype, low.software_overrides.gemm_dtype) == (recipe, None)
    assert (
        low.template
        == Request.of(
            MODEL, load_cluster("dgx-h100:8"), 8192, 64, PrecisionSection(compute="bf16", gemm_dtype=recipe)
        ).template
    )
    plain = asked().template
    assert low.template.kernel(replace(GEMM, dtype=recipe)) < 0.8 * plain.kernel(GEMM)
    layout = Candidate(recompute="none", virtual_stages=1, dp_shard=8, zero=3)
    block = next(each for each in candidate_spec(low, layout).segments if each.kind == "block")
    work = RecordedRank(block, MODEL, candidate_spec(low, layout).shape).footprint("none").forward
    quantized = [each for each in work.items if isinstance(each, Elementwise) and each.part == "quantized"]
    gemms = [each.dtype for each in work.items if isinstance(each, Gemm)]
    assert gemms == [recipe] * 4
    assert len(quantized) >= 8
    seconds = sum(low.template.kernel(each) for each in quantized)
    assert Pricer(low).predict(layout).seconds < Pricer(asked()).predict(layout).seconds
    assert seconds > 0


@pytest.mark.parametrize(
    ("cluster", "recipe", "part"),
    [
        ("dgx-h100:8", "mxfp8", "has no such matmuls in torch; allowed there: fp8, fp8-block"),
        ("dgx-b200:8", "fp8-block", "has no such matmuls in torch; allowed there: fp8, mxfp8"),
        ("dgx-b200:8", "nvfp4", "fourfold has no such matmuls; allowed: fp8, fp8-block, mxfp8"),
    ],
)
def test_what_cannot_be_run_is_not_priced(cluster: str, recipe: GemmDtype, part: str) -> None:
    with pytest.raises(UserError, match=part):
        asked(SoftwareOverrides(gemm_dtype=recipe), cluster)


def test_the_search_keeps_numbers_that_share_a_scale_on_one_rank() -> None:
    """Heads of 128 features: a rank has a multiple of 128 of them, of the feed-forward (14,336) from tp 64 on not."""
    asked_for = asked(SoftwareOverrides(gemm_dtype="fp8-block"), "dgx-h100:64")
    found = {(shape.tp, shape.cp) for shape in block_shapes(asked_for)}
    every = {(shape.tp, shape.cp) for shape in block_shapes(asked(cluster="dgx-h100:64"))}
    assert {cp for tp, cp in every - found if tp == 1} == {64}, "8,192 / 128 tokens lie together, 64"
    assert (1, 32) in found
