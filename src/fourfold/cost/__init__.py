"""Prices: how long kernels, collectives and passes over segments take on a device in a cluster. No torch."""

from fourfold.cost.collectives import Span, collective_seconds, span_of, transfer_seconds
from fourfold.cost.kernels import Kernels, gemm_seconds, kernel_seconds
from fourfold.cost.phase import PhaseCost, phase_cost
from fourfold.cost.prices import Prices

__all__ = [
    "Kernels",
    "PhaseCost",
    "Prices",
    "Span",
    "collective_seconds",
    "gemm_seconds",
    "kernel_seconds",
    "phase_cost",
    "span_of",
    "transfer_seconds",
]
