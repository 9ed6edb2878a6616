"""SimuMax (v1.2): a case in its words, and, run as a script, its answers.

    PYTHON peer_simumax.py CHECKOUT < statements

As its own comparison with B200 has it (`tools/b200/run_megatron_perf_real_pipeline.py`): transfers between stages that are waited
for, Transformer Engine 2.11, vocabularies padded as Megatron's, experts padded to capacity."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer import WRITTEN, Answer, Statement, require, require_usual, serve

if TYPE_CHECKING:
    from case import PublishedCase

SYSTEMS = {"b200": "b200_bf16_ceperm", "a100-pcie-80": "a100_pcie"}
MODULES = frozenset({"layernorm", "mla_up_proj", "moe_act", "mlp", "moe"})
"""Parts that its Megatron recomputation knows."""
OWN = "simumax"
"""Beginning of the file of its own measured runs, all of which exchange context by all-to-alls."""
FUSED_LOSS = "_cef"
"""How the names of its own runs end where the loss is fused (`docs/strategy.md`)."""


def statement(case: "PublishedCase") -> Statement:
    """Raises `CannotStateError`. Its ZeRO-2 and 3 "are not supported yet, the configuration will be ignored"."""
    model, layout = case.model, case.layout
    require((case.device in SYSTEMS, "a device without a system"))
    require_usual(case)
    modules = frozenset(layout.recompute_modules)
    policy = layout.policies(model.num_layers)
    require(
        (layout.zero <= 1, "ZeRO-2 and ZeRO-3"),
        (not model.tie_embeddings, "tied embeddings"),
        (model.moe_period == 1, "experts in some of the later blocks"),
        (case.kernels.attention not in WRITTEN, "attention that writes its scores"),
        (layout.cp == 1 or layout.cp_method == "ulysses" or OWN in case.file, "context parallelism by a ring"),
        (
            policy != "selective" or (bool(modules) and modules <= MODULES),
            "selective recomputation of parts it does not know",
        ),
    )
    recomputed = {} if policy == "none" else {"recompute_layer_num": -(-model.num_layers // layout.pp)}
    if policy == "full":
        recomputed |= {"recompute_granularity": "full_block"}
    elif policy == "selective":
        recomputed |= {
            "recompute_granularity": "selective_recompute",
            "megatron_recompute": True,
            "megatron_recompute_modules": sorted(modules),
        }
    strategy = {
        "seq_len": case.sequence_length,
        "micro_batch_size": layout.microbatch_sequences,
        "micro_batch_num": layout.num_microbatches,
        "dtype": "bf16",
        "world_size": case.num_devices,
        "tp_size": layout.tp,
        "cp_size": layout.cp,
        "pp_size": layout.pp,
        "ep_size": layout.ep,
        "etp_size": layout.etp,
        "enable_sequence_parallel": layout.sequence_parallel,
        "interleaving_size": layout.virtual_stages,
        "zero_state": layout.zero,
        "grad_reduce_in_bf16": case.precision.gradients != "fp32",
        "enable_recompute": policy != "none",
        "cross_entropy_loss_fusion": case.kernels.loss in ("fused", "chunked") or case.source.endswith(FUSED_LOSS),
        "use_fused_norm": case.kernels.norms != "unfused",
        "dispatch_probs": True,
        "pp_comm_async": False,
        "te_version": "2.11.0",
        **recomputed,
    }
    stated = None if case.network.assumed else case.network.internode_bytes_per_second
    return {
        "system": SYSTEMS[case.device],
        "network_gigabytes_per_second": stated and stated * case.network.devices_per_node / 1e9,
        "reserved": case.measured.memory_kind == "reserved",
        "model": _model(case),
        "strategy": strategy,
    }


def _model(case: "PublishedCase") -> Statement:
    model = case.model
    table: Statement = {
        "model_type": "moe" if model.num_experts else "dense",
        "model_name": case.model_name,
        "hidden_size": model.hidden_size,
        "head_num": model.num_heads,
        "kv_head_num": model.num_kv_heads,
        "head_size": model.head_dim,
        "intermediate_size": model.ffn_size,
        "layer_num": model.num_layers,
        "vocab_size": case.vocab_size,
        "use_swiglu": model.gated,
    }
    if model.num_experts:
        width = model.moe_ffn_size or model.ffn_size
        table |= {
            "expert_num": model.num_experts,
            "topk": model.top_k,
            "moe_ffn_hidden_size": width,
            "dense_layers": model.first_dense_layers,
        }
        if model.num_shared_experts:
            table["moe_shared_expert_intermediate_size"] = model.num_shared_experts * width
    if model.is_mla:
        table |= {
            "attention_type": "mla",
            "kv_head_num": model.num_heads,
            "q_lora_rank": model.query_rank or None,
            "kv_lora_rank": model.key_value_rank,
            "qk_head_dim": model.nope_head_dim,
            "qk_pos_emb_head_dim": model.rope_head_dim,
            "v_head_dim": model.value_head_dim,
        }
    return table


def answerer(checkout: Path) -> Any:
    sys.path.insert(0, str(checkout))
    from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig
    from simumax.core.perf_llm import PerfLLM

    def answer(asked: Statement) -> Answer:
        table = json.loads((checkout / "configs" / "system" / f"{asked['system']}.json").read_text(encoding="utf-8"))
        if asked["network_gigabytes_per_second"]:
            table["networks"]["inter_node"]["bandwidth"]["gbps"] = asked["network_gigabytes_per_second"]
        perf = PerfLLM()
        perf.configure(
            strategy_config=StrategyConfig.init_from_dict(asked["strategy"]),
            model_config=ModelConfig.init_from_dict(asked["model"]),
            system_config=SystemConfig.init_from_dict(table),
        )
        perf.run_estimate()
        key = "peak_mem_with_reserved" if asked["reserved"] else "peak_mem"
        peaks = perf.get_pp_stage_peak_mem(perf.analysis_mem(), key)
        seconds = _seconds(perf.analysis_cost().data["duration_time_per_iter"])
        missed = "some kernels have shapes that its system holds no efficiency of, and take an average"
        note = missed if perf.system.miss_efficiency else None
        return {"step_seconds": seconds, "memory_bytes": max(map(float, peaks.values())), "note": note}

    return answer


def _seconds(text: str | float) -> float:
    """The seconds of a duration as SimuMax prints it: a number of milliseconds, or with its unit."""
    number, _, unit = str(text).strip().partition(" ")
    return float(number) * {"s": 1.0, "ms": 1e-3, "us": 1e-6, "": 1e-3}[unit]


if __name__ == "__main__":
    serve(answerer(Path(sys.argv[1])))
