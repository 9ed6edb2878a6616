"""Settings of a step with narrow states, the bytes of its master weights, and what its updates add."""

from dataclasses import dataclass, replace

from fourfold.config import DTYPE_BYTES, RunConfig, UserError
from fourfold.config.optimizers import StateTensor
from fourfold.layout import FlatLayout
from fourfold.model.work import Elementwise, Work, touches
from fourfold.program.instruction import Instruction, Op
from fourfold.program.muon.matrices import hidden_matrices
from fourfold.program.muon.rows import MuonOp
from fourfold.program.pattern import Pattern, Step
from fourfold.program.sizes import fewest_matrix_elements
from fourfold.program.spec import StepSpec
from fourfold.program.view import RankView

MASTER_KEY, STATE_KEY = "precision.master", "optimizer.state_dtype"
_CHUNKS = {"exchange": 1 << 18, "native": 1 << 22}
"""Elements that are updated at once: their copies stay in a core's cache, or in a GPU's."""
_REMAINDER_BYTES = 2
_INDEX_BYTES = 4
_PASSES = 9
"""Operations on a device that round one chunk of a state; as many load and store master weights in halves."""
PASS_BYTES = 70
"""Bytes that these read and write an element, in memory or, where a chunk fits it, in a cache."""


@dataclass(frozen=True)
class SplitMaster:
    """The setting of a run whose master weights lie in halves."""


def splits_master(spec: StepSpec) -> bool:
    """Whether master weights lie in halves."""
    return spec.setting(SplitMaster) is not None


def rounded(spec: StepSpec, matrix: bool = False) -> list[StateTensor]:
    """The states that are rounded in every update, of a parameter or of a hidden matrix."""
    return [
        each
        for each in spec.optimizer.state
        if each.dtype not in (None, spec.master) and (each.of_matrices or not matrix)
    ]


def is_narrow(spec: StepSpec) -> bool:
    """Whether something is stored in a narrower format than it is computed in."""
    return splits_master(spec) or bool(rounded(spec))


def state_formats(spec: StepSpec) -> str:
    """How states are stored, behind the format of the master weights; empty where it is that of the arithmetic."""
    split, formats = " in halves" if splits_master(spec) else "", sorted({each.dtype or "" for each in rounded(spec)})
    return split + (f", states {', '.join(formats)}" if formats else "")


def chunk_numel(spec: StepSpec) -> int:
    """Elements that are updated at once."""
    return _CHUNKS[spec.transport]


def resolve(config: RunConfig, spec: StepSpec) -> StepSpec:
    """The step with its settings. Raises `UserError` where they do not go together."""
    split = config.precision.splits_master
    if split and spec.compute != "bf16":
        raise UserError(
            f"{MASTER_KEY} = 'split' keeps 16 bits beside weights in bf16, and precision.compute = '{spec.compute}'; what works: "
            f"precision.compute=bf16, or {MASTER_KEY}=fp32"
        )
    spec = replace(spec, settings=(*spec.settings, SplitMaster())) if split else spec
    if is_narrow(spec) and config.run.cuda_graphs:
        key = f"{MASTER_KEY} = 'split'" if split else f"{STATE_KEY} = 'bf16'"
        raise UserError(
            f"run.cuda_graphs = true, but {key}: every update rounds otherwise, and a graph repeats one; what works: "
            f"run.cuda_graphs=false"
        )
    return spec


def master_bytes(spec: StepSpec, kind: str, flat: FlatLayout) -> int | None:
    """Bytes of a unit's remainders, where master weights lie in halves; None of another buffer."""
    return flat.shard_numel * _REMAINDER_BYTES if kind == "master" and splits_master(spec) else None


def _moved_bytes(spec: StepSpec, numel: int, matrices: int) -> int:
    """Bytes that an update of so many parameters moves, `matrices` of them elements of hidden matrices. Master weights in halves
    are 4 bytes to read and 4 to write, in place of twice 4 and 2 for a copy."""
    passes = (numel - matrices) * len(rounded(spec)) + numel * splits_master(spec)
    return spec.update_bytes(numel, matrices) - 2 * numel * splits_master(spec) + PASS_BYTES * passes


def chunk_bytes(spec: StepSpec, flat: FlatLayout) -> int:
    """Bytes of a chunk's copies in the format of the arithmetic, and of the numbers that it is rounded by."""
    others = flat.shard_numel - fewest_matrix_elements(flat) if spec.optimizer.orthogonalizes else flat.shard_numel
    states, element = len(rounded(spec)), DTYPE_BYTES[spec.master]
    return _largest(spec, flat, others) * (element * (states + splits_master(spec)) + _INDEX_BYTES)


def _largest(spec: StepSpec, flat: FlatLayout, numel: int) -> int:
    """Elements of the largest chunk of so many."""
    return min(chunk_numel(spec), numel, max(p.numel for p in flat.parameters))


def narrow_updates(steps: list[Step], view: RankView) -> list[Step]:
    """Updates, and momenta of matrices, with what chunks take."""
    if not is_narrow(view.spec):
        return steps
    changes = {Op.UPDATE: _update, MuonOp.MOMENTUM: _momentum}
    return [(changes[p.op](p, view) if p.op in changes else p, m) for p, m in steps]


def _update(pattern: Pattern, view: RankView) -> Pattern:
    """Matrices, which are orthogonalized, and all else are updated one after the other."""
    step, spec = pattern.first, view.spec
    flat = view.flats[step.segment or ""]
    matrices = fewest_matrix_elements(flat) if spec.optimizer.orthogonalizes else 0
    moved = _moved_bytes(spec, flat.shard_numel, matrices)
    converted = flat.shard_numel * DTYPE_BYTES[spec.master] if spec.gradients != spec.master else 0
    halves = (
        2
        * _INDEX_BYTES
        * min(flat.shard_numel, max((m.rows * m.columns for m in hidden_matrices(spec, flat)), default=0))
    )
    workspace = max(
        step.workspace_bytes,
        converted + chunk_bytes(spec, flat),
        converted + halves if splits_master(spec) else 0,
    )
    work = Work((*touches(moved).items, *step.work.items[1:]))
    return pattern.like(step._replace(work=work, workspace_bytes=workspace))


def _momentum(pattern: Pattern, view: RankView) -> Pattern:
    """The momentum is loaded in full, and rounded a chunk at a time."""
    step, spec = pattern.first, view.spec
    flat = view.flats[step.segment or ""]
    if not rounded(spec, matrix=True):
        return pattern
    [moved] = step.work.items
    assert isinstance(moved, Elementwise)
    numbers = flat.shard_numel * DTYPE_BYTES[spec.master]
    stored = flat.shard_numel * DTYPE_BYTES["bf16"]
    noise = _INDEX_BYTES * _largest(spec, flat, flat.shard_numel)
    work = touches(moved.bytes - 2 * (numbers - stored) + PASS_BYTES * flat.shard_numel)
    return pattern.like(step._replace(work=work, workspace_bytes=2 * numbers + max(numbers, noise)))


def launches(step: Instruction | Pattern, view: RankView) -> int:
    """Operations on a device that round a unit's states, chunk by chunk."""
    if step.op not in (Op.UPDATE, MuonOp.MOMENTUM) or step.segment is None or not is_narrow(view.spec):
        return 0
    spec, flat = view.spec, view.flats[step.segment]
    chunks = sum(-(-p.numel // (flat.num_shards * chunk_numel(spec))) for p in flat.parameters)
    states = len(rounded(spec, matrix=True)) if step.op is MuonOp.MOMENTUM else len(rounded(spec)) + splits_master(spec)
    return _PASSES * chunks * states
