"""Layouts as launchable files of other trainers, one module a trainer; what a trainer cannot express is said beside it."""

from collections.abc import Callable

from fourfold.export.bridge import bridge
from fourfold.export.deepspeed import deepspeed
from fourfold.export.job import Export, TrainerJob
from fourfold.export.megatron import megatron
from fourfold.export.torchtitan import torchtitan

EXPORTS: dict[str, Callable[[TrainerJob], Export]] = {
    "megatron": megatron,
    "bridge": bridge,
    "torchtitan": torchtitan,
    "deepspeed": deepspeed,
}

__all__ = ["EXPORTS", "Export", "TrainerJob"]
