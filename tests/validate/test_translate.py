"""What a row states is taken as stated; what it leaves out is filled by a documented default, and the case says so."""

from dataclasses import replace
from pathlib import Path

import pytest

from fourfold.config import parse_run, resolve_model
from fourfold.config.check_model import check_model
from fourfold.layout import resolve_layout
from fourfold.model.spec import num_parameters
from fourfold.program.schedule import check_schedule
from fourfold.validate import DEFAULTS, DEVICE_KEYS, Case, Skip, read_rows, translate
from fourfold.validate.machine import link_rate
from fourfold.validate.predict import predict_case
from fourfold.validate.stack import stack_of

ROWS = {row.id: row for row in read_rows([Path(__file__).parent / "rows"])[0]}
CASES = {name: case for name, row in ROWS.items() if isinstance(case := translate(row), Case)}


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
        ("vendor:9", "every other layer"),
        ("papers:7", "layout is not stated"),
        ("papers:8", "neither a step time nor memory"),
        ("papers:10", "no multiple"),
        ("papers:12", "formula"),
        ("papers:13", "one layer"),
        ("papers:14", "device tables"),
        ("papers:15", "offloaded"),
        ("papers:21", "does not divide the heads"),
        ("papers:22", "does not divide 512 devices"),
        ("flags:2", "without a gate"),
        ("flags:7", "does not divide 8 devices"),
    ],
)
def test_what_cannot_be_asked_says_why(name: str, word: str) -> None:
    assert word in _reason(name)


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


def test_schedules_in_our_words() -> None:
    names = {"sweep:0": "1f1b", "vendor:1": "interleaved_1f1b", "papers:5": "zb_h1", "papers:18": "dualpipe_v"}
    assert {name: CASES[name].layout.schedule for name in names} == names
    assert CASES["papers:6"].layout.virtual_stages == 6, "(46 blocks + embedding + head) / 8 ranks"
    assert CASES["flags:1"].layout.virtual_stages == 6, "12 layers, 1 a stage, 2 ranks"
    assert CASES["papers:17"].layout.virtual_stages == 3, "(48 blocks + embedding + head) / 16 ranks"


def test_recomputation() -> None:
    policies = {name: (c.layout.recompute, c.layout.recompute_modules) for name, c in CASES.items()}
    assert policies["papers:0"] == ("full", ())
    assert policies["papers:1"] == ("full", ()), "Megatron of 2021 recomputes where its paper says nothing"
    assert policies["sweep:0"] == ("none", ())
    assert policies["vendor:0"] == ("none", ())
    assert policies["vendor:8"] == ("selective", ("mla_up_proj", "mlp"))
    assert policies["vendor:10"] == ("selective", ("core_attn",))
    assert policies["flags:5"] == ("selective", ("layernorm", "mlp"))


def test_number_formats() -> None:
    names = {name: case.precision.name for name, case in CASES.items()}
    assert (names["vendor:0"], names["vendor:1"], names["vendor:2"]) == ("mxfp8", "fp8", "nvfp4")
    assert names["vendor:5"] == "fp8-block", "the finer one on Hopper"
    assert CASES["papers:0"].precision.compute == "fp16"
    assert CASES["papers:16"].precision.gradients == "bf16"
    assert CASES["flags:5"].precision.low == "fp8"


def test_devices_and_networks() -> None:
    devices = {name: case.device for name, case in CASES.items()}
    assert (devices["vendor:0"], devices["papers:19"], devices["papers:23"]) == ("gb200", "a800-sxm-80", "b200")
    assert devices["papers:16"] == "a100-sxm-40", "A100 with 40 GB"
    assert devices["flags:1"] == "a100-sxm-80", "a test without a device"
    assert CASES["vendor:0"].network.nvlink_domain == 72
    assert CASES["papers:0"].network.internode_bytes_per_second == 8 * 200e9 / 8 / 8
    assert CASES["papers:19"].network.internode_bytes_per_second == 4 * 100e9 / 8 / 8


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("RoCE 1600 Gb/s (as in section title)", 25e9),
        ("4x100 Gb RoCE per node", 6.25e9),
        ("Eos DGX-H100, 8x400Gb IB", 50e9),
        ("8 HDR IB NICs/node", 25e9),
        ("InfiniBand 8x50 GB/s a node", 50e9),
        ("400 Gbps per GPU", 50e9),
        ("50 GB/s per GPU", 50e9),
        ("see the paper (HDR IB)", None),
        ("RoCE, up to 4 nodes", None),
        ("", None),
    ],
)
def test_link_rates_are_of_one_device_in_one_direction(text: str, rate: float | None) -> None:
    assert link_rate(text, 8) == rate


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


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('NVIDIA-NeMo/Megatron-Bridge docs "25.11 NeMo Container"', "nemo-2025"),
        ("Megatron-LM paper of 2019 and 2020", "megatron-2025"),
        ("torchtitan report, 2024", "torchtitan-2024"),
        ("a blog", "unknown"),
    ],
)
def test_stacks_come_from_the_source_alone(source: str, name: str) -> None:
    assert stack_of(source).name == name


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


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("benchmarks/llama3_h100_202412_torchtitan.md", "torchtitan-2024"),
        ("benchmarks/llama3_8b_h200_2025-06_torchtitan.md", "torchtitan-2025"),
        ("torchtitan run 20241211", "torchtitan-2025"),
        ("Narayanan et al. 2021, arXiv 2104.04473", "megatron-2021"),
    ],
)
def test_the_year_is_the_one_that_the_source_states(source: str, name: str) -> None:
    assert stack_of(source).name == name


@pytest.mark.parametrize(
    ("text", "master", "gradients"),
    [
        ("bf16", "fp32", "fp32"),
        ("bf16 (weights and moments too)", "bf16", "fp32"),
        ("bf16 (weights, gradients and moments too, no wider copy)", "bf16", "bf16"),
        ("pure bf16", "bf16", "bf16"),
        ("bf16 (autocast, weights fp32)", "fp32", "fp32"),
    ],
)
def test_narrow_states_are_read_from_the_words_of_the_precision(text: str, master: str, gradients: str) -> None:
    row = replace(ROWS["torchtitan:6"], precision=text)
    case = translate(row)
    assert isinstance(case, Case)
    assert (case.precision.compute, case.precision.master, case.precision.gradients) == ("bf16", master, gradients)
    wide = predict_case(replace(case, precision=replace(case.precision, master="fp32"))).memory_bytes
    narrow = predict_case(case).memory_bytes
    assert wide is not None
    assert narrow is not None
    assert (narrow < wide) == (master == "bf16")


def test_fsdp_without_a_stated_microbatch_runs_all_of_a_ranks_sequences() -> None:
    row = replace(ROWS["torchtitan:6"], microbatch_sequences=None, global_sequences=32)
    assert translate(row).layout.microbatch_sequences == 4  # type: ignore[union-attr]
    many = replace(row, global_sequences=8 * 24, sequence_length=4096)
    assert translate(many).layout.microbatch_sequences == 8  # type: ignore[union-attr]
    assert translate(replace(many, sequence_length=8192)).layout.microbatch_sequences == 4  # type: ignore[union-attr]
    pipeline = replace(ROWS["torchtitan:13"], microbatch_sequences=None)
    assert translate(pipeline).layout.microbatch_sequences == 1  # type: ignore[union-attr]


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


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("GH200 (96 GB)", "gh200-96"),
        ("NVIDIA L40S", "l40s"),
        ("L4", "l4"),
        ("GeForce RTX 4090", "rtx-4090"),
        ("AMD Instinct MI355X", "mi355x"),
        ("Intel Gaudi 2 (HL-225H)", "gaudi-2"),
        ("Trainium (one NeuronCore of trn1.32xlarge)", "trainium-core"),
        ("TPU7x (Ironwood)", "tpu-v7x"),
        ("H200-SXM", "h200-sxm"),
        ("H100 (SXM or PCIe not stated)", "h100-sxm"),
        ("H100 PCIe", "h100-pcie"),
    ],
)
def test_devices_by_their_names(name: str, key: str) -> None:
    row = ROWS["torchtitan:6"]
    case = translate(replace(row, hardware=replace(row.hardware, device=name, memory_gb=None)))
    assert isinstance(case, Case)
    assert case.device == key
    assert case.own_device is None


def test_a_device_of_no_table_is_made_of_what_its_row_states() -> None:
    row = ROWS["torchtitan:6"]
    stated = replace(row.hardware, device="Tachyon X9", memory_gb=128.0, peak_bf16_flops=800e12)
    case = translate(replace(row, hardware=stated))
    assert isinstance(case, Case)
    assert case.own_device is not None
    assert case.own_device.peak("bf16") == 800e12
    assert DEFAULTS["stated_device"] in case.defaults
    slower = replace(stated, peak_bf16_flops=400e12)
    fast, slow = predict_case(case), predict_case(translate(replace(row, hardware=slower)))  # type: ignore[arg-type]
    assert fast.step_seconds < slow.step_seconds
    assert isinstance(translate(replace(row, hardware=replace(stated, peak_bf16_flops=None))), Skip)


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


@pytest.mark.parametrize("name", ["Trainium3", "NeuronCore of trn2.48xlarge"])
def test_devices_that_only_resemble_one_of_the_tables_are_not_taken_for_it(name: str) -> None:
    row = ROWS["torchtitan:6"]
    case = translate(replace(row, hardware=replace(row.hardware, device=name, peak_bf16_flops=None)))
    assert isinstance(case, Skip)
    assert "device tables" in case.reason


def test_words_of_attention_formats_and_dispatch() -> None:
    row = replace(ROWS["torchtitan:6"], precision="float8 tensorwise, rest bf16")
    assert translate(row).precision.low == "fp8"  # type: ignore[union-attr]
    old = replace(row, source="a training README of 2022", notes="plain attention")
    assert translate(old).attention == "unfused"  # type: ignore[union-attr]
    assert translate(replace(old, notes="FlashAttention 1")).attention == "flash"  # type: ignore[union-attr]
    assert translate(replace(old, notes="without flash-attention")).attention == "unfused"  # type: ignore[union-attr]
    assert translate(replace(old, notes="all-to-all by DeepEP")).dispatch_once  # type: ignore[union-attr]
    assert translate(old).dispatch_once is None  # type: ignore[union-attr]
    assert translate(replace(old, notes="alltoall dispatcher")).dispatch_once is False  # type: ignore[union-attr]
    assert translate(replace(old, notes="without DeepEP")).dispatch_once is False  # type: ignore[union-attr]


def test_releases_that_changed_much_are_stacks_of_their_own() -> None:
    page = 'NVIDIA-NeMo/Megatron-Bridge docs/performance-summary.md "{}" / Pre-Training Performance'
    names = [
        stack_of(page.format(f"{release} NeMo Container")).name for release in ("25.11", "26.04.01", "26.06", "26.08")
    ]
    assert names == ["nemo-2025", "nemo-2026", "nemo-2026.06", "nemo-2026.06"]


def test_memory_that_the_driver_counts_is_all_that_the_device_holds() -> None:
    row = ROWS["torchtitan:6"]
    figures = replace(row.figures, memory_bytes=40e9, memory_kind="unstated")
    plain = translate(replace(row, figures=figures))
    seen = translate(replace(row, figures=figures, notes="memory.used of nvidia-smi"))
    assert (plain.measured.memory_kind, seen.measured.memory_kind) == ("unstated", "device")  # type: ignore[union-attr]
    assert predict_case(seen).memory_bytes > predict_case(plain).memory_bytes + 1e9  # type: ignore[arg-type, operator]
