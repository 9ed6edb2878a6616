"""The fixed schedules by name, and how many stages a rank each of them takes."""

from collections.abc import Callable, Iterator
from functools import lru_cache

from fourfold.program.schedule.compute import Compute, Orders
from fourfold.program.schedule.interleaved import interleaved_one_f_one_b
from fourfold.program.schedule.one_chunk import gpipe, naive, one_f_one_b
from fourfold.program.schedule.v_shape import dualpipe_v, zb_v
from fourfold.program.schedule.zero_bubble import zb_h1, zb_h2

_SIMPLE: dict[str, Callable[[int, int, int], Iterator[Compute]]] = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "zb_h1": zb_h1,
    "zb_h2": zb_h2,
    "zb_v": zb_v,
    "dualpipe_v": dualpipe_v,
}
"""Functions of (pp_rank, num_ranks, num_microbatches)."""

ONE_STAGE = ("naive", "gpipe", "1f1b", "zb_h1", "zb_h2")
V_SHAPED = ("zb_v", "dualpipe_v")
PAIRED = ("dualpipe_v",)
"""Schedules whose steady state is a forward beside a backward."""
INTERLEAVED = "interleaved_1f1b"
FIXED = ("naive", "gpipe", "1f1b", INTERLEAVED, "zb_h1", "zb_h2", *V_SHAPED)


@lru_cache(maxsize=32)
def fixed_orders(schedule: str, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Orders:
    """The order of every rank."""
    if schedule == INTERLEAVED:
        return tuple(
            tuple(interleaved_one_f_one_b(rank, num_ranks, virtual_stages, num_microbatches))
            for rank in range(num_ranks)
        )
    return tuple(tuple(_SIMPLE[schedule](rank, num_ranks, num_microbatches)) for rank in range(num_ranks))


def same_placement(num_ranks: int, virtual_stages: int, is_v: bool) -> tuple[str, ...]:
    """The fixed schedules that put the stages where `auto` does."""
    if num_ranks == 1 and virtual_stages == 2:
        return (INTERLEAVED, *V_SHAPED)
    if virtual_stages == 1:
        return ONE_STAGE
    return V_SHAPED if is_v else (INTERLEAVED,)
