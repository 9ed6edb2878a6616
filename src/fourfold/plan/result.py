"""The result of a plan: the layouts found, the heuristic baseline, why asked layouts lost."""

from dataclasses import dataclass

from fourfold.model.counts import step_flops_per_token
from fourfold.plan.activations import seconds_per_gigabyte, states_per_gigabyte
from fourfold.plan.advice import Advice
from fourfold.plan.explain import Explanation
from fourfold.plan.found_layouts import Found, pareto
from fourfold.plan.pricing import Priced
from fourfold.plan.request import Request
from fourfold.simulate.summary import StepSummary


@dataclass(frozen=True)
class Plan:
    """`heuristic_baseline`: None where none of it fits; `baseline_is_outside`: it does not keep to the constraints. `enough`:
    devices on which something would fit, where nothing does here. `best_step`: the best layout's step. `obstacles`: constraints
    without one of which something may fit, where nothing does. `advice`: changes of the best layout that help, all simulated."""

    found: Found
    heuristic_baseline: Priced | None
    explanations: tuple[Explanation, ...] = ()
    enough: int | None = None
    best_step: StepSummary | None = None
    baseline_is_outside: bool = False
    obstacles: tuple[str, ...] = ()
    advice: Advice | None = None

    @property
    def spare_prices(self) -> dict[str, float]:
        """Seconds of the best layout's step that a gigabyte of activations costs that is not kept, by the way to spare it."""
        if self.best_step is None:
            return {}
        return seconds_per_gigabyte(self.best_step.step.simulation, self.best_step.num_microbatches)

    @property
    def states_price(self) -> float | None:
        """Seconds of its step that a gigabyte of optimizer states in the host's memory costs; None where they are there."""
        return states_per_gigabyte(self.best_step.step.simulation) if self.best_step is not None else None

    @property
    def request(self) -> Request:
        """The request that was planned."""
        return self.found.request

    @property
    def best(self) -> Priced | None:
        """The best layout; None where none fits."""
        return self.found.best[0] if self.found.best else None

    @property
    def front(self) -> list[Priced]:
        """Throughput against memory."""
        found = self.found
        return pareto(list(filter(None, [*found.best, found.low_memory, found.surely_fits])))

    def tokens_per_second(self, priced: Priced) -> float:
        """Per device."""
        return self.request.tokens / priced.seconds / self.request.devices

    def mfu(self, priced: Priced) -> float:
        """FLOPs a token (`model.counts.step_flops_per_token`) x tokens/s of a device / its peak in the compute format."""
        request = self.request
        flops = step_flops_per_token(request.model, request.sequence_length)
        peak = request.cluster.device.peak(request.template.matmul_format)
        return flops * self.tokens_per_second(priced) / peak
