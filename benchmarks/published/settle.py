"""Settings that a source leaves open, settled as usual or, where that would not fit, ever lighter in memory; then predicted."""

from collections.abc import Iterator
from dataclasses import replace

from as_case import as_case
from case import ATTENTION_CORE, PublishedCase, SettledPrediction
from fourfold.config import UserError
from fourfold.cost.fitted import Fitted, fitted
from fourfold.cost.kernel_choice import WRITTEN
from fourfold.validate import predict_case as predict_run


def predict_case(case: PublishedCase, constants: Fitted | None = None) -> SettledPrediction:
    """Raises `UserError` where the layout cannot be."""
    settled, found = settle(case, constants or fitted())
    ends = network_step_seconds(settled, constants or fitted()) if found.step_seconds else None
    return replace(found, taken=settled.defaults[len(case.defaults) :], network_step_seconds=ends)


NETWORKS = (12e9, 50e9)
"""Bytes a second of one device beyond its node: clusters of accelerators have from 100 to 400 Gb/s for each."""


def network_step_seconds(case: PublishedCase, constants: Fitted) -> tuple[float, float] | None:
    """The step on the slowest and on the fastest of `NETWORKS`; None where the network is stated, or there is none."""
    if not case.network.assumed:
        return None
    rates = (replace(case, network=replace(case.network, internode_bytes_per_second=rate)) for rate in NETWORKS)
    slowest, fastest = (_predicted(each, constants).step_seconds or 0.0 for each in rates)
    return slowest, fastest


def settle(case: PublishedCase, constants: Fitted) -> tuple[PublishedCase, SettledPrediction]:
    """The case and its prediction. Settings that the source leaves open are taken as usual; where that would not fit, as the first
    of `_smaller` that does, or the last, and the case says so. It fits if it does with full recomputation, whose time is not
    taken: whoever may choose recomputes in part, and comes closer to the limit than memory is predicted. Raises `UserError`."""
    usual, found = case, _predicted(case, constants)
    for smaller in _smaller(case):
        if found.fits is not False:
            break
        try:
            case, found = smaller, _predicted(smaller, constants)
        except UserError:  # a layout that cannot be is none to fall back on
            continue
    if found.fits is False and case.recompute_open and case.layout.recompute == "selective":
        full = replace(case, layout=replace(case.layout, recompute="full"))
        found = replace(found, fits=_predicted(full, constants).fits)
    return _remarked(case, usual), found


def _remarked(case: PublishedCase, usual: PublishedCase) -> PublishedCase:
    """With a remark where it is lighter than usual."""
    names = [
        name
        for name in ("microbatch_sequences", "zero", "recompute")
        if getattr(case.layout, name) != getattr(usual.layout, name)
    ]
    taken = ", ".join(f"{name} = {getattr(case.layout, name)}" for name in names)
    if case.precision != usual.precision:
        taken = ", ".join(filter(None, (f"weights and optimizer states in {case.precision.compute}", taken)))
    if not taken:
        return case
    return replace(
        case, defaults=(*case.defaults, f"{taken}: what is usual would not fit, and the source leaves it open")
    )


def _smaller(case: PublishedCase) -> Iterator[PublishedCase]:
    """Ever lighter in memory, in what the source leaves open: half the microbatch, and again; the optimizer's state sharded;
    selective recomputation, in Megatron and its forks of the matrix of scores alone first; parameters sharded too, without a
    pipeline and outside Megatron and its forks; on one device, outside the same, weights and optimizer states in 16 bits, with all
    of that once more."""
    yield from _smaller_layouts(case)
    compute = case.precision.compute
    has_fp32_masters = case.precision.master == "fp32" != compute
    if case.states_open and has_fp32_masters and case.num_devices == 1 and not case.even_stages:
        narrow = replace(case, precision=replace(case.precision, master=compute, gradients=compute))
        yield narrow
        yield from _smaller_layouts(narrow)


def _smaller_layouts(case: PublishedCase) -> Iterator[PublishedCase]:
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
        if case.even_stages and case.kernels.attention in WRITTEN:
            layout = replace(layout, recompute_modules=ATTENTION_CORE)
            yield replace(case, layout=layout)
            layout = replace(layout, recompute_modules=(*ATTENTION_CORE, "mlp"))
        yield replace(case, layout=layout)
    if shared and layout.zero < 3 and layout.pp == 1 and not case.even_stages:
        layout = replace(layout, zero=3)
        yield replace(case, layout=layout)


def _predicted(case: PublishedCase, constants: Fitted) -> SettledPrediction:
    return SettledPrediction(**vars(predict_run(as_case(case), constants)))
