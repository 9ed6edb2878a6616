"""The limits of each trainer: facts about its own source, as constraints on the search.

Read in Megatron-LM b5bcd76, torchtitan d98e8a6 and DeepSpeed edaa722, all of August 2026.
"""

from dataclasses import dataclass, replace

from fourfold.plan.candidate import Candidate
from fourfold.plan.constraints import Constraints, Limit, Value
from fourfold.plan.request import Request
from fourfold.program.schedule import BUILT_IN


@dataclass(frozen=True)
class Trainer:
    """`title`: its name in prose. `software`: the profile whose prices it has. `limits`: values that it takes, as in `Limit`."""

    title: str
    software: str
    limits: tuple[tuple[str, tuple[Value, ...], str], ...] = ()

    @property
    def constraints(self) -> Constraints:
        """Limits of the layouts that the trainer can run."""
        return Constraints(tuple(Limit(*limit, by=self.title) for limit in self.limits))

    def permits(self, request: Request, layout: Candidate) -> bool:
        """Whether it can run a layout of the request's model."""
        return replace(request, constraints=self.constraints).permits(layout)

    @property
    def sequence_parallel(self) -> bool:
        """Whether its tensor parallelism divides norms and residuals too."""
        return ("sequence_parallel", (False,), "") not in self.limits


def _schedules(name: str) -> tuple[str, tuple[Value, ...], str]:
    return "schedule", tuple(schedule.name for schedule in BUILT_IN if name in schedule.names), "pp"


TRAINERS = {
    "fourfold": Trainer("fourfold", "fourfold"),
    "megatron": Trainer(
        "Megatron-Core",
        "megatron",
        (
            # core/pipeline_parallel/schedules.py: 1F1B, with and without interleaving. Stages may be uneven:
            # --pipeline-model-parallel-layout takes any division (core/transformer/pipeline_parallel_layer_layout.py).
            _schedules("megatron"),
            # The same file refuses a last group of fewer microbatches than pipeline ranks in the interleaved schedule.
            ("left_over", (0,), "virtual_stages"),
            # training/training.py: gradients and parameters are sharded by Megatron-FSDP, whose documents and examples have no
            # pipeline; the distributed optimizer (ZeRO-1) goes with everything.
            ("zero", (0, 1), "pp"),
            # training/initialize.py numbers ranks tp-cp-ep-dp-pp or, with --use-tp-pp-dp-mapping, tp-cp-ep-pp-dp;
            # core/parallel_state.py takes the second where experts have as many data-parallel ranks as the rest: ep x etp = tp x
            # cp, with etp = tp where nothing is said.
            ("outermost", ("pp", "dp"), ""),
            ("outermost", ("pp",), "ep"),
            ("outermost", ("pp",), "cp"),
            # core/transformer/transformer_config.py: method block recomputes the first N layers of each stage; selective
            # recomputation is of modules of every layer.
            ("recompute", ("none", "selective", "full", "full:N"), ""),
            ("recompute", ("none", "selective", "full"), "pp"),
        ),
    ),
    "torchtitan": Trainer(
        "torchtitan",
        "torchtitan",
        (
            # distributed/pipeline_parallel.py: torch.distributed.pipelining's schedules; module_fqns_per_model_part takes any
            # division into stages.
            _schedules("torch"),
            # distributed/fsdp.py: replicas, or FSDP that keeps parameters after the forward (ZeRO-2) or not (ZeRO-3), in
            # pipelines too. Optimizer states alone are never sharded.
            ("zero", (0, 2, 3), ""),
            # distributed/parallel_dims.py: FSDP's axis is dp_shard x cp, and experts are spread over dp_shard x cp x tp.
            ("zero", (2, 3), "cp"),
            ("zero", (2, 3), "ep"),
            # The mesh is pp, dp_replicate, dp_shard, cp, tp; an expert is never split.
            ("outermost", ("pp",), ""),
            ("etp", (1,), ""),
            # models/common/attention.py: context parallelism gathers keys and values.
            ("cp_method", ("all_gather",), "cp"),
            # distributed/activation_checkpoint.py: a policy is of every block.
            ("recompute", ("none", "selective", "full"), ""),
        ),
    ),
    "deepspeed": Trainer(
        "DeepSpeed",
        "deepspeed",
        (
            # runtime/pipe/schedule.py: 1F1B with one stage a rank; runtime/pipe/module.py divides layers as one likes.
            _schedules("deepspeed"),
            # runtime/pipe/engine.py asserts a ZeRO stage below 2.
            ("zero", (0, 1), "pp"),
            # runtime/engine.py: experts of deepspeed.moe go without ZeRO-3.
            ("zero", (0, 1, 2), "ep"),
            # DeepSpeed 0.19 has no MiCS: ZeRO shards over all data-parallel ranks, and replicas hold whole states.
            ("zero", (0,), "dp_replicate"),
            # The tutorial on sequence parallelism: Ulysses, without tensor or pipeline parallelism.
            ("cp_method", ("ulysses",), "cp"),
            ("pp", (1,), "cp"),
            ("cp", (1,), "tp"),
            # runtime/tensor_parallel: AutoTP leaves hidden states unsplit.
            ("sequence_parallel", (False,), ""),
            # runtime/pipe/topology.py has pipe outermost.
            ("outermost", ("pp",), ""),
            # runtime/activation_checkpointing: layers as a whole.
            ("recompute", ("none", "full", "full:N"), ""),
        ),
    ),
}
