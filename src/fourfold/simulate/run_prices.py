"""The prices of a run on a cluster: its devices, the software that runs it, the number formats that it computes in."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from fourfold.config import RunConfig, UserError, did_you_mean, num_steps
from fourfold.config.kernel_choice import NO_CHOICE, KernelChoice
from fourfold.config.schema import ClusterSection, GemmDtype, GemmRecipeName, PrecisionSection
from fourfold.cost.calibration import calibrated_prices, constants_of
from fourfold.cost.fitted import Fitted, fitted, framework_of, is_software_file, read_software
from fourfold.cost.kernel_choice import check_kernels, running
from fourfold.cost.prices import Prices, share_left
from fourfold.cost.software import OWN_SOFTWARE, SoftwareProfile
from fourfold.hardware import Cluster, Device, cluster_names, load_cluster
from fourfold.layout import Layout
from fourfold.model.counts import WORTHWHILE_FLOPS, step_flops_per_token
from fourfold.program.spec import StepSpec, Transport

PEAK_FORMATS: dict[GemmDtype, str] = {"fp8": "fp8", "fp8-block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
"""The peak that each format of GEMMs has."""


@dataclass(frozen=True)
class SoftwareOverrides:
    """Overrides of a software profile. None: as the profile has it.

    `gemm_dtype`: the format of its matmuls but the head's. `context_bytes`: what a process holds on its device before
    anything is allocated (the driver's context, the buffers of communication). `fragmentation`: what its allocator reserves beyond
    what is live, as a share. `kernels`: words for those that it runs."""

    gemm_dtype: GemmDtype | None = None
    context_bytes: int | None = None
    fragmentation: float | None = None
    kernels: KernelChoice = NO_CHOICE

    def of_run(self, section: ClusterSection, software: str | None) -> "SoftwareOverrides":
        """Overrides completed by the run file's where nothing is stated here; its kernels where `software` is the run file's."""
        kernels = self.kernels.completed(section) if software == section.software else self.kernels
        return replace(self, gemm_dtype=self.gemm_dtype or section.gemm_dtype, kernels=kernels)

    def applied_to(self, software: SoftwareProfile) -> SoftwareProfile:
        """A copy of a software profile with what is stated here."""
        if self.gemm_dtype is not None:
            software = replace(software, gemm_dtype=PEAK_FORMATS[self.gemm_dtype], fine_scales=self.gemm_dtype != "fp8")
        if self.context_bytes is not None:
            software = replace(software, context_bytes=self.context_bytes, communicator_bytes=0)
        return replace(
            software,
            fragmentation=software.fragmentation if self.fragmentation is None else self.fragmentation,
        )


NO_OVERRIDES = SoftwareOverrides()


def executed_precision(
    precision: PrecisionSection, cluster: Cluster, software: str | None, overrides: SoftwareOverrides
) -> tuple[PrecisionSection, SoftwareOverrides]:
    """fourfold's own software executes the matmuls that it is asked to price: there `gemm_dtype` becomes `precision.gemm_dtype`,
    and what runs is priced. Raises `UserError` for a format that it does not execute, or that the device does not have."""
    wanted = overrides.gemm_dtype
    if wanted is None or not software_named(software).is_own:
        return precision, overrides
    _check_gemm_dtype(overrides, cluster, precision.compute, constants_of(cluster) is not None)
    recipes = get_args(GemmRecipeName)
    if wanted not in recipes:
        raise UserError(
            f"--gemm-dtype {wanted}: fourfold has no such matmuls; allowed: {', '.join(recipes)}, or the software that has them: "
            f"--software megatron"
        )
    stated = {"gemm_dtype": wanted}
    return precision.model_copy(update=stated), replace(overrides, gemm_dtype=None)


def check_compute(compute: str, cluster: Cluster) -> None:
    """Raises `UserError` where the devices multiply in 16 bits but not in bf16: fourfold does not train in fp16."""
    peaks, name = cluster.device.peak_flops_per_second, cluster.device.name
    if compute == "bf16" and "bf16" not in peaks and "fp16" in peaks:
        raise UserError(
            f"precision.compute = 'bf16': {name} has no bf16 (its formats: {', '.join(peaks)}), and nothing here trains in fp16; "
            "what works: precision.compute=fp32, for a plan --dtype fp32, or devices with bf16, for example --cluster dgx-a100:64"
        )


OWN_KEYS = {
    ("launches", "graph"): "run.cuda_graphs=true",
    ("ep_collectives", "overlapped"): "layout.overlap_experts=true",
}
"""Keys of a run by which fourfold itself does what a word of `KernelChoice` says of other software."""


def prices_for(
    config: RunConfig,
    spec: StepSpec,
    cluster: Cluster,
    software_name: str | None = None,
    overrides: SoftwareOverrides = NO_OVERRIDES,
) -> Prices:
    """The prices of every kernel, collective and transfer of the run. `software_name`: whose software runs it, one of
    `software_names`; left out, fourfold's own. On a machine that was measured (`cluster.calibration`), what was measured. Raises
    `UserError` for a name that is not there, and for matmuls in a format that the device does not have."""
    return profile_prices(config, spec, cluster, software_named(software_name), overrides)


def profile_prices(
    config: RunConfig, spec: StepSpec, cluster: Cluster, software: SoftwareProfile, overrides: SoftwareOverrides
) -> Prices:
    """`prices_for`, of a software profile. Raises `UserError` as it does."""
    profile, compute = software, config.precision.compute
    recipe = spec.recipe if spec.recipe is not None and spec.recipe.kernels else None
    if recipe is not None:
        software = replace(software, fine_scales=recipe.name != "fp8")
    software = overrides.applied_to(on_device(software, cluster.device))
    if software.is_own and spec.shape.compute == spec.shape.gradients:
        software = replace(software, gradient_bytes=0.0)  # the matmul adds itself to the sum
    if software.is_own and config.run.cuda_graphs:
        software = software.without_host
    by_torch = software.is_own and multiplies_by_torch(config, spec)
    if by_torch and compute == "fp32" and cluster.device.torch_matmul_speed is not None:
        software = replace(software, gemm_speed=software.gemm_speed * cluster.device.torch_matmul_speed)
    if not software.is_own:
        check_kernels(overrides.kernels, cluster.device.key)
        software = running(software, overrides.kernels, cluster.device.key, config.run.cuda_graphs)
    elif stated := {key: word for key, word in overrides.kernels.stated.items() if word != "flash"}:
        key, word = next(iter(stated.items()))
        other = OWN_KEYS.get((key, word), "leave it out")
        raise UserError(
            f"cluster.{key}={word}: fourfold's own program says what runs; allowed with its own software: attention=flash; "
            f"what works: {other}, or name the software that ran: cluster.software=megatron"
        )
    measured = None
    if software.is_own and cluster.calibration:
        measured = calibrated_prices(cluster, spec.layout, compute, profile, by_torch=by_torch)
    _check_own_gemms(spec, cluster.device, software, overrides)
    _check_gemm_dtype(overrides, cluster, compute, measured is not None)
    if measured is not None:
        measured = replace(measured, software=overrides.applied_to(measured.software))
    prices = measured or fitted_prices(fitted(), cluster, spec, software, compute, software.gemm_dtype or compute)
    return replace(prices, masked_share=document_share(config), recipe=recipe.name if recipe is not None else None)


def multiplies_by_torch(config: RunConfig, spec: StepSpec) -> bool:
    """Whether PyTorch's own library multiplies in such a run on a processor: the run names it, or is too short to compare it with
    oneDNN (`kernels.matmul`), of which the FLOPs of the model tell. One that does not say how long it is counts as long."""
    if config.run.matmul_backend != "auto":
        return config.run.matmul_backend == "torch"
    if config.batch.steps is None and config.batch.tokens is None:
        return False
    layout = spec.layout
    tokens = layout.num_microbatches * layout.microbatch_sequences * layout.sequence_length
    flops = tokens * step_flops_per_token(spec.model, layout.sequence_length) / (layout.tp * layout.cp * layout.pp)
    return flops * num_steps(config) < WORTHWHILE_FLOPS


def on_device(software: SoftwareProfile, device: Device) -> SoftwareProfile:
    """fourfold's own software with the host's figures that were measured on such a device, and what a fit changed of its own beside
    them; any other as it is. On a measured GPU memory-bound kernels are fused, as they were when it was measured (`kernels.kinds`);
    devices that were never measured are priced operator by operator."""
    if not software.is_own:
        return software
    shipped = fitted().software(OWN_SOFTWARE)
    if device.host_launch_seconds is not None:
        seconds = device.host_launch_seconds * software.host_launch_seconds / shipped.host_launch_seconds
        fused = software.fused if device.units is None else 1.0 + software.fused - shipped.fused
        software = replace(software, host_launch_seconds=seconds, fused=min(1.0, fused))
    if device.context_bytes is not None:
        more = software.context_bytes - shipped.context_bytes
        software = replace(software, context_bytes=max(0, device.context_bytes + more))
    return software


def document_share(config: RunConfig) -> float:
    """The share of causal attention's work that the run's document mask leaves."""
    data = config.data
    return share_left(config.batch.sequence_length, data.document_tokens if data.document_mask else None)


def _check_own_gemms(spec: StepSpec, device: Device, software: SoftwareProfile, overrides: SoftwareOverrides) -> None:
    """Low-precision matmuls that fourfold executes are recorded in the program; no other software runs that program."""
    recipe = spec.recipe
    if recipe is not None and recipe.kernels and recipe.name not in device.executed_recipes:
        allowed = ", ".join(device.executed_recipes)
        works = f"allowed there: {allowed}" if allowed else "it has none; what works: leave precision.gemm_dtype out"
        raise UserError(f"precision.gemm_dtype = {recipe.name!r}: {device.name} has no such matmuls in torch; {works}")
    if spec.recipe is not None and (not software.is_own or overrides.gemm_dtype is not None):
        raise UserError(
            f"precision.gemm_dtype = {spec.recipe.name!r} is what fourfold itself executes, and {software.name} with its own "
            f"format of matmuls is asked for; what works: cluster.gemm_dtype={spec.recipe.name} in its place"
        )


def _check_gemm_dtype(overrides: SoftwareOverrides, cluster: Cluster, compute: str, measured: bool) -> None:
    if overrides.gemm_dtype is None:
        return
    if measured:
        raise UserError(
            f"--gemm-dtype {overrides.gemm_dtype}: {cluster.key} was measured in its own formats; leave --gemm-dtype out"
        )
    if compute != "bf16":
        raise UserError(
            f"--gemm-dtype {overrides.gemm_dtype}: go with computation in 16 bits, and this one is in {compute}; what works: "
            "precision.compute=bf16, or plan's --dtype bf16"
        )
    device = cluster.device
    if PEAK_FORMATS[overrides.gemm_dtype] not in device.peak_flops_per_second:
        has = [name for name, peak in PEAK_FORMATS.items() if peak in device.peak_flops_per_second]
        allowed = f"allowed there: {', '.join(has)}" if has else "it has none below 16 bits; leave --gemm-dtype out"
        raise UserError(f"--gemm-dtype {overrides.gemm_dtype}: {device.name} has no such matmuls; {allowed}")


def fitted_prices(
    constants: Fitted, cluster: Cluster, spec: StepSpec, software: SoftwareProfile, dtype: str, gemm_dtype: str
) -> Prices:
    """Prices with the constants of the cluster's device, of its links and of the software."""
    return Prices(
        cluster=cluster,
        layout=spec.layout,
        kernels=constants.kernels(cluster.device.key, software, cluster.device.kernels),
        software=software,
        dtype=dtype,
        gemm_dtype=gemm_dtype,
        element_bytes=spec.shape.element_bytes,
        link_share=constants.link_share,
        top_k=max(1, spec.model.top_k),
        top_nodes=spec.model.top_groups if spec.model.num_expert_groups > 1 else 0,
        links=constants.link_constants,
    )


def software_names() -> list[str]:
    """Software whose constants are known, beside fourfold's own."""
    return sorted(name for name in fitted().profiles if name not in ("default", OWN_SOFTWARE))


def software_named(name: str | None) -> SoftwareProfile:
    """A software profile by its name or file; of a known framework, any year will do. Raises `UserError`."""
    constants = fitted()
    if name is not None and is_software_file(name):
        return read_software(Path(name))
    if name is None or name == OWN_SOFTWARE:
        return constants.software(OWN_SOFTWARE)
    allowed = [OWN_SOFTWARE, *software_names()]
    if name in allowed or framework_of(name) in map(framework_of, software_names()):
        return constants.software(name)
    hint = did_you_mean(name, allowed)
    raise UserError(f"--software {name[:100]}: no such software; {hint}allowed: {', '.join(allowed)}")


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


def idle_devices(layout: Layout, global_sequences: int, cluster: Cluster) -> str | None:
    """How many devices of the cluster the layout leaves idle, and what would use them; None where it uses all. Ranks of a CPU
    share its cores: none of them idles alone."""
    used, devices = layout.world_size, cluster.devices
    if used == devices or cluster.device.units is None:
        return None
    replica = used // layout.dp_shard
    if devices % replica:
        what = f"no layout.dp_shard uses all: pp x dp_replicate x cp x tp = {replica} does not divide {devices}"
    else:
        shard = devices // replica
        rows = layout.dp_replicate * shard * layout.microbatch_sequences
        more = -(-global_sequences // rows) * rows
        batch = f" with batch.global_sequences={more}" if more != global_sequences else ""
        what = f"layout.dp_shard={shard}{batch} uses all"
    return f"{devices - used:,} of {devices:,} devices: {what}; --ranks {used} predicts these alone"


def _grown(name: str, devices: int) -> str:
    """How to ask for so many devices: the same cluster's, where it goes so far, or one that comes with fourfold and does."""
    for each in (name, "dgx-h100", "h100-24576"):
        if each in cluster_names():
            try:
                return f"--cluster {load_cluster(f'{each}:{devices}').key}"
            except UserError:
                continue
    return "a larger --cluster"
