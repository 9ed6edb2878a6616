"""What a row's words say of its machine, its software and its number formats."""

from dataclasses import replace

import pytest

from fourfold.cost.fitted import fitted
from fourfold.cost.masks import masked_share
from fourfold.validate import DEFAULTS, Case, Skip, translate
from fourfold.validate.machine import link_rate
from fourfold.validate.predict import case_cluster, case_facts, case_prices, predict_case
from fourfold.validate.stack import stack_of
from tests.support.published import CASES, ROWS


def test_number_formats() -> None:
    names = {name: case.precision.name for name, case in CASES.items()}
    assert (names["vendor:0"], names["vendor:1"], names["vendor:2"]) == ("mxfp8", "fp8", "nvfp4")
    assert names["vendor:5"] == "fp8-block", "the finer one on Hopper"
    assert CASES["papers:0"].precision.compute == "fp16"
    assert CASES["papers:16"].precision.gradients == "bf16"
    assert CASES["flags:5"].precision.low == "fp8"


def test_a_format_that_is_not_known_is_remarked() -> None:
    row = ROWS["papers:0"]
    case = translate(replace(row, precision="posit16"))
    assert isinstance(case, Case)
    assert case.precision.compute == "bf16"
    assert any("'posit16'" in entry for entry in case.defaults)
    stated = translate(replace(row, precision="bf16"))
    assert not any("names no number format" in entry for entry in getattr(stated, "defaults", ()))


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
        ("8x ConnectX-7 IB NDR 400Gb/s", 50e9),
        ("8x NVLink 900 GB/s; 400 Gb/s per GPU", 50e9),
        ("NDR InfiniBand 400 Gb/s, 8 rails", 50e9),
        ("RoCE 1600 Gb/s, 8 NICs", 25e9),
        ("8x Slingshot-11 25 GB/s", 25e9),
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


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('NVIDIA-NeMo/Megatron-Bridge docs "25.11 NeMo Container"', "nemo-2025"),
        ("Megatron-LM paper of 2019 and 2020", "megatron-2025"),
        ("torchtitan report, 2024", "torchtitan-2024"),
        ("a blog", "unknown"),
        ("recipes/07c-deepseekv3-671b/README (raw Megatron-LM, 2026)", "megatron-2026"),
        ("DeepSeek-V3 technical report, 2024", "deepseek-2024"),
        ("Nemotron-4 trained with Megatron-LM, 2025", "megatron-2025"),
        ("NeMo 26.04 container, 2026", "nemo-2026"),
        ("Alpaca's full fine-tuning with DeepSpeed, 2023", "deepspeed-2023"),
        ("an llm-config of 2025, FSDP", "fsdp-2025"),
        ("karpathy/llm.c, 2024", "llm.c-2024"),
        ("a trainer in JAX (Flax), 2026", "maxtext-2026"),
        ("SimuMax, measured on B200 (Megatron-LM), 2025", "megatron-simumax-2025"),
    ],
)
def test_stacks_come_from_the_source_alone(source: str, name: str) -> None:
    assert stack_of(source).name == name


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
    ("framework", "source", "name"),
    [
        ("Megatron-LM (2023), a fork", "Sky, arXiv 2310.19341, Table 10", "megatron-2023"),
        ("", "Sky by Megatron-LM, arXiv 2310.19341", "megatron-2023"),
        ("VeOmni, FSDP2", "VeOmni, arXiv 2508.02317", "veomni-2025"),
        ("an own trainer, FSDP2", "a report, arxiv.org/abs/2508.02317", "fsdp-2025"),
        ("JAX", "Levanter README, 2025", "levanter-2025"),
        ("a trainer (PyTorch)", "", "pytorch-2024"),
        ("NeMo (2023)", 'a page of "25.04"', "nemo-2023"),
        ("DeepSpeed ZeRO-3", "torchtitan beside others, 2024", "deepspeed-2024"),
        ("torchtitan (2025)", "a paper, arXiv 2410.06511", "torchtitan-2025"),
        ("Megatron-LM", "Zero bubble, arXiv 2012.12345", "megatron-2020"),
        ("", "Zero bubble, arXiv 2401.10241", "megatron-zero-bubble-2023"),
        ("Megatron Bridge 2026 (Megatron-Core)", "cards", "nemo-2026"),
        ("own trainer", "a blog", "unknown"),
        ("", "Nemotron-4 340B, arXiv 2406.11704", "megatron-2024"),
        ("", "Megatron-Turing NLG, arXiv 2201.11990", "megatron-deepspeed-2021"),
        ("NeMo (2025)", "Nemotron-H pretraining", "nemo-2025"),
        ("", "SmolLM3, a blog of 2025", "nanotron-2025"),
        ("", "OPT, arXiv 2205.01068", "unknown-2022"),
    ],
)
def test_what_a_row_calls_its_framework_comes_first_and_papers_date_trainers(
    framework: str, source: str, name: str
) -> None:
    assert stack_of(source, "", framework).name == name


@pytest.mark.parametrize(
    ("text", "compute", "low", "gradients"),
    [
        ("fp8 by Transformer Engine, Adam moments in fp32", "bf16", "fp8", "fp32"),
        ("fp8 matrix products, fp8 gradients, fp16 master, fp8 + fp16 moments", "bf16", "fp8", "fp32"),
        ("fp32 master, bf16 products", "bf16", None, "fp32"),
        ("bf16, bf16 gradients and reduce-scatter", "bf16", None, "bf16"),
        ("bf16, bf16 gradients reduced in fp32", "bf16", None, "fp32"),
        ("torch_dtype float16", "fp16", None, "fp16"),
        ("bfloat16, fp32 logits", "bf16", None, "fp32"),
        ("fp32", "fp32", None, "fp32"),
    ],
)
def test_formats_of_states_and_sums_are_not_those_of_products(
    text: str, compute: str, low: str | None, gradients: str
) -> None:
    case = translate(replace(ROWS["torchtitan:6"], precision=text))
    assert isinstance(case, Case)
    assert (case.precision.compute, case.precision.low, case.precision.gradients) == (compute, low, gradients)


@pytest.mark.parametrize(
    ("text", "master", "gradients"),
    [
        ("bf16 true", "bf16", "bf16"),
        ("bf16, torch_dtype=torch.bfloat16", "bf16", "bf16"),
        ("bf16, loaded in bf16, fp32 masters", "fp32", "fp32"),
        ("bf16 (model loaded in bf16), fp32 master weights and moments", "fp32", "fp32"),
        ("bf16, bf16 moments, master weights kept", "fp32", "fp32"),
        ("bf16 parameters (loaded in bf16), AdamW moments in bf16", "bf16", "bf16"),
        ("bf16", "fp32", "fp32"),
        ("bf16 (weights and moments too)", "bf16", "bf16"),
        ("bf16 (weights, gradients and moments too, no wider copy)", "bf16", "bf16"),
        ("pure bf16", "bf16", "bf16"),
        ("bf16 (autocast, weights fp32)", "fp32", "fp32"),
        ("bf16 (pure)", "bf16", "bf16"),
        ("bf16 (parameters too)", "bf16", "bf16"),
        ("bf16 with fp32 masters", "fp32", "fp32"),
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


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("GH200 (96 GB)", "gh200-96"),
        ("NVIDIA L40S", "l40s"),
        ("L4", "l4"),
        ("GeForce RTX 4090", "rtx-4090"),
        ("RTX-3090-24GB", "rtx-3090"),
        ("RTX-PRO-6000-Blackwell-96GB", "rtx-pro-6000"),
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
    new = replace(row, notes="unfused attention (score matrix in memory)")
    assert translate(new).attention == "unfused"  # type: ignore[union-attr]
    assert translate(replace(new, notes="math attention, eager")).attention == "math"  # type: ignore[union-attr]
    assert translate(replace(new, notes="attention by FlexAttention")).attention == "flash"  # type: ignore[union-attr]
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
    assert stack_of("NVIDIA/NeMo-Framework-Launcher README.md (NeMo Framework 23.07 and before)").name == "nemo-2023"
    assert stack_of("exercises; Megatron-Bridge, NeMo 25.11, 2025-2026").name == "nemo-2025"


def test_memory_that_the_driver_counts_is_all_that_the_device_holds() -> None:
    row = ROWS["torchtitan:6"]
    figures = replace(row.figures, memory_bytes=40e9, memory_kind="unstated")
    plain = translate(replace(row, figures=figures))
    seen = translate(replace(row, figures=figures, notes="memory.used of nvidia-smi"))
    assert (plain.measured.memory_kind, seen.measured.memory_kind) == ("unstated", "device")  # type: ignore[union-attr]
    assert predict_case(seen).memory_bytes > predict_case(plain).memory_bytes + 1e9  # type: ignore[arg-type, operator]


@pytest.mark.parametrize(
    ("model", "notes", "length", "share"),
    [
        ("GPT-OSS-20B", "", 4096, 1 - (1 - 128 / 4096) ** 2 / 2),
        ("GPT-OSS-20B", "", 128, 1.0),
        ("Gemma-3-27B", "", 8192, 1 - 5 / 6 * (1 - 1024 / 8192) ** 2),
        ("Qwen3-8B", "attention is block-diagonal over short packed documents", 16384, masked_share(16384, 512)),
        ("Qwen3-8B", "documents are packed without a mask", 16384, 1.0),
    ],
)
def test_windows_and_documents_leave_a_part_of_attentions_work(
    model: str, notes: str, length: int, share: float
) -> None:
    row = ROWS["sweep:0"]
    case = translate(replace(row, model=replace(row.model, name=model), notes=notes, sequence_length=length))
    assert isinstance(case, Case)
    assert case.attention_share == pytest.approx(share)
    assert case_prices(case, case_facts(case), fitted()).masked_share == case.attention_share


def test_what_is_not_compiled_runs_its_operators_one_by_one() -> None:
    row = replace(ROWS["sweep:0"], source="torchtitan, 2025")
    compiled, eager = translate(row), translate(replace(row, notes="local batch 1; torch.compile off"))
    assert isinstance(compiled, Case)
    assert isinstance(eager, Case)
    assert (compiled.eager, eager.eager) == (False, True)
    assert DEFAULTS["eager"] in eager.defaults
    assert (predict_case(eager).step_seconds or 0.0) > (predict_case(compiled).step_seconds or 1e9)


@pytest.mark.parametrize(
    ("source", "precision", "notes", "gradients"),
    [
        ("Megatron-LM, 2021", "fp16", "", "fp16"),
        ("Megatron-LM, 2025", "bf16", "", "fp32"),
        ("Megatron-DeepSpeed, 2022", "fp16", "", "fp32"),
        ("DeepSpeed blog, 2024", "bf16", "", "bf16"),
        ("DeepSpeed blog, 2024", "bf16", "fp32 gradients reduced", "fp32"),
        ("DeepSpeed blog, 2024", "bf16 (autocast)", "", "fp32"),
        ("a trainer, 2024", "bf16", "", "fp32"),
        ("a trainer, 2024", "bf16 (gradients bf16)", "", "bf16"),
    ],
)
def test_in_what_gradients_are_summed(source: str, precision: str, notes: str, gradients: str) -> None:
    case = translate(replace(ROWS["vendor:10"], source=source, precision=precision, notes=notes))
    assert isinstance(case, Case)
    assert case.precision.gradients == gradients


@pytest.mark.parametrize(
    ("precision", "compute", "low"),
    [
        ("fp32 (not said; the FP16 table is empty)", "fp32", None),
        ("amp_bf16 (autocast, weights and moments fp32)", "bf16", None),
        ("bf16 (weights without fp32 master, moments fp8, gradients bf16)", "bf16", None),
        ("fp8 (current scaling, mixed with bf16)", "bf16", "fp8"),
        ("fp8 (blockwise e4m3)", "bf16", "fp8-block"),
        ("float8 tensorwise, rest bf16", "bf16", "fp8"),
    ],
)
def test_what_stands_before_a_bracket_names_the_format_of_products(
    precision: str, compute: str, low: str | None
) -> None:
    case = translate(replace(ROWS["vendor:10"], precision=precision, notes=""))
    assert isinstance(case, Case)
    assert (case.precision.compute, case.precision.low) == (compute, low)


@pytest.mark.parametrize(
    ("notes", "eager", "unfused"),
    [
        ("no torch.compile said", False, False),
        ("compile not set", True, False),
        ("eager attention off", False, False),
        ("flash attention; RMSNorm not fused", False, False),
        ("no fused attention", False, True),
        ("no fused AdamW", False, False),
    ],
)
def test_what_a_note_leaves_out_is_not_what_it_denies(notes: str, eager: bool, unfused: bool) -> None:
    case = translate(replace(ROWS["vendor:10"], notes=notes))
    assert isinstance(case, Case)
    assert (case.eager, case.attention == "unfused") == (eager, unfused)


def test_a_loss_in_chunks_holds_few_logits() -> None:
    row = ROWS["torchtitan:1"]
    whole, chunked = translate(row), translate(replace(row, notes="Liger kernels"))
    assert isinstance(whole, Case)
    assert isinstance(chunked, Case)
    assert (predict_case(chunked).memory_bytes or 1e18) < (predict_case(whole).memory_bytes or 0.0)


def test_a_tpu_is_a_chip_of_one_torus() -> None:
    row = ROWS["vendor:10"]
    hardware = replace(
        row.hardware, device="TPU v5p", devices_per_node=4, memory_gb=95, internode="", nvlink_domain=None
    )
    case = translate(replace(row, hardware=hardware))
    assert isinstance(case, Case)
    assert case.network.nvlink_domain == 8960
    assert [(tier.kind, tier.devices) for tier in case_cluster(case).tiers] == [("torus", case.num_devices)]
    slices = translate(replace(row, hardware=replace(hardware, devices_per_node=32)))
    assert isinstance(slices, Case)
    assert slices.network.nvlink_domain == 32


def test_parameters_without_wider_copies_and_moments_of_one_byte_are_read_from_notes() -> None:
    row = replace(ROWS["torchtitan:6"], precision="bf16")
    narrow = translate(replace(row, notes="training dtype bf16 without fp32 masters"))
    assert narrow.precision.master == "bf16"  # type: ignore[union-attr]
    held = []
    for notes in ("", "8-bit paged AdamW", "no 8-bit optimizer", "Adafactor (factored second moment)"):
        case = translate(replace(row, notes=notes))
        assert isinstance(case, Case)
        assert (case.moment_bytes == 1.0) == (notes == "8-bit paged AdamW")
        held.append(predict_case(case).memory_bytes)
    assert held[3] < held[1] < held[0] == held[2]


@pytest.mark.parametrize(
    ("source", "notes", "device", "kernel"),
    [
        ("torchtitan 2025", "SDPA with the cuDNN kernel", "H100-80GB-SXM", "flash 3"),
        ("torchtitan 2025", "FA3", "H200-141GB-SXM", "flash 3"),
        ("torchtitan 2025", "FlashAttention-2", "B200", "flash 2"),
        ("torchtitan 2025", "SDPA without the cuDNN kernel", "H100-80GB-SXM", None),
        ("torchtitan 2025", "flash attention", "H100-80GB-SXM", None),
        ("Megatron-LM 2025", "cuDNN attention", "H100-80GB-SXM", None),
        ("Megatron-LM 2025", "flash-attn 2", "H100-80GB-SXM", "flash 2"),
    ],
)
def test_generations_of_attention_kernels(source: str, notes: str, device: str, kernel: str | None) -> None:
    row = ROWS["torchtitan:6"]
    row = replace(row, source=source, hardware=replace(row.hardware, device=device, memory_gb=None))
    case, plain = translate(replace(row, notes=notes)), translate(replace(row, notes=""))
    assert isinstance(case, Case)
    assert isinstance(plain, Case)
    assert case.attention_kernel == kernel
    seconds = [predict_case(each).step_seconds for each in (case, plain)]
    assert seconds[0] is not None
    assert seconds[1] is not None
    assert (seconds[0] < seconds[1], seconds[0] > seconds[1]) == (kernel == "flash 3", kernel == "flash 2")


def test_attention_with_sinks_is_written_where_no_kernel_was_fused() -> None:
    row = ROWS["torchtitan:6"]
    row = replace(row, model=replace(row.model, name="GPT-OSS-20B"))
    for source, attention in (
        ('Megatron-Bridge performance summary, "26.02 NeMo"', "unfused"),
        ('Megatron-Bridge performance summary, "26.06 NeMo"', "flash"),
        ("torchtitan 2025", "flash"),
    ):
        assert translate(replace(row, source=source, notes="")).attention == attention  # type: ignore[union-attr]


def test_one_device_that_would_not_hold_wide_states_has_narrow_ones_where_nothing_is_said_of_them() -> None:
    row = replace(ROWS["torchtitan:6"], num_devices=1, global_sequences=1, microbatch_sequences=1, recompute="full")
    row = replace(row, sequence_length=1024)
    row = replace(row, layout=replace(row.layout, dp=1, zero=None, fsdp=False))
    silent, said = (translate(replace(row, precision=text)) for text in ("bf16", "bf16 with fp32 masters"))
    assert isinstance(silent, Case)
    assert isinstance(said, Case)
    assert predict_case(said).fits is False, "16 bytes a parameter"
    found = predict_case(silent)
    assert found.fits
    assert any("weights and moments in bf16" in text for text in found.taken)
    kin = translate(replace(row, precision="bf16", source="Megatron-LM, 2025"))
    assert isinstance(kin, Case)
    assert predict_case(kin).fits is False, "Megatron keeps masters in fp32"
    small = replace(row, precision="bf16", model=replace(row.model, num_layers=8), global_sequences=64)
    many = translate(replace(small, microbatch_sequences=None, sequence_length=8192, recompute="none"))
    assert isinstance(many, Case)
    assert many.layout.microbatch_sequences > 1
    assert not any("weights and moments" in text for text in predict_case(many).taken), "smaller microbatches first"


def test_torchtitan_makes_experts_again_where_recomputation_is_selective() -> None:
    dense = translate(replace(ROWS["torchtitan:6"], recompute="selective"))
    model = replace(ROWS["torchtitan:6"].model, num_experts=8, top_k=2, moe_ffn_size=1024)
    experts = translate(replace(ROWS["torchtitan:6"], recompute="selective", model=model))
    assert isinstance(dense, Case)
    assert isinstance(experts, Case)
    assert (dense.layout.recompute, experts.layout.recompute) == ("alternate", "full")
