"""The document of the board's programs: their instructions, the verifier's verdict on their order, its price, and the goals."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fourfold.explore.board.moves.goals import MovesGoal, goal_rows
from fourfold.explore.board.moves.judged import Judged, Spot, judged, unmoved
from fourfold.explore.board.moves.link import link_of, read_link
from fourfold.explore.board.moves.setting import CLUSTERS, Compiled, RankList, compiled, is_movable, read_settings
from fourfold.explore.setup import validated
from fourfold.program import Fault
from fourfold.results.record import record
from fourfold.simulate.memory import memory_over_time
from fourfold.simulate.step import Simulation

_MOST_MOVES = 4000
_SPANS = 120
_Word = Annotated[str, Field(max_length=40)]


class MovesRequest(BaseModel):
    """`setting`, `cluster`: whose programs, and whose prices, each the first where left out. `moves`: where instructions stand, as
    `link` says. `goal`: that which a person is at; `why`: the answer to its question, a list and a number, as 1-17."""

    model_config = ConfigDict(extra="forbid", strict=True)

    setting: _Word | None = None
    cluster: _Word = CLUSTERS[0]
    moves: Annotated[str, Field(max_length=_MOST_MOVES)] = ""
    goal: _Word | None = None
    why: Annotated[str, Field(pattern=r"^[0-9]{1,2}-[0-9]{1,4}$")] | None = None


@record
class MovesSpot:
    """An instruction: its list, and its number there in the compiler's order."""

    list: int
    number: int


@record
class MovesInstruction:
    """An instruction. `letter`: its operation; `does`: the same in a few words; `starts`: the number of what a wait joins;
    `stream`: where it runs; `sent_bytes`: all that it sends."""

    short: str
    letter: str
    does: str
    stream: str
    starts: int | None
    movable: bool
    reads: list[str]
    writes: list[str]
    frees: list[str]
    sent_bytes: int


@record
class MovesList:
    """A list: the ranks that run it, its instructions in the compiler's order, and the order now. `out`: those taken out."""

    ranks: list[int]
    instructions: list[MovesInstruction]
    order: list[int]
    out: list[int]


@record
class MovesFault:
    """A fault, `text` in the verifier's words, `message` without place and repair, of a rank that runs list `of_list`. `at`: the
    instruction; None: the list as a whole. `about`: those that the sentence speaks of; `awaited`: those of other lists that it
    waits for."""

    rank: int
    of_list: int
    at: MovesSpot | None
    text: str
    message: str
    about: list[MovesSpot]
    awaited: list[MovesSpot]


@record
class MovesStream:
    """A transfer or collective beside computation: the place of its instruction in the order, and from when to when it runs."""

    index: int
    stream: str
    start: float
    end: float


@record
class MovesTimes:
    """A list over time, in seconds: when each instruction of the order has its turn and when the rank goes on; `live_bytes` while
    it runs. `memory`: by kind of buffer, the most in spans of time that end at `ends`."""

    starts: list[float]
    ends: list[float]
    streams: list[MovesStream]
    live_bytes: list[int]
    memory_ends: list[float]
    memory: dict[str, list[int]]


@record
class MovesPrice:
    """A simulated step. `exposed_seconds`, `idle_seconds`: means over pipeline ranks, of waiting for collectives (`exposed`: by
    kind of time), and for other stages. `peak_bytes`: of the rank that holds most."""

    step_seconds: float
    makespan: float
    exposed_seconds: float
    exposed: dict[str, float]
    idle_seconds: float
    peak_bytes: int
    lists: list[MovesTimes]


@record
class MovesSetting:
    """A setting to choose."""

    id: str
    title: str
    text: str


@record
class MovesDocument:
    """Moved programs, judged and priced. `price`: None where the simulator cannot run them, `unpriced` says why. `before`: that of
    the compiler's order. `link`: the shortest text of the moves."""

    settings: list[MovesSetting]
    clusters: list[str]
    setting: str
    cluster: str
    link: str
    lists: list[MovesList]
    state: Literal["proved", "refused"]
    message: str
    faults: list[MovesFault]
    price: MovesPrice | None
    unpriced: str
    before: MovesPrice
    goals: list[MovesGoal]


def moves_document(body: Mapping[str, Any]) -> dict[str, Any]:
    """`MovesDocument` of a request (`MovesRequest`). Raises `Malformed` for one that the page never makes, `UserError` where its
    moves are none of the setting's programs."""
    asked = validated(MovesRequest, body, 'what works: {"setting": "zero3", "moves": "21-18"}')
    setting = asked.setting if asked.setting is not None else next(iter(read_settings()))
    found = compiled(setting, asked.cluster)
    before = unmoved(found)
    orders = read_link(asked.moves, found.lists)
    now = judged(found, orders) if orders != before.orders else before
    return {
        "settings": [{"id": each.id, "title": each.title, "text": each.text} for each in read_settings().values()],
        "clusters": list(CLUSTERS),
        "setting": setting,
        "cluster": asked.cluster,
        "link": link_of(orders, found.lists),
        "lists": [_list(own, order) for own, order in zip(found.lists, orders, strict=True)],
        "state": "proved" if now.proved else "refused",
        "message": _message(now),
        "faults": [_fault(now, fault) for fault in now.verification.faults],
        "price": _price(found, now, now.simulation) if now.simulation is not None else None,
        "unpriced": now.unpriced,
        "before": _price(found, before, before.simulation),
        "goals": goal_rows(now, before, asked.goal, asked.why),
    }


def _message(now: Judged) -> str:
    faults = now.verification.faults
    if faults:
        return f"{faults[0]}"
    proof = now.verification.proofs()[0]
    programs = "one program" if proof["distinct_programs"] == 1 else f"{proof['distinct_programs']} programs"
    return (
        f"{programs} for {proof['ranks']} rank{'s' if proof['ranks'] > 1 else ''}: {proof['instructions']} instructions, "
        f"{proof['buffer_accesses']} reads, writes and frees in a legal order, {proof['waits']} waits joined, nothing leaks, "
        f"nobody waits for ever"
    )


def _list(own: RankList, order: tuple[int, ...]) -> dict[str, Any]:
    return {
        "ranks": list(own.ranks),
        "instructions": [_instruction(own, number) for number in range(len(own.instructions))],
        "order": list(order),
        "out": sorted(set(range(len(own.instructions))) - set(order)),
    }


def _instruction(own: RankList, number: int) -> dict[str, Any]:
    step = own.instructions[number]
    return {
        "short": step.short,
        "letter": step.op.value,
        "does": step.op.info.meaning,
        "stream": step.stream,
        "starts": own.joined.get(number),
        "movable": is_movable(step),
        "reads": list(step.reads),
        "writes": list(step.writes),
        "frees": list(step.frees),
        "sent_bytes": sum(each.sent_bytes for each in step.collectives),
    }


def _fault(now: Judged, fault: Fault) -> dict[str, Any]:
    at = now.spot_of(fault)
    return {
        "rank": fault.rank,
        "of_list": now.list_of(fault.rank),
        "at": _spot(at) if at is not None else None,
        "text": str(fault),
        "message": fault.message,
        "about": list(map(_spot, now.about(fault))),
        "awaited": list(map(_spot, now.awaited(fault))),
    }


def _spot(spot: Spot) -> dict[str, int]:
    return {"list": spot[0], "number": spot[1]}


def _price(of: Compiled, now: Judged, simulation: Simulation | None) -> dict[str, Any]:
    assert simulation is not None, "the compiler's own programs run to their end"
    return {
        "step_seconds": simulation.seconds,
        "makespan": simulation.times.makespan,
        "exposed_seconds": sum(now.exposed.values()),
        "exposed": now.exposed,
        "idle_seconds": now.idle,
        "peak_bytes": now.peak_bytes,
        "lists": [_times(simulation, own.program.pp_rank) for own in of.lists],
    }


def _times(simulation: Simulation, pp_rank: int) -> dict[str, Any]:
    times, steps = simulation.times.ranks[pp_rank], simulation.programs[pp_rank].steps.instructions
    memory = memory_over_time(simulation, pp_rank, _SPANS)
    return {
        "starts": times.starts,
        "ends": times.ends,
        "streams": [
            {"index": index, "stream": steps[index].stream, "start": start, "end": end}
            for index, (start, end) in sorted(times.streams.items())
        ],
        "live_bytes": simulation.curves[pp_rank],
        "memory_ends": list(memory.ends),
        "memory": {kind: list(sizes) for kind, sizes in memory.by_kind.items()},
    }
