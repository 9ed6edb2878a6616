"""The rows of the model-parallel benchmark: a layout of fourfold, the torch peer that does the same work, on how many ranks."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from fourfold.program.schedule import find_schedule
from fourfold_peer import Fourfold
from measure import REFERENCE, Work, random_batch
from peers import PEERS, Peer
from plain_llama import Shape, initial_weights
from torch_context import ContextParallel
from torch_pipeline import Pipeline
from torch_tensor import TensorParallel

PIPELINES = ("gpipe", "1f1b", "interleaved_1f1b", "zb_v")
"""Schedules that torch.distributed.pipelining has too."""


@dataclass(frozen=True)
class Batch:
    """The global batch of a step."""

    sequences: int
    length: int
    microbatch_sequences: int


@dataclass(frozen=True)
class LayoutCase:
    """One row. `layout`: fourfold's; `peer`: what builds torch's contender, less the arguments that all share."""

    part: str
    label: str
    peer_label: str
    ranks: int
    batch: Batch
    layout: dict[str, Any] = field(hash=False)
    peer: Any = field(hash=False)

    @property
    def name(self) -> str:
        """The case's name, of which `--only` may state a part."""
        return f"{self.part}: {self.label}, {self.ranks} ranks, {self.tokens}"

    @property
    def tokens(self) -> str:
        """The global batch: microbatches x sequences of each x tokens of a sequence."""
        size = self.batch.microbatch_sequences
        return f"{self.batch.sequences // size} x {size} x {self.batch.length}"


@dataclass(frozen=True)
class LayoutWork(Work):
    """Training of both contenders of a row: each is given the global batch and takes its own part of it."""

    global_batch: Batch = Batch(1, 1, 1)
    case: LayoutCase | None = None

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch.sequences * self.global_batch.length

    def contender(self, name: str) -> Peer:
        weights = initial_weights(self.shape, self.seed)
        if name == REFERENCE:
            return PEERS["local"](self.shape, weights, self.learning_rate)
        assert self.case is not None
        if name == self.case.label:
            layout = {**self.case.layout, "microbatch_sequences": self.global_batch.microbatch_sequences}
            sizes = self.global_batch.length, self.global_batch.sequences
            return Fourfold(name, self.shape, weights, self.learning_rate, layout, *sizes)
        return self.case.peer(name, self.shape, weights, self.learning_rate)

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        batch = self.global_batch
        return random_batch(self.shape.vocab_size, batch.sequences, batch.length, (self.seed << 32) + step)

    def joined_batch(self, step: int) -> tuple[Tensor, Tensor]:
        return self.batch(0, step)

    def alone(self) -> "LayoutWork":
        """The steps by one process."""
        return replace(self, ranks=1, case=None)


def stage_sizes(shape: Shape, stages: int) -> list[int]:
    """Segments of each stage: blocks evenly, the embedding with the first, the head with the last."""
    blocks = [shape.num_layers // stages] * stages
    blocks[0] += 1
    blocks[-1] += 1
    return blocks


def pipeline(shape: Shape, schedule: str, pp: int, batch: Batch, dp: int = 1) -> LayoutCase:
    record = find_schedule(schedule)
    stages, torch_name = record.min_virtual_stages, f"Schedule{record.names['torch']}"
    sizes = stage_sizes(shape, pp * stages)
    layout = {"pp": pp, "schedule": schedule, "virtual_stages": stages, "segments_per_stage": sizes}
    microbatches = batch.sequences // batch.microbatch_sequences // dp
    peer = partial(Pipeline, schedule=schedule, sizes=sizes, microbatches=microbatches, pp=pp)
    if dp == 1:
        return LayoutCase("pipeline", schedule, torch_name, pp, batch, layout, peer)
    layout |= {"dp_shard": dp, "zero": 2}
    labels = f"pp {pp} x dp {dp}: {schedule}, ZeRO-2", f"{torch_name} x FSDP2 (no reshard)"
    return LayoutCase("composition", *labels, pp * dp, batch, layout, peer)


def tensor(sequence: bool, tp: int, batch: Batch, dp: int = 1) -> LayoutCase:
    layout = {"tp": tp, "sequence_parallel": sequence, "dp_shard": dp, "zero": 3 if dp > 1 else 0}
    peer = partial(TensorParallel, sequence=sequence, tp=tp, microbatch_sequences=batch.microbatch_sequences)
    kind = "tp + sp" if sequence else "tp"
    if dp == 1:
        labels = kind, "parallelize_module + SequenceParallel" if sequence else "parallelize_module"
        return LayoutCase("tensor", *labels, tp, batch, layout, peer)
    labels = f"{kind} {tp} x dp {dp}, ZeRO-3", "parallelize_module x FSDP2"
    return LayoutCase("composition", *labels, tp * dp, batch, layout, peer)


def context(method: str, rotate: str, cp: int, batch: Batch) -> LayoutCase:
    """Parameters, gradients and optimizer state are split over the same ranks."""
    layout = {"cp": cp, "cp_method": method, "zero": 3}
    labels = f"{method}, ZeRO-3", f"ring attention ({rotate}) x FSDP2"
    return LayoutCase("context", *labels, cp, batch, layout, partial(ContextParallel, rotate=rotate))


def cases(shape: Shape) -> list[LayoutCase]:
    """All rows."""
    many, one, long = Batch(8, 128, 1), Batch(2, 256, 2), Batch(1, 1024, 1)
    rows = [pipeline(shape, name, pp, many) for pp in (2, 4) for name in PIPELINES]
    rows += [tensor(sequence, tp, batch) for tp in (2, 4) for batch in (many, one) for sequence in (False, True)]
    methods = (("ring", "alltoall"), ("all_gather", "allgather"))
    rows += [context(*method, cp, long) for cp in (2, 4) for method in methods]
    rows.append(pipeline(shape, "1f1b", 2, many, dp=2))
    rows.append(tensor(True, 2, Batch(4, 256, 2), dp=2))
    return rows
