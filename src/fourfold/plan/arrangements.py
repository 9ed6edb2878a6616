"""Every pipeline and every data parallelism around one shape of a replica, in parallel columns."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fourfold.layout.divisibility import spreads_experts
from fourfold.plan.candidate import BlockShape
from fourfold.plan.request import Request
from fourfold.plan.space import Pipeline, pipelines, shards

Column = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Arrangements:
    """Pipelines and data parallelism around a shape, in parallel columns."""

    pipelines: tuple[Pipeline, ...]
    pipeline: Indices
    dp: Column
    dp_shard: Column
    zero: Column
    microbatches: Column
    pp: Column
    virtual_stages: Column
    is_v: Column
    idle_forward: Column
    idle_backward: Column
    idle_weight: Column
    in_flight: Column

    @cached_property
    def degrees(self) -> tuple[Column, Indices]:
        """The numbers of shards that there are, and which of them each row has."""
        return np.unique(self.dp_shard, return_inverse=True)


def arrangements(request: Request, shape: BlockShape) -> Arrangements | None:
    """All that go around a shape; None where the batch divides over none."""
    ranks = request.devices // (shape.cp * shape.tp)
    found: list[Pipeline] = []
    rows: list[tuple[float, ...]] = []
    for pipeline in pipelines(request, ranks):
        dp = ranks // pipeline.pp
        microbatches, rest = divmod(request.global_sequences, dp * shape.microbatch_sequences)
        if rest:
            continue
        stages = (pipeline.virtual_stages, pipeline.is_v)
        own = (microbatches, pipeline.pp, *stages, *pipeline.least_idle, pipeline.in_flight(microbatches))
        rows += [(len(found), dp, shard, zero, *own) for shard, zero in _sharding(shape, dp)]
        found.append(pipeline)
    if not rows:
        return None
    pipeline_column, *columns = np.array(rows).T
    return Arrangements(tuple(found), pipeline_column.astype(int), *columns)


def _sharding(shape: BlockShape, dp: int) -> list[tuple[int, int]]:
    """(dp_shard, ZeRO stage) within dp replicas. Without ZeRO the division means nothing; without shards there is no ZeRO."""
    rows = []
    for shard in shards(dp):
        if not spreads_experts(shard * shape.cp * shape.tp, shape.ep, shape.etp):
            continue
        for zero in (0, 1, 2, 3):
            if zero == 0 and shard != dp:
                continue
            if zero and shard * shape.cp == 1:
                continue
            rows.append((shard, zero))
    return rows
