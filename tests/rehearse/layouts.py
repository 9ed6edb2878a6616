"""Small layouts that together take every branch of the runtime on a device: (name, ranks, sections of a run table)."""

from typing import Any

from tests.support.parity_runs import DEEPSEEK_V3, MIXTRAL, QWEN3_MOE

Sections = dict[str, dict[str, Any]]
SMALL = {"vocab_size": 96, "num_layers": 4}
BF16 = {"compute": "bf16"}
LARGER = {"hidden_size": 64, "moe_ffn_size": 32, "num_layers": 3}
DOCUMENTS = {"document_mask": True}
FEATURES = {"hidden_size": 128, "num_heads": 4, "num_kv_heads": 4, "head_dim": 64, "ffn_size": 256, "num_layers": 2}
"""Two ranks of tp have multiples of what every recipe takes together."""


def sections(
    layout: dict[str, Any], model: dict[str, Any] | None = None, data: dict[str, Any] | None = None, **more: Any
) -> Sections:
    batch = {"global_sequences": 8, "sequence_length": 16}
    return {
        "model": {**SMALL, **(model or {})},
        "data": data or {},
        "batch": batch,
        "precision": BF16,
        "layout": {"microbatch_sequences": 1, **layout},
        **more,
    }


def low_precision(
    recipe: str, layout: dict[str, Any], model: dict[str, Any] | None = None, data: dict[str, Any] | None = None
) -> Sections:
    """Sequences as long as the tokens that share a scale."""
    batch = {"global_sequences": 8, "sequence_length": 256 if recipe == "fp8-block" else 128}
    precision = {**BF16, "gemm_dtype": recipe}
    return {**sections(layout, {**FEATURES, **(model or {})}, data, precision=precision), "batch": batch}


LAYOUTS: dict[str, tuple[int, Sections]] = {
    "one rank": (1, sections({})),
    "one rank, fp32": (1, sections({}, precision={"compute": "fp32"})),
    "one rank, documents, full recompute": (1, sections({"recompute": "full"}, data=DOCUMENTS)),
    "one rank, selective": (1, sections({"recompute": "selective"}, {"tie_embeddings": True})),
    "one rank, sgd": (1, sections({}, optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9})),
    "one rank, muon": (1, sections({}, optimizer={"name": "muon"})),
    "replicas, muon with homes": (
        4,
        sections({"dp_replicate": 4, "dp_shard": 1, "zero": 0}, optimizer={"name": "muon", "placement": "owner"}),
    ),
    "zero 3, muon with homes": (
        4,
        sections({"dp_shard": 4, "zero": 3}, optimizer={"name": "muon", "placement": "owner"}),
    ),
    "tp, zero 1, muon by shards": (
        4,
        sections({"tp": 2, "dp_shard": 2, "zero": 1}, optimizer={"name": "muon", "placement": "shard"}),
    ),
    "experts, muon": (
        4,
        sections(
            {"ep": 2, "etp": 2, "tp": 2, "dp_shard": 2, "zero": 2}, {**MIXTRAL, **LARGER}, optimizer={"name": "muon"}
        ),
    ),
    "replicas": (4, sections({"dp_replicate": 4, "dp_shard": 1, "zero": 0})),
    "zero 1": (4, sections({"dp_shard": 4, "zero": 1})),
    "zero 2": (4, sections({"dp_shard": 4, "zero": 2})),
    "zero 3": (4, sections({"dp_shard": 4, "zero": 3})),
    "hsdp, zero 2": (8, sections({"dp_replicate": 2, "dp_shard": 4, "zero": 2})),
    "hsdp, zero 3": (8, sections({"dp_replicate": 2, "dp_shard": 4, "zero": 3})),
    "tp": (2, sections({"tp": 2})),
    "tp with sequences, padded vocabulary": (4, sections({"tp": 4, "sequence_parallel": True}, {"vocab_size": 99})),
    "tp, hsdp, zero 3": (
        8,
        sections({"tp": 2, "sequence_parallel": True, "dp_replicate": 2, "dp_shard": 2, "zero": 3}),
    ),
    "ring": (2, sections({"cp": 2})),
    "ring, documents": (4, sections({"cp": 4}, data=DOCUMENTS)),
    "gathered keys": (2, sections({"cp": 2, "cp_method": "all_gather"}, data=DOCUMENTS)),
    "ulysses": (2, sections({"cp": 2, "cp_method": "ulysses"})),
    "pipeline": (2, sections({"pp": 2, "schedule": "1f1b"})),
    "pipeline, tied": (4, sections({"pp": 2, "schedule": "gpipe", "dp_shard": 2, "zero": 1}, {"tie_embeddings": True})),
    "interleaved": (
        4,
        sections({"pp": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2, "dp_shard": 2, "zero": 2}),
    ),
    "zero bubble": (4, sections({"pp": 4, "schedule": "zb_h1"})),
    "zero bubble V": (
        4,
        sections({"pp": 2, "schedule": "zb_v", "virtual_stages": 2, "tp": 2, "sequence_parallel": True}),
    ),
    "learned positions": (2, sections({"tp": 2}, {"family": "gpt2", "num_kv_heads": 4})),
    "experts of one rank": (1, sections({}, {**MIXTRAL, **LARGER})),
    "experts of one rank, full recompute": (1, sections({"recompute": "full"}, {**MIXTRAL, **LARGER})),
    "experts, fp32": (1, sections({}, {**MIXTRAL, **LARGER}, precision={"compute": "fp32"})),
    "experts": (4, sections({"ep": 4, "dp_shard": 4, "zero": 1}, {**MIXTRAL, **LARGER})),
    "experts over tp": (
        4,
        sections({"ep": 2, "tp": 2, "dp_shard": 2, "sequence_parallel": True}, {**QWEN3_MOE, **LARGER}),
    ),
    "experts, etp, zero 3": (
        4,
        sections({"ep": 2, "etp": 2, "tp": 2, "dp_shard": 2, "zero": 3}, {**MIXTRAL, **LARGER}),
    ),
    "experts, first blocks dense": (
        8,
        sections(
            {"pp": 2, "ep": 4, "dp_shard": 4, "zero": 0, "schedule": "1f1b"}, {**DEEPSEEK_V3, "first_dense_layers": 2}
        ),
    ),
    "experts, capacity": (
        4,
        sections({"ep": 2, "dp_shard": 4, "zero": 3}, {**MIXTRAL, **LARGER, "capacity_factor": 1.25}),
    ),
    "experts, overlapped": (
        4,
        sections({"ep": 4, "dp_shard": 4, "zero": 3, "overlap_experts": True}, {**DEEPSEEK_V3, **LARGER}),
    ),
    "experts, dualpipe_v": (
        4,
        sections(
            {"pp": 2, "ep": 2, "dp_shard": 2, "zero": 1, "schedule": "dualpipe_v", "overlap_experts": True},
            {**MIXTRAL, **LARGER, "num_layers": 4},
        ),
    ),
    "mxfp8": (4, low_precision("mxfp8", {"tp": 2, "sequence_parallel": True, "dp_shard": 2, "zero": 3})),
    "mxfp8, experts": (2, low_precision("mxfp8", {"ep": 2, "dp_shard": 2, "zero": 1}, {**MIXTRAL, "moe_ffn_size": 64})),
    "fp8, ring": (4, low_precision("fp8", {"tp": 2, "cp": 2}, data=DOCUMENTS)),
    "fp8 in blocks": (4, low_precision("fp8-block", {"pp": 2, "tp": 2, "schedule": "zb_h1"})),
    "compressed": (
        4,
        sections({"dp_replicate": 2, "dp_shard": 2, "zero": 2}, precision={**BF16, "gradient_communication": "bf16"}),
    ),
    "offloaded": (
        4,
        sections({"dp_shard": 4, "zero": 3, "offload": "activations", "offload_optimizer": True}, {"num_layers": 6}),
    ),
    "pipeline, offloaded": (
        4,
        sections(
            {
                "pp": 2,
                "schedule": "zb_h1",
                "dp_shard": 2,
                "zero": 1,
                "offload": "activations",
                "recompute": "selective",
            },
            {"num_layers": 6},
        ),
    ),
    "experts, offloaded": (
        4,
        sections({"ep": 4, "dp_shard": 4, "offload": "activations", "offload_optimizer": True}, {**MIXTRAL, **LARGER}),
    ),
    "multi-token": (
        4,
        sections({"pp": 2, "dp_shard": 2, "zero": 1, "schedule": "1f1b"}, {**DEEPSEEK_V3, "mtp_layers": 1}),
    ),
}

FEW = {
    *("one rank", "one rank, muon", "hsdp, zero 2", "tp, hsdp, zero 3", "ring, documents", "ulysses", "pipeline, tied"),
    *("experts, etp, zero 3", "experts of one rank", "mxfp8", "pipeline, offloaded"),
}
"""The layouts that `make test` rehearses: every kind of parallelism, optimizer and format once."""
