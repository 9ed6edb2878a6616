"""The settings that torchtitan's file cannot express."""

from fourfold.export.job import TrainerJob, every_block, outermost, unstated
from fourfold.export.torchtitan_model import family, has_mtp, is_tied
from fourfold.program.schedule import find_schedule, usual_schedule


def schedule_name(job: TrainerJob) -> str:
    """The layout's schedule in torch.distributed.pipelining, or the usual one of as many stages."""
    usual = usual_schedule(job.layout.virtual_stages).names["torch"]
    return find_schedule(job.layout.schedule).names.get("torch", usual)


def splits_norms(job: TrainerJob) -> bool:
    """Whether every stage has norms: torchtitan refuses a group of parameters that matches nothing."""
    return all("t" in stage or "L" in stage for stage in job.stages)


def left_out(job: TrainerJob) -> list[str]:
    """The settings that torchtitan runs otherwise, one sentence each."""
    found = [text for text, applies in (*_of_layout(job), *_of_model(job), *_of_precision(job)) if applies]
    return [*unstated(job, ("adamw",)), *found, *outermost(job.layout, "torchtitan's mesh has pp outermost")]


def _of_layout(job: TrainerJob) -> list[tuple[str, bool]]:
    layout, model = job.layout, job.model
    is_known = "torch" in find_schedule(layout.schedule).names
    catalogue = "is not in torch.distributed.pipelining's catalogue: it will run"
    replicas = "torchtitan has replicas or FSDP"
    return [
        (f"ZeRO-0: {replicas}: data_parallel_shard_degree = 1 replicates all states", layout.zero == 0),
        ("ZeRO-0 with experts: their ranks are sharded there, as in ZeRO-2", layout.zero == 0 and layout.ep > 1),
        (f"ZeRO-1: {replicas}: parameters that are not resharded after the forward are ZeRO-2", layout.zero == 1),
        (f"the schedule {layout.schedule} {catalogue} {schedule_name(job)}", layout.pp > 1 and not is_known),
        (f"{layout.cp_method}: torchtitan gathers keys and values", layout.cp > 1 and layout.cp_method != "all_gather"),
        (f"etp = {layout.etp}: torchtitan does not split an expert's matrices", layout.etp > 1),
        (
            f"tp = {layout.tp}: has to divide num_kv_heads = {model.num_kv_heads} there",
            not model.is_mla and model.num_kv_heads % layout.tp > 0,
        ),
        (
            "selective recomputation keeps other tensors there: every second matmul is made again",
            layout.recompute.startswith("selective"),
        ),
        (every_block(layout), ":" in layout.recompute),
        ("norms are decayed too: a stage has none, and torchtitan takes no empty group", not splits_norms(job)),
    ]


def _of_model(job: TrainerJob) -> list[tuple[str, bool]]:
    model, yarn = job.model, job.model.yarn_scaling
    mtp = "torchtitan has them with MLA, without pipelines and context parallelism"
    silu = model.activation == "silu" and model.gated
    return [
        ("document_mask = false: attention stays within documents there", not job.request.document_mask),
        ("sliding windows: are not in the file", job.request.windows is not None),
        (
            "tie_embeddings: torchtitan does not tie them here: they are two matrices",
            model.tie_embeddings and not is_tied(job),
        ),
        (f"{model.mtp_layers} MTP modules: {mtp}: they are left out", bool(model.mtp_layers) and not has_mtp(job)),
        ("norm = 'layer': torchtitan's decoders have RMSNorm", model.norm != "rms"),
        (f"{model.activation}, gated = {model.gated}: it will run SwiGLU", not silu),
        ("learned positions: it will rotate queries and keys", model.positions != "rope"),
        ("biases: its linear layers have none", model.qkv_bias or model.linear_bias),
        (
            "rope_scaling: Qwen3's rotary embedding there has none",
            model.rope_scaling is not None and family(job).rope != "ComplexRoPE",
        ),
        (
            "yarn_scaling.mscale: cosines and sines keep their magnitude there",
            yarn is not None and (yarn.mscale or 1.0) != (yarn.mscale_all_dim or yarn.mscale or 1.0),
        ),
        ("balance_loss: torchtitan balances experts by a bias alone", bool(model.balance_loss)),
        ("z_loss: is not there", bool(model.z_loss)),
        ("capacity_factor: torchtitan drops no tokens", model.capacity_factor is not None),
        (
            f"vocabulary of {model.vocab_size} rows: is not padded there, and tp = {job.layout.tp} does not divide it",
            model.vocab_size % job.layout.tp > 0,
        ),
    ]


def _of_precision(job: TrainerJob) -> list[tuple[str, bool]]:
    precision = job.request.precision
    return [
        ("gradients in bf16: are reduced in fp32 there", precision.gradients_format == "bf16"),
        (f"precision {precision.compute}: torchtitan computes in bf16 or fp32", precision.compute == "fp64"),
        ("fp8 with scales of blocks: it will run scales of rows", job.gemm_dtype == "fp8-block"),
        ("nvfp4: routed experts stay in bf16", job.gemm_dtype == "nvfp4" and bool(job.model.num_experts)),
    ]
