"""Work that is lost to failures: how long between checkpoints, and which share of the time is training.

Failures come at random, M seconds apart on average for the whole job; a checkpoint takes d seconds, during which nothing else goes
on; after a failure, R seconds pass until training goes on from the last checkpoint. With a checkpoint after every t seconds of
training, the share of the time that is training which is kept is

    efficiency(t) = t / (M exp(R/M) (exp((t + d)/M) - 1))

Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps"; failures during restarts and checkpoints
are included.
"""

from math import exp, isfinite, log1p, sqrt


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
