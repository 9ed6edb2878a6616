"""A job that is exported: a layout that was planned, and the run that it is for."""

from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import cached_property
from math import ceil
from typing import NamedTuple

from fourfold.config import ModelConfig, RunConfig
from fourfold.config.model_config import differences
from fourfold.config.optimizers import OptimizerSection
from fourfold.plan.candidate import Candidate
from fourfold.plan.pricing import candidate_spec
from fourfold.plan.request import Request
from fourfold.program.stage_map import stage_map

EVERY = 1000
"""Steps between two checkpoints or evaluations where the run states none."""
_NARROW = {1.0: "fp8", 2.0: "bf16"}
"""Formats of optimizer states by the bytes of an element."""


WRITTEN = frozenset(
    {"family", "block", "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "vocab_size"}
    | {"tie_embeddings", "max_position", "init_std", "mup_base_hidden_size", "mup_base_head_dim", "norm", "norm_eps"}
    | {"rope_interleave", "qkv_bias", "qk_norm", "query_rank", "key_value_rank", "rope_head_dim", "nope_head_dim"}
    | {
        "value_head_dim",
        "activation",
        "gated",
        "linear_bias",
        "num_experts",
        "top_k",
        "moe_ffn_size",
        "num_shared_experts",
    }
    | {
        "first_dense_layers",
        "moe_period",
        "router",
        "normalize_top_k",
        "routed_scaling",
        "num_expert_groups",
        "top_groups",
    }
    | {"balance_loss", "z_loss", "balance_bias_speed", "capacity_factor", "mtp_layers", "mtp_loss", "sliding_window"}
    | {"positions", "rope_theta", "rope_scaling", "yarn_scaling"}
)
"""Keys of a model that every trainer's file states, or names where it cannot."""


def unwritten(model: ModelConfig) -> list[str]:
    """A line for each key of the model that no trainer's file has, where it is not what models usually have."""
    lines = []
    for key in fields(model):
        value = getattr(model, key.name)
        if key.name == "exceptions":
            value = sorted({key for each in value for key in differences(each)} - {"sliding_window"})
            if value:
                lines.append(f"exceptions: layers are alike there, and here differ in {', '.join(value)}")
        elif key.name not in WRITTEN and value != key.default:
            lines.append(f"{key.name} = {value}: is not in the file")
    if model.yarn_scaling is not None and not model.yarn_scaling.truncate:
        lines.append("yarn_scaling.truncate = false: is not in the file")
    return lines


class Export(NamedTuple):
    """`text`: a shell script that writes the trainer's files and starts it. `left_out`: what the trainer runs otherwise."""

    text: str
    left_out: list[str]


@dataclass(frozen=True)
class TrainerJob:
    """`run`: its length, seed, checkpoints and evaluations; None: none is stated."""

    request: Request
    layout: Candidate
    run: RunConfig | None = None

    @property
    def model(self) -> ModelConfig:
        return self.request.model

    @property
    def optimizer(self) -> OptimizerSection:
        return self.request.optimizer

    @property
    def node_devices(self) -> int:
        return self.request.cluster.host_devices

    @property
    def nodes(self) -> int:
        return self.request.devices // self.node_devices

    @property
    def microbatches(self) -> int:
        """Microbatches of a step on each data-parallel rank."""
        return self.request.global_sequences // (self.layout.dp * self.layout.microbatch_sequences)

    @property
    def steps(self) -> int | None:
        """Optimizer steps of the run; None: it states no length."""
        if self.run is None:
            return None
        batch = self.run.batch
        return batch.steps if batch.tokens is None else ceil(batch.tokens / self.request.tokens)

    def share_of_steps(self, share: float = 1.0) -> int | str:
        """A share of the steps: a number, or shell arithmetic where the length is to be filled in."""
        if self.steps is not None:
            return max(1, round(self.steps * share))
        return "$STEPS" if share == 1 else f"$((STEPS * {round(share * 1000)} / 1000))"

    @property
    def save_every(self) -> int:
        return (self.run.checkpoint.every_steps if self.run is not None else None) or EVERY

    @property
    def evaluate_every(self) -> int:
        return (self.run.run.evaluate_every if self.run is not None else None) or EVERY

    @property
    def evaluations(self) -> int:
        """Global batches of one evaluation."""
        return ceil(self.run.run.evaluate_sequences / self.request.global_sequences) if self.run is not None else 1

    @property
    def seed(self) -> int:
        return self.run.run.seed if self.run is not None else 0

    @property
    def validation_percent(self) -> int:
        """Documents of the validation set, in per cent, at least 1."""
        return max(1, round(100 / self.run.data.validation_every)) if self.run is not None else 5

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding, padded so that tp divides them."""
        return -(-self.model.vocab_size // self.layout.tp) * self.layout.tp

    @property
    def gemm_dtype(self) -> str | None:
        """The low-precision format of GEMMs, as `--gemm-dtype` names them; None: that of computation."""
        stated, software = self.request.software_overrides.gemm_dtype, self.request.software
        if stated is not None or software.gemm_dtype is None:
            return stated or self.request.precision.gemm_dtype
        return "nvfp4" if software.gemm_dtype == "fp4" else "fp8-block" if software.fine_scales else "fp8"

    @property
    def overlaps_tensor(self) -> bool:
        """Whether collectives of tensor parallelism are priced beside matmuls."""
        return self.layout.tp > 1 and self.request.software.overlap_tensor

    def unwritten_choices(self, *written: str) -> list[str]:
        """A line for each word that the price has and the trainer's file has no flag for. `written`: keys that it has flags for."""
        software, model = self.request.software, self.model
        dispatches = model.num_experts > 0 and self.layout.ep > 1
        priced = {
            "tp_collectives = overlapped": self.overlaps_tensor,
            "dispatcher = " + software.dispatcher: dispatches and software.dispatches_once,
            "ep_collectives = overlapped": dispatches and (software.merged_experts or software.overlap_experts),
            "experts = fused": model.num_experts > 0 and software.fused_experts and software.fine_scales,
            "launches = graph": ("launches", "graph") in software.kernels,
        }
        return [
            f"{word}: was priced, and is not in the file"
            for word, has in priced.items()
            if has and word.partition(" ")[0] not in written
        ]

    @cached_property
    def stages(self) -> tuple[str, ...]:
        """The segments of every stage, a letter each: E embedding, t block, m MTP module, L head."""
        stages = stage_map(candidate_spec(self.request, self.layout)).stages
        letters = {"embedding": "E", "block": "t", "head": "L"}
        return tuple("".join("m" if s.depth else letters[s.kind] for s in stage) for stage in stages)

    @property
    def has_even_stages(self) -> bool:
        """Whether every stage has as many blocks, with MTP modules beside the head."""
        return len({stage.count("t") for stage in self.stages}) == 1

    def title(self) -> str:
        """The cluster and the layout, for a comment."""
        return f"{self.request.devices} x {self.request.cluster.device.name}: {self.layout.words()}"

    @property
    def state_format(self) -> str | None:
        """The format of optimizer states where it is narrower than fp32, as the run or its software states it."""
        return self.optimizer.state_dtype or _NARROW.get(self.request.software.optimizer_bytes or 4.0)


def unstated(job: TrainerJob, optimizers: tuple[str, ...], decays: Collection[str] = ("linear",)) -> list[str]:
    """Settings that no other trainer's file can name. `optimizers`, `decays`: of the run file, those that it has."""
    block = job.model.block
    missing = [] if block is None else [f"model.block = {block!r}: their model has to have the same block"]
    if (base := job.model.mup_base_hidden_size) is not None:
        missing.append(f"model.mup_base_hidden_size = {base}: state muP's initialisation and learning rates there")
    if job.optimizer.name not in optimizers:
        missing.append(f"optimizer {job.optimizer.name}: is priced here, but not stated there: state it")
    missing += _unwritten_schedule(job, decays)
    if job.layout.activations:
        blocks = job.layout.words().partition("blocks: ")[2]
        missing.append(
            f"{blocks}: one policy a block is not stated there, every block keeps its activations: plan with --for"
        )
    if job.optimizer.state_dtype is not None:
        missing.append(
            f"optimizer.state_dtype = {job.optimizer.state_dtype!r}: states are rounded to the nearest there"
        )
    if job.layout.offload_optimizer:
        missing.append("optimizer states on the host: they stay on the device there: plan with --for")
    return missing


def _unwritten_schedule(job: TrainerJob, decays: Collection[str]) -> list[str]:
    """The parts of a run's course that are another in the file."""
    section, found = job.optimizer, []
    if section.schedule in ("power", "points", "inverse_root"):
        found.append(f"optimizer.schedule = {section.schedule!r}: it is constant in the file: state it there")
    if section.schedule == "wsd" and section.decay_shape not in decays:
        found.append(f"optimizer.decay_shape = {section.decay_shape!r}: the decay is linear in the file")
    for key in ("warmup_tokens", "decay_tokens", "decay_steps"):
        if getattr(section, key) is not None:
            found.append(f"optimizer.{key} = {getattr(section, key)}: is not in the file: state it there")
    if section.progress != "steps":
        found.append("optimizer.progress = 'tokens': the schedule counts steps in the file")
    if job.run is not None and job.run.batch.ramp:
        found.append("batch.ramp: the file has the full batch from the first step on: state it there")
    if job.run is not None and job.run.stage:
        found.append(f"{len(job.run.stage)} stages: the file is that of one: plan the others with stage=N")
    return found


def every_block(layout: Candidate) -> str:
    """The words for a trainer that recomputes every block or none."""
    count = layout.recompute.partition(":")[2]
    return f"recompute {layout.recompute}, the first {count} blocks alone: every block recomputes instead"


def outermost(layout: Candidate, there: str) -> list[str]:
    """The words for a trainer whose mesh has the pipeline outermost."""
    is_other = layout.outermost != "pp" and layout.pp > 1
    return [f"{layout.outermost} outermost: {there}"] if is_other else []
