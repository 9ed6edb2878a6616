"""A case's prediction: the program that the planner would run in that layout, simulated on that device, network and stack."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from case import ATTENTION_CORE, Case, Prediction
from fourfold.config import UserError
from fourfold.config.hardware import Cluster, Tier
from fourfold.config.run_file import parse_run
from fourfold.cost.fitted import Fitted, fitted
from fourfold.cost.prices import Prices
from fourfold.cost.stack import Stack
from fourfold.layout import resolve_layout
from fourfold.program.facts import Lowering
from fourfold.simulate.run_prices import fitted_prices
from fourfold.simulate.step import predict_step
from fourfold.simulate.whole import check_size
from machine import BLACKWELL, HOPPER, usual_tiers

HOST_LINK, HOST_UPDATE_BYTES = 25e9, 16
"""Bytes a second between a device and its host's memory; bytes of a parameter that pass in an update there."""
EAGER_FUSED = 0.3
"""At most: of passes over memory in operators that run one by one, where norms, rotations and the loss may still be kernels."""
FLASH_2_ON_HOPPER, FLASH_2_ON_BLACKWELL, FLASH_3_SPEED = 0.95, 0.45, 1.6
"""Of attention beside the device's constant: by runs of TRL at a million tokens on H100, 1.75 x apart, and at 65,536 on B200."""
CHUNKED_LOGITS_BYTES = 1.0
"""Of every logit of a microbatch, where a few tokens' are made at a time: one in sixteen of them, with its gradient, in fp32."""
MOST_LAYERS = 2_000
MOST_DIVISIONS = 50_000_000
"""stages x layers^2, in which stages are found."""


def predict_case(case: Case, constants: Fitted | None = None) -> Prediction:
    """Raises `UserError` where the layout cannot be."""
    settled, found = settle(case, constants or fitted())
    return replace(found, taken=settled.defaults[len(case.defaults) :])


def settle(case: Case, constants: Fitted) -> tuple[Case, Prediction]:
    """The case and its prediction. What the source leaves open is taken as usual; where that would not fit, as the first of
    `_lighter` that does, or the last, and the case says so. It fits if it does with full recomputation, whose time is not taken:
    whoever may choose recomputes in part, and comes closer to the limit than memory is predicted. Raises `UserError`."""
    usual, found = case, _predicted(case, constants)
    for lighter in _lighter(case):
        if found.fits is not False:
            break
        try:
            case, found = lighter, _predicted(lighter, constants)
        except UserError:  # a layout that cannot be is none to fall back on
            continue
    if found.fits is False and case.recompute_open and case.layout.recompute == "selective":
        full = replace(case, layout=replace(case.layout, recompute="full"))
        found = replace(found, fits=_predicted(full, constants).fits)
    return _said(case, usual), found


def _said(case: Case, usual: Case) -> Case:
    """With a remark where it is lighter than usual."""
    names = [
        name
        for name in ("microbatch_sequences", "zero", "recompute")
        if getattr(case.layout, name) != getattr(usual.layout, name)
    ]
    taken = ", ".join(f"{name} = {getattr(case.layout, name)}" for name in names)
    if case.precision != usual.precision:
        taken = ", ".join(filter(None, (f"weights and moments in {case.precision.compute}", taken)))
    if not taken:
        return case
    return replace(
        case, defaults=(*case.defaults, f"{taken}: what is usual would not fit, and the source leaves it open")
    )


def _lighter(case: Case) -> Iterator[Case]:
    """Ever lighter in memory, in what the source leaves open: half the microbatch, and again; the optimizer's state sharded;
    selective recomputation, in Megatron and its kin of the matrix of scores alone first; parameters sharded too, without a
    pipeline and outside Megatron and its kin; on one device, outside the same, weights and moments in 16 bits, with all of that
    once more."""
    yield from _lighter_layouts(case)
    compute = case.precision.compute
    wide = case.precision.master == "fp32" != compute
    if case.states_open and wide and case.num_devices == 1 and not case.even_stages:
        narrow = replace(case, precision=replace(case.precision, master=compute, gradients=compute))
        yield narrow
        yield from _lighter_layouts(narrow)


def _lighter_layouts(case: Case) -> Iterator[Case]:
    layout = case.layout
    while case.microbatch_open and layout.microbatch_sequences % 2 == 0:
        layout = layout.with_half_microbatches()
        yield replace(case, layout=layout)
    shared = case.zero_open and layout.dp_shard * layout.cp > 1
    if shared and layout.zero == 0:
        layout = replace(layout, zero=1)
        yield replace(case, layout=layout)
    if case.recompute_open and layout.recompute == "none":
        layout = replace(layout, recompute="selective")
        if case.even_stages and case.attention != "flash":
            layout = replace(layout, recompute_modules=ATTENTION_CORE)
            yield replace(case, layout=layout)
            layout = replace(layout, recompute_modules=(*ATTENTION_CORE, "mlp"))
        yield replace(case, layout=layout)
    if shared and layout.zero < 3 and layout.pp == 1 and not case.even_stages:
        layout = replace(layout, zero=3)
        yield replace(case, layout=layout)


def _predicted(case: Case, constants: Fitted) -> Prediction:
    facts = case_facts(case)
    check_size(facts)
    prices = case_prices(case, facts, constants)
    step = predict_step(facts, prices)
    if case.offloaded == "optimizer":
        return Prediction(step.seconds + host_update_seconds(facts))
    if case.offloaded:
        return Prediction(step.seconds)
    held = step.device_bytes[-1] if case.measured.last_rank_alone else max(step.device_bytes)
    return Prediction(step.seconds, counted_bytes(held, case, prices.stack), _fits(max(step.device_bytes), prices))


def host_update_seconds(facts: Lowering) -> float:
    """What an update in the host's memory adds: of the fullest stage, over the device's link to the host."""
    rows = [
        sum(at.flats[unit].shard_numel if at.zero_of(unit) else at.flats[unit].padded_numel for unit in at.flats)
        for at in map(facts.at, range(facts.layout.pp))
    ]
    return max(rows) * HOST_UPDATE_BYTES / HOST_LINK


def _fits(held: int, prices: Prices) -> bool:
    """An allocator that runs out gives back the blocks that it holds free: what is live and the context must have room."""
    stack = prices.stack
    live = (held - stack.context_bytes) / (1 + stack.slack)
    return live + stack.context_bytes <= prices.cluster.device.memory_bytes


def counted_bytes(held: int, case: Case, stack: Stack) -> float:
    """Of what a device holds, what the case's source counts: the allocator's peak, live or reserved, or all of it."""
    kind = case.measured.memory_kind
    if kind == "device":
        return float(held)
    reserved = max(1.0, held - stack.context_bytes)
    return reserved if kind == "reserved" else reserved / (1 + stack.slack)


def case_facts(case: Case) -> Lowering:
    """What lowering reads, as for a run of this project over NCCL."""
    request = case.layout
    layers, stages = case.model.num_layers, request.pp * request.virtual_stages
    if layers > MOST_LAYERS or stages * layers**2 > MOST_DIVISIONS:
        raise UserError(
            f"{layers} layers in {stages} stages: at most {MOST_LAYERS} layers are simulated, fewer in many stages"
        )
    layout: dict[str, Any] = {
        name: getattr(request, name)
        for name in (
            "pp", "virtual_stages", "schedule", "dp_replicate", "dp_shard", "zero", "cp", "tp", "sequence_parallel", "ep", "etp",
            "microbatch_sequences", "cp_method",
        )
    }  # fmt: skip
    layout["recompute"] = request.policies(layers)
    sizes = even_sizes(case)
    if sizes is not None:
        layout["segments_per_stage"] = sizes
    table: Mapping[str, Any] = {
        "model": {"preset": "tiny"},
        "batch": {"global_sequences": case.global_sequences, "sequence_length": case.sequence_length, "steps": 1},
        "layout": layout,
        "precision": {
            "compute": "bf16" if case.precision.compute == "fp16" else case.precision.compute,
            "master": case.precision.master if case.precision.master == "fp64" else "fp32",
            "gradients": "bf16" if case.precision.gradients == "fp16" else case.precision.gradients,
        },
    }
    config = parse_run(table, source=case.id)
    model = replace(case.model, max_position=max(case.model.max_position, case.sequence_length))
    return Lowering.of(config, model, resolve_layout(config, model), "native")


def even_sizes(case: Case) -> list[int] | None:
    """Segments of every stage where blocks are divided evenly, in the order of the model; None: divided by their cost."""
    stages, layers = case.layout.pp * case.layout.virtual_stages, case.model.num_layers
    if not case.even_stages or stages == 1 or layers % stages:
        return None
    sizes = [layers // stages] * stages
    sizes[0] += 1
    sizes[-1] += 1
    return sizes


def case_prices(case: Case, facts: Lowering, constants: Fitted) -> Prices:
    """Of the case's machine and stack. Products in fewer bits run at their own peak."""
    low = {"nvfp4": "fp4"}.get(case.precision.low or "", "fp8" if case.precision.low else None)
    stack = constants.stack(case.stack)
    stack = replace(
        stack,
        fused_attention=case.attention == "flash",
        attention_dropout=case.attention_dropout,
        wide_scores=case.attention == "math",
        fine_scales=case.precision.low in ("mxfp8", "nvfp4", "fp8-block"),
        attention_recomputed="core_attn" in case.layout.recompute_modules,
        merged_experts=case.merged_experts,
        narrow_operands=stack.narrow_operands or case.narrow_operands,
        products=low,
        fused_experts=stack.fused_experts or case.fused_experts,
        dispatcher=case.dispatcher or stack.dispatcher,
    )
    if case.precision.master == case.precision.compute != "fp32":  # no copy beside the parameters, moments as narrow
        stack = replace(stack, master_bytes=0.0, moment_bytes=2.0)
    if case.moment_bytes is not None:
        stack = replace(stack, moment_bytes=case.moment_bytes)
    if case.attention_kernel is not None:
        stack = replace(stack, attention_speed=_attention_speed(case, stack.attention_speed))
    if case.chunked_loss:
        stack = replace(stack, logits_bytes=min(stack.logits_bytes, CHUNKED_LOGITS_BYTES))
    if case.eager:
        stack = replace(stack, fused=min(stack.fused, EAGER_FUSED))
    if case.graphed:
        stack = stack.without_host
    compute = case.precision.compute
    prices = fitted_prices(constants, case_cluster(case), facts, stack, compute, low or compute)
    return replace(prices, masked_share=case.attention_share)


def _attention_speed(case: Case, usual: float) -> float:
    if not case.device.startswith((*HOPPER, *BLACKWELL)):
        return usual
    if case.attention_kernel == "flash 3":
        return max(usual, FLASH_3_SPEED)
    return min(usual, FLASH_2_ON_BLACKWELL if case.device.startswith(BLACKWELL) else FLASH_2_ON_HOPPER)


def case_cluster(case: Case) -> Cluster:
    """NVLink, or what a node has in its place, and one network beyond it."""
    device = case.hardware
    network = case.network
    inner = min(network.nvlink_domain, case.num_devices)
    within, *beyond = usual_tiers(case.device)
    tiers = [replace(within, devices=max(1, inner), part_multiple=None, scalable=False)]
    if case.num_devices > inner:
        usual = beyond[0] if beyond else within
        outside = network.internode_bytes_per_second or usual.bytes_per_second
        tiers.append(Tier("network", "switch", -(-case.num_devices // inner) * inner, outside, usual.latency_seconds))
    return Cluster(
        key=case.device,
        name=case.source,
        source=case.source,
        device=device,
        devices=case.num_devices,
        tiers=tuple(tiers),
        dollars_per_device_hour=None,
        mean_hours_between_failures_per_device=None,
        watts_per_device=None,
    )
