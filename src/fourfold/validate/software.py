"""The software of a case: whose fitted constants it has, and what is stated of the run beside them."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from fourfold.config.schema import GemmDtype
from fourfold.config.section import Section
from fourfold.cost.fitted import ancestors_of, fitted, framework_of
from fourfold.cost.software import OWN_SOFTWARE, Dispatcher, SoftwareProfile
from fourfold.simulate.run_prices import SoftwareOverrides

HOPPER, BLACKWELL = ("h100", "h200", "h800", "gh200", "h20"), ("b200", "b300", "gb200", "gb300")
"""Generations of devices, by the beginning of their keys."""
EAGER_FUSED = 0.3
"""Most that an eager run fuses of its elementwise kernels: norms, rotations and the loss may still be kernels of their own."""
FLASH_2_ON_HOPPER, FLASH_2_ON_BLACKWELL, FLASH_3_SPEED = 0.95, 0.45, 1.6
"""Attention's speed beside the device's constant, by runs of TRL at a million tokens on H100, 1.75 x apart, and 65,536 on B200."""
CHUNKED_LOGITS_BYTES = 1.0
"""Bytes of every logit of a microbatch where a few tokens' are made at a time: one in sixteen, with its gradient, in fp32."""
UNKNOWN = "unknown"

Bytes = Annotated[float, Field(ge=0, le=16)]


class Software(Section):
    """A case's software. `name`: `fourfold`, a profile whose constants are known (`megatron`; a year may follow: `megatron-2025`),
    or `unknown`. Every other key that is left out is as those constants have it.

    `gemm_dtype`: format of low-precision GEMMs; `compute_dtype`: `fp16` where kernels run in it, and the run file says bf16.
    `attention`: `flash`, `unfused` (the scores are written) or `math` (and are in fp32); `attention_kernel`: generation of flash
    attention. `attention_dropout` and `attention_recomputed` are of scores that are written.

    `overlap`: false where communication never runs beside computation. `dispatcher`: token dispatch to experts;
    `overlap_dispatch`: half of it runs beside another microbatch's computation; `fused_experts`: what lies between two grouped
    GEMMs is part of them. `eager`: nothing is compiled. `cuda_graphs`: the whole step is one graph. `chunked_loss`: the logits of
    a few tokens are made at a time. `low_precision_activations`: activations that a low-precision GEMM reads are saved in its
    format.

    `optimizer_state_bytes`, `master_bytes`: bytes of each element of every optimizer state and of the master weights.
    `context_bytes`: what a process holds before it allocates; `fragmentation`: what its allocator reserves beyond what is live, a
    share. `offload`: what lies in the host's memory; the device's memory is then not predicted."""

    name: Annotated[str, Field(min_length=1, max_length=100)] = OWN_SOFTWARE
    compute_dtype: Literal["fp16"] | None = None
    gemm_dtype: GemmDtype | None = None
    attention: Literal["flash", "unfused", "math"] | None = None
    attention_kernel: Literal["flash-2", "flash-3"] | None = None
    attention_dropout: bool | None = None
    attention_recomputed: bool | None = None
    overlap: bool | None = None
    dispatcher: Dispatcher | None = None
    overlap_dispatch: bool | None = None
    fused_experts: bool | None = None
    eager: bool | None = None
    cuda_graphs: bool | None = None
    chunked_loss: bool | None = None
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

    def applied(self, constants: SoftwareProfile, device: str) -> SoftwareProfile:
        """The constants of its name with what is stated. `device`: the key of the device."""
        stated: dict[str, Any] = {
            "overlap_inside": self.overlap,
            "overlap_data": self.overlap,
            "attention_dropout": self.attention_dropout,
            "attention_recomputed": self.attention_recomputed,
            "dispatcher": self.dispatcher,
            "merged_experts": self.overlap_dispatch,
            "fused_experts": self.fused_experts,
            "narrow_operands": self.low_precision_activations,
            "optimizer_bytes": self.optimizer_state_bytes,
            "master_bytes": self.master_bytes,
        }
        if self.attention is not None:
            stated |= {"fused_attention": self.attention == "flash", "fp32_scores": self.attention == "math"}
        profile = replace(constants, **{key: value for key, value in stated.items() if value is not None})
        profile = self.overrides.applied_to(profile)
        if self.attention_kernel is not None:
            profile = replace(profile, attention_speed=self._attention_speed(profile.attention_speed, device))
        if self.chunked_loss:
            profile = replace(profile, logits_bytes=min(profile.logits_bytes, CHUNKED_LOGITS_BYTES))
        if self.eager:
            profile = replace(profile, fused=min(profile.fused, EAGER_FUSED))
        return profile.without_host if self.cuda_graphs else profile

    def _attention_speed(self, usual: float, device: str) -> float:
        if not device.startswith((*HOPPER, *BLACKWELL)):
            return usual
        if self.attention_kernel == "flash-3":
            return max(usual, FLASH_3_SPEED)
        return min(usual, FLASH_2_ON_BLACKWELL if device.startswith(BLACKWELL) else FLASH_2_ON_HOPPER)
