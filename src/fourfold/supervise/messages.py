"""Messages between the supervisor that leads and those of the other machines, as JSON values in the run's store.

machine/3/order     the leader's latest order to machine 3; it obeys the newest
machine/3/report    the latest report of machine 3
machines            the numbers of all machines that ever reported, "1,2,"
"""

from dataclasses import dataclass, field
from typing import Literal

from pydantic import TypeAdapter

from fourfold.launch.failures import RankFailure
from fourfold.supervise.observation import Observation

JOINED = "machines"
Action = Literal["start", "ask", "end", "kill", "calls", "leave"]


def report_seconds(limit_seconds: float) -> float:
    """How often a machine that is lost after so many seconds of silence reports what has not changed: the leader reads all reports
    in one thread, so once a second at most."""
    return min(1.0, limit_seconds / 5)


def order_key(machine: int) -> str:
    return f"machine/{machine}/order"


def report_key(machine: int) -> str:
    return f"machine/{machine}/report"


@dataclass(frozen=True)
class Order:
    """`number` rises; `life` is the supervisor that is meant. `start`: `ranks` with their slots, as generation `generation` of
    `world_size` ranks, whose commits pass `fence`. `ask`: save and stop. `end`: the same, and killed after `grace_seconds`.
    `calls`: report the ranks' calls. `leave`: the run has ended, with `exit_code` and `message`."""

    number: int
    life: str
    action: Action
    ranks: dict[int, int] = field(default_factory=dict)
    world_size: int = 0
    generation: int = 0
    fence: int = 0
    grace_seconds: float = 0.0
    exit_code: int = 0
    message: str = ""


@dataclass(frozen=True)
class Report:
    """`number` rises. `life`: drawn by the supervisor when it began. `slots`: devices or processes that it has, `spares`: more of
    them. `is_ready`: whether it could start ranks at once. `obeyed`: the newest order that it carried out. `exit_codes`, `failures`
    and `seen`: of the ranks of the last start. `calls`: those that an order asked for. `signal`: one that asks it to stop."""

    number: int
    life: str
    host: str
    slots: tuple[int, ...]
    spares: tuple[int, ...]
    is_ready: bool = False
    obeyed: int = 0
    exit_codes: dict[int, int] = field(default_factory=dict)
    failures: list[RankFailure] = field(default_factory=list)
    seen: dict[int, Observation] = field(default_factory=dict)
    calls: dict[int, tuple[str, ...]] = field(default_factory=dict)
    signal: int = 0


ORDER, REPORT = TypeAdapter(Order), TypeAdapter(Report)
