"""Devices that are as the cost model says, with constants that are known; and what would be measured of them."""

from dataclasses import replace

from fourfold.calibrate.device import PROCESSOR, Shapes
from fourfold.calibrate.findings import MATMULS, Sample
from fourfold.calibrate.one_device import FittedRun
from fourfold.calibrate.steps import table_spec
from fourfold.config import parse_run
from fourfold.cost.phase import phase_cost
from fourfold.hardware import Device, one_device
from fourfold.model.work import Elementwise, Gemm, Work
from fourfold.simulate.run_prices import prices_for

TRUE = {
    "gemm_share": 0.85,
    "gemm_half_tiles": 0.4,
    "gemm_half_inner": 200.0,
    "gemm_full_rows": 96.0,
    "attention_share": 0.7,
    "attention_backward_share": 0.55,
    "attention_half_keys": 500.0,
    "attention_half_width": 20.0,
    "attention_half_blocks": 0.5,
    "memory_share": 0.88,
    "launch_seconds": 2.2e-6,
}
A_GPU = Device(
    "mine",
    "mine",
    "synthetic",
    80 * 2**30,
    3e12,
    {"bf16": 700e12, "fp8": 1400e12},
    132,
    kernels=TRUE,
    host_launch_seconds=0.0,
)
A_CORE = Device(
    "mine",
    "mine",
    "synthetic",
    2**33,
    25e9,
    {"fp32": 90e9},
    kernels={**TRUE, "gemm_full_rows": 60.0},
    host_launch_seconds=0.0,
)


def run_of(dtype: str) -> FittedRun:
    table = PROCESSOR.fitted_tables(dtype)[0]
    return FittedRun(parse_run(dict(table)), table_spec(table, 1, "cpu"))


def samples_of(device: Device, run: FittedRun, shapes: Shapes) -> list[Sample]:
    """Samples of a device that is as the cost model says."""
    prices = prices_for(run.config, run.spec, one_device(device))
    work: list[tuple[str, Work]] = []
    for gemm in shapes.gemms():
        added = Gemm(gemm.columns, gemm.inner, gemm.rows, accumulates=True)
        work += [(MATMULS, Work((gemm,))), (MATMULS, Work((added,)))]
    for each in shapes.attentions():
        work += [("attention", Work((each,))), ("attention", Work((replace(each, backward=True),)))]
    work += [("operators", Work((Elementwise(size, size, 3),))) for size in (10**5, 10**7, 10**9)]
    work += [("launches", Work((Elementwise(512, 512),)))]
    kernels = replace(prices, kernels=replace(prices.kernels, gradient_bytes=0.0))
    return [Sample(family, each, phase_cost(each, kernels).seconds) for family, each in work]
