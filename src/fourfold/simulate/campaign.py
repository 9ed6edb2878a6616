"""A whole training run from the time of one step: days, device hours, money, energy, and what failures take of them.

Failures come at random, M seconds apart on average for the whole job; a checkpoint takes d seconds, during which nothing else goes
on; after a failure, R seconds pass until training goes on from the last checkpoint. With a checkpoint after every t seconds of
training, the share of the time that is training which is kept is

    efficiency(t) = t / (M exp(R/M) (exp((t + d)/M) - 1))

Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps"; failures during restarts and checkpoints
are included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isfinite, log1p, sqrt

from fourfold.hardware import Cluster

STORAGE_BYTES_PER_SECOND_A_NODE = 1e9
"""Bytes that a node writes to storage per second, where no checkpoint time is given: Llama 3's 2 TB/s over some 2,000 nodes (Llama
Team 2024, section 3.3.1)."""
RESTART_SECONDS = 600.0
"""From a failure until training goes on where spares stand by: noticing, starting the processes, loading. An estimate."""
REPAIR_SECONDS = 4 * 3600.0
"""Until a failed node is back or replaced, where there are none. An estimate."""


def young_interval(mean_seconds: float, checkpoint_seconds: float) -> float:
    """Seconds between checkpoints, sqrt(2 d M): Young 1974, "A first order approximation to the optimum checkpoint interval"."""
    return sqrt(2 * checkpoint_seconds * mean_seconds)


def daly_interval(mean_seconds: float, checkpoint_seconds: float) -> float:
    """Seconds between checkpoints by Daly 2006, equation 37: sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d where d < 2M,
    else M."""
    M, d = mean_seconds, checkpoint_seconds
    if d >= 2 * M:
        return M
    return sqrt(2 * d * M) * (1 + sqrt(d / (2 * M)) / 3 + d / (2 * M) / 9) - d


def best_interval(mean_seconds: float, checkpoint_seconds: float) -> float:
    """Seconds t between checkpoints at which `efficiency` is highest: the root of (1 - t/M) exp((t + d)/M) = 1, by bisection, to
    the last digit."""
    ratio = checkpoint_seconds / mean_seconds
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if log1p(-middle) + middle + ratio > 0:
            low = middle
        else:
            high = middle
    return mean_seconds * (low + high) / 2


def efficiency(
    interval_seconds: float, mean_seconds: float, checkpoint_seconds: float, restart_seconds: float
) -> float:
    """The share of time that is training which is kept, as above: 0 where hardly a failure-free interval ever comes."""
    t, M = interval_seconds, mean_seconds
    exponent = (t + checkpoint_seconds + restart_seconds) / M
    if exponent > 500:
        return 0.0
    lost = M * (exp(exponent) - exp(restart_seconds / M))
    return t / lost if lost > 0 and isfinite(lost) else 0.0


def spares_for(mean_out: float, certainty: float = 0.99) -> int:
    """The fewest spare devices that suffice with that certainty where `mean_out` are in repair on average: a quantile of
    Poisson's."""
    if mean_out > 500:
        return int(mean_out + 2.33 * sqrt(mean_out)) + 1
    term = total = exp(-mean_out)
    count = 0
    while total < certainty:
        count += 1
        term *= mean_out / count
        total += term
    return count


@dataclass(frozen=True)
class Assumptions:
    """Assumptions about a run beside its step. None: not known, and what needs it is left out.

    `failure_hours`: device hours for each interruption. `checkpoint_seconds`: while training stands still.
    `dollars_per_device_hour`, `watts_per_device` as in `Cluster`.
    """

    failure_hours: float | None
    checkpoint_seconds: float
    restart_seconds: float = RESTART_SECONDS
    repair_seconds: float = REPAIR_SECONDS
    dollars_per_device_hour: float | None = None
    watts_per_device: float | None = None


@dataclass(frozen=True)
class Goodput:
    """Training under failures. `efficiency`: the share of time that is training which is kept; `spare_devices` stand by."""

    efficiency: float
    restart_seconds: float
    spare_devices: int


@dataclass(frozen=True)
class Failures:
    """`mean_seconds` between failures of the whole job; intervals between checkpoints in seconds of training: by Young, by Daly,
    and exactly, which is used; `checkpoint_steps`: that in steps. `expected`: how many failures there will be."""

    mean_seconds: float
    young_seconds: float
    daly_seconds: float
    best_seconds: float
    checkpoint_steps: int
    expected: float
    with_spares: Goodput
    without_spares: Goodput


@dataclass(frozen=True)
class StageLength:
    """A stage of a run: its steps and tokens, the batch that it ends with in `sequences` of `length` tokens, the seconds of such a
    step, and of all its steps. `words`: its layout; `fits`: whether the fullest device holds its peak."""

    number: int
    name: str
    steps: int
    tokens: int
    sequences: int
    length: int
    step_seconds: float
    seconds: float
    words: str
    fits: bool


@dataclass(frozen=True)
class Campaign:
    """`steps` of `step_seconds`, or those of `stages`, each with its own. Times with `goodput` 1 where no failure rate is known;
    with spares where it is. `rented`: devices that are paid for, those that idle and may stand by among them."""

    tokens: int
    steps: int
    step_seconds: float
    devices: int
    rented: int
    assumptions: Assumptions
    failures: Failures | None
    stages: tuple[StageLength, ...] = ()

    @property
    def training_seconds(self) -> float:
        """Seconds without a failure and without a checkpoint."""
        return sum(stage.seconds for stage in self.stages) if self.stages else self.steps * self.step_seconds

    @property
    def goodput(self) -> float:
        """Share of the time that is training which is kept; 1 where no failures are assumed."""
        return self.failures.with_spares.efficiency if self.failures else 1.0

    @property
    def seconds(self) -> float:
        """Seconds with what failures and checkpoints take; infinite where nothing is ever kept."""
        return self.training_seconds / self.goodput if self.goodput else float("inf")

    @property
    def device_hours(self) -> float:
        """Hours of the devices that train, failures and checkpoints included, spares not."""
        return self.devices * self.seconds / 3600

    @property
    def training_device_hours(self) -> float:
        """Hours of the devices that train, without failures and checkpoints."""
        return self.devices * self.training_seconds / 3600

    @property
    def paid(self) -> int:
        """Devices that cost money: those that train and spares, or all that are rented where these are more."""
        spares = self.failures.with_spares.spare_devices if self.failures else 0
        return max(self.rented, self.devices + spares)

    @property
    def dollars(self) -> float | None:
        """Dollars of the run; None where no price is known. Spares and idle devices cost as much as those that train."""
        price = self.assumptions.dollars_per_device_hour
        return None if price is None else price * self.paid * self.seconds / 3600

    @property
    def training_dollars(self) -> float | None:
        """Dollars without failures, checkpoints and spares."""
        price = self.assumptions.dollars_per_device_hour
        return None if price is None else price * self.rented * self.training_seconds / 3600

    @property
    def joules(self) -> float | None:
        """Joules at the whole system's stated maximum of watts; None where none is stated."""
        watts = self.assumptions.watts_per_device
        return None if watts is None else watts * self.devices * self.seconds


def campaign(
    tokens: int,
    tokens_per_step: int,
    step_seconds: float,
    devices: int,
    node_devices: int,
    assumptions: Assumptions,
    rented: int = 0,
    stages: Sequence[StageLength] = (),
) -> Campaign:
    """A run of so many tokens. `node_devices`: how many fail together and are replaced together. `rented`: devices that are paid
    for, where they are more than `devices`. `stages`: of the run, where its steps are not all alike; `step_seconds` are then those
    of the stage that takes the longest."""
    steps = sum(stage.steps for stage in stages) or -(-tokens // tokens_per_step)
    seconds = sum(stage.seconds for stage in stages) or steps * step_seconds
    found = None
    if assumptions.failure_hours is not None:
        found = _failures(seconds, step_seconds, devices, min(node_devices, devices), assumptions)
    return Campaign(tokens, steps, step_seconds, devices, max(rented, devices), assumptions, found, tuple(stages))


def _failures(
    training_seconds: float, step_seconds: float, devices: int, node_devices: int, assumptions: Assumptions
) -> Failures:
    assert assumptions.failure_hours is not None
    mean = assumptions.failure_hours * 3600 / devices
    d = assumptions.checkpoint_seconds
    best = best_interval(mean, d)
    steps = max(1, round(best / step_seconds))
    interval = steps * step_seconds

    def goodput(restart: float, spares: int) -> Goodput:
        return Goodput(efficiency(interval, mean, d, restart), restart, spares)

    with_spares = goodput(assumptions.restart_seconds, node_devices * spares_for(assumptions.repair_seconds / mean))
    without = goodput(assumptions.restart_seconds + assumptions.repair_seconds, 0)
    lasted = training_seconds / with_spares.efficiency if with_spares.efficiency else float("inf")
    return Failures(
        mean_seconds=mean,
        young_seconds=young_interval(mean, d),
        daly_seconds=daly_interval(mean, d),
        best_seconds=best,
        checkpoint_steps=steps,
        expected=lasted / mean,
        with_spares=with_spares,
        without_spares=without,
    )


def checkpoint_seconds(state: int, devices: int, cluster: Cluster) -> float:
    """All nodes writing at once at `STORAGE_BYTES_PER_SECOND_A_NODE`."""
    nodes = -(-devices // cluster.node_devices)
    return state / (nodes * STORAGE_BYTES_PER_SECOND_A_NODE)
