"""The prices of a run on a cluster: its devices, the software that runs it, the number formats that it computes in."""

from dataclasses import replace

from fourfold.config import RunConfig, UserError, nearest
from fourfold.config.hardware import Cluster, cluster_names, load_cluster
from fourfold.cost.calibrated import calibrated_prices
from fourfold.cost.fitted import Fitted, fitted, framework_of
from fourfold.cost.masks import masked_share
from fourfold.cost.prices import Prices
from fourfold.cost.stack import Stack
from fourfold.layout import Layout
from fourfold.program.facts import Lowering, Transport

OWN_STACK = "fourfold"


def prices_for(config: RunConfig, facts: Lowering, cluster: Cluster, stack_name: str | None = None) -> Prices:
    """Of every kernel, collective and transfer of the run. `stack_name`: whose software runs it, one of `stack_names`; left out,
    fourfold's own. On a machine that was measured (`cluster.calibration`), what was measured. Raises `UserError` for a name that is
    not there."""
    stack, compute = stack_named(stack_name), config.precision.compute
    measured = calibrated_prices(cluster, facts.layout, compute) if stack.name == OWN_STACK else None
    prices = measured or fitted_prices(fitted(), cluster, facts, stack, compute, stack.products or compute)
    data = config.data
    if not data.document_mask or data.document_tokens is None:
        return prices
    return replace(prices, masked_share=masked_share(config.batch.sequence_length, data.document_tokens))


def fitted_prices(
    constants: Fitted, cluster: Cluster, facts: Lowering, stack: Stack, dtype: str, product_dtype: str
) -> Prices:
    """With the constants of the cluster's device, of its links and of the stack."""
    return Prices(
        cluster=cluster,
        layout=facts.layout,
        kernels=constants.kernels(cluster.device.key, stack),
        stack=stack,
        dtype=dtype,
        product_dtype=product_dtype,
        element_bytes=facts.shape.element_bytes,
        link_share=constants.link_share,
        top_k=max(1, facts.model.top_k),
        top_nodes=facts.model.top_groups if facts.model.num_expert_groups > 1 else 0,
        links=constants.link_constants,
    )


def stack_names() -> list[str]:
    """Software whose constants are known, beside fourfold's own."""
    return sorted(name for name in fitted().stacks if name not in ("default", OWN_STACK))


def stack_named(name: str | None) -> Stack:
    """A stack by its name; of a known framework, any year will do. Raises `UserError`."""
    constants = fitted()
    if name is None or name == OWN_STACK:
        own = OWN_STACK if OWN_STACK in constants.stacks else "default"
        return replace(constants.stack(own), name=OWN_STACK)
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
