"""Megatron-LM's own assertions on its arguments (`validate_args`, `TransformerConfig.__post_init__`), one function each."""

from argparse import Namespace
from ast import literal_eval
from collections.abc import Callable, Mapping
from math import prod
from re import findall, fullmatch, sub

Rule = Callable[[Namespace, int, Mapping[str, str]], bool]
"""(arguments, world size, environment) -> whether it is kept."""


def _get(args: Namespace, name: str, default: object = None) -> object:
    return getattr(args, name, default)


def _degrees(args: Namespace) -> tuple[int, int, int, int, int]:
    ep, etp = _get(args, "expert_model_parallel_size", 1), _get(args, "expert_tensor_parallel_size")
    tp = args.tensor_model_parallel_size
    return tp, args.pipeline_model_parallel_size, args.context_parallel_size, ep, etp or tp


def unrolled(text: str) -> list[str]:
    """The stages of a `--pipeline-model-parallel-layout`."""
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        text = sub(pattern, lambda found: found[1] * int(found[2]), text)
    return text.split("|")


def world_size_divides(args: Namespace, world: int, _: Mapping[str, str]) -> bool:
    tp, pp, cp, ep, etp = _degrees(args)
    return world % (tp * pp * cp) == 0 and world % (etp * ep * pp) == 0


def batch_divides(args: Namespace, world: int, _: Mapping[str, str]) -> bool:
    tp, pp, cp, *_rest = _degrees(args)
    return args.global_batch_size % (args.micro_batch_size * world // (tp * pp * cp)) == 0


def heads_divide(args: Namespace, *_: object) -> bool:
    tp, groups = args.tensor_model_parallel_size, _get(args, "num_query_groups") or args.num_attention_heads
    return args.num_attention_heads % tp == 0 and (groups % tp == 0 or tp % groups == 0)


def experts_divide(args: Namespace, *_: object) -> bool:
    ep = _get(args, "expert_model_parallel_size", 1)
    return ep == 1 or _get(args, "num_experts", 0) % ep == 0 < _get(args, "num_experts", 0)


def sequence_parallel_with_experts_and_tp(args: Namespace, *_: object) -> bool:
    return (
        not hasattr(args, "num_experts") or args.tensor_model_parallel_size == 1 or hasattr(args, "sequence_parallel")
    )


def one_way_to_cut_stages(args: Namespace, *_: object) -> bool:
    names = ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")
    stated = [name for name in (*names, "pipeline_model_parallel_layout") if hasattr(args, name)]
    return len(stated) <= 1


def stages_hold_the_model(args: Namespace, *_: object) -> bool:
    layout, pp = _get(args, "pipeline_model_parallel_layout"), args.pipeline_model_parallel_size
    if layout is None:
        return args.num_layers % (pp * _get(args, "num_virtual_stages_per_pipeline_rank", 1)) == 0
    stages = unrolled(layout)
    flat, mtp = "".join(stages), _get(args, "mtp_num_layers", 0)
    ordered = fullmatch(r"Et*m*L", flat) is not None and flat.count("t") == args.num_layers
    with_mtp = [number for number, stage in enumerate(stages) if "m" in stage]
    last = not mtp or (len(with_mtp) == 1 and with_mtp[0] >= len(stages) - pp and with_mtp[0] % pp > 0)
    return len(stages) % pp == 0 and ordered and flat.count("m") == mtp and last


def interleaving_needs_a_pipeline(args: Namespace, *_: object) -> bool:
    return _get(args, "num_virtual_stages_per_pipeline_rank", 1) == 1 or args.pipeline_model_parallel_size > 1


def groups_fill_the_pipeline(args: Namespace, world: int, _: Mapping[str, str]) -> bool:
    tp, pp, cp, *_rest = _degrees(args)
    microbatches = args.global_batch_size * tp * pp * cp // (world * args.micro_batch_size)
    stages = len(unrolled(_get(args, "pipeline_model_parallel_layout", "|" * (pp - 1))))
    interleaved = hasattr(args, "num_virtual_stages_per_pipeline_rank") or stages > pp
    group = _get(args, "microbatch_group_size_per_virtual_pipeline_stage", pp)
    return not interleaved or (pp <= group <= microbatches and not 0 < microbatches % group < pp)


def sequences_divide(args: Namespace, *_: object) -> bool:
    cp = args.context_parallel_size
    sizes = _get(args, "hierarchical_context_parallel_sizes", [])
    mixed = _get(args, "cp_comm_type") == ["a2a+p2p"]
    return (cp == 1 or args.seq_length % (2 * cp) == 0) and (not mixed or (prod(sizes) == cp and len(sizes) == 2))


def positions_suffice(args: Namespace, *_: object) -> bool:
    return args.max_position_embeddings >= args.seq_length


def vocabulary_divides(args: Namespace, *_: object) -> bool:
    return args.padded_vocab_size % args.tensor_model_parallel_size == 0


def overlap_goes_with_sharding(args: Namespace, *_: object) -> bool:
    sharded = hasattr(args, "use_distributed_optimizer") or hasattr(args, "use_megatron_fsdp")
    return not hasattr(args, "overlap_param_gather") or (sharded and hasattr(args, "overlap_grad_reduce"))


def instances_divide(args: Namespace, world: int, _: Mapping[str, str]) -> bool:
    tp, pp, cp, *_rest = _degrees(args)
    number = _get(args, "num_distributed_optimizer_instances", 1)
    sharded = number == 1 or hasattr(args, "use_distributed_optimizer")
    return sharded and (world // (tp * pp * cp)) % number == 0


def connections(args: Namespace, world: int, environment: Mapping[str, str]) -> bool:
    """One queue to the device under tensor and context parallelism before Blackwell, more for FSDP."""
    tp, _pp, cp, *_rest = _degrees(args)
    stated = environment.get("CUDA_DEVICE_MAX_CONNECTIONS")
    return stated != "1" if hasattr(args, "use_megatron_fsdp") else tp * cp == 1 or stated == "1"


def fsdp_has_its_checkpoints(args: Namespace, *_: object) -> bool:
    return hasattr(args, "use_megatron_fsdp") == (_get(args, "ckpt_format") == "fsdp_dtensor")


def recomputation_is_complete(args: Namespace, *_: object) -> bool:
    kind, method = _get(args, "recompute_granularity"), _get(args, "recompute_method")
    count, modules = _get(args, "recompute_num_layers"), set(_get(args, "recompute_modules", []))
    known = {"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"}
    fits = modules <= known and ("mla_up_proj" not in modules or hasattr(args, "multi_latent_attention"))
    fits = fits and ("moe_act" not in modules or hasattr(args, "moe_grouped_gemm"))
    return (
        fits
        and (kind == "full") == (method is not None) == (count is not None)
        and bool(modules) <= (kind == "selective")
    )


def expert_overlap_has_what_it_needs(args: Namespace, *_: object) -> bool:
    if not hasattr(args, "overlap_moe_expert_parallel_comm"):
        return True
    cut = hasattr(args, "num_virtual_stages_per_pipeline_rank") or hasattr(args, "pipeline_model_parallel_layout")
    staged = args.pipeline_model_parallel_size == 1 or cut
    return staged and args.expert_model_parallel_size > 1 and _get(args, "recompute_granularity") != "full"


def attention_is_of_one_kind(args: Namespace, *_: object) -> bool:
    mla = hasattr(args, "multi_latent_attention")
    fused = not mla or args.rope_type == "yarn" or hasattr(args, "no_rope_fusion")
    return fused and not (mla and hasattr(args, "group_query_attention"))


def router_is_consistent(args: Namespace, *_: object) -> bool:
    if not hasattr(args, "num_experts"):
        return True
    biased = hasattr(args, "moe_router_enable_expert_bias") and args.moe_router_score_function != "sigmoid"
    groups = _get(args, "moe_router_num_groups", 1)
    top_1 = args.moe_router_topk == 1 and args.moe_router_score_function == "softmax"
    pattern = _get(args, "moe_layer_freq", f"([1]*{args.num_layers})")
    runs = findall(r"\[[01]\]\*(\d+)", pattern)
    layers = sum(map(int, runs)) if runs else len(literal_eval(pattern))
    pre = not top_1 or hasattr(args, "moe_router_pre_softmax")
    return not biased and pre and args.num_experts % groups == 0 and layers == args.num_layers


def precision_is_one(args: Namespace, *_: object) -> bool:
    padded = hasattr(args, "moe_router_padding_for_quantization")
    low = hasattr(args, "fp8_format") or hasattr(args, "fp4_format")
    return not (hasattr(args, "fp8_format") and hasattr(args, "fp4_format")) and padded <= low


def learning_rate_falls(args: Namespace, *_: object) -> bool:
    wsd = args.lr_decay_style == "WSD"
    return args.min_lr <= args.lr and wsd == hasattr(args, "lr_wsd_decay_iters") and args.save_interval > 0


RULES: tuple[Rule, ...] = (
    world_size_divides,
    batch_divides,
    heads_divide,
    experts_divide,
    sequence_parallel_with_experts_and_tp,
    one_way_to_cut_stages,
    stages_hold_the_model,
    interleaving_needs_a_pipeline,
    groups_fill_the_pipeline,
    sequences_divide,
    positions_suffice,
    vocabulary_divides,
    overlap_goes_with_sharding,
    instances_divide,
    connections,
    fsdp_has_its_checkpoints,
    recomputation_is_complete,
    expert_overlap_has_what_it_needs,
    attention_is_of_one_kind,
    router_is_consistent,
    precision_is_one,
    learning_rate_falls,
)
