"""Other aims than the fastest step on all devices: the cheapest run, the fewest devices for a deadline, the longest sequence, the
largest model."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from fourfold.config import ModelConfig, UserError
from fourfold.hardware import Cluster
from fourfold.plan.bound import Bounder
from fourfold.plan.fewest import between, fits_at_all, sizes
from fourfold.plan.pricing import Priced
from fourfold.plan.request import Request
from fourfold.plan.search import Progress, search

Lines = list[str]
LONGEST = 2**24
PARTS, MOST_TIMES = 8, 16
"""Models are tried in eighths of the width that was asked for, up to so many times it."""
SIMULATIONS = 40
"""At most, of one size."""


def cheapest(
    request: Request, tokens: float, dollars_per_hour: float, budget: float, progress: Progress | None
) -> tuple[Request, Lines]:
    """The number of devices on which training `tokens` costs least: of doubled ones, then of some about the cheapest."""
    head = f"cost of {tokens:.3g} tokens at {dollars_per_hour:g} dollars a device hour:"
    known: dict[int, tuple[float, Request, str]] = {}

    def note(smaller: Request, priced: Priced) -> None:
        hours = tokens / request.tokens * priced.seconds / 3600
        cost = hours * smaller.devices * dollars_per_hour
        line = f"  {smaller.devices:>7} devices: {hours / 24:8.1f} days, {cost:14,.0f} dollars"
        known[smaller.devices] = (cost, smaller, line)

    for smaller, priced in _by_size(request, budget, progress):
        note(smaller, priced)
    if not known:
        return request, [head, "  nothing was found to fit on any number of them"]
    tried = {cluster.devices for cluster in _sizes(request)}
    while more := _about(request.cluster, min(known, key=lambda devices: known[devices][0]), tried):
        tried |= {cluster.devices for cluster in more}
        for cluster in more:
            found = _fastest(request, cluster, budget, progress)
            if found is not None:
                note(*found)
    return min(known.values(), key=lambda each: each[0])[1], [head, *(known[devices][2] for devices in sorted(known))]


def _about(cluster: Cluster, devices: int, tried: Collection[int]) -> list[Cluster]:
    """The cluster with numbers of devices in the middle between one and the next that were tried, to an eighth of it."""
    below = max((each for each in tried if each < devices), default=devices)
    above = min((each for each in tried if each > devices), default=devices)
    gaps = [ends for ends in ((below, devices), (devices, above)) if ends[1] - ends[0] > devices // 8]
    return [options[len(options) // 2] for low, high in gaps if (options := between(cluster, low, high))]


def fewest(
    request: Request, tokens: float, deadline_seconds: float, budget: float, progress: Progress | None
) -> tuple[Request, Lines]:
    """The smallest number of devices that train `tokens` in time: of doubled ones, then of some between the last two."""
    lines = [f"days for {tokens:.3g} tokens, {deadline_seconds / 86_400:g} allowed:"]

    def in_time(smaller: Request, priced: Priced) -> bool:
        seconds = tokens / request.tokens * priced.seconds
        lines.append(f"  {smaller.devices:>7} devices: {seconds / 86_400:8.1f} days")
        return seconds <= deadline_seconds

    late = 0
    for smaller, priced in _by_size(request, budget, progress):
        if in_time(smaller, priced):
            return _between(request, late, smaller, in_time, budget, progress), lines
        late = smaller.devices
    raise UserError(
        "\n".join([*lines, "even all devices of the cluster are too slow; allowed: a later --deadline-days"])
    )


def _between(
    request: Request,
    late: int,
    enough: Request,
    in_time: Callable[[Request, Priced], bool],
    budget: float,
    progress: Progress | None,
) -> Request:
    """The fewest devices, more than `late`, that are in time, by halving."""
    options = between(request.cluster, late, enough.devices) if late else []
    low, high = 0, len(options)
    while low < high:
        middle = (low + high) // 2
        found = _fastest(request, options[middle], budget, progress)
        if found is not None and in_time(*found):
            high, enough = middle, found[0]
        else:
            low = middle + 1
    return enough


def longest(request: Request, budget: float, progress: Progress | None) -> tuple[Request, Lines]:
    """The longest sequence, doubled from the one asked for, of which a step fits; the batch keeps its tokens."""
    lines = ["the longest sequence that fits:"]
    best = request
    length, model = request.sequence_length, request.model
    while length <= (model.max_position if model.positions == "learned" else LONGEST):
        sequences = max(1, request.tokens // length)
        longer = request.of_length(length, sequences)
        if not fits_at_all(longer):
            break
        found = search(longer, budget / 8, SIMULATIONS, keep=1, progress=progress)
        if not found.best:
            break
        best = longer
        lines.append(f"  {length:>9} tokens: {found.best[0].candidate.words()}")
        length *= 2
    return best, lines


def largest(request: Request, budget: float, progress: Progress | None) -> tuple[Request, Lines]:
    """The largest model of the given one's proportions of which a step fits."""
    sizes = [model for n in range(1, PARTS * MOST_TIMES + 1) if (model := _scaled(request.model, n)) is not None]
    requests = [replace(request, model=model) for model in sizes]
    fitting = bisect_left(requests, True, key=lambda each: not fits_at_all(each))
    for each in reversed(requests[:fitting]):  # bounds are a little below what is held
        found = search(each, budget / 8, SIMULATIONS, keep=1, progress=progress)
        if found.best:
            model = each.model
            billions = sum(Bounder(each).parameters) / 1e9
            shape = f"{model.num_layers} blocks, hidden {model.hidden_size}, {model.num_heads} heads"
            line = f"  {billions:.4g} billion parameters ({shape}): {found.best[0].candidate.words()}"
            return each, ["the largest model of these proportions that fits:", line]
    return request, ["no model of these proportions fits"]


def _scaled(model: ModelConfig, eighths: int) -> ModelConfig | None:
    """As deep and as wide by that many eighths, with heads of the same size; None where heads would not divide."""
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
    found = search(smaller, budget / 8, SIMULATIONS, keep=1, progress=progress)
    return (smaller, found.best[0]) if found.best else None


def _sizes(request: Request) -> list[Cluster]:
    smaller = [cluster for cluster in sizes(request.cluster, request.devices) if cluster.devices < request.devices]
    return [*smaller, request.cluster]
