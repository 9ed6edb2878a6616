"""Advice on a simulated run: changes of its layout, each simulated as a person would who copies them behind the command."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fourfold.config import UserError
from fourfold.plan.advice import BUDGET, Advice, advise, candidate_of, changed_keys, overrides_of
from fourfold.plan.budget import SearchBudget
from fourfold.plan.candidate import Candidate
from fourfold.plan.pricing import Pricer
from fourfold.plan.request import Request

if TYPE_CHECKING:
    from fourfold.api.simulation import SimulationResult


def advice_of(result: SimulationResult) -> Advice | None:
    """Changes of the run's layout that help; None where the planner has no words for the run's layout."""
    layout = candidate_of(result.resolved.layout, result.resolved.model.num_layers)
    again = result.again
    if layout is None or again is None:
        return None
    request = request_of(result)

    def simulated(candidate: Candidate) -> tuple[float, int, bool] | None:
        keys = changed_keys(request, layout, candidate)
        try:
            changed = again(overrides_of(keys))
        except UserError:
            return None
        idle = changed.idle is not None and result.idle is None
        return None if idle else (changed.step_seconds, changed.memory_bytes, changed.fits)

    return advise(Pricer(request, SearchBudget(BUDGET)), layout, result.summary, simulated)


def request_of(result: SimulationResult) -> Request:
    """The planner's request for the run: the same model, batch and prices, on as many devices as the layout uses."""
    prices, spec, config = result.summary.step.simulation.prices, result.resolved.spec, result.resolved.config
    layout = spec.layout
    held = max(result.summary.step.device_bytes)
    request = Request(
        model=spec.model,
        template=replace(prices, layout=layout),
        sequence_length=layout.sequence_length,
        global_sequences=config.batch.global_sequences,
        memory_bytes=result.summary.memory_limit,
        precision=config.precision,
        document_mask=spec.document_mask,
        transport=spec.transport,
        document_tokens=config.data.document_tokens,
        prefetch=layout.prefetch,
        optimizer=config.optimizer,
        sequence_parallel=layout.sequence_parallel or layout.tp == 1,
    )
    likely = request.likely_bytes
    return replace(request, memory_bytes=likely) if held <= likely else request
