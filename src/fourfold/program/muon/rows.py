"""Rows of Muon's operations and buffers, with the names and bytes of the buffers."""

from enum import unique

from fourfold.config import DTYPE_BYTES
from fourfold.layout import FlatLayout
from fourfold.program.buffers import BufferInfo
from fourfold.program.muon.owners import placement
from fourfold.program.opcode import GROUP, Opcode, OpInfo
from fourfold.program.spec import StepSpec


@unique
class MuonOp(Opcode):
    """Operations between the gradient norm and the update of a unit with hidden matrices."""

    # fmt: off
    MOMENTUM = OpInfo("M", "momentum of matrices",
        "moves Muon's momentum of a unit's hidden matrices, and makes the directions of the shard", names="unit",
        reads=("grad", "grad_shard", "optimizer"), writes=("direction", "optimizer"), phase="optimizer",
        time="optimizer", colour="U")
    ALL_GATHER_DIRECTIONS = OpInfo("A", "all-gather directions (Muon)",
        "starts the all-gather of a unit's directions over the ranks that have parts of its matrices", names="unit",
        reads=("direction",), writes=("matrices",), fills=True, starts="collective", stream=GROUP)
    ORTHOGONALIZE = OpInfo("O", "orthogonalize own matrices",
        "computes the steps of the matrices that this rank owns (Newton-Schulz)", names="unit", reads=("direction", "matrices"),
        writes=("home",), phase="optimizer", time="optimizer", colour="U")
    ALL_GATHER_ORTHOGONAL = OpInfo("Q", "all-gather orthogonal matrices", "starts the all-gather of what all owners computed",
        names="unit", reads=("home",), writes=("homes",), fills=True, starts="collective", stream=GROUP)


BUFFERS = (
    BufferInfo(
        "direction",
        "/U",
        "the shard's part of Muon's directions",
        "temporary",
        "directions (Muon)",
        "shard_numel",
        "compute",
    ),
    BufferInfo(
        "matrices", "/U", "directions of all ranks with parts of a matrix", "temporary", "gathered directions (Muon)"
    ),
    BufferInfo("home", "/U", "this rank's results for the matrices that it owns", "temporary", "orthogonal matrices"),
    BufferInfo("homes", "/U", "results of all owners", "temporary", "gathered orthogonal matrices"),
)
# fmt: on
_KINDS = frozenset(row.kind for row in BUFFERS)
FULL_MATRICES = ("direction", "matrices", "homes")
"""Kinds of what an update reads of matrices beside gradient and state."""


def direction(flat: FlatLayout) -> str:
    """The buffer that MOMENTUM writes."""
    return f"direction/{flat.unit}"


def matrices(flat: FlatLayout, gathered: bool) -> str:
    """The buffer of the full directions that are orthogonalized: gathered, or there already."""
    return f"matrices/{flat.unit}" if gathered else direction(flat)


def owned(flat: FlatLayout) -> str:
    """The buffer that ORTHOGONALIZE writes."""
    return f"home/{flat.unit}"


def orthogonal(flat: FlatLayout) -> str:
    """The buffer of the results of all owners."""
    return f"homes/{flat.unit}"


def matrix_bytes(spec: StepSpec, kind: str, flat: FlatLayout) -> int | None:
    """Bytes of directions, of an owner's results, of all owners' results; None of another buffer."""
    if kind not in _KINDS:
        return None
    plan, layout = placement(spec, flat), spec.layout
    elements = {
        "direction": flat.shard_numel,
        "matrices": flat.shard_numel * layout.group_size(plan.divided),
        "home": plan.slot,
        "homes": plan.slot * layout.group_size(plan.owners),
    }
    return elements[kind] * DTYPE_BYTES[spec.compute]
