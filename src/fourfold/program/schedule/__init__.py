"""Schedules: the compute order of every pipeline rank, and nothing else. Everything after that is lowering.

P pipeline ranks, v stages a rank, M microbatches; F a forward, B a backward, I and W its input and weight halves.
A built-in schedule is a record (`Schedule`) beside its order function, in `built_in.BUILT_IN`; a person's own is one too.
"""

from fourfold.program.schedule.auto import auto_orders
from fourfold.program.schedule.built_in import BUILT_IN, usual_schedule
from fourfold.program.schedule.catalogue import (
    SCHEDULES,
    check_schedule,
    find_schedule,
    forward_orders,
    schedule_orders,
    stage_ranks,
)
from fourfold.program.schedule.check import check_orders
from fourfold.program.schedule.compute import Compute, Orders
from fourfold.program.schedule.record import Schedule
from fourfold.program.schedule.text import order_text, parse_orders
from fourfold.program.schedule.times import StageTimes

__all__ = [
    "BUILT_IN",
    "SCHEDULES",
    "Compute",
    "Orders",
    "Schedule",
    "StageTimes",
    "auto_orders",
    "check_orders",
    "check_schedule",
    "find_schedule",
    "forward_orders",
    "order_text",
    "parse_orders",
    "schedule_orders",
    "stage_ranks",
    "usual_schedule",
]
