"""The software of a case: whose fitted constants it has, and what is stated of the run beside them."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from fourfold.config.kernel_choice import KernelChoice
from fourfold.config.schema import GemmDtype
from fourfold.cost.fitted import ancestors_of, fitted, framework_of
from fourfold.cost.kernel_choice import running
from fourfold.cost.software import OWN_SOFTWARE, SoftwareProfile
from fourfold.simulate.run_prices import SoftwareOverrides

EAGER_FUSED = 0.3
"""Most that an eager run fuses of its elementwise kernels: norms, rotations and the loss may still be kernels of their own."""
UNKNOWN = "unknown"

Bytes = Annotated[float, Field(ge=0, le=16)]


class Software(KernelChoice):
    """A case's software. `name`: `fourfold`, a profile whose constants are known (`megatron`; a year may follow: `megatron-2025`),
    or `unknown`. Every other key that is left out is as those constants have it.

    `gemm_dtype`: format of low-precision GEMMs; `compute_dtype`: `fp16` where kernels run in it, and the run file says bf16.
    `attention` and the other keys of `KernelChoice`: what runs, in the words of a run file's `[cluster]`. `attention_dropout` and
    `attention_recomputed` are of scores that are written.

    `overlap`: false where communication never runs beside computation. `eager`: nothing is compiled. `low_precision_activations`:
    activations that a low-precision GEMM reads are saved in its format.

    `optimizer_state_bytes`, `master_bytes`: bytes of each element of every optimizer state and of the master weights.
    `context_bytes`: what a process holds before it allocates; `fragmentation`: what its allocator reserves beyond what is live, a
    share. `offload`: what lies in the host's memory; the device's memory is then not predicted."""

    name: Annotated[str, Field(min_length=1, max_length=100)] = OWN_SOFTWARE
    compute_dtype: Literal["fp16"] | None = None
    gemm_dtype: GemmDtype | None = None
    attention_dropout: bool | None = None
    attention_recomputed: bool | None = None
    overlap: bool | None = None
    eager: bool | None = None
    low_precision_activations: bool | None = None
    optimizer_state_bytes: Bytes | None = None
    master_bytes: Bytes | None = None
    context_bytes: Annotated[int, Field(ge=0, le=10**12)] | None = None
    fragmentation: Annotated[float, Field(ge=0, le=10)] | None = None
    offload: Literal["activations", "optimizer"] | None = None

    @property
    def is_own(self) -> bool:
        """Whether fourfold itself runs the program: the program then says what runs, and most keys mean nothing."""
        return self.name == OWN_SOFTWARE

    @property
    def is_known(self) -> bool:
        """Whether there are constants of its framework, or of one that it is a fork of."""
        known = {framework_of(name) for name in fitted().profiles} - {"default"}
        return framework_of(self.name) == UNKNOWN or not known.isdisjoint(ancestors_of(self.name))

    @property
    def overrides(self) -> SoftwareOverrides:
        """Overrides that hold for any software, fourfold's own too."""
        return SoftwareOverrides(self.gemm_dtype, self.context_bytes, self.fragmentation)

    def applied(self, constants: SoftwareProfile, device: str, graphs: bool) -> SoftwareProfile:
        """The constants of its name with what is stated. `device`: the device's key. `graphs`: `run.cuda_graphs`."""
        stated: dict[str, Any] = {
            "overlap_inside": self.overlap,
            "overlap_data": self.overlap,
            "attention_dropout": self.attention_dropout,
            "attention_recomputed": self.attention_recomputed,
            "narrow_operands": self.low_precision_activations,
            "optimizer_bytes": self.optimizer_state_bytes,
            "master_bytes": self.master_bytes,
        }
        profile = replace(constants, **{key: value for key, value in stated.items() if value is not None})
        profile = self.overrides.applied_to(profile)
        profile = running(profile, self, device, graphs)
        return replace(profile, fused=min(profile.fused, EAGER_FUSED)) if self.eager else profile
