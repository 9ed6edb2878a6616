"""The layout of a published row: degrees that divide, schedule, microbatches; cross-checked against one another."""

import re
from dataclasses import dataclass

from assertions import asserted
from case import LayoutRequest, NotACase
from defaults import ImputedDefaults
from fourfold.config import ModelConfig
from fourfold.layout.divisibility import (
    max_stages,
    sequence_multiple,
    splits_experts,
    splits_tokens,
    spreads_experts,
    tensor_fault,
)
from fourfold.program.schedule import find_schedule, usual_schedule
from policies import recompute_of, schedule_of
from row import Row
from software import ON_GPU, Trainer


@dataclass(frozen=True)
class Degrees:
    """The mesh, and the devices it needs."""

    pp: int
    cp: int
    tp: int
    dp: int
    num_devices: int


def degrees_of(row: Row, imputed: ImputedDefaults) -> Degrees:
    """Raises `NotACase` where the layout is not stated, or does not fill the devices."""
    stated, devices = row.layout, row.num_devices
    if stated.is_empty and devices != 1:
        raise NotACase("the layout is not stated and cannot be derived")
    unnamed = [key for key in ("tp", "pp") if getattr(stated, key) is None]
    tp, pp, cp = stated.tp or 1, stated.pp or 1, stated.cp or 1
    if unnamed:
        imputed.note(f"{' = '.join(unnamed)} = 1: not named by the row")
    if devices is None:
        if stated.dp is None:
            raise NotACase("the number of devices is not stated, nor the data-parallel degree")
        return Degrees(pp, cp, tp, stated.dp, imputed.fill("num_devices", pp * cp * tp * stated.dp))
    if devices % (pp * cp * tp):
        raise NotACase(f"pp x cp x tp = {pp} x {cp} x {tp} does not divide {devices} devices")
    dp = devices // (pp * cp * tp)
    if stated.dp is None:
        imputed.fill("dp", dp)
    elif stated.dp != dp:
        imputed.note(f"dp = {stated.dp} is stated, but {devices} devices / (pp {pp} x cp {cp} x tp {tp}) = {dp}, taken")
    return Degrees(pp, cp, tp, dp, devices)


USUAL_BATCH_TOKENS = 2**19
MOST_AT_ONCE, MOST_TOKENS = 8, 32_768
"""Most sequences and tokens of one microbatch of a trainer without a pipeline, where the source does not say."""


def layout_of(
    row: Row, model: ModelConfig, degrees: Degrees, trainer: Trainer, imputed: ImputedDefaults
) -> tuple[LayoutRequest, int]:
    """The layout and the global batch in sequences. Raises `NotACase`."""
    micro, number, global_sequences = _batch(row, model, degrees, trainer, imputed)
    zero, shard = _sharding(row, degrees, trainer, imputed)
    schedule, virtual = _pipeline(row, model, degrees.pp, trainer, imputed)
    policy, modules = recompute_of(row, trainer, imputed)
    ep = row.layout.ep or 1
    if ep > 1 and not model.num_experts:
        raise NotACase(f"ep = {ep}, but the model has no experts")
    layout = LayoutRequest(
        pp=degrees.pp,
        virtual_stages=virtual,
        schedule=schedule,
        dp_replicate=degrees.dp // shard,
        dp_shard=shard,
        zero=zero,
        cp=degrees.cp,
        tp=degrees.tp,
        sequence_parallel=_sequence_parallel(row, degrees.tp, trainer, imputed),
        ep=ep,
        etp=_etp(row, model, degrees, shard, trainer, imputed),
        microbatch_sequences=micro,
        num_microbatches=number,
        recompute=policy,
        recompute_modules=modules,
        cp_method=_context(row, model, degrees, trainer, imputed),
    )
    _check(layout, model, row.sequence_length or 1)
    return layout, global_sequences


def _batch(
    row: Row, model: ModelConfig, degrees: Degrees, trainer: Trainer, imputed: ImputedDefaults
) -> tuple[int, int, int]:
    """(sequences of a microbatch, microbatches, global batch)."""
    total, micro, steps, dp = row.global_sequences, row.microbatch_sequences, row.accumulation, degrees.dp
    if total is None and (micro is None or steps is None) and row.figures.step_seconds is not None:
        raise NotACase("the global batch of a stated step time is not stated and cannot be derived")
    if total is None:
        micro = micro or imputed.fill("microbatch_sequences", 1)
        usual = USUAL_BATCH_TOKENS // (dp * micro * (row.sequence_length or 1))
        steps = steps or imputed.fill("accumulation", max(1 if degrees.pp == 1 else 4 * degrees.pp, usual))
        total = imputed.fill("global_sequences", micro * steps * dp)
    if micro is None:
        at_once = degrees.pp == 1 and not (model.num_experts and trainer.is_megatron_family)
        unstated = _most_at_once(total // dp, row.sequence_length or 1) if at_once and total % dp == 0 else 1
        micro = total // (dp * steps) if steps and total % (dp * steps) == 0 else unstated
        imputed.fill("microbatch_sequences", micro)
    if total % (micro * dp):
        raise NotACase(f"the global batch {total} is no multiple of microbatch {micro} x dp {dp}")
    number = total // (micro * dp)
    if steps is not None and steps != number:
        imputed.note(
            f"accumulation = {steps} is stated, but global batch {total} / (microbatch {micro} x dp {dp}) = {number}, taken"
        )
    return micro, number, total


def is_microbatch_open(row: Row) -> bool:
    """Whether the source leaves out how many sequences run at once."""
    return row.microbatch_sequences is None and (row.accumulation is None or row.global_sequences is None)


def _most_at_once(sequences: int, length: int) -> int:
    """How many of a rank's sequences are taken to run at once: all if they are few, else the largest part that divides them."""
    if sequences <= MOST_AT_ONCE:
        return sequences
    return max(d for d in range(1, MOST_AT_ONCE + 1) if sequences % d == 0 and (d == 1 or d * length <= MOST_TOKENS))


def _sharding(row: Row, degrees: Degrees, trainer: Trainer, imputed: ImputedDefaults) -> tuple[int, int]:
    """(ZeRO stage, ranks that share one copy of the state)."""
    stated, zero = row.layout, row.layout.zero
    if zero is None and "not resharded" in stated.zero_text:
        zero = imputed.fill("zero", 2 if degrees.pp == 1 else 1, "fsdp_kept")
    elif degrees.pp > 1 and trainer.is_torch_fsdp and (zero == 3 or (zero is None and stated.fsdp)):
        zero = imputed.fill("zero", 1, "fsdp_kept")
    if zero is None:
        sharded = trainer.sharded_optimizer or bool(asserted(row.notes, r"distributed[- ]optimi[sz]er"))
        zero = imputed.fill("zero", 3 if stated.fsdp else 1 if sharded else 0)
    group = stated.shard_group if zero else None
    if group is None or group >= degrees.dp:
        return zero, degrees.dp
    if degrees.dp % group:
        imputed.note(f"a shard group of {group} does not divide dp = {degrees.dp}; all of dp is taken")
        return zero, degrees.dp
    return zero, group


def _pipeline(row: Row, model: ModelConfig, pp: int, trainer: Trainer, imputed: ImputedDefaults) -> tuple[str, int]:
    """(schedule, stages a rank)."""
    if pp == 1:
        return "1f1b", 1
    stated = schedule_of(row, imputed)
    virtual = row.layout.virtual_stages
    per_stage = row.layout.layers_per_virtual_stage
    if virtual is None and per_stage is not None:
        if model.num_layers % (pp * per_stage):
            raise NotACase(f"{per_stage} layers a stage x pp {pp} do not divide {model.num_layers} layers")
        virtual = model.num_layers // (pp * per_stage)
    if stated is not None and stated not in (usual_schedule(1).name, usual_schedule(2).name):
        return stated, find_schedule(stated).min_virtual_stages
    if virtual is None and stated == usual_schedule(2).name:
        virtual = imputed.fill("virtual_stages", _usual_virtual(model.num_layers, pp, trainer))
    usual = usual_schedule(virtual or 1).name
    if stated is None:
        imputed.fill("schedule", usual)
    return usual, virtual or 1


def _usual_virtual(layers: int, pp: int, trainer: Trainer) -> int:
    """Stages a rank where an interleaved schedule does not say."""
    segments = layers if layers % pp == 0 else layers + 2
    per_rank = max(1, segments // pp)
    if "zero-bubble" in trainer.framework or trainer.framework == "meta":
        return max(2, (layers + 2) // pp)
    return next((d for d in range(2, min(per_rank, 1000) + 1) if per_rank % d == 0), 2)


def _sequence_parallel(row: Row, tp: int, trainer: Trainer, imputed: ImputedDefaults) -> bool:
    stated = row.layout.sequence_parallel
    if tp == 1:
        return False
    if stated is not None:
        return stated
    old = 0 < trainer.year < 2022 or trainer.framework.startswith("vtrain")
    return imputed.fill("sequence_parallel", trainer.is_megatron_family and not old)


def _etp(row: Row, model: ModelConfig, degrees: Degrees, shard: int, trainer: Trainer, imputed: ImputedDefaults) -> int:
    if not model.num_experts:
        return 1
    if row.layout.etp is not None:
        return row.layout.etp
    ep, tp = row.layout.ep or 1, degrees.tp
    if tp == 1:
        return 1
    bridge = "megatron-bridge" in row.source.lower()
    fits = shard * degrees.cp * tp % (ep * tp) == 0 and model.moe_ffn_size % tp == 0
    return imputed.fill("etp", tp if fits and not bridge else 1)


GATHERS_CONTEXT = ("meta", "maxtext", ON_GPU)
HEADS_IN_RING = 8
"""Ranks that exchange heads at most, where a source names a ring beside and no number."""
_HEADS, _RING = r"ulysses|a2a|all-?_?to-?_?all", r"\bring|p2p|\busp\b|hybrid|2d"
_OTHERS = r"\b(than|baselines?|compared?|versus|vs|unlike|over)\b"


def _context(row: Row, model: ModelConfig, degrees: Degrees, trainer: Trainer, imputed: ImputedDefaults) -> str:
    """How context parallelism is done, in the words of a run file."""
    if degrees.cp == 1:
        return "ring"
    method = row.layout.cp_text.lower()
    own = [clause for clause in asserted(f"{row.framework}; {row.notes}", "ulysses") if not re.search(_OTHERS, clause)]
    if asserted(method, _HEADS) or (own and not method and not asserted(row.notes, r"\bring attention")):
        stated, both = re.search(r"ulysses\D{0,12}(\d+)", method), bool(asserted(method, _RING))
        usual = HEADS_IN_RING if both else degrees.cp
        most = min(int(stated[1]) if stated else usual, degrees.cp // 2 if both else degrees.cp)
        heads = model.num_heads // degrees.tp
        degree = next(d for d in range(max(1, most), 0, -1) if degrees.cp % d == 0 and heads % d == 0)
        return "ulysses" if degree == degrees.cp else f"ring+ulysses:{degree}"
    if asserted(method, r"gather|\bag\b"):
        return "all_gather"
    if method:
        return "ring"
    return imputed.fill("cp_method", "all_gather" if trainer.framework in GATHERS_CONTEXT else "ring")


_SPLIT = {
    "model.num_heads": "heads",
    "model.vocab_size": "vocabulary",
    "model.ffn_size": "feed-forward",
    "model.num_shared_experts x model.moe_ffn_size": "shared experts",
}


def _check(layout: LayoutRequest, model: ModelConfig, sequence_length: int) -> None:
    """Refuses degrees that do not divide what they split."""
    tp, cp, ep, etp = layout.tp, layout.cp, layout.ep, layout.etp
    fault = tensor_fault(model, tp)
    if fault is not None:
        key, size = fault
        if key in _SPLIT:
            raise NotACase(f"tp = {tp} does not divide the {_SPLIT[key]} of {size}")
        raise NotACase(f"tp = {tp} neither divides {size} key and value heads nor is a multiple of them")
    if sequence_length % sequence_multiple(cp):
        raise NotACase(f"2 x cp = {2 * cp} does not divide the sequence of {sequence_length}")
    tokens = layout.microbatch_sequences * sequence_length // cp
    if layout.sequence_parallel and not splits_tokens(model, tokens, tp, True):
        raise NotACase(f"tp = {tp} does not divide the tokens of a microbatch")
    if layout.pp * layout.virtual_stages > max_stages(model):
        raise NotACase(f"{layout.pp} x {layout.virtual_stages} stages, but the model has {max_stages(model)} segments")
    if not model.num_experts:
        return
    ranks = layout.dp_shard * cp * tp
    if not splits_experts(model, ep):
        raise NotACase(f"ep = {ep} does not divide {model.num_experts} experts")
    if not splits_experts(model, ep, etp):
        raise NotACase(f"etp = {etp} does not divide the experts' size {model.moe_ffn_size}")
    if not spreads_experts(ranks, ep, etp):
        raise NotACase(f"ep x etp = {ep} x {etp} does not divide dp x cp x tp = {ranks}")
