"""One decoder block on the ranks that share it: the piece of every weight and activation that each holds, and what moves between.

Weights are cut as the layout cuts them. Activations have the shapes that the recorder sees in the segment's own forward, beside
those of a rank that runs the block alone. Attention's pieces are those that a ring computes. No rule of drawing decides any of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from fourfold.api.inputs import readable_config
from fourfold.api.programs import compiled_run
from fourfold.config import UserError
from fourfold.explore.routing import experts_document
from fourfold.explore.setup import Setup
from fourfold.explore.turns import local_spans, ring_document, token_runs
from fourfold.hardware import named_with
from fourfold.launch.resolve import ResolvedRun
from fourfold.model.block import block_forward
from fourfold.model.context.pieces import Span
from fourfold.model.environment import Environment, Saved
from fourfold.model.local_parameter import local_parameter
from fourfold.model.recorded_rank import RecordedRank
from fourfold.model.recorder.operations import RecorderOperations
from fourfold.model.shape import Shape
from fourfold.model.spec import Segment
from fourfold.model.work import Attention, Elementwise, Gemm, Join, Start, Work

OWN = {"tp": int, "sequence_parallel": bool, "cp": int, "ep": int}
"""Keys that the page adds to a setup: the degrees of the axes that cut a block."""
_MOST_RANKS = 16
_PLAIN = {
    "layout.pp": 1,
    "layout.dp_replicate": 1,
    "layout.schedule": "1f1b",
    "layout.virtual_stages": 1,
    "layout.etp": 1,
}
"""The rest of the layout, in which a block has no part."""


@dataclass(frozen=True)
class RecordedForward:
    """A block's forward on one rank. `names`: by place in the record, the first and last parameter that a matmul reads."""

    work: Work
    names: Mapping[int, tuple[str, str]]

    @classmethod
    def of(cls, segment: Segment, resolved: ResolvedRun, shape: Shape) -> "RecordedForward":
        rank = RecordedRank(segment, resolved.model, shape)
        operations = RecorderOperations(rank.recording, accelerator=True)
        environment = Environment(operations, resolved.model, rank.env.parallel, shape.recipe)
        rank.recording.begin()
        block_forward(segment, environment, rank.hidden(), rank.weights, rank.batch, Saved(), rank.balancing)
        names = {place: (run[0], run[-1]) for place, run in rank.recording.weights.items()}
        return cls(rank.recording.recorded(), names)

    @property
    def matmuls(self) -> dict[tuple[str, str], Gemm]:
        """The matmul of every weight."""
        return {key: item for place, key in self.names.items() if isinstance(item := self.work.items[place], Gemm)}


@dataclass(frozen=True)
class Held:
    """An activation [rows, columns]: what a rank has of it, and in full. `partial`: every rank has one summand of each value."""

    rows: int
    columns: int
    full_rows: int
    full_columns: int
    partial: bool = False


def _alone(shape: Shape) -> Shape:
    return replace(
        shape, tp=1, sequence_parallel=False, tp_copies=1, cp_ring=1, cp_ulysses=1, cp_gather=False, ep=1, etp=1
    )


def block_run(setup: Setup, own: Mapping[str, Any]) -> ResolvedRun:
    """The run with the degrees that the page states, on as many devices as they need. Raises `UserError`."""
    tp, cp, ep = (int(own.get(axis, 1)) for axis in ("tp", "cp", "ep"))
    if not all(1 <= degree <= _MOST_RANKS for degree in (tp, cp, ep)) or max(tp * cp, ep) > _MOST_RANKS:
        raise UserError(
            f"tp = {tp}, cp = {cp}, ep = {ep}: allowed: at most {_MOST_RANKS} ranks; what works: tp = 4, cp = 1, ep = 1"
        )
    shards = -(-ep // (tp * cp))
    stated = {key: value for key, value in setup.stated.items() if key != "layout.segments_per_stage"} | _PLAIN
    divided = readable_config(setup.run_input, stated, trust=False).layout.segments_per_stage
    if divided is not None:  # a preset's
        stated["layout.segments_per_stage"] = [sum(divided)]
    stated |= {"layout.tp": tp, "layout.cp": cp, "layout.ep": ep, "layout.dp_shard": shards}
    stated["layout.sequence_parallel"] = bool(own.get("sequence_parallel", False)) and tp > 1
    stated["layout.microbatch_sequences"], stated["batch.global_sequences"] = 1, shards
    cluster = None if setup.cluster is None else named_with(setup.cluster, shards * tp * cp)
    complete = setup.model_copy(update={"overrides": stated, "cluster": cluster})
    return compiled_run(complete.run_input, stated, cluster=cluster)


def block_document(setup: Setup, own: Mapping[str, Any]) -> dict[str, Any]:
    """`BlockDocument`. Raises `UserError`."""
    resolved = block_run(setup, own)
    spec, layout, model = resolved.spec, resolved.layout, resolved.model
    blocks = [segment for segment in spec.segments if segment.kind == "block"]
    if model.block is not None or not blocks:
        raise UserError(
            "this block is one of your own: every rank holds all of it; what works: model.preset = llama3-8b"
        )
    segment = next((each for each in blocks if each.moe), blocks[0])
    shape = spec.shape
    one, alone = (RecordedForward.of(segment, resolved, each) for each in (shape, _alone(shape)))
    ranks = range(layout.world_size)
    own_experts = next((unit.parameters[0].name for unit in segment.own if unit.domain == "expert"), "")
    rows = next((each.rows for (first, _), each in one.matmuls.items() if first == own_experts), 0)
    experts = experts_document(segment, resolved, one.work, rows) if segment.moe else None
    return {
        "segment": segment.name,
        "hidden_size": model.hidden_size,
        "tokens": shape.sequences * shape.sequence_length,
        "element_bytes": shape.element_bytes,
        "layout": {axis: layout.degree(axis) for axis in ("tp", "cp_ring", "cp_ulysses", "ep", "etp", "dp_shard")},
        "sequence_parallel": layout.sequence_parallel,
        "ranks": [{"rank": rank, "coordinates": layout.coordinates(rank)} for rank in ranks],
        "steps": list(_steps(segment, resolved, one, alone)),
        "ring": ring_document(layout, one.work) if layout.cp_ring > 1 and layout.cp_method == "ring" else None,
        "experts": experts,
    }


def _steps(
    segment: Segment, resolved: ResolvedRun, one: RecordedForward, alone: RecordedForward
) -> Iterator[dict[str, Any]]:
    """The forward of a rank as the recorder saw it: every matmul, attention and collective, with what is held after it."""
    shape, hidden = resolved.spec.shape, resolved.model.hidden_size
    drawn = _Drawn(resolved)
    full_rows = shape.sequences * shape.sequence_length
    held = Held(shape.hidden_tokens, hidden, full_rows, hidden)
    full = alone.matmuls
    dense = {each.name for unit in segment.own if unit.domain == "dense" for each in unit.parameters}
    attention = next((item for item in alone.work.items if isinstance(item, Attention)), None)
    yield drawn.step("input", held)
    for place, item in enumerate(one.work.items):
        if isinstance(item, Elementwise | Join):
            continue
        if isinstance(item, Start):
            moved = item.collective
            if moved.axes != "tp" or moved.kind == "all_to_all":
                continue
            if moved.kind == "all_gather":
                held = replace(held, rows=held.rows * moved.group_size)
            elif moved.kind == "reduce_scatter":
                held = replace(held, rows=held.rows // moved.group_size, partial=False)
            else:
                held = replace(held, partial=False)
            yield drawn.step(moved.kind, held, bytes=moved.bytes, sent_bytes=moved.sent_bytes)
        elif isinstance(item, Attention):
            if attention is None or held.columns == item.heads * item.value_dim:
                continue
            held = Held(held.rows, item.heads * item.value_dim, full_rows, attention.heads * attention.value_dim)
            after = next(one.names[each] for each in sorted(one.names) if each > place)
            yield drawn.step("attention", held, columns=_inputs(drawn.weights(segment, *after)))
        elif isinstance(item, Gemm) and one.names.get(place, ("",))[0] in dense:
            unsplit, weights = full[one.names[place]], drawn.weights(segment, *one.names[place])
            if item.inner != held.columns or item.rows != held.rows:  # elementwise kernels came between
                held = Held(item.rows, item.inner, unsplit.rows, unsplit.inner)
                yield drawn.step("elementwise", held, columns=_inputs(weights))
            held = Held(item.rows, item.columns, unsplit.rows, unsplit.columns, item.inner < unsplit.inner)
            yield drawn.step("matmul", held, columns=_outputs(weights), weights=weights)


Columns = list[list[Span]]
"""The columns of an activation that every rank has."""


def _inputs(weights: list[dict[str, Any]]) -> Columns:
    """The columns that a matmul with these weights reads."""
    return [[box[1]] for box in weights[0]["boxes"]]


def _outputs(weights: list[dict[str, Any]]) -> Columns:
    """The columns that it writes, those of one weight after those of the one before."""
    before = [0, *accumulate(weight["shape"][0] for weight in weights)]
    ranks = zip(*(weight["boxes"] for weight in weights), strict=True)
    return [
        [(first + box[0][0], first + box[0][1]) for first, box in zip(before, boxes, strict=False)] for boxes in ranks
    ]


class _Drawn:
    """Steps and weights with the pieces of all ranks."""

    def __init__(self, resolved: ResolvedRun) -> None:
        self.layout, self.shape = resolved.layout, resolved.spec.shape
        self.at = [self.layout.coordinates(rank) for rank in range(self.layout.world_size)]
        runs = {at["cp"]: token_runs(self.layout, rank) for rank, at in enumerate(self.at) if at["tp"] == 0}
        self.runs = [runs[at["cp"]] for at in self.at]

    def step(
        self,
        kind: str,
        held: Held,
        columns: Columns | None = None,
        weights: list[dict[str, Any]] | None = None,
        bytes: int = 0,
        sent_bytes: int = 0,
    ) -> dict[str, Any]:
        """`BlockStep`. Without `columns` every rank has all."""
        columns = columns or [[(0, held.full_columns)]] * len(self.at)
        return {
            "kind": kind,
            "weights": weights or [],
            "shape": [held.full_rows, held.full_columns],
            "held_shape": [held.rows, held.columns],
            "partial": held.partial,
            "boxes": [
                [(*rows, *own) for rows in self._rows(held, rank) for own in columns[rank]]
                for rank in range(len(self.at))
            ],
            "bytes": bytes,
            "sent_bytes": sent_bytes,
        }

    def _rows(self, held: Held, rank: int) -> list[Span]:
        first = self.at[rank]["tp"] * held.rows if held.rows < self.shape.tokens else 0
        return local_spans(self.runs[rank], self.shape, first, first + held.rows)

    def weights(self, segment: Segment, first: str, last: str) -> list[dict[str, Any]]:
        """The parameters from `first` to `last` of a unit, and every rank's part of each: `BlockWeight`."""
        unit = next(unit for unit in segment.own if any(each.name == first for each in unit.parameters))
        names = [each.name for each in unit.parameters]
        found = []
        for parameter in unit.parameters[names.index(first) : names.index(last) + 1]:
            local = local_parameter(parameter, unit.domain, self.layout.degree)
            found.append(
                {
                    "name": parameter.name.removesuffix(".weight").rpartition(".")[2],
                    "shape": list(parameter.shape),
                    "splits": [{"dim": dim, "axis": axis} for dim, axis, _ in local.splits],
                    "boxes": [local.box(at) for at in self.at],
                }
            )
        return found
