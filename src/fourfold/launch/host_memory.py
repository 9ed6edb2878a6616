"""The memory of its host that a rank takes, and whether a machine has it for all its ranks: offloaded activations and optimizer
states, and copies of the state. With a device of its own a rank pins it, and pinned memory is counted as it is allocated, in
powers of two.
"""

from dataclasses import dataclass

from fourfold.launch.resolve import ResolvedRun
from fourfold.program import Program
from fourfold.program.liveness import host_peak_bytes
from fourfold.program.offload.pinned import activation_slots, allocated_bytes, state_parts


@dataclass(frozen=True)
class HostNeed:
    """Bytes of the rank that takes most. `save_copy`: for saves beside training; `memory_copies`: in memory that machines share."""

    activations: int
    states: int
    save_copy: int
    memory_copies: int

    @property
    def bytes(self) -> int:
        return self.activations + self.states + self.save_copy + self.memory_copies


def host_need(resolved: ResolvedRun, pins: bool) -> HostNeed:
    """`pins`: whether ranks have devices of their own, beside which the host's memory is pinned."""
    spec, section = resolved.spec, resolved.config.checkpoint
    programs = {program.pp_rank: program for program in resolved.train_programs.values()}
    parts = [_parts(program, spec.model.num_experts > 0, pins) for program in programs.values()]
    own = spec.checkpoint_bytes // resolved.layout.world_size
    saves = section.asynchronous and section.every_steps is not None
    units = max(1, len(spec.segments))
    return HostNeed(
        max(each[0] for each in parts),
        max(each[1] for each in parts),
        (allocated_bytes([own // units] * units) if pins else own) if saves else 0,
        2 * own if section.memory_every_steps > 0 else 0,
    )


def _parts(program: Program, routed: bool, pins: bool) -> tuple[int, int]:
    """Activations and states."""
    states = state_parts(program)
    if pins:
        return allocated_bytes(activation_slots(program, routed)), allocated_bytes(states)
    return host_peak_bytes(program) - sum(states), sum(states)


def host_line(need: HostNeed, ranks: int, available: int | None, machine: str = "this machine") -> list[str]:
    """Warning that so many ranks of a machine pin more memory than it has, with values that take less; empty where it suffices."""
    if available is None or need.bytes * ranks <= available:
        return []
    room = available // ranks
    keys = {
        "layout.offload = none": need.activations,
        "layout.offload_optimizer = false": need.states,
        "checkpoint.asynchronous = false": need.save_copy,
        "checkpoint.memory_every_steps = 0": need.memory_copies,
    }
    each = {key: size for key, size in keys.items() if size}
    alone = [key for key, size in each.items() if need.bytes - size <= room]
    works = f"with {' or '.join(alone)} it has enough" if alone else f"with {', '.join(each)} it needs none of this"
    fewer = available // need.bytes
    if fewer:
        works += f", as with {fewer} rank{'s' * (fewer > 1)} on {machine}"
    return [
        f"{ranks} rank{'s' * (ranks > 1)} with {need.bytes / 1e9:.2f} GB of {machine}'s memory each, pinned in powers of two, "
        f"need {need.bytes * ranks / 1e9:.2f} GB, it has {available / 1e9:.2f} GB, so the system would end a rank; {works}"
    ]
