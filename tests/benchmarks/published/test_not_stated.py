"""A setting that a row leaves open is the trainer's usual one, or the least that fits; what no step can tell is not asked."""

from dataclasses import replace

import pytest

from case import PublishedCase, Skip
from fourfold.config.kernel_choice import KernelChoice
from fourfold.cost.fitted import fitted
from fourfold.model.counts import num_parameters
from normalise import normalise
from row import StatedLayout
from settle import predict_case, settle
from tests.support.published import ROWS


def test_fsdp_without_a_stated_microbatch_runs_all_of_a_ranks_sequences() -> None:
    row = replace(ROWS["torchtitan:6"], microbatch_sequences=None, global_sequences=32)
    assert normalise(row).layout.microbatch_sequences == 4  # type: ignore[union-attr]
    many = replace(row, global_sequences=8 * 24, sequence_length=4096)
    assert normalise(many).layout.microbatch_sequences == 8  # type: ignore[union-attr]
    assert normalise(replace(many, sequence_length=8192)).layout.microbatch_sequences == 4  # type: ignore[union-attr]
    pipeline = replace(ROWS["torchtitan:13"], microbatch_sequences=None)
    assert normalise(pipeline).layout.microbatch_sequences == 1  # type: ignore[union-attr]


def _case(name: str, **changes: object) -> PublishedCase:
    case = normalise(replace(ROWS[name], **changes))  # type: ignore[arg-type]
    assert isinstance(case, PublishedCase)
    return case


def test_megatron_without_a_pipeline_runs_all_of_a_ranks_sequences_but_of_experts() -> None:
    row = ROWS["papers:0"]
    flat = replace(row.layout, pp=1, dp=None)
    open_ = {"layout": flat, "microbatch_sequences": None, "global_sequences": 4 * 64}
    assert _case("papers:0", **open_).layout.microbatch_sequences == 4
    experts = replace(row.model, num_experts=8, top_k=2, moe_ffn_size=row.model.ffn_size)
    assert _case("papers:0", **open_, model=experts).layout.microbatch_sequences == 1
    assert _case("papers:0", microbatch_sequences=None).layout.microbatch_sequences == 1, "a pipeline wants many"


def test_a_trainer_that_nobody_names_is_known_by_what_it_does() -> None:
    nobody = {"source": "a report, arXiv 2403.01234", "notes": ""}
    many = _case("papers:0", **nobody)
    assert many.software == "megatron"
    assert any(text.startswith("software = megatron-2024: ") for text in many.defaults)
    few = replace(ROWS["papers:0"].layout, tp=8, pp=1, dp=None)
    assert _case("papers:0", **nobody, layout=few, num_devices=32, global_sequences=64).software == "unknown"
    plain = replace(ROWS["papers:0"].layout, tp=1, pp=1, dp=None)
    assert _case("papers:0", **nobody, layout=plain, global_sequences=2048).software == "unknown"
    fsdp = replace(ROWS["papers:0"].layout, fsdp=True, zero=None)
    assert _case("papers:0", **nobody, layout=fsdp).software == "unknown"
    tpu = replace(ROWS["papers:0"].hardware, device="TPU v5p", devices_per_node=4, peak_bf16_flops=None)
    assert _case("papers:0", **nobody, hardware=tpu).software == "maxtext"
    assert _case("papers:0", **nobody, hardware=tpu, layout=fsdp).software == "maxtext"
    assert _case("papers:0", source="a blog").software == "megatron"


def test_maxtext_on_gpus_has_their_links() -> None:
    row = replace(ROWS["vendor:10"], source="MaxText, 2026")
    tpu = replace(row.hardware, device="TPU v5p", devices_per_node=4)
    cases = [normalise(row), normalise(replace(row, hardware=tpu))]
    assert [case.software for case in cases if isinstance(case, PublishedCase)] == ["maxtext-gpu", "maxtext"]


def test_a_distributed_optimizer_that_is_spoken_of_is_zero_1() -> None:
    old = {"source": "Megatron-LM of 2022", "layout": replace(ROWS["papers:0"].layout, zero=None)}
    assert _case("papers:0", **old).layout.zero == 0
    assert _case("papers:0", **old, notes="with the distributed optimizer").layout.zero == 1
    assert _case("papers:0", **old, notes="no distributed optimizer").layout.zero == 0


def test_an_mfu_whose_peak_is_not_stated_is_of_the_devices_own() -> None:
    figures = replace(ROWS["papers:0"].figures, mfu=0.4, flops_per_second_per_device=None)
    stated = _case("papers:0", figures=figures)
    silent = _case("papers:0", figures=figures, hardware=replace(ROWS["papers:0"].hardware, peak_bf16_flops=None))
    assert silent.measured.step_from == "mfu"
    assert silent.measured.step_seconds == pytest.approx(stated.measured.step_seconds)


def test_a_microbatch_that_is_not_stated_is_as_large_as_fits() -> None:
    row = replace(
        ROWS["torchtitan:1"], microbatch_sequences=None, accumulation=None, global_sequences=64, recompute="none"
    )
    case = normalise(row)
    assert isinstance(case, PublishedCase)
    assert (case.microbatch_open, case.layout.microbatch_sequences, case.layout.num_microbatches) == (True, 8, 1)
    settled, found = settle(case, fitted())
    assert found.fits
    layout = settled.layout
    assert 1 <= layout.microbatch_sequences < 8
    assert layout.microbatch_sequences * layout.num_microbatches == 8
    twice = replace(
        layout, microbatch_sequences=2 * layout.microbatch_sequences, num_microbatches=layout.num_microbatches // 2
    )
    assert predict_case(replace(case, layout=twice, microbatch_open=False)).fits is False
    assert not normalise(replace(row, microbatch_sequences=8)).microbatch_open  # type: ignore[union-attr]


def test_activations_in_the_hosts_memory_leave_the_time_predicted_and_no_memory() -> None:
    kept = normalise(replace(ROWS["torchtitan:6"], recompute="full, except the block's input, kept (in host memory)"))
    assert isinstance(kept, PublishedCase)
    assert kept.offloaded == "activations"
    found = predict_case(kept)
    assert found.step_seconds
    assert (found.memory_bytes, found.fits) == (None, None)


def test_an_optimizer_in_the_hosts_memory_adds_its_traffic_and_parameters_there_are_refused() -> None:
    row = replace(ROWS["torchtitan:6"], notes="ZeRO-Offload: optimizer offloaded to the host")
    case = normalise(row)
    assert isinstance(case, PublishedCase)
    assert case.offloaded == "optimizer"
    here, there = predict_case(replace(case, offloaded=None)), predict_case(case)
    traffic = num_parameters(case.model) / case.num_devices * 16 / 25e9
    assert there.step_seconds == pytest.approx(here.step_seconds + traffic, rel=0.01)
    assert there.memory_bytes is None
    both = normalise(replace(row, notes="parameters and the optimizer are offloaded"))
    assert isinstance(both, Skip)
    assert "offloaded" in both.reason


def test_a_batch_that_is_not_stated_is_half_a_million_tokens() -> None:
    row = replace(
        ROWS["torchtitan:6"], global_sequences=None, accumulation=None, microbatch_sequences=2, sequence_length=4096
    )
    case = normalise(row)
    assert isinstance(case, PublishedCase)
    assert case.tokens == 2**19
    assert case.layout.num_microbatches == 2**19 // (4096 * 2 * case.layout.dp)
    seconds = replace(row, figures=replace(row.figures, step_seconds=2.0))
    assert "global batch" in normalise(seconds).reason, "a stated time is of a batch that nobody knows"  # type: ignore[union-attr]


def test_sharding_that_is_not_stated_is_the_least_that_fits() -> None:
    stated = ROWS["torchtitan:1"]
    row = replace(
        stated,
        source="a trainer, 2024",
        layout=StatedLayout(tp=1, pp=1),
        recompute="full",
        microbatch_sequences=1,
        global_sequences=8,
    )
    case = normalise(row)
    assert isinstance(case, PublishedCase)
    assert (case.zero_open, case.layout.zero) == (True, 0)
    settled, found = settle(case, fitted())
    assert found.fits
    assert settled.layout.zero == 1
    full = normalise(replace(row, layout=StatedLayout(tp=1, pp=1, zero=0)))
    assert isinstance(full, PublishedCase)
    assert settle(full, fitted())[1].fits is False


def test_recomputation_that_is_not_stated_is_selective_where_full_would_be_needed() -> None:
    stated, layout = ROWS["torchtitan:1"], StatedLayout(tp=1, pp=1, cp=8)
    row = replace(stated, layout=layout, recompute=None, global_sequences=1, microbatch_sequences=1)

    def settled(sequence_length: int) -> tuple[str, int, bool | None]:
        case = normalise(replace(row, sequence_length=sequence_length, source="a trainer, 2024"))
        assert isinstance(case, PublishedCase)
        case, found = settle(case, fitted())
        return case.layout.recompute, case.layout.zero, found.fits

    assert settled(8192)[0] == "none"
    assert settled(262_144) == ("selective", 3, True), "parameters are sharded over the ranks of context parallelism"


def test_where_scores_are_written_megatron_makes_them_again_before_anything_else() -> None:
    row = replace(ROWS["vendor:0"], recompute=None)
    case = normalise(row)
    assert isinstance(case, PublishedCase)
    assert (case.kernels.attention, case.layout.recompute, case.even_stages) == ("flash", "none", True)

    def settled(attention: str, room: float) -> tuple[tuple[str, ...], float]:
        hardware = replace(case.hardware, memory_bytes=int(room))
        smaller, found = settle(
            replace(case, kernels=KernelChoice.model_validate({"attention": attention}), hardware=hardware), fitted()
        )
        return smaller.layout.recompute_modules, found.memory_bytes or 0.0

    (no_full, full), (no_flash, held) = settled("unfused", 1e15), settled("flash", 1e15)
    assert no_full == no_flash == ()
    assert full > 1.2 * held
    assert settled("unfused", 0.5 * (full + held)) == (("core_attn",), pytest.approx(held, rel=0.01))
    assert "core_attn" in settled("unfused", 0.5 * held)[0]
    assert "core_attn" not in settled("flash", 0.5 * held)[0]


def test_unbalanced_routing_is_not_asked() -> None:
    row = ROWS["vendor:0"]
    skip = normalise(replace(row, notes="UNBALANCED routing (not forced)"))
    assert isinstance(skip, Skip)
    assert "unbalanced" in skip.reason
    assert isinstance(normalise(replace(row, notes="real data, natural routing")), Skip)
    assert isinstance(normalise(replace(row, notes="forced balanced routing")), PublishedCase)
