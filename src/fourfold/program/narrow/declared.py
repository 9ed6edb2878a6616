"""The declarations of updates and momenta of narrow states: fewer bytes move, and a chunk's copies are workspace."""

from dataclasses import replace

from fourfold.config import DTYPE_BYTES
from fourfold.model.work import Elementwise, Work
from fourfold.program.declared import Declared
from fourfold.program.instruction import Instruction, Op
from fourfold.program.muon.rows import MuonOp
from fourfold.program.narrow.steps import PASS_BYTES, SplitMaster, chunk_numel
from fourfold.program.view import RankView


def declared(step: Instruction, kind: str, view: RankView, allowed: list[Declared]) -> list[Declared]:
    """An update, or a momentum of matrices, of states that are stored in other formats than they are computed with."""
    spec, flat = view.spec, view.flats.get(step.segment or "")
    if flat is None or step.op not in (Op.UPDATE, MuonOp.MOMENTUM):
        return allowed
    split, element = SplitMaster() in spec.settings, DTYPE_BYTES[spec.master]
    kept = [each for each in spec.optimizer.state if each.dtype == "bf16" and spec.master != "bf16"]
    numel, most = flat.shard_numel, min(chunk_numel(spec), max(p.numel for p in flat.parameters))
    if step.op is MuonOp.MOMENTUM:
        if not any(each.of_matrices for each in kept):
            return allowed
        workspace = numel * element * 2 + max(numel * element, 4 * min(most, numel))
        return [_moving(each, 2 * numel * (element - 2) - PASS_BYTES * numel, workspace) for each in allowed]
    if not split and not kept:
        return allowed
    rest = min(numel, flat.padded_numel - flat.matrix_numel) if spec.optimizer.orthogonalizes else numel
    copies = (len(kept) + split) * element + 4
    converted = numel * element if spec.gradients != spec.master else 0
    matrices = flat.parameters[: flat.num_matrices] if spec.optimizer.orthogonalizes and split else ()
    largest = min(numel, max((p.shape[-1] * p.shape[-2] for p in matrices), default=0))
    workspace = converted + max(min(most, rest) * copies, 8 * largest)
    less = 2 * numel * split - PASS_BYTES * (rest * len(kept) + numel * split)
    return [_moving(each, less, max(each.workspace_bytes, workspace)) for each in allowed]


def _moving(allowed: Declared, less: int, workspace: int) -> Declared:
    """The declaration with so many bytes less in its first kernel, and this workspace."""
    first, *others = allowed.work.items
    assert isinstance(first, Elementwise)
    moved = first.bytes - less
    return replace(allowed, work=Work((Elementwise(moved, moved), *others)), workspace_bytes=workspace)
