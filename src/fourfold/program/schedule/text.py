"""The text form of compute orders: one line a rank, `rank 0: F0.0 F0.1 B0.0 B0.1`, and optionally the rank of every stage."""

import re
from collections.abc import Sequence

from fourfold.config import UserError
from fourfold.program.schedule.check import token
from fourfold.program.schedule.compute import SCHEDULED_OPS, Compute, Orders

_OPS = {op.value: op for op in SCHEDULED_OPS}
_TOKEN = re.compile(rf"([{''.join(_OPS)}])(\d{{1,7}})\.(\d{{1,7}})", re.ASCII)
_RANK = re.compile(r"rank\s+(\d{1,7})\s*:(.*)", re.ASCII)
_NUMBER = re.compile(r"\d{1,7}", re.ASCII)


def order_text(orders: Sequence[Sequence[Compute]], stage_ranks: Sequence[int] | None = None) -> str:
    """Text that `parse_orders` reads."""
    lines = ["# op stage.microbatch: F forward, B backward, I and W its input and weight halves"]
    if stage_ranks is not None:
        lines.append("stages " + " ".join(map(str, stage_ranks)))
    lines += [f"rank {rank}: {' '.join(map(token, order))}".rstrip() for rank, order in enumerate(orders)]
    return "\n".join(lines) + "\n"


def parse_token(text: str) -> Compute:
    """`F3.0` -> forward of stage 3 on microbatch 0. Raises `ValueError`."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text[:40]!r} is no entry; allowed: F, B, I or W, the stage, a point, the microbatch, as F3.0"
        )
    return Compute(_OPS[match[1]], int(match[2]), int(match[3]))


def parse_orders(text: str, num_ranks: int, source: str = "schedule") -> tuple[Orders, tuple[int, ...] | None]:
    """The order of every rank, and the rank of every stage where a `stages` line gives it. Raises `UserError` naming the
    line. Whether the orders are complete and executable is for `check_orders`."""
    orders: dict[int, tuple[Compute, ...]] = {}
    placement: tuple[int, ...] | None = None
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        try:
            if line.split()[0] == "stages":
                if placement is not None:
                    raise ValueError("a second stages line; allowed: one")
                placement = _placement(line, num_ranks)
            else:
                rank, order = _rank_line(line, num_ranks)
                if rank in orders:
                    raise ValueError(f"a second line of rank {rank}; allowed: one line a rank")
                orders[rank] = order
        except ValueError as error:
            raise UserError(f"{source}:{number}: {error}") from None
    missing = next((rank for rank in range(num_ranks) if rank not in orders), None)
    if missing is not None:
        raise UserError(
            f"{source}: rank {missing} has no line; layout.pp = {num_ranks} needs ranks 0 to {num_ranks - 1}; "
            f"what works: a line 'rank {missing}: F{missing}.0 B{missing}.0 ...'"
        )
    return tuple(orders[rank] for rank in range(num_ranks)), placement


def _rank_line(line: str, num_ranks: int) -> tuple[int, tuple[Compute, ...]]:
    match = _RANK.fullmatch(line)
    if match is None:
        raise ValueError(f"cannot read {line[:40]!r}; allowed: 'rank R: F0.0 ...', 'stages 0 1 ...', or a # comment")
    rank = int(match[1])
    if rank >= num_ranks:
        raise ValueError(f"rank {rank}, but layout.pp = {num_ranks}; allowed: 0 to {num_ranks - 1}")
    return rank, tuple(map(parse_token, match[2].split()))


def _placement(line: str, num_ranks: int) -> tuple[int, ...]:
    words = line.split()[1:]
    for word in words:
        if not _NUMBER.fullmatch(word) or int(word) >= num_ranks:
            raise ValueError(f"stages: {word[:40]!r} is no rank; allowed: 0 to {num_ranks - 1}, one for each stage")
    return tuple(map(int, words))
