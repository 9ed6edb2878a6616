"""From the run file's `[layout]` and `[batch]` to a `Layout`; what cannot run is refused here, with a value that works."""

import re

from fourfold.config import ModelConfig, RunConfig, UserError
from fourfold.layout.mesh import Layout, Recompute

_NOT_YET = {"pp": "pipeline", "tp": "tensor", "cp": "context", "ep": "expert", "etp": "expert tensor"}


def resolve_layout(config: RunConfig, model: ModelConfig, ranks: int | None = None) -> Layout:
    """Completes and checks the layout. `ranks`: the ranks there are; None: as many as the layout asks for."""
    section, batch = config.layout, config.batch
    for axis, meaning in _NOT_YET.items():
        if getattr(section, axis) != 1:
            raise UserError(
                f"layout.{axis} = {getattr(section, axis)}: {meaning} parallelism is not supported by this version; allowed: 1"
            )
    if section.virtual_stages != 1:
        raise UserError(f"layout.virtual_stages = {section.virtual_stages} needs layout.pp > 1; allowed: 1")
    if section.schedule != "1f1b":
        raise UserError(f"layout.schedule = {section.schedule!r} is unknown; allowed: '1f1b'")
    if section.sequence_parallel:
        raise UserError("layout.sequence_parallel = true needs layout.tp > 1; allowed: false")
    dp_shard = _dp_shard(config, ranks)
    data_degree = section.dp_replicate * dp_shard
    per_microbatch = data_degree * section.microbatch_sequences
    if batch.global_sequences % per_microbatch:
        fit = -(-batch.global_sequences // per_microbatch) * per_microbatch
        raise UserError(
            f"batch.global_sequences = {batch.global_sequences} is not a multiple of dp_replicate x dp_shard x "
            f"microbatch_sequences = {section.dp_replicate} x {dp_shard} x {section.microbatch_sequences} = {per_microbatch}; "
            f"a value that works: {fit}"
        )
    if batch.sequence_length > model.max_position:
        raise UserError(
            f"batch.sequence_length = {batch.sequence_length} exceeds model.max_position = {model.max_position}; "
            f"allowed: at most {model.max_position}"
        )
    if model.sliding_window is not None and model.sliding_window < batch.sequence_length:
        raise UserError(
            f"batch.sequence_length = {batch.sequence_length} exceeds model.sliding_window = {model.sliding_window}, and "
            f"sliding-window attention is not supported; a value that works: {model.sliding_window}"
        )
    return Layout(
        pp=1,
        dp_replicate=section.dp_replicate,
        dp_shard=dp_shard,
        cp=1,
        tp=1,
        zero=section.zero,
        schedule=section.schedule,
        microbatch_sequences=section.microbatch_sequences,
        num_microbatches=batch.global_sequences // per_microbatch,
        sequence_length=batch.sequence_length,
        recompute=_recompute(section.recompute, model.num_layers),
        prefetch=section.prefetch,
    )


def _dp_shard(config: RunConfig, ranks: int | None) -> int:
    replicate, shard = config.layout.dp_replicate, config.layout.dp_shard
    if shard is None:
        if ranks is None:
            return 1
        if ranks % replicate:
            fit = max(d for d in range(1, replicate + 1) if ranks % d == 0)
            raise UserError(
                f"layout.dp_replicate = {replicate} does not divide the {ranks} ranks; a value that works: {fit}"
            )
        return ranks // replicate
    if ranks is not None and replicate * shard != ranks:
        raise UserError(
            f"the layout needs dp_replicate x dp_shard = {replicate} x {shard} = {replicate * shard} ranks, but there are "
            f"{ranks}; use --ranks {replicate * shard}, or leave layout.dp_shard out to take all ranks"
        )
    return shard


def _recompute(stated: str | list[str], num_layers: int) -> tuple[Recompute, ...]:
    """`"none"`, `"selective"`, `"full"`; `"full:4"` (the first 4 blocks, the others none); or a list, one a block."""
    allowed = ("none", "selective", "full")
    policies: list[str]
    if isinstance(stated, list):
        policies = stated
        if len(policies) != num_layers:
            raise UserError(
                f"layout.recompute lists {len(policies)} policies for {num_layers} blocks; give one a block, or one word: "
                f"{', '.join(allowed)}"
            )
    elif (match := re.fullmatch(r"(\w+):(\d+)", stated)) and match[1] in allowed:
        count = int(match[2])
        if count > num_layers:
            raise UserError(
                f"layout.recompute = {stated!r}: the model has {num_layers} blocks; allowed: up to {num_layers}"
            )
        policies = [match[1]] * count + ["none"] * (num_layers - count)
    else:
        policies = [stated] * num_layers
    resolved: list[Recompute] = []
    for policy in policies:
        if policy not in allowed:
            raise UserError(
                f"layout.recompute = {policy!r} is unknown; allowed: {', '.join(allowed)}, "
                f"'full:N' for the first N blocks, or a list with one of them a block"
            )
        resolved.append(policy)  # type: ignore[arg-type]
    return ("none", *resolved, "none")
