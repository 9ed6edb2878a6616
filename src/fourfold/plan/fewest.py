"""How many devices are enough: for the memory, or for a deadline."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from fourfold.config import UserError
from fourfold.hardware import Cluster, resized
from fourfold.plan.bound import Bounder
from fourfold.plan.request import Request
from fourfold.plan.search import BUDGET, search
from fourfold.plan.space import block_shapes

MOST_DEVICES = 2**20
TORUS_HOST, FINEST = 4, 16
"""Chips of a host; into how many steps the way from one doubled size to the next is divided at most."""


def sizes(cluster: Cluster, largest: int = MOST_DEVICES) -> Iterator[Cluster]:
    """The cluster with parts of a node, then 1, 2, 4, ... nodes, as far as its file allows."""
    node = cluster.all_levels[0].devices
    devices = 1
    while devices <= largest:
        if devices >= node or node % devices == 0:
            with suppress(UserError):
                yield resized(cluster, devices)
        devices = node if devices < node < 2 * devices else 2 * devices


def between(cluster: Cluster, low: int, high: int) -> list[Cluster]:
    """The cluster with numbers of devices between two, fifteen at most: whole nodes, parts of them that can be, hosts of a
    torus."""
    level = cluster.all_levels[0]
    unit = level.part_multiple or (min(TORUS_HOST, level.devices) if level.kind == "torus" else level.devices)
    step = max(1, -(-(high - low) // (FINEST * unit))) * unit
    found = []
    for devices in range(low - low % unit + step, high, step):
        with suppress(UserError):
            found.append(resized(cluster, devices))
    return found


def fits_at_all(request: Request) -> bool:
    """Whether any layout's bound of memory fits, with its optimizer states wherever they may be."""
    if request.states_may_leave:
        request = replace(request, offload_optimizer=True)
    bounder = Bounder(request)
    shapes = sorted(block_shapes(request), key=lambda s: (s.microbatch_sequences, s.recompute != "full", -s.tp))
    for shape in shapes:
        if shape.microbatch_sequences > shapes[0].microbatch_sequences:
            return False
        bounds = bounder.bounds(shape)
        if bounds is not None and (bounds.memory_bytes <= request.memory_bytes).any():
            return True
    return False


def enough_devices(request: Request, budget: float = BUDGET / 10) -> Cluster | None:
    """The smallest of the cluster's larger sizes on which a layout was simulated that fits; None if none was. `budget`: of the
    search on each size."""
    for cluster in sizes(request.cluster):
        if cluster.devices > request.devices:
            larger = request.on(cluster)
            if fits_at_all(larger) and search(larger, budget, keep=1).best:
                return cluster
    return None
