"""Documents of the Cluster page: a cluster as its file states it, and how the groups of a layout lie on it."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from fourfold.api.inputs import readable_config
from fourfold.api.numbers import parse_number
from fourfold.api.options import PlaceOptions, names
from fourfold.api.simulation import priced_run
from fourfold.cost.collectives import level_shares, span_of
from fourfold.cost.prices import Prices
from fourfold.explore.cluster_types import AxesGroups, ClusterDocument, GroupsDocument, MachineLevel
from fourfold.explore.setup import Setup
from fourfold.hardware import Cluster, load_cluster
from fourfold.launch.resolve import ResolvedRun
from fourfold.layout import Layout
from fourfold.layout.mesh import ALL_AXES, AXES, axes_name
from fourfold.model.spec import Domain
from fourfold.results.prediction import layout_record
from fourfold.results.record import document, shown

GROUPS_OWN = {"axes": str, "rank": Annotated[int, Field(ge=0)]}
"""Keys that the page adds to a setup: whose groups, and the rank that is looked at, the last one where there are fewer."""
_SINGLE = ("tp", "cp", "ep", "etp", "edp", "dp_shard", "dp_replicate", "pp")


def cluster_document(name: str, stated_price: str | float | None = None) -> dict[str, Any]:
    """The levels of a cluster with what a device may send through each, and the figures' sources. `stated_price`: dollars a device
    hour in place of the file's. Raises `UserError`."""
    cluster = load_cluster(name)
    price = cluster.dollars_per_device_hour
    if stated_price is not None:
        price = parse_number(stated_price, "--price", "2.5", 0.0, 1e6)
    levels = _levels(cluster, price)
    return dict(document(shown(ClusterDocument, cluster, levels=levels, dollars_per_device_hour=price)))


def _levels(cluster: Cluster, price: float | None) -> list[MachineLevel]:
    found, memory, below = list[MachineLevel](), cluster.device.memory_bytes_per_second, 1
    inside = memory
    for level in cluster.levels:
        devices, rate = min(level.devices, cluster.devices), level.device_bytes_per_second
        found.append(
            shown(
                MachineLevel,
                level,
                devices=devices,
                blocks=-(-cluster.devices // devices),
                parts=-(-devices // below),
                ratio=inside / rate,
                memory_ratio=memory / rate,
                dollars_per_hour=None if price is None else devices * price,
            )
        )
        inside, below = rate, devices
    return found


def priced_setup(setup: Setup) -> tuple[ResolvedRun, Cluster, Prices]:
    """The run that a setup states, on its cluster, priced. Raises `UserError`."""
    config = readable_config(setup.run_input, setup.stated, trust=False)
    options = {key: value for key, value in setup.options.items() if key in names(PlaceOptions)}
    return priced_run(config, PlaceOptions(**options))


def groups_document(setup: Setup, own: Mapping[str, Any]) -> dict[str, Any]:
    """The groups along chosen axes, and which axes there are. Raises `UserError`."""
    resolved, cluster, _ = priced_setup(setup)
    layout = resolved.layout
    offered = _offered(layout, resolved.model.num_experts > 0)
    choices = [_groups(layout, axes, cluster) for axes in offered]
    names = [each.axes for each in choices]
    axes, rank = own.get("axes", names[0] if names else None), min(own.get("rank", 0), layout.world_size - 1)
    if axes is not None and axes not in names:
        axes = names[0] if names else None
    coordinates = layout.coordinates(rank)
    divided = [
        axis for axis in (*AXES, *(("ep", "etp", "edp") if resolved.model.num_experts else ())) if axis in coordinates
    ]
    answer = GroupsDocument(
        cluster=cluster.key,
        devices=cluster.devices,
        world_size=layout.world_size,
        layout=layout_record(layout),
        choices=choices,
        axes=axes,
        rank=rank,
        coordinates={axis: coordinates[axis] for axis in divided if layout.degree(axis) > 1},
        pp_stride=next((r for r in range(layout.world_size) if layout.pp_rank(r) == 1), layout.world_size),
        group_numbers=[] if axes is None else group_numbers(layout, tuple(axes.split("+"))),
    )
    return dict(document(answer))


def _offered(layout: Layout, experts: bool) -> list[tuple[str, ...]]:
    """Axes whose groups a person may look at: each alone, and those together over which a step communicates."""
    single = [axis for axis in _SINGLE if axis in ALL_AXES and (experts or axis not in ("ep", "etp", "edp"))]
    found = [(axis,) for axis in single if layout.degree(axis) > 1]
    domains: tuple[Domain, ...] = ("dense", "expert") if experts else ("dense",)
    joint = [axes for domain in domains for axes in (layout.shard_axes(domain), layout.gradient_axes(domain))]
    return [*dict.fromkeys([*found, *(axes for axes in joint if len(axes) > 1)])]


def _groups(layout: Layout, axes: tuple[str, ...], cluster: Cluster) -> AxesGroups:
    span = span_of(layout, axes, cluster)
    shares = level_shares("all_reduce", span)
    crossed = [level.name for level, share in zip(cluster.levels, shares, strict=True) if share > 0]
    groups = layout.world_size // span.size
    return shown(AxesGroups, span, axes=axes_name(axes), groups=groups, hop_shares=shares, levels=crossed)


def group_numbers(layout: Layout, axes: tuple[str, ...]) -> list[int]:
    """The number of every rank's group, in the order of their first ranks."""
    found, number = [-1] * layout.world_size, 0
    for rank in range(layout.world_size):
        if found[rank] < 0:
            for member in layout.group_of(rank, axes):
                found[member] = number
            number += 1
    return found
