"""A run that a command looks at, though it need not be able to run: it is compiled where that ends in reasonable time."""

from fourfold.config import RunConfig, UserError
from fourfold.launch.resolve import ResolvedRun, resolve_run
from fourfold.program.spec import Transport

MOST_LAYERS, MOST_RANKS = 10_000, 2**18
MOST_SEGMENT_PASSES = 400_000
"""Segments x microbatches of all programs: some five million instructions."""


def check_shown(config: RunConfig) -> None:
    """Raises `UserError` for a run that is larger than any, or has yet to be planned: a file may say anything."""
    layers, pp = config.model.num_layers or 0, config.layout.pp
    ranks = pp * config.layout.dp_replicate * (config.layout.dp_shard or 1) * config.layout.cp * config.layout.tp
    if config.layout.auto:
        raise UserError("layout.auto = true: the folder of a run states the layout that ran; what works: auto = false")
    if layers > MOST_LAYERS:
        raise UserError(f"model.num_layers = {layers}: too many to show; allowed: 1 to {MOST_LAYERS}")
    if ranks > MOST_RANKS:
        raise UserError(f"the layout has {ranks} ranks: too many to show; allowed: 1 to {MOST_RANKS}")


def resolve_shown(config: RunConfig, transport: Transport) -> ResolvedRun:
    """`resolve_run` of a run's folder. Raises `UserError` where it takes unreasonably long to compile."""
    check_shown(config)
    resolved = resolve_run(config, None, None, transport)
    segments = len(resolved.spec.segments)
    microbatches = max(resolved.layout.num_microbatches, resolved.evaluation_spec.layout.num_microbatches)
    if segments * microbatches > MOST_SEGMENT_PASSES:
        raise UserError(
            f"{microbatches} microbatches of {segments} segments are too much to show; allowed: segments x microbatches up to "
            f"{MOST_SEGMENT_PASSES}"
        )
    return resolved
