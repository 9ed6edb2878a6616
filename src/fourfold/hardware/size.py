"""A cluster cut or grown to a number of devices: what each interconnect level then joins, and the shape of a part of a torus."""

from dataclasses import replace
from math import prod

from fourfold.config.errors import UserError
from fourfold.hardware.types import Level


def resize(levels: tuple[Level, ...], devices: int, where: str) -> tuple[Level, ...]:
    """The levels of `devices` of the cluster's devices, each of more devices than the one before, the last of them all.

    A level that holds them all is cut to them and what is above it falls away. A level that does not hold them has blocks of equal
    size, as few as can be, made of whole blocks of the level below. The outermost grows where it is `scalable`.

    Raises `UserError`, beginning with `where`, for a number that fills no whole nodes, no torus, or more than there are."""
    if devices < 1:
        raise UserError(f"{where}: {devices} devices; allowed: 1 or more, for example {levels[0].devices}")
    if devices > levels[-1].devices and not levels[-1].scalable:
        most = levels[-1].devices
        raise UserError(
            f"{where}: {devices} devices, but level {levels[-1].name!r} joins {most} and is not scalable; "
            f"allowed: up to {most}, for example {most}; a file of your own may state more"
        )
    result: list[Level] = []
    for index, level in enumerate(levels):
        below = result[-1].devices if result else 1
        if index == len(levels) - 1 or devices <= level.devices:
            size: int | None = devices
        elif index == 0:
            size = _node(level, devices)
        else:
            size = _block(level, devices, below)
        cut = _cut(level, size) if size is not None else None
        if cut is None:
            raise UserError(f"{where}: {devices} devices: {_advice(level, devices, grows=index < len(levels) - 1)}")
        if not result or cut.devices > below:
            result.append(cut)
    return tuple(result)


def _node(level: Level, devices: int) -> int | None:
    """Size of equal innermost blocks: whole ones, or parts of tori and of blocks with `part_multiple`, no more than twice as many
    as need be."""
    if devices % level.devices == 0:
        return level.devices
    fewest = -(-devices // level.devices)
    for blocks in range(fewest, 2 * fewest + 1):
        size, rest = divmod(devices, blocks)
        if rest == 0 and _is_part(level, size):
            return size
    return None


def _is_part(level: Level, size: int) -> bool:
    if level.kind == "torus":
        return bool(torus_shape(level, size))
    return level.part_multiple is not None and size % level.part_multiple == 0


def _block(level: Level, devices: int, below: int) -> int:
    """Size of as few equal blocks as can be, of whole blocks of the level below, of which `devices` is a multiple."""
    units = devices // below
    fewest = -(-devices // level.devices)
    return below * (units // next(count for count in range(fewest, units + 1) if units % count == 0))


def _cut(level: Level, devices: int) -> Level | None:
    if level.kind != "torus" or devices == level.devices:
        return replace(level, devices=devices)
    shape = torus_shape(level, devices)
    if not shape:
        return None
    long = [extent for extent in shape if extent > 1]
    rates = [1.0 if extent % level.wrap_multiple == 0 else 0.5 for extent in long]
    rate = level.bytes_per_second * (sum(rates) / len(rates) if rates else 1.0)
    return replace(level, devices=devices, dimensions=tuple(long) or (1,), bytes_per_second=rate)


def torus_shape(level: Level, devices: int) -> tuple[int, ...]:
    """The shape of a part of `level` with `devices` devices: one that wraps around in every dimension if there is one, and then the
    nearest to a cube; empty where no part has that many."""

    def rank(shape: tuple[int, ...]) -> tuple[bool, int, tuple[int, ...]]:
        return any(extent > 1 and extent % level.wrap_multiple for extent in shape), sum(shape), shape

    return min(_shapes(level.dimensions, devices), key=rank, default=())


def _shapes(bounds: tuple[int, ...], devices: int) -> list[tuple[int, ...]]:
    if devices > prod(bounds):
        return []
    if len(bounds) == 1:
        return [(devices,)]
    divisors = [extent for extent in range(1, min(bounds[0], devices) + 1) if devices % extent == 0]
    return [(extent, *rest) for extent in divisors for rest in _shapes(bounds[1:], devices // extent)]


def _advice(level: Level, devices: int, grows: bool) -> str:
    """The words that say why a number of devices does not fit, and the nearest ones that do."""
    if level.kind != "torus":
        lower = devices // level.devices * level.devices
        part = f", nor equal parts in multiples of {level.part_multiple}" if level.part_multiple else ""
        problem = f"no multiple of the {level.devices} that level {level.name!r} joins{part}"
        return f"{problem}; for example {lower} or {lower + level.devices}"
    shape = " x ".join(map(str, level.dimensions))
    if devices > level.devices:
        near = devices // level.devices * level.devices
        more = f" or {near + level.devices}" if grows else ""
        return f"no equal parts of tori {shape} (level {level.name!r}); for example {near}{more}"
    lower = next(count for count in range(devices - 1, 0, -1) if torus_shape(level, count))
    upper = next(count for count in range(devices + 1, level.devices + 1) if torus_shape(level, count))
    return f"no box inside the torus {shape} (level {level.name!r}) has that many; for example {lower} or {upper}"
