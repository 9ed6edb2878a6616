"""Which rank holds which stage: in a loop, or on a V."""

from collections.abc import Sequence

from fourfold.config import UserError


def loop_placement(num_ranks: int, virtual_stages: int) -> tuple[int, ...]:
    """Stage s on rank s mod P (Narayanan et al. 2021)."""
    return tuple(stage % num_ranks for stage in range(num_ranks * virtual_stages))


def v_placement(num_ranks: int) -> tuple[int, ...]:
    """Stage s < P on rank s, stage s >= P on rank 2P - 1 - s: down and back up (Qi et al. 2024)."""
    return (*range(num_ranks), *reversed(range(num_ranks)))


def check_stated_placement(stage_ranks: Sequence[int], num_ranks: int, virtual_stages: int, source: str) -> None:
    """A placement that a person gave: every rank holds `virtual_stages` stages. Raises `UserError`."""
    if len(stage_ranks) != num_ranks * virtual_stages:
        raise UserError(
            f"{source}: gives the ranks of {len(stage_ranks)} stages, but layout.pp x layout.virtual_stages = {num_ranks} x "
            f"{virtual_stages} = {num_ranks * virtual_stages}; what works: stages {_text(num_ranks, virtual_stages)}"
        )
    for rank in range(num_ranks):
        held = sum(r == rank for r in stage_ranks)
        if held != virtual_stages:
            raise UserError(
                f"{source}: rank {rank} holds {held} stages; allowed: layout.virtual_stages = {virtual_stages}; "
                f"what works: stages {_text(num_ranks, virtual_stages)}"
            )


def _text(num_ranks: int, virtual_stages: int) -> str:
    return " ".join(map(str, loop_placement(num_ranks, virtual_stages)))
