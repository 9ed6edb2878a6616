"""The board's document: the verifier's verdict on the order, what it costs, and which goals it reaches."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from fourfold.api.programs import compiled_run
from fourfold.api.verification import Verification
from fourfold.explore.board.goals import GoalDocument, goal_rows
from fourfold.explore.board.request import Board, known_fills, read_board
from fourfold.explore.board.tiny import run_keys
from fourfold.program import memory_peak
from fourfold.program.instruction import Op
from fourfold.program.schedule import Compute, Orders, StageTimes
from fourfold.program.schedule.auto import AUTO
from fourfold.program.schedule.check import (
    OrderFault,
    deadlock_fault,
    entries_run,
    entry_fault,
    missing_fault,
    token,
    waiting,
)
from fourfold.program.schedule.compute import HALVES, SCHEDULED_OPS
from fourfold.program.schedule.execution import activation_levels, forms_of, live_activations, needs
from fourfold.program.timeline import Timeline, timeline
from fourfold.results.record import record

State = Literal["proved", "unfinished", "entry", "deadlock", "fault"]


@record
class BoardPlace:
    """An entry of a rank's order."""

    rank: int
    index: int


@record
class BlockedPlace:
    """An entry that never runs, the first of its rank. `needs`: what it waits for, which the order of `holder` has not; or has,
    at `index`."""

    rank: int
    index: int
    needs: str
    holder: int
    at: int | None


@record
class BoardVerdict:
    """The verifier's verdict. `message`: its own sentence. `places`: the entries that the sentence speaks of; in a deadlock each
    waits for the one at the same position of `awaited`. `missing`: entries that would have to be there. `blocked`: those that
    wait. `ran`: by rank, how many entries run."""

    state: State
    message: str
    places: list[BoardPlace]
    awaited: list[BoardPlace]
    missing: list[str]
    blocked: list[BlockedPlace]
    ran: list[int]


@record
class BoardTimeline:
    """The entries of a rank that run, and their price. `waits`: of each before which the rank idles, the entry that it waits for;
    else an empty text. `live`: activations that live while it runs, those of one microbatch of one stage being 1. `peak_bytes`: of
    the small model's program, states included; None where nothing is proved."""

    starts: list[float]
    ends: list[float]
    waits: list[str]
    live: list[float]
    busy: float
    idle: float
    inner_idle: float
    peak_live: float
    peak_bytes: int | None


@record
class BoardOperation:
    """An operation that may be put on the board. `excludes`: those of which a stage and microbatch then has none."""

    letter: str
    excludes: list[str]


@record
class BoardDocument:
    """A board, judged and priced. `rows`: entries by rank; `link`: the same as an address has them; `file`: the schedule file;
    `fills`: schedules that can write all rows."""

    operations: list[BoardOperation]
    fills: list[str]
    ranks: int
    microbatches: int
    stages: list[int]
    rows: list[list[str]]
    link: str
    file: str
    verdict: BoardVerdict
    timelines: list[BoardTimeline]
    makespan: float
    bubble_fraction: float
    inner_idle_fraction: float
    goals: list[GoalDocument]


_EXCLUDES = {Op.FORWARD: (), Op.BACKWARD: HALVES, **dict.fromkeys(HALVES, (Op.BACKWARD,))}


def board_document(body: Mapping[str, Any]) -> dict[str, Any]:
    """`BoardDocument` of a request (`BoardRequest`). Raises `UserError` where its text is no board."""
    board = read_board(body)
    fault = _fault(board)
    placed_well = fault is None or fault.kind != "entry"
    ran = entries_run(board.orders, board.stage_ranks) if placed_well else [0] * board.num_ranks
    proof = proved(board) if fault is None else None
    line = timeline(_run(board.orders, ran), board.stage_ranks, board.times)
    peaks = proof.peak_bytes if proof is not None and proof.faults == () else None
    return {
        "operations": [
            {"letter": op.value, "excludes": [each.value for each in _EXCLUDES[op]]} for op in SCHEDULED_OPS
        ],
        "fills": [*known_fills(board.stage_ranks), AUTO.name],
        "ranks": board.num_ranks,
        "microbatches": board.num_microbatches,
        "stages": list(board.stage_ranks),
        "rows": [list(map(token, order)) for order in board.orders],
        "link": board.rows,
        "file": board.text,
        "verdict": _verdict(board, fault, proof, ran),
        "timelines": _timelines(board, line, peaks),
        "makespan": line.makespan,
        "bubble_fraction": line.bubble_fraction,
        "inner_idle_fraction": line.zero_bubble_fraction,
        "goals": goal_rows(board, is_proved=peaks is not None),
    }


def _fault(board: Board) -> OrderFault | None:
    """The first fault. A deadlock comes before what is missing, since no entry that is added mends it."""
    return (
        entry_fault(board.orders, board.stage_ranks, board.num_microbatches)
        or deadlock_fault(board.orders, board.stage_ranks)
        or missing_fault(board.orders, board.stage_ranks, board.num_microbatches)
    )


def _run(orders: Orders, ran: Sequence[int]) -> Orders:
    return tuple(order[:count] for order, count in zip(orders, ran, strict=True))


@dataclass(frozen=True)
class BoardProof:
    """The faults of the programs of all ranks, and their sizes. `peak_bytes`: by rank."""

    faults: tuple[str, ...]
    num_instructions: int
    num_accesses: int
    peak_bytes: tuple[int, ...]


def proved(board: Board) -> BoardProof:
    """The programs of the small model under this order, compiled from the board's file as the trainer does, and checked."""
    return _proved(replace(board, times=StageTimes.uniform(len(board.stage_ranks))))


@lru_cache(maxsize=64)
def _proved(board: Board) -> BoardProof:
    with tempfile.TemporaryDirectory(prefix="fourfold-board-") as folder:
        path = Path(folder) / "board.txt"
        path.write_text(board.text, encoding="utf-8")
        resolved = compiled_run({}, run_keys(board, path), ranks=board.num_ranks)
        programs = resolved.train_programs
        found = Verification.of(resolved, [programs])
    return BoardProof(
        tuple(map(str, found.faults)),
        sum(len(program.instructions) for program in programs.values()),
        sum(extent["buffer_accesses"] for extent in found.proofs()),
        tuple(memory_peak(programs[rank]).bytes for rank in range(board.num_ranks)),
    )


def _verdict(board: Board, fault: OrderFault | None, proof: BoardProof | None, ran: Sequence[int]) -> dict[str, Any]:
    state: State
    if fault is not None:
        state = "unfinished" if fault.kind == "missing" else fault.kind
        message, places, awaited, missing = fault.message, fault.places, fault.awaited, fault.missing
    else:
        assert proof is not None
        places, awaited, missing = (), (), ()
        state = "fault" if proof.faults else "proved"
        message = proof.faults[0] if proof.faults else (
            f"proved: the {board.num_ranks} programs have {proof.num_instructions} instructions and {proof.num_accesses} reads "
            "and writes; every send finds its receive, nothing is read before it is written, every gradient is reduced once"
        )  # fmt: skip
    blocked = waiting(board.orders, board.stage_ranks, ran) if state in ("unfinished", "deadlock") else {}
    return {
        "state": state,
        "message": message,
        "places": [{"rank": rank, "index": index} for rank, index in places],
        "awaited": [{"rank": rank, "index": index} for rank, index in awaited],
        "missing": list(map(token, missing)),
        "blocked": [_blocked(board, rank, ran[rank], need) for rank, need in blocked.items()],
        "ran": list(ran),
    }


def _blocked(board: Board, rank: int, index: int, need: Compute) -> dict[str, Any]:
    holder = board.stage_ranks[need.stage]
    order = board.orders[holder]
    at = order.index(need) if need in order else None
    words = token(need) if at is not None else " or ".join(map(token, reversed(forms_of(need))))
    return {"rank": rank, "index": index, "needs": words, "holder": holder, "at": at}


def _timelines(board: Board, line: Timeline, peaks: Sequence[int] | None) -> list[dict[str, Any]]:
    """`BoardTimeline` of every rank."""
    ends = {
        entry: end
        for order, row in zip(line.orders, line.run.ends, strict=True)
        for entry, end in zip(order, row, strict=True)
    }
    rows = []
    for rank, levels in enumerate(activation_levels(line.orders, board.times)):
        starts, stops = line.run.starts[rank], line.run.ends[rank]
        free = [0.0, *stops]
        order = line.orders[rank]
        rows.append(
            {
                "starts": starts,
                "ends": stops,
                "waits": [
                    _last_need(entry, len(board.stage_ranks), ends) if start > before else ""
                    for entry, start, before in zip(order, starts, free, strict=False)
                ],
                "live": live_activations(levels),
                "busy": line.busy[rank],
                "idle": line.idle[rank],
                "inner_idle": line.inner_idle[rank],
                "peak_live": line.peak_activations[rank],
                "peak_bytes": peaks[rank] if peaks is not None else None,
            }
        )
    return rows


def _last_need(entry: Compute, num_stages: int, ends: Mapping[Compute, float]) -> str:
    """The entry, of those that an entry needs, that ends last."""
    found = [form for need in needs(entry, num_stages) for form in forms_of(need) if form in ends]
    return token(max(found, key=ends.__getitem__)) if found else ""
