"""Every pipeline and every data parallelism around one shape of a replica, in parallel columns."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourfold.layout.divisibility import spreads_experts
from fourfold.layout.mesh import ORDERS
from fourfold.plan.candidate import BlockShape
from fourfold.plan.constraints import Constraints
from fourfold.plan.request import Request
from fourfold.plan.space import Pipeline, pipelines, shards

Column = NDArray[np.float64]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]


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
        """(numbers of shards that there are [degrees], which of them each row has [rows])."""
        return np.unique(self.dp_shard, return_inverse=True)


def arrangements(request: Request, shape: BlockShape) -> Arrangements | None:
    """Arrangements that go around a shape; None where the batch divides over none."""
    ranks, constraints = request.devices // (shape.cp * shape.tp), request.constraints
    if not constraints.choices("outermost", ORDERS, vars(shape)):
        return None
    found: list[Pipeline] = []
    usual: dict[int, list[tuple[int, int]]] = {}
    rows: list[tuple[float, ...]] = []
    for pipeline in pipelines(request, ranks):
        dp = ranks // pipeline.pp
        microbatches, rest = divmod(request.global_sequences, dp * shape.microbatch_sequences)
        if rest:
            continue
        if constraints.limits or dp not in usual:
            known = vars(shape) | pipeline._asdict() | {"dp": dp, "left_over": microbatches % pipeline.pp}
            usual[dp] = list(_sharding(constraints, known, shape))
        stages = (pipeline.virtual_stages, pipeline.is_v)
        own = (microbatches, pipeline.pp, *stages, *pipeline.least_idle, pipeline.in_flight(microbatches))
        rows += [(len(found), dp, shard, zero, *own) for shard, zero in usual[dp]]
        found.append(pipeline)
    if not rows:
        return None
    pipeline_column, *columns = np.array(rows).T
    return Arrangements(tuple(found), pipeline_column.astype(int), *columns)


def _sharding(constraints: Constraints, known: dict[str, Any], shape: BlockShape) -> Iterator[tuple[int, int]]:
    """(dp_shard, ZeRO stage) within dp replicas. Without ZeRO the division means nothing, unless it is stated; without shards all
    stages are the same."""
    dp, stated = known["dp"], constraints.states("dp_shard", "dp_replicate")
    usual = shards(dp)
    if constraints.states("dp_replicate"):
        replicas: list[int] = constraints.choices("dp_replicate", (), known)
        usual = [dp // each for each in replicas if dp % each == 0]
    for shard in constraints.choices("dp_shard", usual, known):
        divided = {**known, "dp_shard": shard, "dp_replicate": dp // shard}
        spread = spreads_experts(shard * shape.cp * shape.tp, shape.ep, shape.etp)
        if dp % shard or not spread or not constraints.permits(divided):
            continue
        stages = constraints.choices("zero", (0, 1, 2, 3), divided)
        if shard * shape.cp == 1:
            stages = stages[:1] if dp == 1 or stated else [zero for zero in stages if zero == 0]
        yield from ((shard, zero) for zero in stages if zero or shard == dp or stated)
