"""Everything that a price depends on beside the program: the cluster, fitted constants, the software stack, number formats."""

from dataclasses import dataclass, field
from functools import cached_property

from fourfold.config.hardware import Cluster
from fourfold.cost.collectives import collective_seconds, span_of, transfer_seconds
from fourfold.cost.kernels import Kernels, kernel_seconds, memory_seconds
from fourfold.cost.stack import Stack
from fourfold.layout import Layout
from fourfold.model.work import Attention, Pass, Product


@dataclass(frozen=True)
class Prices:
    """Seconds of kernels, collectives and transfers for the ranks of `layout` on `cluster`.

    `dtype`: the compute format; `product_dtype`: that of matrix products alone, where it is another (fp8). `link_share`: of each
    tier's bandwidth that collectives reach. `masked_share`: of causal attention's work that document masks leave.
    """

    cluster: Cluster
    layout: Layout
    kernels: Kernels = field(default_factory=Kernels)
    stack: Stack = field(default_factory=Stack)
    dtype: str = "bf16"
    product_dtype: str = "bf16"
    element_bytes: int = 2
    link_share: float = 0.8
    masked_share: float = 1.0

    @property
    def _link_share(self) -> float:
        return self.link_share * self.stack.link_speed

    @cached_property
    def _collectives(self) -> dict[tuple[str, str, int], float]:
        return {}

    @cached_property
    def _kernels(self) -> dict[Product | Attention | Pass, float]:
        return {}

    def kernel(self, item: Product | Attention | Pass) -> float:
        """Seconds of one kernel on the device."""
        found = self._kernels.get(item)
        if found is None:
            device = self.cluster.device
            found = kernel_seconds(item, device, self.kernels, self.product_dtype, self.dtype, self.element_bytes)
            if isinstance(item, Attention):
                found *= self.masked_share
            self._kernels[item] = found
        return found

    def collective(self, kind: str, axes: str, size: int) -> float:
        """Seconds of one collective over the groups along `axes`, on a buffer of `size` bytes."""
        key = (kind, axes, size)
        found = self._collectives.get(key)
        if found is None:
            span = span_of(self.layout, tuple(axes.split("+")), self.cluster)
            found = collective_seconds(kind, size / self._link_share, span, self.cluster)
            self._collectives[key] = found
        return found

    def transfer(self, size: int, source: int, target: int) -> float:
        """Seconds of a message between two pipeline ranks; all ranks of a stage send theirs at once."""
        key = (f"{source}>{target}", "pp", size)
        found = self._collectives.get(key)
        if found is None:
            per_stage = self.layout.world_size // self.layout.pp
            found = transfer_seconds(
                size / self._link_share, source * per_stage, target * per_stage, self.cluster, senders=per_stage
            )
            self._collectives[key] = found
        return found

    def memory(self, size: float) -> float:
        """Seconds in which the device's memory moves `size` bytes."""
        return self.kernels.launch_seconds + memory_seconds(size, self.cluster.device, self.kernels)
