"""Attention, kernels, memory and recomputation are read from a row's text."""

from dataclasses import replace

import pytest

from case import PublishedCase
from defaults import DEFAULTS
from fourfold.cost.prices import MERGED_SHARE, masked_share
from normalise import normalise
from settle import predict_case
from tests.support.published import ROWS, prices_of


def test_words_of_attention_formats_and_dispatch() -> None:
    row = replace(ROWS["torchtitan:6"], precision="float8 tensorwise, rest bf16")
    assert normalise(row).precision.low == "fp8"  # type: ignore[union-attr]
    old = replace(row, source="a training README of 2022", notes="plain attention")
    assert normalise(old).kernels.attention == "unfused"  # type: ignore[union-attr]
    assert normalise(replace(old, notes="FlashAttention 1")).kernels.attention == "flash-1"  # type: ignore[union-attr]
    assert normalise(replace(old, notes="without flash-attention")).kernels.attention == "unfused"  # type: ignore[union-attr]
    new = replace(row, notes="unfused attention (score matrix in memory)")
    assert normalise(new).kernels.attention == "unfused"  # type: ignore[union-attr]
    assert normalise(replace(new, notes="math attention, eager")).kernels.attention == "math"  # type: ignore[union-attr]
    assert normalise(replace(new, notes="attention by FlexAttention")).kernels.attention == "flash"  # type: ignore[union-attr]
    assert normalise(old).kernels.dispatcher is None  # type: ignore[union-attr]
    for notes, dispatcher in (
        ("all-to-all by DeepEP", "deepep"),
        ("Hybrid-EP dispatcher, 16 SMs; 0.5 GiB above deepep", "hybridep"),
        ("alltoall dispatcher", "alltoall"),
        ("Dispatcher: NCCL all-to-all. Overlap off", "alltoall"),
        ("without DeepEP", "alltoall"),
    ):
        assert normalise(replace(old, notes=notes)).kernels.dispatcher == dispatcher  # type: ignore[union-attr]


def test_memory_that_the_driver_counts_is_all_that_the_device_holds() -> None:
    row = ROWS["torchtitan:6"]
    figures = replace(row.figures, memory_bytes=40e9, memory_kind="unstated")
    plain = normalise(replace(row, figures=figures))
    seen = normalise(replace(row, figures=figures, notes="memory.used of nvidia-smi"))
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
    case = normalise(replace(row, model=replace(row.model, name=model), notes=notes, sequence_length=length))
    assert isinstance(case, PublishedCase)
    assert case.attention_share == pytest.approx(share)
    assert prices_of(case).masked_share == case.attention_share


def test_what_is_not_compiled_runs_its_operators_one_by_one() -> None:
    row = replace(ROWS["sweep:0"], source="torchtitan, 2025")
    compiled, eager = normalise(row), normalise(replace(row, notes="local batch 1; torch.compile off"))
    assert isinstance(compiled, PublishedCase)
    assert isinstance(eager, PublishedCase)
    assert (compiled.eager, eager.eager) == (False, True)
    assert DEFAULTS["eager"] in eager.defaults
    assert not normalise(replace(row, notes="torch.compile off; Liger kernels")).eager  # type: ignore[union-attr]
    assert (predict_case(eager).step_seconds or 0.0) > (predict_case(compiled).step_seconds or 1e9)


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
    case = normalise(replace(ROWS["vendor:10"], source="torchtitan, 2025", notes=notes))
    assert isinstance(case, PublishedCase)
    assert (case.eager, case.kernels.attention == "unfused") == (eager, unfused)


@pytest.mark.parametrize(
    ("source", "eager"), [("Megatron-LM, 2025", False), ("MaxText, 2026", False), ("FSDP, 2025", True)]
)
def test_kernels_that_are_fused_anyway_need_no_compiler(source: str, eager: bool) -> None:
    case = normalise(replace(ROWS["sweep:0"], source=source, notes="torch.compile off"))
    assert isinstance(case, PublishedCase)
    assert case.eager == eager


@pytest.mark.parametrize(
    ("notes", "schedule", "merged"),
    [
        ("EP communication overlapped with computation of another microbatch", None, True),
        ("MoE all-to-all overlap; DeepEP", None, True),
        ("", "interleaved 1F1B with EP A2A overlap", True),
        ("no overlap of expert communication with compute", None, False),
        ("all-to-all overlap off", None, False),
        ("shared expert overlapped with dispatch", None, False),
        ("overlap of gradient reduction and parameter gathers; all-to-all dispatcher", None, False),
    ],
)
def test_experts_traffic_beside_another_microbatch(notes: str, schedule: str | None, merged: bool) -> None:
    row = next(row for row in ROWS.values() if row.model.num_experts and isinstance(normalise(row), PublishedCase))
    case = normalise(replace(row, notes=notes, schedule=schedule))
    assert isinstance(case, PublishedCase)
    assert case.kernels.ep_collectives == ("overlapped" if merged else None)
    assert prices_of(case).paired_share == (MERGED_SHARE if merged else 0)


@pytest.mark.parametrize(
    ("notes", "word"),
    [
        ("TP_COMM_OVERLAP=True", "overlapped"),
        ("TP_COMM_OVERLAP=False", "exposed"),
        ("TP overlap (userbuffers) on", "overlapped"),
        ("No TP overlap", "exposed"),
        ("tp_comm_overlap off", "exposed"),
        ("asynchronous TP; torch.compile", "overlapped"),
        ("async TP off", "exposed"),
        ("float8; asynchronous tensor parallelism", "overlapped"),
        ("overlap of gradient reduction; TP communication with sequence parallelism", None),
        ("vanilla TP", None),
        ("asynchronous TensorBoard logging, overlapping tensor copies", None),
    ],
)
def test_traffic_of_tensor_parallelism_beside_its_matmuls(notes: str, word: str | None) -> None:
    case = normalise(replace(ROWS["torchtitan:6"], notes=notes))
    assert isinstance(case, PublishedCase)
    assert case.kernels.tp_collectives == word


@pytest.mark.parametrize(
    ("framework", "precision", "notes", "merged"),
    [
        ("Megatron Bridge, NeMo 26.06", "MXFP8", "", True),
        ("Megatron Bridge, NeMo 26.06", "MXFP8", "no overlap of expert communication", False),
        ("Megatron Bridge, NeMo 26.06", "BF16", "", False),
        ("Megatron Bridge, NeMo 26.04", "MXFP8", "", False),
    ],
)
def test_recipes_of_megatron_bridge_merge_experts_in_mxfp8(
    framework: str, precision: str, notes: str, merged: bool
) -> None:
    row = replace(ROWS["vendor:0"], framework=framework, precision=precision, notes=notes)
    assert row.model.num_experts
    case = normalise(row)
    assert isinstance(case, PublishedCase)
    assert case.kernels.ep_collectives == ("overlapped" if merged else None)
    assert (DEFAULTS["merged_experts"] in case.defaults) == merged


@pytest.mark.parametrize(
    ("notes", "fused"), [("CuTe DSL", True), ("TE op fuser", True), ("fused grouped MLP off", False), ("", False)]
)
def test_experts_fused_in_their_kernels(notes: str, fused: bool) -> None:
    case = normalise(replace(ROWS["torchtitan:6"], notes=notes))
    assert isinstance(case, PublishedCase)
    assert case.kernels.experts == ("fused" if fused else None)


def test_merged_microbatches_hide_what_goes_to_experts() -> None:
    split, merged = (normalise(replace(ROWS["vendor:0"], notes=notes)) for notes in ("", "MoE all-to-all overlap"))
    assert isinstance(split, PublishedCase)
    assert isinstance(merged, PublishedCase)
    assert (predict_case(merged).step_seconds or 1e9) < (predict_case(split).step_seconds or 0)


def test_a_loss_in_chunks_holds_few_logits() -> None:
    row = ROWS["torchtitan:1"]
    unchunked, chunked = normalise(row), normalise(replace(row, notes="Liger kernels"))
    assert isinstance(unchunked, PublishedCase)
    assert isinstance(chunked, PublishedCase)
    assert (predict_case(chunked).memory_bytes or 1e18) < (predict_case(unchunked).memory_bytes or 0.0)


@pytest.mark.parametrize(
    ("source", "notes", "device", "kernel"),
    [
        ("torchtitan 2025", "SDPA with the cuDNN kernel", "H100-80GB-SXM", "cudnn"),
        ("torchtitan 2025", "FA3", "H200-141GB-SXM", "flash-3"),
        ("torchtitan 2025", "FlashAttention-2", "B200", "flash-2"),
        ("torchtitan 2025", "SDPA without the cuDNN kernel", "H100-80GB-SXM", "flash"),
        ("torchtitan 2025", "flash attention", "H100-80GB-SXM", "flash"),
        ("Megatron-LM 2025", "cuDNN attention", "H100-80GB-SXM", "flash"),
        ("NeMo 2025", "flash-attn 2", "H100-80GB-SXM", "flash-2"),
        ("DeepSpeed 2023", "FlashAttention 1", "A100-80GB-SXM", "flash-1"),
        ("DeepSpeed 2023", "FlashAttention (v1 or v2 not said)", "A100-80GB-SXM", "flash"),
    ],
)
def test_generations_of_attention_kernels(source: str, notes: str, device: str, kernel: str) -> None:
    row = ROWS["torchtitan:6"]
    row = replace(row, source=source, hardware=replace(row.hardware, device=device, memory_gb=None))
    case, plain = normalise(replace(row, notes=notes)), normalise(replace(row, notes=""))
    assert isinstance(case, PublishedCase)
    assert isinstance(plain, PublishedCase)
    assert case.kernels.attention == kernel
    seconds = [predict_case(each).step_seconds for each in (case, plain)]
    assert seconds[0] is not None
    assert seconds[1] is not None
    assert (seconds[0] < seconds[1], seconds[0] > seconds[1]) == (
        kernel in ("flash-3", "cudnn"),
        kernel in ("flash-1", "flash-2"),
    )


def test_attention_with_sinks_is_written_where_no_kernel_was_fused() -> None:
    row = ROWS["torchtitan:6"]
    row = replace(row, model=replace(row.model, name="GPT-OSS-20B"))
    for source, attention in (
        ('Megatron-Bridge performance summary, "26.02 NeMo"', "unfused"),
        ('Megatron-Bridge performance summary, "26.06 NeMo"', "flash"),
        ("torchtitan 2025", "flash"),
    ):
        assert normalise(replace(row, source=source, notes="")).kernels.attention == attention  # type: ignore[union-attr]


def test_torchtitan_makes_experts_again_where_recomputation_is_selective() -> None:
    dense = normalise(replace(ROWS["torchtitan:6"], recompute="selective"))
    model = replace(ROWS["torchtitan:6"].model, num_experts=8, top_k=2, moe_ffn_size=1024)
    experts = normalise(replace(ROWS["torchtitan:6"], recompute="selective", model=model))
    assert isinstance(dense, PublishedCase)
    assert isinstance(experts, PublishedCase)
    assert (dense.layout.recompute, experts.layout.recompute) == ("alternate", "full")


def test_what_a_source_counts_it_did() -> None:
    """A full recomputation among a source's FLOPs was done, where it says nothing else."""
    row = replace(ROWS["torchtitan:6"], recompute="not stated", flops_convention="hardware incl. full recompute")
    counted, silent = normalise(row), normalise(replace(row, flops_convention="recompute not counted"))
    stated = normalise(replace(row, recompute="none"))
    assert isinstance(counted, PublishedCase)
    assert isinstance(silent, PublishedCase)
    assert isinstance(stated, PublishedCase)
    assert (counted.layout.recompute, counted.recompute_open) == ("full", False)
    assert (silent.layout.recompute, silent.recompute_open) == ("none", True)
    assert stated.layout.recompute == "none", "what is said wins"
