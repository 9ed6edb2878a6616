"""The state of a run from outside: counters, calls and events of its ranks, whether it lives or not."""

import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from fourfold.config import UserError
from fourfold.config.run_rows import newest_rows
from fourfold.launch.machine import num_cuda_devices, transport_of
from fourfold.launch.run_folder import RunFolder
from fourfold.launch.shown import resolve_shown
from fourfold.results.diagnosis import Diagnosis, RankReport
from fourfold.runtime.progress import ENDED, Position, read_positions, this_host
from fourfold.supervise.blame import Blame, Sighting
from fourfold.supervise.observation import process_state
from fourfold.supervise.tracebacks import native_traceback, read_tracebacks

_LOOK_SECONDS = 1.0
_SHOWN_EVENTS = 6


def diagnose(path: Path, trust: bool = False) -> Diagnosis:
    """Looks twice at the ranks of the run in `path`, a second apart, and asks those that live for their calls. `trust`: imports the
    code that the run names. Raises `UserError` where no rank has reported yet."""
    folder = RunFolder(path)
    config = folder.stage_config(trust)
    if not read_positions(path):
        raise UserError(f"{path}: no rank has reported yet; what works: the folder of a run that is training or was")
    resolved = resolve_shown(config, transport_of(config, num_cuda_devices(config)))
    ranks = resolved.layout.world_size
    before = read_positions(path, ranks=ranks)
    states = process_states(before)
    alive = any(state not in ("", "Z") for state in states)
    if alive:
        time.sleep(_LOOK_SECONDS)
    positions = read_positions(path, ranks=ranks) or before
    states = process_states(positions)
    moving = any(p.place != q.place for p, q in zip(positions, before, strict=False))
    pids = {rank: p.pid for rank, p in enumerate(positions) if states[rank]}
    calls = read_tracebacks(path, pids) if alive else {}
    blame = Blame(resolved)
    seen = [Sighting(p, states[rank], calls.get(rank, ())) for rank, p in enumerate(positions)]
    ended = all(p.kind == ENDED for p in positions)
    verdict = blame.verdict(seen) if alive and not moving and not ended else None
    reports = tuple(_report(blame, rank, seen) for rank in range(len(seen)))
    shown = (row for row in newest_rows(folder.events) if row.get("event") in ("failure", "restart", "straggler"))
    events = tuple(islice(shown, _SHOWN_EVENTS))[::-1]
    chain = tuple(blame.chain(seen)) if verdict is not None else ()
    return Diagnosis(alive, moving, reports, verdict, chain, events)


def process_states(positions: Sequence[Position]) -> list[str]:
    """The state of every rank's process, by the letter of /proc; empty where it does not live on this machine."""
    here = this_host()
    return [process_state(p.pid) if p.host == here and _is_rank(p.pid) else "" for p in positions]


def _is_rank(pid: int) -> bool:
    """Whether this machine's process of that number is one of ours: numbers are given again."""
    try:
        return pid > 0 and b"fourfold" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _report(blame: Blame, rank: int, seen: Sequence[Sighting]) -> RankReport:
    own, place = seen[rank], seen[rank].position
    waits = tuple((wait.member, wait.group) for wait in blame.held_up_by(rank, seen))
    native = native_traceback(place.pid) if own.state in ("R", "S", "D") else ""
    return RankReport(
        rank,
        place.pid,
        own.state,
        blame.place(place, rank),
        place.step,
        place.at,
        blame.instruction(place, rank),
        time.time() - place.time,
        waits,
        own.traceback,
        native,
    )
