"""The routers of a rank's mixtures of experts: balancing biases, which outlive the step, and the loads of one step."""

from collections.abc import Iterable

import torch
from torch import Tensor

from fourfold.model.experts.balance import Balancing
from fourfold.model.parallel import Group
from fourfold.program.view import RankView
from fourfold.runtime.collectives import AxisGroup


class Routers:
    """Balancing state of all routers of a rank. `biases`: by segment, [experts]; zeros at first. `imbalance`: the largest load of
    an expert over the mean load, in the last step and the worst router, a scalar in fp64; 1 is perfect balance. `sequences`: of the
    step's global batch."""

    def __init__(self, view: RankView, groups: Iterable[Group], device: torch.device) -> None:
        self._view = view
        self._groups = tuple(groups)
        experts = view.spec.model.num_experts
        bias_dtype = torch.float64 if view.spec.compute == "fp64" else torch.float32
        self.biases = {s.name: torch.zeros(experts, dtype=bias_dtype, device=device) for s in view.moe_segments}
        self._loads = {s.name: torch.zeros(experts, dtype=torch.float64, device=device) for s in view.moe_segments}
        self._device = device
        layout = view.spec.layout
        self.sequences = layout.data_degree * layout.num_microbatches * layout.microbatch_sequences
        self.imbalance: Tensor | None = None
        self.loads: dict[str, Tensor] = {}
        """Tokens of the last step, of all ranks, that chose each expert, [experts]; of all routers of the model, by segment."""

    def balancing(self, segment: str, loss: Tensor) -> Balancing:
        """The balancing state of a block's router. `loss`: the step's recorded losses, whose second and third are the routers'."""
        layout = self._view.spec.layout
        return Balancing(
            sequences=layout.microbatch_sequences,
            sequence_length=layout.sequence_length,
            global_sequences=self.sequences,
            groups=self._groups,
            bias=self.biases[segment] if self._view.spec.model.router == "sigmoid" else None,
            load=self._loads[segment],
            losses=loss[1:3],
        )

    def balance(self, groups: Iterable[AxisGroup]) -> None:
        """Sums the loads of all routers over the groups, and starts counting anew."""
        names = [segment.name for segment in self._view.spec.segments if segment.moe]
        nothing = torch.zeros(self._view.spec.model.num_experts, dtype=torch.float64, device=self._device)
        loads = torch.stack([self._loads.get(name, nothing) for name in names])
        for group in groups:
            group.all_reduce(loads).wait()
        self.imbalance = (loads.amax(1) / loads.mean(1).clamp(min=1e-30)).max()
        self.loads = dict(zip(names, loads, strict=True))
        for load in self._loads.values():
            load.zero_()

    def move_biases(self) -> None:
        """Moves the biases by the loads of the step that has ended. One that is skipped does not call it: all stands still."""
        speed = self._view.spec.model.balance_bias_speed
        for name, bias in self.biases.items() if speed else ():
            update_bias(bias, self.loads[name], speed)


def update_bias(bias: Tensor, counts: Tensor, speed: float) -> None:
    """bias += speed x sign(mean - count), in place, both [experts] (Wang et al. 2024, algorithm 1). `counts`: of the full global
    batch, the same on every rank."""
    loads = counts.to(bias.dtype)
    bias.add_(torch.sign(loads.mean() - loads), alpha=speed)
