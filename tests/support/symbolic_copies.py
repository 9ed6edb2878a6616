"""Copies to the host's memory and back on symbols: the value that leaves is the value that comes, and states are as old as their
last update."""

from typing import Any

from fourfold.program.offload.steps import OffloadOp
from tests.support.symbolic_values import need

COPIES = (OffloadOp.OFFLOAD, OffloadOp.FETCH)
OLD, UPDATED = "states before the update", "states after the update"


def begin(rank: Any) -> None:
    """States lie where the list says that they outlive the step."""
    for name in rank.program.resident:
        if "optimizer/" in name or "master/" in name:
            rank.live[name] = OLD


def update(rank: Any, unit: str) -> None:
    """The optimizer's own buffers of a unit, which it changes."""
    kinds = ("optimizer", "master") if rank.view.spec.mixed and rank.program.kind == "train" else ("optimizer",)
    for kind in kinds:
        name = f"{kind}/{unit}"
        rank.settled(name)
        need(rank.get(name) == OLD, f"{name} is updated twice, or is no state")
        rank.live[name] = UPDATED


def check_end(rank: Any) -> None:
    """Nobody's update is lost."""
    for name in rank.program.resident:
        if "optimizer/" in name or "master/" in name:
            need(rank.live[name] == UPDATED, f"{name} ends as it began")


def start(started: Any) -> None:
    """Takes along what is copied; whoever is copied must not change, and nobody reads what is being filled."""
    step, rank = started.step, started.rank
    own = [f"saved/{step.segment}/m{step.microbatch}"]
    if step.microbatch is None:
        own = [f"optimizer/{step.segment}", *([f"master/{step.segment}"] if rank.view.spec.mixed else [])]
    there = [f"host_{name}" for name in own]
    source, target = (own, there) if step.op is OffloadOp.OFFLOAD else (there, own)
    started.taken = {into: rank.get(name) for name, into in zip(source, target, strict=True)}
    for name in target:
        rank.settled(name)
        need(name not in rank.live or name in rank.program.resident, f"{name} is made though it is there")
        rank.live[name] = None
    started.reads, started.writes = frozenset(source), frozenset(target)


def land(started: Any) -> None:
    started.rank.live.update(started.taken)
