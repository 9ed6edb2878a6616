"""A model as torchtitan's configuration dataclasses, in Python."""

from typing import NamedTuple

from fourfold.export.job import TrainerJob
from fourfold.export.script import Call, assigned, function


class TitanFamily(NamedTuple):
    """The names of one of torchtitan's models. `module`: below `torchtitan.models`."""

    module: str
    model: str
    block: str
    parallelize: str
    adapter: str
    rope: str


LLAMA = TitanFamily(
    "llama3", "Llama3Model", "Llama3TransformerBlock", "parallelize_llama", "Llama3StateDictAdapter", "ComplexRoPE"
)
QWEN = TitanFamily(
    "qwen3", "Qwen3Model", "Qwen3TransformerBlock", "parallelize_qwen3", "Qwen3StateDictAdapter", "CosSinRoPE"
)
DEEPSEEK = TitanFamily(
    "deepseek_v3",
    "DeepSeekV3Model",
    "DeepSeekV3TransformerBlock",
    "parallelize_deepseekv3",
    "DeepSeekV3StateDictAdapter",
    "ComplexRoPE",
)
FAMILIES = (LLAMA, QWEN, DEEPSEEK)
ONES, SAME = '{"weight": nn.init.ones_}', '{"weight": LINEAR["weight"]}'
COMPILED = {"model_compile_enabled": True}
CONVERTERS: dict[str, tuple[Call, ...]] = {
    "fp8": (
        Call("Float8LinearConverter.Config", COMPILED | {"filter_fqns": '["lm_head", "router.gate"]'}),
        Call("Float8GroupedExpertsConverter.Config", COMPILED),
    ),
    "mxfp8": (
        Call("MXFP8LinearConverter.Config", COMPILED | {"fqns": '["attention", "shared_experts", "feed_forward"]'}),
        Call("MXFP8GroupedExpertsConverter.Config", COMPILED | {"pad_multiple": 128}),
    ),
    "nvfp4": (Call("NVFP4LinearConverter.Config", COMPILED | {"fqns": '["layers"]'}),),
}
"""Converters of matmuls outside routed experts, and inside, by `--gemm-dtype`."""


def family(job: TrainerJob) -> TitanFamily:
    """MLA is DeepSeek's; norms of queries and keys, and experts, are Qwen3's; all else is Llama's."""
    model = job.model
    return DEEPSEEK if model.is_mla else QWEN if model.qk_norm or model.num_experts else LLAMA


def has_mtp(job: TrainerJob) -> bool:
    """Whether its MTP modules can be built: torchtitan has them without pipelines and context parallelism."""
    return bool(job.model.mtp_layers) and job.layout.pp == job.layout.cp == 1 and job.model.is_mla


def is_tied(job: TrainerJob) -> bool:
    """Whether its embeddings can be tied."""
    return job.model.tie_embeddings and job.layout.pp == 1 and not job.model.is_mla


def converters(job: TrainerJob) -> tuple[Call, ...]:
    """Converters to the format that is nearest to the GEMMs'."""
    kind = "fp8" if job.gemm_dtype == "fp8-block" else job.gemm_dtype
    return CONVERTERS[kind][: 2 if job.model.num_experts else 1] if kind is not None else ()


def model_lines(job: TrainerJob) -> list[str]:
    """Definitions up to `SPEC`, the model's specification."""
    model, kind = job.model, family(job)
    lines = [f'LINEAR = {{"weight": partial(nn.init.normal_, std={model.init_std}), "bias": nn.init.zeros_}}']
    lines += assigned("ROPE", _rope(job, kind))
    lines += function("norm(size)", Call("RMSNorm.Config", _norm(job)))
    init = {"w1_param_init": "LINEAR", "w2w3_param_init": "LINEAR"}
    lines += function(
        "feed_forward(size)", Call("make_ffn_config", {"dim": model.hidden_size, "hidden_dim": "size"} | init)
    )
    lines += function("experts()", _experts(job)) if model.num_experts else []
    lines += function("block(layer)", _block(job, kind))
    lines += _mtp_block(job) if has_mtp(job) else []
    lines += ["", "", *assigned("MODEL", _decoder(job, kind))]
    for each in converters(job):
        lines += [f"{assigned('MODEL', each)[0]}.build().convert(MODEL)"]
    spec = {
        "name": f'"{kind.module}"',
        "flavor": '"planned"',
        "model": "MODEL",
        "parallelize_fn": kind.parallelize,
        "pipelining_fn": "pipeline_llm",
        "post_optimizer_build_fn": "register_moe_load_balancing_hook" if model.num_experts else None,
        "state_dict_adapter": kind.adapter,
    }
    return lines + assigned("SPEC", Call("ModelSpec", spec))


def _norm(job: TrainerJob) -> dict[str, object]:
    return {"normalized_shape": "size", "eps": job.model.norm_eps, "param_init": ONES}


def _decoder(job: TrainerJob, kind: TitanFamily) -> Call:
    model = job.model
    dim, rows = model.hidden_size, model.vocab_size
    table = {"num_embeddings": rows, "embedding_dim": dim, "param_init": SAME}
    arguments: dict[str, object] = {
        "dim": dim,
        "vocab_size": rows,
        "tok_embeddings": Call("Embedding.Config", table),
        "norm": f"norm({dim})",
        "lm_head": Call("Linear.Config", {"in_features": dim, "out_features": rows, "param_init": "LINEAR"}),
        "layers": f"[block(layer) for layer in range({model.num_layers})]",
    }
    arguments |= {"enable_weight_tying": True} if is_tied(job) else {}
    arguments |= {"mtp_layers": f"[mtp_block() for _ in range({model.mtp_layers})]"} if has_mtp(job) else {}
    return Call(f"{kind.model}.Config", arguments)


def _rope(job: TrainerJob, kind: TitanFamily) -> Call:
    model, llama, yarn = job.model, job.model.rope_scaling, job.model.yarn_scaling
    arguments: dict[str, object] = {
        "dim": model.rope_head_dim if model.is_mla else model.head_dim,
        "max_seq_len": max(model.max_position, job.request.sequence_length),
        "theta": float(model.rope_theta),
    }
    if llama is not None and kind.rope == "ComplexRoPE":
        arguments |= {
            "scaling": '"llama"',
            "scaling_factor": llama.factor,
            "low_freq_factor": llama.low_freq_factor,
            "high_freq_factor": llama.high_freq_factor,
            "original_max_position_embeddings": llama.original_max_position,
        }
    elif yarn is not None:
        arguments |= {
            "scaling": '"yarn"',
            "rope_factor": yarn.factor,
            "beta_fast": yarn.beta_fast,
            "beta_slow": yarn.beta_slow,
            "original_seq_len": yarn.original_max_position,
        }
    return Call(f"{kind.rope}.Config", arguments)


def _block(job: TrainerJob, kind: TitanFamily) -> Call:
    model, dim = job.model, job.model.hidden_size
    parts = [f"layer >= {model.first_dense_layers}"] if model.first_dense_layers else []
    parts += [f"(layer + 1) % {model.moe_period} == 0"] if model.moe_period > 1 else []
    has_experts = " and ".join(parts)
    dense: str | None = f"feed_forward({model.ffn_size})"
    moe: str | None = "experts()" if model.num_experts else None
    if moe and has_experts:
        dense, moe = f"None if {has_experts} else {dense}", f"{moe} if {has_experts} else None"
    elif moe:
        dense = None
    arguments: dict[str, object] = {
        "attention_norm": f"norm({dim})",
        "ffn_norm": f"norm({dim})",
        "attention": _mla(job) if model.is_mla else _grouped_attention(job),
        "feed_forward": dense,
    }
    return Call(f"{kind.block}.Config", arguments | ({"moe": moe} if moe else {}))


def _grouped_attention(job: TrainerJob) -> Call:
    model = job.model
    arguments: dict[str, object] = {
        "dim": model.hidden_size,
        "n_heads": model.num_heads,
        "n_kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "wqkv_param_init": "LINEAR",
        "wo_param_init": "LINEAR",
        "inner_attention": 'get_attention_config("flex")',
        "fuse_qkv": True,
        "rope": "ROPE",
    }
    return Call("make_gqa_config", arguments | ({"qk_norm": f"norm({model.head_dim})"} if model.qk_norm else {}))


def _mla(job: TrainerJob) -> Call:
    model, yarn = job.model, job.model.yarn_scaling
    arguments = {
        "layer_id": "layer",
        "dim": model.hidden_size,
        "n_heads": model.num_heads,
        "q_lora_rank": model.query_rank or 0,
        "kv_lora_rank": model.key_value_rank,
        "qk_nope_head_dim": model.nope_head_dim,
        "qk_rope_head_dim": model.rope_head_dim,
        "v_head_dim": model.value_head_dim,
        "mscale": (yarn.mscale_all_dim or 0.0) if yarn is not None else 1.0,
        "attn_backend": '"flex"',
        "linear_init": "LINEAR",
        "norm_init": ONES,
        "depth_init": "lambda _: LINEAR",
        "rope": "ROPE",
    }
    return Call("make_mla_attention_config", arguments)


def _experts(job: TrainerJob) -> Call:
    model, dispatcher = job.model, job.request.software.dispatcher
    sizes = {"dim": model.hidden_size, "num_experts": model.num_experts, "top_k": model.top_k}
    router = sizes | {
        "gate_param_init": "LINEAR",
        "score_func": f'"{model.router}"',
        "route_norm": model.normalize_top_k,
        "route_scale": model.routed_scaling,
    }
    if model.num_expert_groups > 1:
        router |= {"num_expert_groups": model.num_expert_groups, "num_limited_groups": model.top_groups}
    routed = sizes | {
        "hidden_dim": model.moe_ffn_size,
        "param_init": '{name: LINEAR["weight"] for name in ("w1_EFD", "w2_EDF", "w3_EFD")}',
        "comm_backend": f'"{"standard" if dispatcher == "alltoall" or job.layout.ep == 1 else dispatcher}"',
    }
    arguments: dict[str, object] = {
        "num_experts": model.num_experts,
        "router": Call("make_router_config", router),
        "routed_experts": Call("make_routed_experts_config", routed),
        "load_balance_coeff": model.balance_bias_speed or None,
    }
    if model.num_shared_experts:
        arguments["shared_experts"] = f"feed_forward({model.num_shared_experts * model.moe_ffn_size})"
    return Call("make_moe_config", arguments)


def _mtp_block(job: TrainerJob) -> list[str]:
    dim = job.model.hidden_size
    shared = ("attention", "feed_forward", "moe", "attention_norm", "ffn_norm")
    arguments: dict[str, object] = {name: f"inner.{name}" for name in shared}
    arguments |= dict.fromkeys(("enorm", "hnorm", "mtp_norm"), f"norm({dim})")
    arguments["eh_proj"] = Call("Linear.Config", {"in_features": 2 * dim, "out_features": dim, "param_init": "LINEAR"})
    lines = function("mtp_block()", Call("MTPTransformerBlock.Config", arguments))
    return [*lines[:3], f"    inner = block({job.model.num_layers - 1})", *lines[3:]]
