"""Random products of everything that a layout can combine, legal by construction; and a person's own schedule."""

from collections.abc import Iterator


def last_in_first_out(rank: int, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Iterator[str]:
    """All forwards, all input gradients in reverse, then all weight gradients, in text form."""
    stages = [s for s in range(num_ranks * virtual_stages) if _rank_of(s, num_ranks) == rank]
    microbatches = range(num_microbatches)
    yield from (f"F{s}.{m}" for s in stages for m in microbatches)
    yield from (f"I{s}.{m}" for s in reversed(stages) for m in reversed(microbatches))
    yield from (f"W{s}.{m}" for s in stages for m in microbatches)


def _rank_of(stage: int, num_ranks: int) -> int:
    return num_ranks - 1 - stage % num_ranks


def _stage_ranks(num_ranks: int, virtual_stages: int) -> list[int]:
    return [_rank_of(stage, num_ranks) for stage in range(num_ranks * virtual_stages)]


last_in_first_out.stage_ranks = _stage_ranks  # type: ignore[attr-defined]
