"""The second schema of published rows: a trainer's command-line flags (`args`) in place of named settings."""

from fields import Fields
from row import ReportedFigures, Row, StatedHardware, StatedLayout, StatedModel

_NODE = 8
_POSITIONS = {"rope": "rope", "learned_absolute": "learned", "none": "rope"}


def flags_row(row: Fields, name: str, file: str) -> Row:
    """A row of Megatron's regression tests: its flags under `args`, its figures beside them. A flag left out has the trainer's
    own default; what `case` names (a test's name) but the flags lack is read from there. Raises `UserError`."""
    args = row.inner("args")
    case = row.text("case") or ""
    return Row(
        id=name,
        file=file,
        source=row.text("source") or "",
        model=_model(args, case),
        hardware=StatedHardware(device=row.text("hardware") or ""),
        layout=_layout(args),
        figures=ReportedFigures(
            step_seconds=row.number("iter_s_median") or None,
            memory_bytes=row.number("mem_max_allocated_bytes") or None,
            memory_kind="allocated",
            last_rank_alone="last rank" in (row.text("rank") or ""),
        ),
        num_devices=_NODE if "8 GPU" in (row.text("rank") or "") else None,
        sequence_length=args.count("seq-length"),
        global_sequences=args.count("global-batch-size"),
        microbatch_sequences=args.count("micro-batch-size"),
        recompute=_recompute(args),
        precision=_precision(args),
        task=_task(args),
        notes=case,
        attention=_attention(args, row.text("source") or ""),
        from_memory=("row",) if row.table.get("from_memory") else (),
        regression=True,
        remarks=tuple(row.remarks),
    )


def _model(args: Fields, case: str) -> StatedModel:
    hidden, gated = args.count("hidden-size"), bool(args.flag("swiglu"))
    ffn = args.count("ffn-hidden-size")
    if ffn is None and hidden is not None:
        ffn = hidden * 8 // 3 // 64 * 64 if gated else 4 * hidden  # the trainer's own rule
    is_mla = bool(args.flag("multi-latent-attention"))
    heads = args.count("num-attention-heads")
    return StatedModel(
        name=case,
        num_layers=args.count("num-layers", high=100_000),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=args.count("num-query-groups") or heads,
        ffn_size=ffn,
        vocab_size=args.count("vocab-size"),
        gated=gated,
        tied=not args.flag("untie-embeddings-and-output-weights") and "untie" not in case,
        bias="disable_bias_linear" not in case,
        norm="rms" if args.text("normalization") == "RMSNorm" else "layer",
        positions=_POSITIONS.get(args.text("position-embedding-type") or "learned_absolute", "rope"),
        is_mla=is_mla,
        query_rank=0 if is_mla else None,
        key_value_rank=32 if is_mla else None,
        nope_head_dim=128 if is_mla else None,
        rope_head_dim=64 if is_mla else None,
        value_head_dim=128 if is_mla else None,
        num_experts=args.count("num-experts", low=0),
        top_k=args.count("moe-router-topk", low=0),
        moe_ffn_size=args.count("moe-ffn-hidden-size", low=0),
        mtp_layers=args.count("mtp-num-layers", low=0, high=100),
    )


def _layout(args: Fields) -> StatedLayout:
    fsdp = bool(args.flag("use-megatron-fsdp"))
    sharded = fsdp and args.text("data-parallel-sharding-strategy") == "optim_grads_params"
    return StatedLayout(
        tp=args.count("tensor-model-parallel-size", high=10**6) or 1,
        pp=args.count("pipeline-model-parallel-size", high=10**6) or 1,
        cp=args.count("context-parallel-size", high=10**6) or 1,
        ep=args.count("expert-model-parallel-size", high=10**6) or 1,
        etp=args.count("expert-tensor-parallel-size", high=10**6),
        virtual_stages=args.count("num-virtual-stages-per-pipeline-rank", high=10**5),
        layers_per_virtual_stage=args.count("num-layers-per-virtual-pipeline-stage", high=10**5),
        zero=3 if sharded else int(bool(args.flag("use-distributed-optimizer"))),
        fsdp=fsdp,
        sequence_parallel=bool(args.flag("sequence-parallel")),
        cp_text=args.text("cp-comm-type") or "",
    )


def _recompute(args: Fields) -> str:
    granularity = args.text("recompute-granularity")
    if granularity is None:
        return "none"
    modules = (args.text("recompute-modules") or "core_attn").strip("[]")
    return "full" if granularity == "full" else f"selective:{'+'.join(modules.split())}"


def _attention(args: Fields, source: str) -> str | None:
    """The trainer's own modules write the scores. So do those of the first long-term image, whose values bear the name of the
    cluster they were recorded on, where nothing else is asked for: it has no deterministic fused kernel."""
    backend = args.text("attention-backend")
    if backend == "unfused" or args.text("transformer-impl") == "local" or (not backend and "lts_dgxa100" in source):
        return "unfused"
    return None


def _precision(args: Fields) -> str:
    fp8 = args.text("fp8-format")
    compute = "fp16" if args.flag("fp16") else "bf16" if args.flag("bf16") or fp8 else "fp32"
    return f"{compute} fp8:{fp8}" if fp8 else compute


def _task(args: Fields) -> str | None:
    optimizer = args.text("optimizer")
    return f"optimizer {optimizer}" if optimizer not in (None, "adam") else None
