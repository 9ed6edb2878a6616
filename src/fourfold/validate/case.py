"""A measured run stated in the run file's words: what ran, on which cluster, by which software, and what it took."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from fourfold.config import ModelConfig, RunConfig
from fourfold.config.section import Section
from fourfold.hardware import Cluster
from fourfold.model.counts import step_flops_per_token
from fourfold.program.spec import Transport
from fourfold.simulate.run_prices import PEAK_FORMATS, transport_on
from fourfold.validate.software import Software

Figure = Annotated[float, Field(gt=0, lt=1e15)]
RATES = ("step_seconds", "tokens_per_second", "tokens_per_second_per_device", "mfu")


class MeasuredStep(Section):
    """Figures that a run measured: at most one of `RATES`, each a mean or median over steps; the peak memory of a device.

    `mfu`: a share of the device's peak in the format of the GEMMs, with causal attention and without recomputation, as `simulate`
    counts. `memory_counts`: live bytes of the allocator (`allocated`), its blocks (`reserved`), or all that the driver shows
    (`device`). `memory_rank`: the pipeline rank whose memory it is. `out_of_memory`: the run ended for want of memory."""

    step_seconds: Figure | None = None
    tokens_per_second: Figure | None = None
    tokens_per_second_per_device: Figure | None = None
    mfu: Annotated[float, Field(gt=0, le=1)] | None = None
    peak_memory_bytes: Figure | None = None
    memory_counts: Literal["allocated", "reserved", "device"] = "allocated"
    memory_rank: Literal["largest", "first", "last"] = "largest"
    out_of_memory: bool = False

    @model_validator(mode="after")
    def _one_rate(self) -> "MeasuredStep":
        stated = [name for name in RATES if getattr(self, name) is not None]
        if len(stated) > 1:
            raise ValueError(f"{' and '.join(stated)} are both stated; keep the one that the source measured")
        return self


@dataclass(frozen=True)
class Case:
    """One measured run. `run`: its sections, the layout in full; `model`: its `[model]`, complete. `attention_share`: share of
    causal attention's work that windows and documents leave; None: what the run's `[data]` says."""

    name: str
    source: str
    run: RunConfig
    model: ModelConfig
    cluster: Cluster
    software: Software
    measured: MeasuredStep
    attention_share: float | None = None

    @property
    def transport(self) -> Transport:
        """How its reductions travel: over gloo in fourfold's own runs on a CPU alone."""
        return transport_on(self.cluster) if self.software.is_own else "native"

    @property
    def num_devices(self) -> int:
        """Ranks of the layout."""
        layout = self.run.layout
        return layout.pp * layout.dp_replicate * (layout.dp_shard or 1) * layout.cp * layout.tp

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.run.batch.global_sequences * self.run.batch.sequence_length

    @property
    def gemm_dtype(self) -> str:
        """The format of its GEMMs."""
        return self.software.gemm_dtype or self.software.compute_dtype or self.run.precision.compute

    @property
    def device_flops(self) -> float:
        """Model FLOPs of a step on one device."""
        return step_flops_per_token(self.model, self.run.batch.sequence_length) * self.tokens / self.num_devices

    @property
    def peak_flops(self) -> float:
        """FLOP/s of one device at its peak, in the format of the GEMMs."""
        low = self.software.gemm_dtype
        return self.cluster.device.peak(PEAK_FORMATS[low] if low is not None else self.gemm_dtype)

    @property
    def measured_seconds(self) -> float | None:
        """Seconds of a step, from whichever figure is stated."""
        measured = self.measured
        if measured.tokens_per_second is not None:
            return self.tokens / measured.tokens_per_second
        if measured.tokens_per_second_per_device is not None:
            return self.tokens / (measured.tokens_per_second_per_device * self.num_devices)
        if measured.mfu is not None:
            return self.device_flops / (measured.mfu * self.peak_flops)
        return measured.step_seconds

    @property
    def group(self) -> Hashable:
        """Cases with the same value differ in their layouts alone."""
        run, cluster = self.run, self.cluster
        machine = (cluster.device.key, cluster.levels, self.num_devices)
        return (
            self.model,
            machine,
            self.software,
            run.batch.global_sequences,
            run.batch.sequence_length,
            run.precision,
        )


@dataclass(frozen=True)
class Prediction:
    """A predicted step. `memory_bytes`: of the rank and in the way that the case's figure counts; `fits`: whether
    every rank's memory suffices; `memory_share`: the part of its device that the fullest rank holds; `refused`: why there is no
    prediction."""

    step_seconds: float | None = None
    memory_bytes: float | None = None
    fits: bool | None = None
    refused: str | None = None
    memory_share: float | None = None
