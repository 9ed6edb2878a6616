"""Free text is read clause by clause: what is denied, or left open, is not said."""

from dataclasses import replace

import pytest

from assertions import asserted
from case import PublishedCase, Skip
from defaults import DEFAULTS
from normalise import normalise
from tests.support.published import ROWS, prices_of

ROW = replace(ROWS["sweep:0"], source="Megatron-LM, 2025", notes="")


def read(**changes: object) -> PublishedCase | Skip:
    return normalise(replace(ROW, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CPU offload; flash attention", True),
        ("flash attention, with CPU offload. Synthetic data", True),
        ("CPU offload False; flash attention", False),
        ("no recomputation, CPU offload", True),
        ("without any offload", False),
        ("optimizer offload is possible and not stated", False),
        ("offload disabled", False),
        ("offload=0", False),
        ("offload_fraction=0.5", True),
        ("offload: false", False),
        ("CPU offload (not of parameters), eager", True),
        ("nothing of the kind", False),
    ],
)
def test_what_a_clause_denies_is_not_asserted(text: str, expected: bool) -> None:
    assert bool(asserted(text, "offload")) == expected


@pytest.mark.parametrize(
    ("recompute", "notes", "offloaded"),
    [
        (None, "CPU offload False", None),
        (None, "SparseCore offload of the three FSDP collectives", None),
        (None, "optimizer states offloaded", "optimizer"),
        ("custom (offload)", "", "activations"),
        ("custom: decoder layer input offloaded to host, rest recomputed", "", "activations"),
        (None, "offload of something", "skipped"),
        (None, "activation offload: false", None),
        (None, "ZeRO-Infinity parameter offload (NVMe not used)", "skipped"),
        ("none; no offloading", "", None),
        ("selective, without activation offload", "", None),
        ("selective; optimizer states offloaded", "", "optimizer"),
    ],
)
def test_what_lies_in_the_host_s_memory(recompute: str | None, notes: str, offloaded: str | None) -> None:
    case = read(recompute=recompute, notes=notes)
    assert (case.offloaded if isinstance(case, PublishedCase) else "skipped") == offloaded
    if offloaded == "activations" and isinstance(case, PublishedCase):
        assert case.layout.recompute == "full", "what is kept lies in the host's memory, the rest is made again"


@pytest.mark.parametrize(
    ("notes", "reason"),
    [
        ("full-rank rows (LoRA rows left out)", None),
        ("LoRA of rank 16", "adapters"),
        ("LoRA of rank 16 without packing", "adapters"),
        ("LoRA (r=16 alpha=32 dropout=0.05)", "adapters"),
        ("QLoRA r=16", "adapters"),
        ("not for inference", None),
        ("inference with vLLM", "inference"),
        ("two tables of 50,304 rows by inference", None),
        ("UNBALANCED routing (not forced)", None),
    ],
)
def test_what_is_no_pretraining(notes: str, reason: str | None) -> None:
    case = read(notes=notes)
    assert isinstance(case, Skip) == (reason is not None)
    assert reason is None or (isinstance(case, Skip) and reason in case.reason)


@pytest.mark.parametrize(
    ("source", "notes", "graphed"),
    [
        ("Megatron-LM, 2025", "full-iteration CUDA graph, mock data", True),
        ("Megatron-LM, 2025", "no CUDA graphs", False),
        ("Megatron-LM, 2025", "CUDA graphs not stated", False),
        ("Megatron-LM, 2025", "CUDA graphs: off", False),
        ("Megatron-LM, 2025", "CUDA graphs: attention and router only", False),
        ("Megatron-LM, 2025", "CUDA graphs mentioned", False),
        ("Megatron-LM, 2025", "torch.compile fullgraph=True", False),
        ("MLPerf Training v6.0, NVIDIA (NeMo 26.04, 2026)", "no CUDA graphs", False),
        ("Megatron-LM, 2025", "TE CUDA graphs of attention and router", False),
        ("MLPerf Training v6.0, NVIDIA (NeMo 26.04, 2026)", "", True),
        ("mlcommons/training_results_v5.1 NVIDIA (NeMo 25.09)", "", True),
    ],
)
def test_a_step_started_as_one_graph_costs_the_host_nothing(source: str, notes: str, graphed: bool) -> None:
    case = read(source=source, notes=notes)
    assert isinstance(case, PublishedCase)
    assert case.kernels.launches == ("graph" if graphed else None)
    assert (DEFAULTS["graphs"] in case.defaults) == graphed
    host = prices_of(case).software
    assert (host.host_launch_seconds == host.host_collective_seconds == host.host_route_seconds == 0) == graphed


def test_mlperf_runs_in_fp8_where_a_device_has_it() -> None:
    hopper = read(source="MLPerf Training v6.0, NVIDIA (NeMo 26.04, 2026)", precision=None)
    older = read(
        source="MLPerf Training v2.0, NVIDIA", precision=None, hardware=replace(ROW.hardware, device="A100-SXM-80GB")
    )
    assert isinstance(hopper, PublishedCase)
    assert isinstance(older, PublishedCase)
    assert (hopper.precision.low, older.precision.low) == ("fp8", None)


def test_losses_in_chunks_and_weights_in_16_bits() -> None:
    chunked, unchunked = read(notes="fused linear cross entropy (Liger)"), read(notes="no Liger kernels")
    assert isinstance(chunked, PublishedCase)
    assert isinstance(unchunked, PublishedCase)
    assert (chunked.kernels.loss, unchunked.kernels.loss) == ("chunked", None)
    for precision, notes, master in (
        ("bf16 weights and compute", "", "bf16"),
        ("bf16", "bf16-true weights", "bf16"),
        ("bf16 weights, float32 master", "", "fp32"),
        ("bf16", "pure bf16?", "fp32"),
    ):
        case = read(precision=precision, notes=notes)
        assert isinstance(case, PublishedCase)
        assert case.precision.master == master, (precision, notes)


def test_a_die_of_an_ascend_910c_is_half_of_it() -> None:
    die, package = (
        read(hardware=replace(ROW.hardware, device=device, memory_gb=None, peak_bf16_flops=None))
        for device in ("Ascend 910C die (A3, 16 NPU a node)", "Ascend 910C")
    )
    assert isinstance(die, PublishedCase)
    assert isinstance(package, PublishedCase)
    assert (die.device, package.device) == ("ascend-910c-die", "ascend-910c")
    node = read(hardware=replace(ROW.hardware, device="Ascend 910C (Atlas 900 A3 SuperPoD)", memory_gb=128.0))
    assert isinstance(node, PublishedCase)
    assert node.device == "ascend-910c"
