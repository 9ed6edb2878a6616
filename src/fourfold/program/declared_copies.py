"""The declarations of copies to the host's memory and back: see `declared`."""

from fourfold.model.work import HostCopy, Work
from fourfold.program.instruction import Instruction, Op
from fourfold.program.sizes import buffer_bytes
from fourfold.program.view import RankView


def declared_copies(step: Instruction, view: RankView) -> list[tuple[tuple[str, ...], tuple[str, ...], Work]]:
    """Names read and written, work: of the activations of an offloaded segment, or of a unit's optimizer states."""
    layout, owner = view.spec.layout, step.segment or ""
    if step.microbatch is not None:
        segments = dict(zip((segment.name for segment in view.spec.segments), layout.offload, strict=False))
        held = [f"saved/{owner}/m{step.microbatch}"] if segments.get(owner) else []
        copies = view.footprint(view.stages.segments[owner]).saved_tensors
    else:
        held = [f"master/{owner}"] if view.spec.mixed else []
        held = [*held, f"optimizer/{owner}"] if layout.offload_optimizer else []
        copies = len(view.spec.optimizer.state) + len(held[1:])
    if not held:
        return []
    there = [f"host_{buffer}" for buffer in held]
    leaves = step.op is Op.OFFLOAD
    size = sum(buffer_bytes(view, buffer) for buffer in held)
    reads, writes = (held, there) if leaves else (there, held)
    return [(tuple(sorted(reads)), tuple(sorted(writes)), Work((HostCopy(leaves, size, copies),)))]
