"""The prices of a run on a cluster: its devices, the software that runs it, the number formats that it computes in."""

from dataclasses import dataclass, replace
from typing import Literal

from fourfold.config import RunConfig, UserError, nearest
from fourfold.cost.calibrated import calibrated_prices
from fourfold.cost.fitted import Fitted, fitted, framework_of
from fourfold.cost.masks import share_left
from fourfold.cost.prices import Prices
from fourfold.cost.stack import Stack
from fourfold.hardware import Cluster, cluster_names, load_cluster
from fourfold.layout import Layout
from fourfold.program.spec import StepSpec, Transport

OWN_STACK = "fourfold"
Products = Literal["fp8", "fp8-block", "mxfp8", "nvfp4"]
PEAK_FORMATS: dict[Products, str] = {"fp8": "fp8", "fp8-block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
"""Formats of matrix products, and whose peak they have; all but the first have a scale for every block of numbers."""


@dataclass(frozen=True)
class Said:
    """What is said of the software beside its name; None: as its constants have it.

    `products`: the format of its matrix products but the head's. `context_bytes`: what a process holds on its device before
    anything is allocated (the driver's context, the buffers of communication). `slack`: what its allocator reserves beyond what is
    live, as a share."""

    products: Products | None = None
    context_bytes: int | None = None
    slack: float | None = None

    def of(self, stack: Stack) -> Stack:
        if self.products is not None:
            stack = replace(stack, products=PEAK_FORMATS[self.products], fine_scales=self.products != "fp8")
        context = stack.context_bytes if self.context_bytes is None else self.context_bytes
        return replace(stack, context_bytes=context, slack=stack.slack if self.slack is None else self.slack)


NOTHING_SAID = Said()


def prices_for(
    config: RunConfig, spec: StepSpec, cluster: Cluster, stack_name: str | None = None, said: Said = NOTHING_SAID
) -> Prices:
    """Of every kernel, collective and transfer of the run. `stack_name`: whose software runs it, one of `stack_names`; left out,
    fourfold's own. On a machine that was measured (`cluster.calibration`), what was measured. Raises `UserError` for a name that is
    not there, and for products in a format that the device does not have."""
    stack, compute = said.of(stack_named(stack_name)), config.precision.compute
    if stack.name == OWN_STACK and spec.shape.compute == spec.shape.gradients:
        stack = replace(stack, gradient_bytes=0.0)  # the product adds itself to the sum
    measured = calibrated_prices(cluster, spec.layout, compute) if stack.name == OWN_STACK else None
    _check_products(said, cluster, compute, measured is not None)
    if measured is not None:
        measured = replace(measured, stack=said.of(measured.stack))
    prices = measured or fitted_prices(fitted(), cluster, spec, stack, compute, stack.products or compute)
    return replace(prices, masked_share=document_share(config))


def document_share(config: RunConfig) -> float:
    """The share of causal attention's work that the run's document mask leaves."""
    data = config.data
    return share_left(config.batch.sequence_length, data.document_tokens if data.document_mask else None)


def _check_products(said: Said, cluster: Cluster, compute: str, measured: bool) -> None:
    if said.products is None:
        return
    if measured:
        raise UserError(
            f"--products {said.products}: the machine {cluster.key} was measured in its own formats; leave --products out"
        )
    if compute != "bf16":
        raise UserError(
            f"--products {said.products}: go with computation in 16 bits, and this one is in {compute}; what works: "
            "precision.compute=bf16, or plan's --dtype bf16"
        )
    device = cluster.device
    if PEAK_FORMATS[said.products] not in device.peak_flops_per_second:
        has = [name for name, peak in PEAK_FORMATS.items() if peak in device.peak_flops_per_second]
        allowed = (
            f"allowed there: {', '.join(has)}" if has else "it has none in fewer bits than 16; leave --products out"
        )
        raise UserError(f"--products {said.products}: {device.name} has no such products; {allowed}")


def fitted_prices(
    constants: Fitted, cluster: Cluster, spec: StepSpec, stack: Stack, dtype: str, product_dtype: str
) -> Prices:
    """With the constants of the cluster's device, of its links and of the stack."""
    return Prices(
        cluster=cluster,
        layout=spec.layout,
        kernels=constants.kernels(cluster.device.key, stack),
        stack=stack,
        dtype=dtype,
        product_dtype=product_dtype,
        element_bytes=spec.shape.element_bytes,
        link_share=constants.link_share,
        top_k=max(1, spec.model.top_k),
        top_nodes=spec.model.top_groups if spec.model.num_expert_groups > 1 else 0,
        links=constants.link_constants,
    )


def stack_names() -> list[str]:
    """Software whose constants are known, beside fourfold's own."""
    return sorted(name for name in fitted().stacks if name not in ("default", OWN_STACK))


def stack_named(name: str | None) -> Stack:
    """A stack by its name; of a known framework, any year will do. Raises `UserError`."""
    constants = fitted()
    if name is None or name == OWN_STACK:
        return constants.stack(OWN_STACK)
    allowed = [OWN_STACK, *stack_names()]
    if name in allowed or framework_of(name) in map(framework_of, stack_names()):
        return constants.stack(name)
    near = nearest(name, allowed)
    hint = f"did you mean {near}? " if near else ""
    raise UserError(f"--stack {name[:100]}: no such software; {hint}allowed: {', '.join(allowed)}")


def transport_on(cluster: Cluster) -> Transport:
    """How reductions travel there: by the library's own on accelerators, as exchanges over gloo on a CPU, whose file states no
    `units`."""
    return "exchange" if cluster.device.units is None else "native"


def check_devices(layout: Layout, cluster: Cluster) -> None:
    """Raises `UserError` where the layout has more ranks than the cluster devices."""
    if layout.world_size <= cluster.devices:
        return
    grown = _grown(cluster.key.partition(":")[0], layout.world_size)
    degrees = ", ".join(
        f"{axis} {layout.degree(axis)}" for axis in layout.active(("pp", "dp_replicate", "dp_shard", "cp", "tp"))
    )
    replica = layout.pp * layout.cp * layout.tp * layout.dp_replicate
    fewer = (
        f", or layout.dp_shard={cluster.devices // replica}"
        if cluster.devices >= replica
        else f"; smaller degrees: pp x dp_replicate x cp x tp alone takes {replica}"
    )
    raise UserError(
        f"the layout ({degrees}) needs {layout.world_size} devices, the cluster {cluster.key} has {cluster.devices}; "
        f"what works: {grown}{fewer}"
    )


def _grown(name: str, devices: int) -> str:
    """How to ask for so many devices: the same cluster's, where it goes so far, or one that comes with fourfold and does."""
    for each in (name, "dgx-h100", "h100-24576"):
        if each in cluster_names():
            try:
                return f"--cluster {load_cluster(f'{each}:{devices}').key}"
            except UserError:
                continue
    return "a larger --cluster"
