"""What a row states is taken as stated; what it leaves out is filled by a documented default, and the case says so."""

from dataclasses import replace

import pytest

from fourfold.config import parse_run, resolve_model
from fourfold.config.check_model import check_model
from fourfold.cost.fitted import fitted
from fourfold.layout import resolve_layout
from fourfold.model.spec import num_parameters
from fourfold.program.schedule import check_schedule
from fourfold.validate import DEFAULTS, DEVICE_KEYS, Case, Skip, translate
from fourfold.validate.predict import case_facts, predict_case, settle
from fourfold.validate.row import StatedLayout
from tests.support.published import CASES, ROWS


def _reason(name: str) -> str:
    skip = translate(ROWS[name])
    assert isinstance(skip, Skip)
    return skip.reason


def _filled(name: str, setting: str) -> bool:
    return any(text.startswith(f"{setting} = ") for text in CASES[name].defaults)


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_a_run_that_this_project_accepts(name: str) -> None:
    case, layout = CASES[name], CASES[name].layout
    check_model(case.model)
    check_schedule(layout.schedule, layout.pp, layout.virtual_stages, layout.num_microbatches)
    assert case.device in DEVICE_KEYS
    section = {
        key: getattr(layout, key)
        for key in (
            "pp", "virtual_stages", "schedule", "dp_replicate", "dp_shard", "zero", "cp", "tp", "sequence_parallel", "ep", "etp",
            "microbatch_sequences",
        )
    }  # fmt: skip
    section["recompute"] = layout.policies(case.model.num_layers)
    config = parse_run(
        {
            "model": {"preset": "tiny"},
            "batch": {"global_sequences": case.global_sequences, "sequence_length": case.sequence_length, "steps": 1},
            "layout": section,
        }
    )
    resolved = resolve_layout(config, case.model, case.num_devices)
    assert resolved.num_microbatches == layout.num_microbatches


def test_a_row_that_states_everything_is_taken_as_it_is() -> None:
    case = CASES["sweep:0"]
    assert (case.layout.pp, case.layout.dp, case.layout.tp, case.layout.zero) == (2, 4, 2, 1)
    assert (case.layout.microbatch_sequences, case.layout.num_microbatches) == (2, 32)
    assert case.layout.sequence_parallel
    assert case.model.family == "llama"
    assert case.model.tie_embeddings
    assert case.stack == "nanotron-2025"
    assert case.precision.name == "bf16"
    assert not _filled("sweep:0", "recompute")
    assert not CASES["sweep:1"].layout.sequence_parallel


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("sweep:5", "stages"),
        ("vendor:3", "ep x etp"),
        ("vendor:4", "LoRA"),
        ("vendor:6", "state-space"),
        ("vendor:7", "dimensions"),
        ("papers:7", "layout is not stated"),
        ("papers:8", "neither a step time nor memory"),
        ("papers:10", "no multiple"),
        ("papers:12", "formula"),
        ("papers:13", "one layer"),
        ("papers:14", "device tables"),
        ("papers:15", "offloaded"),
        ("papers:21", "does not divide the heads"),
        ("papers:22", "does not divide 512 devices"),
        ("flags:7", "does not divide 8 devices"),
    ],
)
def test_what_cannot_be_asked_says_why(name: str, word: str) -> None:
    assert word in _reason(name)


def test_every_other_block_has_experts_where_the_model_is_known_to_alternate() -> None:
    model = CASES["vendor:9"].model
    assert [model.is_moe(layer) for layer in range(4)] == [False, True, False, True]
    assert (model.moe_ffn_size, model.num_shared_experts, model.ffn_size) == (8192, 1, 16384)
    weights = 3 * 5120 * (24 * (128 + 1) * 8192 + 24 * 16384) + 2 * 202048 * 5120 + 48 * 2 * 5120 * (5120 + 1024)
    assert num_parameters(model) == pytest.approx(weights, rel=1e-3)


def test_models_by_their_kind() -> None:
    deepseek = CASES["vendor:0"].model
    assert (deepseek.family, deepseek.key_value_rank, deepseek.num_shared_experts) == ("deepseek_v3", 512, 1)
    assert (deepseek.first_dense_layers, deepseek.mtp_layers) == (3, 1)
    assert CASES["vendor:2"].model.mtp_layers == 0, "a row that says without has none"
    gpt = CASES["papers:0"].model
    assert (gpt.family, gpt.norm, gpt.activation, gpt.positions, gpt.linear_bias) == (
        "gpt2",
        "layer",
        "gelu",
        "learned",
        True,
    )
    nemotron = CASES["vendor:10"].model
    assert (nemotron.gated, nemotron.linear_bias, nemotron.positions) == (False, False, "rope")
    assert not CASES["papers:16"].model.linear_bias, "MPT has no biases"
    moonlight = CASES["vendor:8"].model
    assert (moonlight.num_layers, moonlight.num_experts, moonlight.num_shared_experts) == (27, 64, 2)
    latent = CASES["flags:4"].model
    assert (latent.is_latent, latent.norm, latent.positions) == (True, "rms", "rope")


def test_experts_without_a_gate_become_gated_ones_of_as_many_weights() -> None:
    model = CASES["flags:2"].model
    assert (model.gated, model.num_experts, model.top_k) == (True, 8, 2)
    assert 3 * model.moe_ffn_size == pytest.approx(2 * 4 * 512, rel=0.01), "three matrices for two, of 4 x hidden"
    assert any("two thirds" in text for text in CASES["flags:2"].defaults)
    assert CASES["flags:2"].attention_dropout, "it is GPT's kind still"
    shared = replace(ROWS["flags:2"].model, moe_ffn_size=1024, shared_ffn_size=2048)
    case = translate(replace(ROWS["flags:2"], model=shared))
    assert isinstance(case, Case)
    assert case.model.num_shared_experts == 2


def test_a_public_model_is_its_preset() -> None:
    stated = parse_run(
        {"model": {"preset": "deepseek-v3"}, "batch": {"global_sequences": 1, "sequence_length": 1, "steps": 1}}
    )
    preset, ours = resolve_model(stated.model), CASES["vendor:0"].model
    for key in (
        "num_layers",
        "hidden_size",
        "head_dim",
        "num_experts",
        "top_k",
        "moe_ffn_size",
        "query_rank",
        "ffn_size",
    ):
        assert getattr(ours, key) == getattr(preset, key)


def test_vocabularies_are_padded_as_the_trainer_does() -> None:
    assert CASES["vendor:1"].model.vocab_size == 128512, "the least multiple of 128 x 4 from 128256 on"
    assert _filled("vendor:13", "vocab_size")
    assert CASES["flags:0"].model.vocab_size == 50304
    assert CASES["sweep:2"].model.vocab_size == 131072


def test_sharding() -> None:
    hybrid = CASES["vendor:11"].layout
    assert (hybrid.zero, hybrid.dp_shard, hybrid.dp_replicate) == (3, 16, 4)
    assert CASES["papers:16"].layout.zero == 3
    assert CASES["papers:17"].layout.zero == 1, (
        "FSDP that keeps parameters, in a pipeline: gradients are summed once a step"
    )
    assert (CASES["papers:19"].layout.dp_shard, CASES["papers:20"].layout.dp_shard) == (8, 64)
    assert CASES["vendor:10"].layout.zero == 1, "the vendor's recipes shard the optimizer"
    assert _filled("vendor:10", "zero")
    assert CASES["flags:6"].layout.zero == 3
    for source, zero in (("Megatron-LM README, 2022", 0), ("Megatron-LM README, 2024", 1), ("DeepSpeed blog, 2024", 0)):
        row = replace(ROWS["vendor:10"], source=source, notes="")
        assert translate(row).layout.zero == zero  # type: ignore[union-attr]


def test_schedules_in_our_words() -> None:
    names = {"sweep:0": "1f1b", "vendor:1": "interleaved_1f1b", "papers:5": "zb_h1", "papers:18": "dualpipe_v"}
    assert {name: CASES[name].layout.schedule for name in names} == names
    assert CASES["papers:6"].layout.virtual_stages == 6, "(46 blocks + embedding + head) / 8 ranks"
    assert CASES["flags:1"].layout.virtual_stages == 6, "12 layers, 1 a stage, 2 ranks"
    assert CASES["papers:17"].layout.virtual_stages == 3, "(48 blocks + embedding + head) / 16 ranks"


def test_a_schedule_of_parts_of_sequences_is_not_asked() -> None:
    found = translate(replace(ROWS["papers:5"], schedule="Seq1F1B, each sequence cut in 4 parts"))
    assert isinstance(found, Skip)
    assert "cuts sequences into parts" in found.reason


@pytest.mark.parametrize(
    ("words", "framework", "notes", "method"),
    [
        ("", "torchtitan 2025", "", "ring"),
        ("Ulysses", "torchtitan 2025", "", "ulysses"),
        ("a2a", "Megatron-LM 2025", "", "ulysses"),
        ("p2p", "Megatron-LM 2025", "compared with Ulysses", "ring"),
        ("a2a+p2p", "Megatron-LM 2025", "", "ring+ulysses:8"),
        ("all_gather", "Megatron-LM 2025", "", "all_gather"),
        ("", "VeOmni (2025), FSDP2 + Ulysses", "", "ulysses"),
        ("", "DeepSpeed 2025", "no Ulysses here", "ring"),
        ("", "MaxText 2025", "experts by all-to-all", "all_gather"),
        ("zigzag ring, no Ulysses", "torchtitan 2025", "", "ring"),
        ("USP (ulysses 4 x ring 4)", "xDiT 2025", "", "ring+ulysses:4"),
        ("gather KV", "torchtitan 2025", "", "all_gather"),
        ("", "torchtitan 2025", "faster than DeepSpeed-Ulysses by 1.4x", "ring"),
        ("", "torchtitan 2025", "the baseline is DeepSpeed-Ulysses, this row is ring attention", "ring"),
    ],
)
def test_how_sequences_are_split_is_read(words: str, framework: str, notes: str, method: str) -> None:
    row = ROWS["torchtitan:6"]
    layout = replace(row.layout, tp=1, pp=1, dp=1, cp=16, cp_words=words)
    asked = replace(
        row, layout=layout, num_devices=16, framework=framework, notes=notes, source="", sequence_length=65536
    )
    case = translate(replace(asked, global_sequences=1, microbatch_sequences=1, accumulation=1))
    assert isinstance(case, Case), case
    assert case.layout.cp_method == method
    assert case_facts(case).layout.cp_ulysses == {"ulysses": 16, "ring+ulysses:8": 8, "ring+ulysses:4": 4}.get(
        method, 1
    )


def test_recomputation() -> None:
    policies = {name: (c.layout.recompute, c.layout.recompute_modules) for name, c in CASES.items()}
    assert policies["papers:0"] == ("full", ())
    assert policies["papers:1"] == ("full", ()), "Megatron of 2021 recomputes where its paper says nothing"
    assert policies["sweep:0"] == ("none", ())
    assert policies["vendor:0"] == ("none", ())
    assert policies["vendor:8"] == ("selective", ("mla_up_proj", "mlp"))
    assert policies["vendor:10"] == ("selective", ("core_attn",))
    assert policies["flags:5"] == ("selective", ("layernorm", "mlp"))


def test_a_row_that_contradicts_itself_says_so() -> None:
    texts = " ".join(CASES["papers:11"].defaults)
    assert "dp = 16 is stated" in texts
    assert "accumulation = 7 is stated" in texts
    assert CASES["papers:11"].layout.dp == 32
    assert any("step time by tokens" in text for text in CASES["papers:9"].defaults)


def test_batches_are_derived_where_they_can_be() -> None:
    assert CASES["papers:9"].global_sequences == 4 * 12 * 32
    assert CASES["papers:17"].layout.microbatch_sequences == 1
    assert CASES["vendor:13"].num_devices == 64


def test_every_filled_setting_is_documented() -> None:
    for case in CASES.values():
        for text in case.defaults:
            assert text in DEFAULTS.values() or ": " in text or "taken" in text


def test_torchs_fsdp_in_a_pipeline_keeps_parameters_and_whole_gradients() -> None:
    assert CASES["torchtitan:13"].layout.zero == 1
    assert any("sums gradients once a step" in text for text in CASES["torchtitan:13"].defaults)
    assert CASES["torchtitan:6"].layout.zero == 3


def test_selective_recomputation_is_what_the_framework_means_by_it() -> None:
    policies = CASES["torchtitan:1"].layout.policies(6)
    assert policies == ["none", "full"] * 3, "torchtitan: of every other product"
    assert CASES["torchtitan:6"].layout.policies(6) == "full"
    attention = replace(CASES["sweep:0"].layout, recompute="selective", recompute_modules=("core_attn",))
    assert attention.policies(6) == "none", "fused attention keeps no matrix that could be dropped"
    assert replace(attention, recompute_modules=("mlp",)).policies(6) == "selective"


def test_fsdp_without_a_stated_microbatch_runs_all_of_a_ranks_sequences() -> None:
    row = replace(ROWS["torchtitan:6"], microbatch_sequences=None, global_sequences=32)
    assert translate(row).layout.microbatch_sequences == 4  # type: ignore[union-attr]
    many = replace(row, global_sequences=8 * 24, sequence_length=4096)
    assert translate(many).layout.microbatch_sequences == 8  # type: ignore[union-attr]
    assert translate(replace(many, sequence_length=8192)).layout.microbatch_sequences == 4  # type: ignore[union-attr]
    pipeline = replace(ROWS["torchtitan:13"], microbatch_sequences=None)
    assert translate(pipeline).layout.microbatch_sequences == 1  # type: ignore[union-attr]


def _case(name: str, **changes: object) -> Case:
    case = translate(replace(ROWS[name], **changes))  # type: ignore[arg-type]
    assert isinstance(case, Case)
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
    assert many.stack == "megatron-2024"
    assert any(text.startswith("stack = megatron-2024: ") for text in many.defaults)
    few = replace(ROWS["papers:0"].layout, tp=8, pp=1, dp=None)
    assert _case("papers:0", **nobody, layout=few, num_devices=32, global_sequences=64).stack == "unknown-2024"
    plain = replace(ROWS["papers:0"].layout, tp=1, pp=1, dp=None)
    assert _case("papers:0", **nobody, layout=plain, global_sequences=2048).stack == "unknown-2024"
    fsdp = replace(ROWS["papers:0"].layout, fsdp=True, zero=None)
    assert _case("papers:0", **nobody, layout=fsdp).stack == "unknown-2024"
    tpu = replace(ROWS["papers:0"].hardware, device="TPU v5p", devices_per_node=4, peak_bf16_flops=None)
    assert _case("papers:0", **nobody, hardware=tpu).stack == "maxtext-2024"
    assert _case("papers:0", **nobody, hardware=tpu, layout=fsdp).stack == "maxtext-2024"
    assert _case("papers:0", source="a blog").stack == "megatron-2024", "of no year, a recent one"


def test_maxtext_on_gpus_has_their_links() -> None:
    row = replace(ROWS["vendor:10"], source="MaxText, 2026")
    tpu = replace(row.hardware, device="TPU v5p", devices_per_node=4)
    cases = [translate(row), translate(replace(row, hardware=tpu))]
    assert [case.stack for case in cases if isinstance(case, Case)] == ["maxtext-gpu-2026", "maxtext-2026"]


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
    case = translate(row)
    assert isinstance(case, Case)
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
    assert not translate(replace(row, microbatch_sequences=8)).microbatch_open  # type: ignore[union-attr]


def test_activations_in_the_hosts_memory_leave_the_time_predicted_and_no_memory() -> None:
    kept = translate(replace(ROWS["torchtitan:6"], recompute="full, except the block's input, kept (in host memory)"))
    assert isinstance(kept, Case)
    assert kept.offloaded == "activations"
    found = predict_case(kept)
    assert found.step_seconds
    assert (found.memory_bytes, found.fits) == (None, None)


def test_an_optimizer_in_the_hosts_memory_adds_its_traffic_and_parameters_there_are_refused() -> None:
    row = replace(ROWS["torchtitan:6"], notes="ZeRO-Offload: optimizer offloaded to the host")
    case = translate(row)
    assert isinstance(case, Case)
    assert case.offloaded == "optimizer"
    here, there = predict_case(replace(case, offloaded=None)), predict_case(case)
    traffic = num_parameters(case.model) / case.num_devices * 16 / 25e9
    assert there.step_seconds == pytest.approx(here.step_seconds + traffic, rel=0.01)
    assert there.memory_bytes is None
    both = translate(replace(row, notes="parameters and the optimizer are offloaded"))
    assert isinstance(both, Skip)
    assert "offloaded" in both.reason


def test_a_batch_that_is_not_stated_is_half_a_million_tokens() -> None:
    row = replace(
        ROWS["torchtitan:6"], global_sequences=None, accumulation=None, microbatch_sequences=2, sequence_length=4096
    )
    case = translate(row)
    assert isinstance(case, Case)
    assert case.tokens == 2**19
    assert case.layout.num_microbatches == 2**19 // (4096 * 2 * case.layout.dp)
    seconds = replace(row, figures=replace(row.figures, step_seconds=2.0))
    assert "global batch" in translate(seconds).reason, "a stated time is of a batch that nobody knows"  # type: ignore[union-attr]


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
    case = translate(row)
    assert isinstance(case, Case)
    assert (case.zero_open, case.layout.zero) == (True, 0)
    settled, found = settle(case, fitted())
    assert found.fits
    assert settled.layout.zero == 1
    whole = translate(replace(row, layout=StatedLayout(tp=1, pp=1, zero=0)))
    assert isinstance(whole, Case)
    assert settle(whole, fitted())[1].fits is False


def test_unbalanced_routing_is_not_asked() -> None:
    row = ROWS["vendor:0"]
    skip = translate(replace(row, notes="UNBALANCED routing (not forced)"))
    assert isinstance(skip, Skip)
    assert "unbalanced" in skip.reason
    assert isinstance(translate(replace(row, notes="forced balanced routing")), Case)
