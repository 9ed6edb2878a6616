"""Other aims than the fastest step on all devices: the cheapest run, the fewest devices for a deadline, the longest sequence, the
largest model."""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from fourfold.config import ModelConfig, UserError
from fourfold.config.model_config import exceptions_within
from fourfold.hardware import Cluster, resized
from fourfold.plan.bounding import Progress
from fourfold.plan.budget import BUDGET, SHARES
from fourfold.plan.conflicts import fits_at_all
from fourfold.plan.optimizer_costs import OptimizerCosts
from fourfold.plan.pricing import Priced, candidate_spec
from fourfold.plan.request import Request
from fourfold.plan.search import search
from fourfold.simulate.campaign import Assumptions, Campaign, campaign, checkpoint_seconds

LONGEST = 2**24
PARTS, MOST_TIMES = 8, 16
"""Models are tried in eighths of the width that was asked for, up to so many times it."""
MOST_DEVICES = 2**20
TORUS_HOST, FINEST = 4, 16
"""Chips of a host; into how many steps the way from one doubled size to the next is divided at most."""


@dataclass(frozen=True)
class TrainingRun:
    """A run of so many tokens. `failure_hours`, `dollars_per_device_hour`: None for the cluster's own figures."""

    tokens: float
    dollars_per_device_hour: float | None = None
    failure_hours: float | None = None

    def campaign(self, request: Request, layout: Priced) -> Campaign:
        """Length, cost and goodput with a layout, as `fourfold simulate` prints them. Raises `UserError` where the layout cannot
        be."""
        cluster, spec = request.cluster, candidate_spec(request, layout.candidate)
        dollars, hours = cluster.dollars_per_device_hour, cluster.mean_hours_between_failures_per_device
        assumptions = Assumptions(
            failure_hours=hours if self.failure_hours is None else self.failure_hours,
            checkpoint_seconds=checkpoint_seconds(spec.checkpoint_bytes, request.devices, cluster),
            dollars_per_device_hour=dollars if self.dollars_per_device_hour is None else self.dollars_per_device_hour,
            watts_per_device=cluster.watts_per_device,
        )
        devices = (request.devices, cluster.node_devices)
        return campaign(math.ceil(self.tokens), request.tokens, layout.seconds, *devices, assumptions)


@dataclass
class Aim:
    """The request that an objective plans, and its findings on the way there. `head`: a line; `rows`: lines about sizes that were
    tried. For objectives that choose a number of devices: `options` and `campaigns` are the request and the run on each that was
    tried, and the number is chosen whose run has the least `rank`."""

    request: Request
    head: str = ""
    rows: list[str] = field(default_factory=list)
    rank: Callable[[Campaign], float] = lambda _: 0.0
    options: dict[int, Request] = field(default_factory=dict)
    campaigns: dict[int, Campaign] = field(default_factory=dict)

    def note(self, request: Request, run: Campaign) -> float:
        """The rank of the run on a number of devices. The request becomes the one of the least rank."""
        self.options[request.devices], self.campaigns[request.devices] = request, run
        chosen = min(self.campaigns, key=lambda devices: (self.rank(self.campaigns[devices]), devices))
        self.request = self.options[chosen]
        return self.rank(run)

    def settled_by(self, run: Campaign | None) -> bool:
        """Whether the number of devices is still the best one with the run that a full plan on it found; else another is, which
        `request` then has."""
        if run is None or run.devices not in self.options:
            return True
        self.note(self.options[run.devices], run)
        return self.request.devices == run.devices

    @property
    def lines(self) -> list[str]:
        """Lines on the way to the objective, for a terminal."""
        return [*([self.head] if self.head else []), *self.rows, *map(_row, self.campaigns.items())]


def _row(each: tuple[int, Campaign]) -> str:
    devices, run = each
    cost = f", {run.dollars:14,.0f} dollars" if run.dollars is not None else ""
    return f"  {devices:>7} devices: {run.seconds / 86_400:8.1f} days{cost}"


def cheapest(request: Request, run: TrainingRun, budget: float, progress: Progress | None) -> Aim:
    """The number of devices on which training costs least: of doubled ones, then of some about the cheapest."""
    aim = Aim(request, f"cost of {run.tokens:.3g} tokens:", rank=lambda each: each.dollars or 0.0)
    for smaller, priced in _by_size(request, budget, progress):
        aim.note(smaller, run.campaign(smaller, priced))
    if not aim.campaigns:
        aim.rows.append("  nothing was found to fit on any number of devices")
        return aim
    tried = {cluster.devices for cluster in _sizes(request)}
    while more := _about(request.cluster, aim.request.devices, tried):
        tried |= {cluster.devices for cluster in more}
        for cluster in more:
            found = _fastest(request, cluster, budget, progress)
            if found is not None:
                aim.note(found[0], run.campaign(*found))
    aim.campaigns = dict(sorted(aim.campaigns.items()))
    return aim


def _about(cluster: Cluster, devices: int, tried: Collection[int]) -> list[Cluster]:
    """The cluster with numbers of devices in the middle between one and the next that were tried, to an eighth of it."""
    below = max((each for each in tried if each < devices), default=devices)
    above = min((each for each in tried if each > devices), default=devices)
    gaps = [ends for ends in ((below, devices), (devices, above)) if ends[1] - ends[0] > devices // 8]
    return [options[len(options) // 2] for low, high in gaps if (options := between(cluster, low, high))]


def fewest(
    request: Request, run: TrainingRun, deadline_seconds: float, budget: float, progress: Progress | None
) -> Aim:
    """The smallest number of devices that train in time: of doubled ones, then of some between the last two. Raises `UserError`
    where all devices are too few."""
    head = f"days for {run.tokens:.3g} tokens, {deadline_seconds / 86_400:g} allowed:"
    aim = Aim(request, head, rank=lambda each: each.devices if each.seconds <= deadline_seconds else math.inf)

    def in_time(smaller: Request, priced: Priced) -> bool:
        return aim.note(smaller, run.campaign(smaller, priced)) < math.inf

    late = 0
    for smaller, priced in _by_size(request, budget, progress):
        if in_time(smaller, priced):
            options = between(request.cluster, late, smaller.devices) if late else []
            low, high = 0, len(options)
            while low < high:
                middle = (low + high) // 2
                found = _fastest(request, options[middle], budget, progress)
                low, high = (low, middle) if found is not None and in_time(*found) else (middle + 1, high)
            return aim
        late = smaller.devices
    if aim.campaigns:
        raise UserError(
            "\n".join([*aim.lines, "even all devices of the cluster are too slow; allowed: a later --deadline-days"])
        )
    return aim


def longest(request: Request, budget: float, progress: Progress | None) -> Aim:
    """The longest sequence, doubled from the one asked for, of which a step fits; the batch keeps its tokens."""
    aim = Aim(request, "the longest sequence that fits:")
    length, model = request.sequence_length, request.model
    while length <= (model.max_position if model.positions == "learned" else LONGEST):
        sequences = max(1, request.tokens // length)
        longer = request.of_length(length, sequences)
        if not fits_at_all(longer):
            break
        found = search(longer, SHARES.size * budget, keep=1, progress=progress)
        if not found.best:
            break
        aim.request = longer
        aim.rows.append(f"  {length:>9} tokens: {found.best[0].candidate.words()}")
        length *= 2
    return aim


def largest(request: Request, budget: float, progress: Progress | None) -> Aim:
    """The largest model of the given one's proportions of which a step fits."""
    sizes = [model for n in range(1, PARTS * MOST_TIMES + 1) if (model := _scaled(request.model, n)) is not None]
    requests = [replace(request, model=model) for model in sizes]
    fitting = bisect_left(requests, True, key=lambda each: not fits_at_all(each))
    for each in reversed(requests[:fitting]):  # bounds are a little below what is held
        found = search(each, SHARES.size * budget, keep=1, progress=progress)
        if found.best:
            model = each.model
            billions = sum(OptimizerCosts(each).parameters) / 1e9
            shape = f"{model.num_layers} blocks, hidden {model.hidden_size}, {model.num_heads} heads"
            line = f"  {billions:.4g} billion parameters ({shape}): {found.best[0].candidate.words()}"
            return Aim(each, "the largest model of these proportions that fits:", [line])
    return Aim(request, "no model of these proportions fits")


def _scaled(model: ModelConfig, eighths: int) -> ModelConfig | None:
    """A model as deep, and as wide by that many eighths, with heads of the same size; None where heads would not divide."""
    heads, rest = divmod(model.num_heads * eighths, PARTS)
    groups = heads if model.num_kv_heads == model.num_heads else model.num_kv_heads
    sizes = [divmod(size * eighths, PARTS) for size in (model.hidden_size, model.ffn_size, model.moe_ffn_size)]
    if not heads or rest or heads % groups or any(rest for _, rest in sizes):
        return None
    hidden, ffn, experts = (size for size, _ in sizes)
    layers = max(1 + model.first_dense_layers, model.moe_period, round(model.num_layers * eighths / PARTS))
    return replace(
        model,
        num_layers=layers,
        exceptions=exceptions_within(model, layers),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=groups,
        ffn_size=ffn,
        moe_ffn_size=experts,
    )


def _by_size(request: Request, budget: float, progress: Progress | None) -> Iterator[tuple[Request, Priced]]:
    """The fastest layout on every size of the cluster on which one fits, smallest first."""
    for cluster in _sizes(request):
        found = _fastest(request, cluster, budget, progress)
        if found is not None:
            yield found


def _fastest(
    request: Request, cluster: Cluster, budget: float, progress: Progress | None
) -> tuple[Request, Priced] | None:
    """The fastest layout on another number of devices; None where none fits."""
    smaller = request.on(cluster)
    if not fits_at_all(smaller):
        return None
    found = search(smaller, SHARES.size * budget, keep=1, progress=progress)
    return (smaller, found.best[0]) if found.best else None


def _sizes(request: Request) -> list[Cluster]:
    smaller = [cluster for cluster in sizes(request.cluster, request.devices) if cluster.devices < request.devices]
    return [*smaller, request.cluster]


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


def enough_devices(request: Request, budget: float = SHARES.enough * BUDGET) -> Cluster | None:
    """The smallest of the cluster's larger sizes on which a layout was simulated that fits; None if none was. `budget`: of the
    search on each size."""
    for cluster in sizes(request.cluster):
        if cluster.devices > request.devices:
            larger = request.on(cluster)
            if fits_at_all(larger) and search(larger, budget, keep=1).best:
                return cluster
    return None
