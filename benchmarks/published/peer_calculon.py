"""Calculon (Isaev et al. 2023): a case in its words, and, run as a script, its answers.

    PYTHON peer_calculon.py CHECKOUT < statements

As its own validation against Megatron has it (`calculon/llm/validation.py`, `validation/seqsel/tab5`): systems `a100_80g` and
`h100_80g_nvl8`, activations that are not fused, all-gathers made again in the backward with sequence parallelism."""

import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer import WRITTEN, Answer, Statement, require, require_usual, serve

if TYPE_CHECKING:
    from case import PublishedCase

SYSTEMS = {"a100-sxm-80": "a100_80g", "h100-sxm": "h100_80g_nvl8"}
NODE = 8
"""Devices of the inner network of both systems."""


def statement(case: "PublishedCase") -> Statement:
    """Raises `CannotStateError`. A model is a stack of GPT blocks: no gate, no grouped queries, no vocabulary. Attention always
    writes its scores: a fused kernel, which keeps none and computes them again, is stated as attention recomputed."""
    model, layout = case.model, case.layout
    require((case.device in SYSTEMS, "a device without a system"))
    require_usual(case)
    require(
        (not model.num_experts, "mixtures of experts"),
        (not model.is_mla, "MLA"),
        (not model.gated, "a gated feed-forward"),
        (model.num_kv_heads in (1, model.num_heads), "grouped queries"),
        (layout.cp == 1, "context parallelism"),
        (layout.zero <= 2, "ZeRO-3"),
    )
    inner = _inner_axes(case)
    keeps_scores = case.kernels.attention in WRITTEN and layout.recompute == "none"
    recompute = "full" if layout.recompute == "full" else "none" if keeps_scores else "attn_only"
    execution = {
        "num_procs": case.num_devices,
        "tensor_par": layout.tp,
        "pipeline_par": layout.pp,
        "data_par": layout.dp,
        "tensor_par_net": 0 if "tp" in inner else 1,
        "pipeline_par_net": 0 if "pp" in inner else 1,
        "data_par_net": 0 if "dp" in inner else 1,
        "batch_size": case.global_sequences,
        "microbatch_size": layout.microbatch_sequences,
        "datatype": "float16",
        "fused_activation": False,
        "attention_type": "multihead" if model.num_kv_heads == model.num_heads else "multiquery",
        "activation_recompute": recompute,
        "pipeline_interleaving": layout.virtual_stages,
        "optimizer_sharding": layout.zero > 0 and layout.dp > 1,
        "tensor_par_comm_type": "rs_ag" if layout.sequence_parallel and layout.tp > 1 else "ar",
        "tensor_par_overlap": "none",
        "seq_par_ag_redo": layout.sequence_parallel and layout.tp > 1 and recompute != "full",
        "data_par_overlap": bool(case.overlap) and layout.dp > 1,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }
    application = {
        "hidden": model.hidden_size,
        "feedforward": model.ffn_size,
        "seq_size": case.sequence_length,
        "attn_heads": model.num_heads,
        "attn_size": model.head_dim,
        "num_blocks": model.num_layers,
    }
    stated = None if case.network.assumed else case.network.internode_bytes_per_second
    return {
        "system": SYSTEMS[case.device],
        "network_gigabytes_per_second": stated and stated / 1e9,
        "application": application,
        "execution": execution,
    }


def _inner_axes(case: "PublishedCase") -> frozenset[str]:
    """The axes whose ranks share a node, tensor parallelism innermost. Calculon wants an inner network whose size they divide."""
    layout, inside, size = case.layout, set[str](), 1
    for axis in ("tp", "dp", "pp") if layout.outermost == "pp" else ("tp", "pp", "dp"):
        size *= getattr(layout, axis)
        if NODE % size:
            break
        inside.add(axis)
    # An axis of one rank communicates nowhere: its own validation puts those of pipeline and data on the outer network.
    return frozenset(axis for axis in inside if axis == "tp" or getattr(layout, axis) > 1)


def answerer(checkout: Path) -> Any:
    sys.path.insert(0, str(checkout))
    import calculon
    from calculon.llm import Llm

    logger = logging.getLogger("calculon")

    def answer(asked: Statement) -> Answer:
        table = json.loads((checkout / "systems" / f"{asked['system']}.json").read_text(encoding="utf-8"))
        if asked["network_gigabytes_per_second"]:
            table["networks"][1]["bandwidth"] = asked["network_gigabytes_per_second"]
        system = calculon.System(table)
        model = Llm(Llm.Application(asked["application"]), logger)
        model.compile(system, Llm.Execution.from_json(asked["execution"]))
        model.run(system)
        return {"step_seconds": model.get_total_time(), "memory_bytes": model.get_mem_tier1_cap_req()}

    return answer


if __name__ == "__main__":
    serve(answerer(Path(sys.argv[1])))
