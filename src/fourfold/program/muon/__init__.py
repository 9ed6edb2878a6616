"""Muon (Jordan et al. 2024): orthogonalizes the momentum of full hidden matrices, whose parts ranks gather first."""

from collections.abc import Iterator

from fourfold.layout import FlatLayout
from fourfold.program.capability import Capability
from fourfold.program.muon.declared import declared, gradient_rules
from fourfold.program.muon.owners import placement
from fourfold.program.muon.rows import BUFFERS, FULL_MATRICES, MuonOp, matrix_bytes
from fourfold.program.muon.steps import insert_orthogonalization, launches
from fourfold.program.ops import Op
from fourfold.program.spec import StepSpec


def _axes(spec: StepSpec, flat: FlatLayout) -> Iterator[tuple[str, ...]]:
    """Axes over which directions and results are gathered."""
    plan = placement(spec, flat)
    yield from (plan.divided, plan.owners)


MUON = Capability(
    "muon",
    opcodes=MuonOp,
    after=Op.CLIP_NORM,
    buffers=BUFFERS,
    uses={Op.UPDATE: FULL_MATRICES},
    unit_bytes=matrix_bytes,
    into_step=insert_orthogonalization,
    declared=declared,
    gradient_rules=gradient_rules,
    launches=launches,
    axes=_axes,
)
