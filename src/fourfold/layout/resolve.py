"""From the run file's `[layout]` and `[batch]` to a `Layout`; what cannot run is refused here, with a value that works.

A segment's activations between forward and backward stay, are computed again, or wait in the host's memory.
"""

import re
from collections.abc import Callable
from dataclasses import replace

from fourfold.config import ModelConfig, RunConfig, UserError, did_you_mean
from fourfold.config.layout_section import LAYOUT_KEYS, LayoutSection
from fourfold.layout.divisibility import (
    gemm_fault,
    max_stages,
    sequence_multiple,
    splits_experts,
    splits_heads,
    splits_tensors,
    splits_tokens,
    spreads_experts,
    tensor_fault,
)
from fourfold.layout.mesh import Layout, Recompute, tensor_head_degree
from fourfold.model.low_precision import MULTIPLES

OFFLOAD = ("none", "activations")
_SEARCHED = 100_000
"""Degrees up to this one are tried for a value that works."""
CP_METHODS = ("ring", "all_gather", "ulysses", "ring+ulysses:U")

_MAX_RANKS = 10_000_000


def recompute_policies(stated: str | list[str], model: ModelConfig) -> tuple[Recompute, ...]:
    """`"none"`, `"selective"`, `"full"`; `"full:4"` (the first 4 blocks, the others none); or a list, one a block. MTP
    modules go as the last block does. Raises `UserError`."""
    allowed = ("none", "selective", "full")
    num_layers = model.num_layers
    policies: list[str]
    if isinstance(stated, list):
        policies = stated
        if len(policies) != num_layers:
            raise UserError(
                f"layout.recompute lists {len(policies)} policies for {num_layers} blocks; allowed: one a block, or one word, "
                f"{', '.join(allowed)}; a value that works: 'selective'"
            )
    elif (match := re.fullmatch(r"(\w+):(\d+)", stated)) and match[1] in allowed:
        count = int(match[2])
        if count > num_layers:
            raise UserError(
                f"layout.recompute = {stated!r}: the model has {num_layers} blocks; allowed: up to {num_layers}; "
                f"a value that works: '{match[1]}:{num_layers}'"
            )
        policies = [match[1]] * count + ["none"] * (num_layers - count)
    else:
        policies = [stated] * num_layers
    resolved: list[Recompute] = []
    for policy in policies:
        if policy not in allowed:
            hint = did_you_mean(policy, allowed, repr)
            raise UserError(
                f"layout.recompute = {stated!r}: {policy!r} is unknown; {hint}allowed: {', '.join(allowed)}, 'full:N' for the "
                f"first N blocks, or a list with one of them a block; a value that works: 'full'"
            )
        resolved.append(policy)  # type: ignore[arg-type]
    return ("none", *resolved, *resolved[-1:] * model.mtp_layers, "none")


def offloaded_segments(
    stated: str | list[str], recompute: tuple[Recompute, ...], model: ModelConfig
) -> tuple[bool, ...]:
    """Whether each segment's activations are offloaded. `"none"`; `"activations"`; `"activations:4"` (the first 4 blocks that keep
    activations); or a list, one word a block. MTP modules stay. `recompute`: of every segment. Raises `UserError`."""
    num_layers = model.num_layers
    keeping = [policy != "full" for policy in recompute[1 : num_layers + 1]]
    if isinstance(stated, list):
        if len(stated) != num_layers:
            raise UserError(
                f"layout.offload lists {len(stated)} words for {num_layers} blocks; allowed: one a block, or one word, "
                f"{', '.join(OFFLOAD)}; a value that works: 'activations'"
            )
        words, count = stated, num_layers
    else:
        word, _, number = stated.partition(":")
        count = min(int(number), 10**6) if number.isdecimal() else num_layers
        if word == "none" or count > num_layers or (number and not number.isdecimal()):
            words = [stated] * num_layers
        else:
            words = [word] * num_layers
    for each in words:
        if each not in OFFLOAD:
            raise UserError(
                f"layout.offload = {stated!r}: {each!r} is unknown; {did_you_mean(each, OFFLOAD, repr)}allowed: "
                f"{', '.join(OFFLOAD)}, 'activations:N' for the first N of {num_layers} blocks, or a list with one word a block; "
                f"a value that works: 'activations'"
            )
    wanted = [each == "activations" for each in words]
    if any(wanted) and model.block is not None:
        raise UserError(
            f"layout.offload = {stated!r}: model.block = {model.block!r} keeps a graph of autograd; allowed with it: 'none'; a "
            f"value that works: 'none', with layout.recompute = 'full'"
        )
    if isinstance(stated, list) and any(w and not k for w, k in zip(wanted, keeping, strict=True)):
        raise UserError(
            "layout.offload names a block that layout.recompute computes again in full, which keeps nothing to offload; allowed: "
            "one of the two; a value that works: 'none' for that block"
        )
    if not any(wanted):
        return ()
    found, left = [], count
    for want, keep in zip(wanted, keeping, strict=True):
        found.append(want and keep and left > 0)
        left -= found[-1]
    return (False, *found, *[False] * (len(recompute) - num_layers - 1))


def check_ranks(ranks: int | None) -> None:
    """Raises `UserError` for a number of ranks that no run has."""
    if ranks is not None and not 1 <= ranks <= _MAX_RANKS:
        shown = ranks if abs(ranks) < 10**30 else f"of {len(str(abs(ranks)))} digits"
        raise UserError(f"--ranks {shown}: allowed: 1 or more, up to {_MAX_RANKS}; a value that works: --ranks 2")


def resolve_layout(config: RunConfig, model: ModelConfig, ranks: int | None = None) -> Layout:
    """Completes and checks the layout. `ranks`: the ranks there are; None: as many as the layout asks for.

    The program says which stage has which segments, on which rank (`program.stages`), and how many virtual stages a schedule takes
    where the run file states none; one stands here.
    """
    section, batch = config.layout, config.batch
    check_ranks(ranks)
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
    virtual_stages = section.virtual_stages or 1
    if section.virtual_stages is not None:  # else a schedule has its own, which `resolve_step` knows
        check_stages(section.pp, virtual_stages, model)
    _check_tensor(section, model)
    ulysses = _check_context(section, model, batch.sequence_length)
    _check_experts(section, model, dp_shard)
    _check_overlap(section)
    recompute = recompute_policies(section.recompute, model)
    resolved = {
        "virtual_stages": virtual_stages,
        "segments_per_stage": (),
        "dp_shard": dp_shard,
        "cp_method": section.cp_method.partition(":")[0],
        "sequence_parallel": bool(section.sequence_parallel),
        "recompute": recompute,
        "offload": offloaded_segments(section.offload, recompute, model),
    }
    layout = Layout(
        **{key: getattr(section, key) for key in LAYOUT_KEYS} | resolved,
        num_microbatches=batch.global_sequences // per_microbatch,
        sequence_length=batch.sequence_length,
        cp_ulysses=ulysses,
        tp_head=section.tp if model.is_mla else tensor_head_degree(section.tp, model.num_kv_heads),
    )
    if section.sequence_parallel is None and layout.tp > 1 and layout.tokens % layout.tp == 0:
        layout = replace(layout, sequence_parallel=True)
    _check_tokens(layout, model)
    _check_gemms(config, layout, model)
    return layout


def _check_overlap(section: LayoutSection) -> None:
    if section.overlap_experts and section.ep == 1:
        raise UserError(
            "layout.overlap_experts = true hides all-to-alls between ranks of layout.ep, which is 1; allowed: false, or true with "
            "layout.ep > 1; a value that works: layout.overlap_experts = false"
        )


def _check_gemms(config: RunConfig, layout: Layout, model: ModelConfig) -> None:
    """Blocks of low-precision operands must not be cut by the layout: else its gradients were its own."""
    if config.precision.gemm_dtype is None:
        return
    stated = f"precision.gemm_dtype = {config.precision.gemm_dtype!r}"
    if model.block is not None:
        raise UserError(f"{stated}: a block of your own runs in precision.compute; what works: leave it out")
    multiple = MULTIPLES[config.precision.gemm_dtype]
    sizes = (layout.tp, layout.cp, layout.sequence_length, layout.tokens, layout.sequence_parallel)
    fault = gemm_fault(model, multiple, *sizes)
    if fault is not None:
        name, size = fault
        raise UserError(
            f"{stated} takes {multiple} numbers together, and {name} = {size} is no multiple of it; what works: a "
            f"multiple of {multiple}, smaller degrees of tp and cp, or no precision.gemm_dtype"
        )


def filling_ranks(config: RunConfig, model: ModelConfig, devices: int) -> int | None:
    """The ranks of a layout that leaves `dp_shard` open, on so many devices: all of them, or the most whose data degree divides
    the batch and whose ranks the experts spread over. None: the layout states how many."""
    section = config.layout
    if section.dp_shard is not None or section.auto:
        return None
    replica = section.pp * section.dp_replicate * section.cp * section.tp
    rows = section.dp_replicate * section.microbatch_sequences
    for shard in range(min(devices // replica, max(1, config.batch.global_sequences // rows)), 0, -1):
        spread = not model.num_experts or spreads_experts(shard * section.cp * section.tp, section.ep, section.etp)
        if config.batch.global_sequences % (rows * shard) == 0 and spread:
            return replica * shard
    return None


def check_stages(pp: int, virtual_stages: int, model: ModelConfig) -> None:
    """Raises `UserError` where the model has fewer segments than the pipeline has stages."""
    segments, stages = max_stages(model), pp * virtual_stages
    if stages > segments:
        fit = segments // virtual_stages
        works = f"layout.pp = {fit}" if fit else f"layout.pp = {min(segments, pp)}, layout.virtual_stages = 1"
        raise UserError(
            f"layout.pp x layout.virtual_stages = {pp} x {virtual_stages} = {stages} stages, but the model has "
            f"only {segments} segments (embedding, {model.num_layers} blocks, head); a value that works: {works}"
        )


def _largest(limit: int, works: Callable[[int], bool]) -> int:
    return max(d for d in range(1, min(limit, _SEARCHED) + 1) if works(d))


def _check_tensor(section: LayoutSection, model: ModelConfig) -> None:
    tp = section.tp
    fault = tensor_fault(model, tp)
    if fault is not None:
        key, size = fault
        if key == "model.block":
            raise UserError(
                f"layout.tp = {tp}: tensor parallelism does not split model.block = {model.block!r}; a value that works: 1 "
                f"(layout.cp, layout.pp and layout.zero = 3 divide its memory)"
            )
        fit = f"a value that works: {_largest(tp, lambda d: splits_tensors(model, d))}"
        if key == "model.num_kv_heads":
            raise UserError(f"layout.tp = {tp} neither divides {key} = {size} nor is a multiple of it; {fit}")
        if key == "model.vocab_size":
            raise UserError(f"layout.tp = {tp} leaves a rank without a row of {key} = {size}; {fit}")
        raise UserError(f"layout.tp = {tp} does not divide {key} = {size}; {fit}")
    if section.sequence_parallel and tp == 1:
        raise UserError("layout.sequence_parallel = true needs layout.tp > 1; allowed: false")


def _check_context(section: LayoutSection, model: ModelConfig, sequence_length: int) -> int:
    """Returns the ulysses degree."""
    cp, method = section.cp, section.cp_method
    match = re.fullmatch(r"ring\+ulysses:(\d+)", method)
    if method not in CP_METHODS[:3] and not match:
        hint = did_you_mean(method, CP_METHODS[:3], repr)
        raise UserError(f"layout.cp_method = {method!r} is unknown; {hint}allowed: {', '.join(map(repr, CP_METHODS))}")
    if model.block is not None and cp > 1 and method != "all_gather":
        raise UserError(
            f"layout.cp_method = {method!r}: model.block = {model.block!r} sees whole sequences; a value that works: 'all_gather'"
        )
    ulysses = cp if method == "ulysses" else int(match[1]) if match else 1
    heads = model.num_heads // section.tp
    if ulysses < 1 or cp % ulysses:
        fit = _largest(cp, lambda d: splits_heads(model, section.tp, cp, d))
        raise UserError(
            f"layout.cp_method = {method!r}: the ulysses degree {ulysses} does not divide layout.cp = {cp}; "
            f"a value that works: 'ring+ulysses:{fit}'"
        )
    if not splits_heads(model, section.tp, cp, ulysses):
        fit = _largest(ulysses, lambda d: splits_heads(model, section.tp, cp, d))
        raise UserError(
            f"layout.cp_method = {method!r} splits {heads} heads (num_heads / tp) over {ulysses} ranks, which does not divide "
            f"them; a value that works: 'ring+ulysses:{fit}'"
        )
    multiple = sequence_multiple(cp)
    if sequence_length % multiple:
        fit = -(-sequence_length // multiple) * multiple
        raise UserError(
            f"batch.sequence_length = {sequence_length} is not a multiple of 2 x layout.cp = {multiple} (each rank has two chunks, "
            f"so that causal work is even); a value that works: {fit}"
        )
    return ulysses


def _check_experts(section: LayoutSection, model: ModelConfig, dp_shard: int) -> None:
    ep, etp = section.ep, section.etp
    if model.num_experts == 0:
        for key, degree in (("ep", ep), ("etp", etp)):
            if degree > 1:
                raise UserError(
                    f"layout.{key} = {degree} needs a model with experts, and model.num_experts = 0; allowed: 1"
                )
        return
    if not splits_experts(model, ep):
        fit = _largest(ep, lambda d: splits_experts(model, d))
        raise UserError(
            f"layout.ep = {ep} does not divide model.num_experts = {model.num_experts}; a value that works: {fit}"
        )
    if not splits_experts(model, ep, etp):
        fit = _largest(etp, lambda d: splits_experts(model, ep, d))
        key = "moe_ffn_size" if model.moe_ffn_size % etp else "hidden_size"
        raise UserError(
            f"layout.etp = {etp} does not divide model.{key} = {getattr(model, key)}; a value that works: {fit}"
        )
    ranks = dp_shard * section.cp * section.tp
    if not spreads_experts(ranks, ep, etp):
        both = ranks % etp == 0
        fit = _largest(ep, lambda d: splits_experts(model, d) and spreads_experts(ranks, d, etp)) if both else 1
        raise UserError(
            f"layout.ep x layout.etp = {ep} x {etp} does not divide dp_shard x cp x tp = {dp_shard} x {section.cp} x "
            f"{section.tp} = {ranks}, the ranks that experts are spread over; values that work: ep = {fit}"
            + (f", etp = {etp}" if both else ", etp = 1")
        )


def _check_tokens(layout: Layout, model: ModelConfig) -> None:
    """Tokens that tensor-parallel ranks share out must come out even."""
    if not splits_tokens(model, layout.tokens, layout.tp, layout.sequence_parallel):
        why = "layout.sequence_parallel = true" if layout.sequence_parallel else "a mixture of experts"
        unit = layout.tp * sequence_multiple(layout.cp)
        fit = -(-layout.sequence_length // unit) * unit
        raise UserError(
            f"{why} splits a microbatch of {layout.tokens} tokens (microbatch_sequences x sequence_length / cp) over "
            f"layout.tp = {layout.tp}, which does not divide them; a value that works: batch.sequence_length = {fit}"
        )


def _dp_shard(config: RunConfig, ranks: int | None) -> int:
    section = config.layout
    shard = section.dp_shard
    others = section.pp * section.dp_replicate * section.cp * section.tp
    named = " x ".join(
        f"{key} = {getattr(section, key)}"
        for key in ("pp", "dp_replicate", "cp", "tp")
        if getattr(section, key) > 1 or key == "dp_replicate"
    )
    if shard is None:
        if ranks is None:
            return 1
        if ranks % others:
            if others == section.dp_replicate:
                fit = max(d for d in range(1, min(section.dp_replicate, ranks, _SEARCHED) + 1) if ranks % d == 0)
                raise UserError(
                    f"layout.dp_replicate = {section.dp_replicate} does not divide the {ranks} ranks; a value that works: {fit}"
                )
            raise UserError(
                f"the layout needs a multiple of {named}: {others} ranks, but there are {ranks}; "
                f"use --ranks {-(-ranks // others) * others}"
            )
        return ranks // others
    if ranks is not None and others * shard != ranks:
        degrees = " x ".join(
            [f"{key} {getattr(section, key)}" for key in ("pp", "dp_replicate", "dp_shard", "cp", "tp")]
        )
        raise UserError(
            f"the layout needs {others * shard} ranks ({degrees}), but there are {ranks}; use --ranks {others * shard}, "
            f"or leave layout.dp_shard out to take all ranks"
        )
    return shard
