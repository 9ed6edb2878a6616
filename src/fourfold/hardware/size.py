"""A cluster cut or grown to a number of devices: what each tier then joins, and the shape of a part of a torus."""

from dataclasses import replace
from math import prod

from fourfold.config.errors import UserError
from fourfold.hardware.types import Tier


def resize(tiers: tuple[Tier, ...], devices: int, where: str) -> tuple[Tier, ...]:
    """The tiers of `devices` of the cluster's devices, each of more devices than the one before, the last of them all.

    A tier that holds them all is cut to them and what is above it falls away. A tier that does not hold them has blocks of equal
    size, as few as can be, made of whole blocks of the tier below. The outermost grows where it is `scalable`.

    Raises `UserError`, beginning with `where`, for a number that fills no whole nodes, no torus, or more than there are."""
    if devices < 1:
        raise UserError(f"{where}: {devices} devices; allowed: 1 or more, for example {tiers[0].devices}")
    if devices > tiers[-1].devices and not tiers[-1].scalable:
        most = tiers[-1].devices
        raise UserError(
            f"{where}: {devices} devices, but tier {tiers[-1].name!r} joins {most} and is not scalable; "
            f"allowed: up to {most}, for example {most}; a file of your own may state more"
        )
    result: list[Tier] = []
    for index, tier in enumerate(tiers):
        below = result[-1].devices if result else 1
        if index == len(tiers) - 1 or devices <= tier.devices:
            size: int | None = devices
        elif index == 0:
            size = _node(tier, devices)
        else:
            size = _block(tier, devices, below)
        cut = _cut(tier, size) if size is not None else None
        if cut is None:
            raise UserError(f"{where}: {devices} devices: {_advice(tier, devices, grows=index < len(tiers) - 1)}")
        if not result or cut.devices > below:
            result.append(cut)
    return tuple(result)


def _node(tier: Tier, devices: int) -> int | None:
    """Size of equal innermost blocks: whole ones, or parts of tori and of blocks with `part_multiple`, no more than twice as many
    as need be."""
    if devices % tier.devices == 0:
        return tier.devices
    fewest = -(-devices // tier.devices)
    for blocks in range(fewest, 2 * fewest + 1):
        size, rest = divmod(devices, blocks)
        if rest == 0 and _is_part(tier, size):
            return size
    return None


def _is_part(tier: Tier, size: int) -> bool:
    if tier.kind == "torus":
        return bool(torus_shape(tier, size))
    return tier.part_multiple is not None and size % tier.part_multiple == 0


def _block(tier: Tier, devices: int, below: int) -> int:
    """Size of as few equal blocks as can be, of whole blocks of the tier below, of which `devices` is a multiple."""
    units = devices // below
    fewest = -(-devices // tier.devices)
    return below * (units // next(count for count in range(fewest, units + 1) if units % count == 0))


def _cut(tier: Tier, devices: int) -> Tier | None:
    if tier.kind != "torus" or devices == tier.devices:
        return replace(tier, devices=devices)
    shape = torus_shape(tier, devices)
    if not shape:
        return None
    long = [extent for extent in shape if extent > 1]
    rates = [1.0 if extent % tier.wrap_multiple == 0 else 0.5 for extent in long]
    rate = tier.bytes_per_second * (sum(rates) / len(rates) if rates else 1.0)
    return replace(tier, devices=devices, dimensions=tuple(long) or (1,), bytes_per_second=rate)


def torus_shape(tier: Tier, devices: int) -> tuple[int, ...]:
    """The shape of a part of `tier` with `devices` devices: one that wraps around in every dimension if there is one, and then the
    nearest to a cube; empty where no part has that many."""

    def rank(shape: tuple[int, ...]) -> tuple[bool, int, tuple[int, ...]]:
        return any(extent > 1 and extent % tier.wrap_multiple for extent in shape), sum(shape), shape

    return min(_shapes(tier.dimensions, devices), key=rank, default=())


def _shapes(bounds: tuple[int, ...], devices: int) -> list[tuple[int, ...]]:
    if devices > prod(bounds):
        return []
    if len(bounds) == 1:
        return [(devices,)]
    divisors = [extent for extent in range(1, min(bounds[0], devices) + 1) if devices % extent == 0]
    return [(extent, *rest) for extent in divisors for rest in _shapes(bounds[1:], devices // extent)]


def _advice(tier: Tier, devices: int, grows: bool) -> str:
    """The words that say why a number of devices does not fit, and the nearest ones that do."""
    if tier.kind != "torus":
        lower = devices // tier.devices * tier.devices
        part = f", nor equal parts in multiples of {tier.part_multiple}" if tier.part_multiple else ""
        whole = f"no multiple of the {tier.devices} that tier {tier.name!r} joins{part}"
        return f"{whole}; for example {lower} or {lower + tier.devices}"
    shape = " x ".join(map(str, tier.dimensions))
    if devices > tier.devices:
        near = devices // tier.devices * tier.devices
        more = f" or {near + tier.devices}" if grows else ""
        return f"no equal parts of tori {shape} (tier {tier.name!r}); for example {near}{more}"
    lower = next(count for count in range(devices - 1, 0, -1) if torus_shape(tier, count))
    upper = next(count for count in range(devices + 1, tier.devices + 1) if torus_shape(tier, count))
    return f"no box inside the torus {shape} (tier {tier.name!r}) has that many; for example {lower} or {upper}"
