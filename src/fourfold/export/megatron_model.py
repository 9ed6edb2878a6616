"""A model in the flags of Megatron-LM's `pretrain_gpt.py`."""

from collections.abc import Iterable
from itertools import groupby
from typing import TypeVar

from fourfold.cost.prices import Windows
from fourfold.export.job import TrainerJob, unwritten
from fourfold.export.script import Flags
from fourfold.model.layers import layers_of

LLAMA_LOW, LLAMA_HIGH, LLAMA_ORIGINAL = 1.0, 4.0, 8192
"""Megatron-LM's `--use-rope-scaling` takes these beside the factor."""
YARN_ORIGINAL, YARN_FAST, YARN_SLOW = 4096, 32.0, 1.0
"""Factors of Megatron-LM's MLA, for which there is no flag."""

Part = tuple[Flags, list[str]]
"""Flags, and what they leave out."""
Item = TypeVar("Item")


def joined(*parts: Part) -> Part:
    """All flags, and all that they leave out."""
    return {name: value for flags, _ in parts for name, value in flags.items()}, [
        each for _, lacks in parts for each in lacks
    ]


def runs(items: Iterable[Item]) -> list[tuple[Item, int]]:
    """Equal neighbours, with their number."""
    return [(item, len(list(run))) for item, run in groupby(items)]


def model_flags(job: TrainerJob) -> Part:
    """Dimensions, norms, activation, attention, vocabulary, multi-token prediction."""
    model = job.model
    flags: Flags = {
        "num-layers": model.num_layers,
        "hidden-size": model.hidden_size,
        "ffn-hidden-size": model.ffn_size,
        "num-attention-heads": model.num_heads,
        "kv-channels": model.value_head_dim if model.is_mla else model.head_dim,
        "seq-length": job.request.sequence_length,
        "max-position-embeddings": max(model.max_position, job.request.sequence_length),
        "padded-vocab-size": job.vocab_rows,
        "normalization": "RMSNorm" if model.norm == "rms" else "LayerNorm",
        "norm-epsilon": model.norm_eps,
        "init-method-std": model.init_std,
        "attention-dropout": 0.0,
        "hidden-dropout": 0.0,
    }
    missing = unwritten(model)
    if model.num_kv_heads != model.num_heads and not model.is_mla:
        flags |= {"group-query-attention": True, "num-query-groups": model.num_kv_heads}
    if model.qk_norm or model.is_mla:
        flags["qk-layernorm"] = True
    if not model.tie_embeddings:
        flags["untie-embeddings-and-output-weights"] = True
    if not model.linear_bias:
        flags["disable-bias-linear"] = True
        flags |= {"add-qkv-bias": True} if model.qkv_bias else {}
    elif not model.qkv_bias:
        missing.append("linear_bias without qkv_bias: queries, keys and values have biases there too")
    if model.activation == "silu" and model.gated:
        flags["swiglu"] = True
    elif model.activation != "gelu" or model.gated:
        shape = "gated" if model.gated else "not gated"
        missing.append(f"{model.activation}, {shape}: Megatron-LM has SwiGLU or plain gelu; it will run gelu")
    flags, missing = joined((flags, missing), _positions(job), _mla(job), _windows(job))
    if model.mtp_layers:
        flags |= {"mtp-num-layers": model.mtp_layers, "mtp-loss-scaling-factor": model.mtp_loss}
    return flags, missing


def _positions(job: TrainerJob) -> Part:
    model = job.model
    if model.positions == "learned":
        return {"position-embedding-type": "learned_absolute"}, []
    flags: Flags = {"position-embedding-type": "rope", "rotary-base": round(model.rope_theta)}
    missing = []
    if model.rope_theta != round(model.rope_theta):
        missing.append(f"rope_theta = {model.rope_theta}: --rotary-base is a whole number there")
    if model.rope_interleave and not model.is_mla:
        flags["rotary-interleaved"] = True
    llama, yarn = model.rope_scaling, model.yarn_scaling
    if llama is not None:
        flags |= {"use-rope-scaling": True, "rope-scaling-factor": llama.factor}
        stated = (llama.low_freq_factor, llama.high_freq_factor, llama.original_max_position)
        if stated != (LLAMA_LOW, LLAMA_HIGH, LLAMA_ORIGINAL):
            missing.append(f"rope_scaling {stated}: it will take {(LLAMA_LOW, LLAMA_HIGH, LLAMA_ORIGINAL)}")
    if yarn is not None and yarn.attention_factor is not None:
        missing.append("yarn_scaling.attention_factor: it follows from mscale there")
    if yarn is not None and not model.is_mla:
        flags |= {
            "position-embedding-type": "yarn",
            "rotary-scaling-factor": yarn.factor,
            "yarn-original-max-position-embeddings": yarn.original_max_position,
            "yarn-beta-fast": yarn.beta_fast,
            "yarn-beta-slow": yarn.beta_slow,
            "mscale": 1.0 if yarn.mscale is None else yarn.mscale,
            "mscale-all-dim": yarn.mscale_all_dim or 0.0,
        }
    return flags, missing


def _mla(job: TrainerJob) -> Part:
    """Multi-head latent attention."""
    model, yarn = job.model, job.model.yarn_scaling
    if not model.is_mla:
        return {}, []
    flags: Flags = {
        "multi-latent-attention": True,
        "kv-lora-rank": model.key_value_rank,
        "qk-head-dim": model.nope_head_dim,
        "qk-pos-emb-head-dim": model.rope_head_dim,
        "v-head-dim": model.value_head_dim,
        "rope-type": "rope" if yarn is None else "yarn",
    }
    flags |= {"q-lora-rank": model.query_rank} if model.query_rank else {}
    flags |= {"no-rope-fusion": True} if yarn is None else {}
    missing = []
    if yarn is not None:
        flags |= {
            "rotary-scaling-factor": yarn.factor,
            "mscale": 1.0 if yarn.mscale is None else yarn.mscale,
            "mscale-all-dim": yarn.mscale_all_dim or 0.0,
        }
        stated = (yarn.original_max_position, yarn.beta_fast, yarn.beta_slow)
        if stated != (YARN_ORIGINAL, YARN_FAST, YARN_SLOW):
            missing.append(f"yarn_scaling {stated}: it will take {(YARN_ORIGINAL, YARN_FAST, YARN_SLOW)}")
    return flags, missing


def _windows(job: TrainerJob) -> Part:
    model, windows = job.model, job.request.windows
    spans = [each.mixer.window for each in layers_of(model)[: model.num_layers] if each is not None]
    windowed = [span for span in spans if span is not None]
    if windowed:
        windows = Windows(max(windowed), len(windowed) / model.num_layers)
    if windows is None or windows.tokens >= job.request.sequence_length:
        return {}, []
    flags: Flags = {"window-size": f"{windows.tokens},0"}
    if windows.layers == 1:
        return flags, []
    return {}, [f"sliding windows in {windows.layers:.0%} of the layers: say which with --window-attn-skip-freq"]


def expert_flags(job: TrainerJob) -> Part:
    """Routed and shared experts: sizes, router, balancing, dispatch."""
    model, software = job.model, job.request.software
    if not model.num_experts:
        return {}, []
    flags: Flags = {
        "num-experts": model.num_experts,
        "moe-router-topk": model.top_k,
        "moe-ffn-hidden-size": model.moe_ffn_size,
        "moe-grouped-gemm": True,
        "moe-permute-fusion": True,
        "moe-router-dtype": "fp32",
        "moe-router-load-balancing-type": "seq_aux_loss" if model.balance_loss else "none",
        "moe-router-score-function": model.router,
    }
    missing = []
    flags |= {"moe-layer-freq": _layer_pattern(job)} if model.has_dense_blocks else {}
    if model.num_shared_experts:
        flags["moe-shared-expert-intermediate-size"] = model.num_shared_experts * model.moe_ffn_size
    flags |= {"moe-aux-loss-coeff": model.balance_loss} if model.balance_loss else {}
    flags |= {"moe-z-loss-coeff": model.z_loss} if model.z_loss else {}
    flags |= {"moe-router-topk-scaling-factor": model.routed_scaling} if model.routed_scaling != 1 else {}
    if model.num_expert_groups > 1:
        flags |= {"moe-router-num-groups": model.num_expert_groups, "moe-router-group-topk": model.top_groups}
    if model.router == "softmax" and (not model.normalize_top_k or model.top_k == 1):
        flags["moe-router-pre-softmax"] = True
    if model.router == "sigmoid" and not model.normalize_top_k:
        missing.append("normalize_top_k = false: sigmoid scores of several experts are normalized there")
    if model.balance_bias_speed and model.router == "sigmoid":
        flags |= {"moe-router-enable-expert-bias": True, "moe-router-bias-update-rate": model.balance_bias_speed}
    elif model.balance_bias_speed:
        missing.append(f"balance_bias_speed = {model.balance_bias_speed}: goes with sigmoid scores alone there")
    if model.capacity_factor is not None:
        flags["moe-expert-capacity-factor"] = model.capacity_factor
    flags |= {"moe-router-padding-for-quantization": True} if job.gemm_dtype else {}
    if software.dispatches_once and job.layout.ep > 1:
        flags |= {"moe-token-dispatcher-type": "flex", "moe-flex-dispatcher-backend": software.dispatcher}
    else:
        flags["moe-token-dispatcher-type"] = "alltoall"
    return flags, missing


def _layer_pattern(job: TrainerJob) -> str:
    """`([0]*3+[1]*58)`: 1 for a block with experts."""
    is_moe = [int(job.model.is_moe(layer)) for layer in range(job.model.num_layers)]
    alike = runs(is_moe)
    if len(alike) <= 4:
        return "(" + "+".join(f"[{one}]*{count}" for one, count in alike) + ")"
    return str(is_moe).replace(" ", "")
