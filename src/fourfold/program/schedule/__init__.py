"""Schedules: the compute order of every pipeline rank, and nothing else. Everything after that is lowering.

P pipeline ranks, v stages a rank, M microbatches; F a forward, B a backward, I and W its input and weight halves.
"""

from fourfold.program.schedule.auto import auto_orders
from fourfold.program.schedule.catalogue import SCHEDULES, check_schedule, schedule_orders, stage_ranks
from fourfold.program.schedule.check import check_orders
from fourfold.program.schedule.compute import Compute, Orders
from fourfold.program.schedule.one_chunk import forward_only, forward_orders, one_f_one_b
from fourfold.program.schedule.text import order_text, parse_orders
from fourfold.program.schedule.times import StageTimes

__all__ = [
    "SCHEDULES",
    "Compute",
    "Orders",
    "StageTimes",
    "auto_orders",
    "check_orders",
    "check_schedule",
    "forward_only",
    "forward_orders",
    "one_f_one_b",
    "order_text",
    "parse_orders",
    "schedule_orders",
    "stage_ranks",
]
