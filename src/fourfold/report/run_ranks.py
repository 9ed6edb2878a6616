"""Where every rank of a run stands, from the counters that the ranks write: no rank is asked, so it may be called often."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fourfold.config.run_rows import finite_number
from fourfold.runtime.progress import ACTIVITIES, read_positions
from fourfold.supervise.blame import Blame, Sighting
from fourfold.supervise.doctor import process_states

_MOST_WAITED = 8
_MOST_TRACED = 512
"""Ranks of a run beyond which nobody is told who waits for whom: `fourfold doctor` does."""


def where_ranks_stand(folder: Path, blame: Blame | None, now: float, ranks: int) -> list[dict[str, Any]]:
    """A row a rank, of the first `ranks`: its process's `state` in /proc (empty: gone), step, instruction `index` of
    `num_instructions`, `seconds` since it last got on, `waits_for` as (rank, group). Without `blame`, or where the file is not that
    run's, places have no names."""
    positions = read_positions(folder, ranks=ranks)
    seen = [Sighting(p, state) for p, state in zip(positions, process_states(positions), strict=True)]
    if blame is not None:
        try:
            return [_row(rank, seen, now, blame) for rank in range(len(seen))]
        except (LookupError, ValueError):
            pass
    return [_row(rank, seen, now, None) for rank in range(len(seen))]


def _row(rank: int, seen: Sequence[Sighting], now: float, blame: Blame | None) -> dict[str, Any]:
    position = seen[rank].position
    known = blame is not None and position.pid > 0
    waits = blame.held_up_by(rank, seen) if blame is not None and known and len(seen) <= _MOST_TRACED else []
    return {
        "rank": rank,
        "state": seen[rank].state,
        "activity": ACTIVITIES[position.kind].removesuffix(",").removesuffix(" of"),
        "step": position.step,
        "index": position.at,
        "num_instructions": blame.num_instructions(position, rank) if blame is not None and known else 0,
        "instruction": blame.instruction(position, rank) if blame is not None and known else "",
        "seconds": finite_number(now - position.time) if position.pid > 0 else None,
        "waits_for": [[wait.member, wait.group] for wait in waits[:_MOST_WAITED]],
    }
