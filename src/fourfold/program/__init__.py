"""The program of a rank's step: instructions, schedules, compiler passes, verifier, text form."""

from fourfold.model.work import Collective, sent_bytes
from fourfold.program.instruction import Instruction, Op
from fourfold.program.liveness import MemoryPeak, memory_curve, memory_peak
from fourfold.program.lower import lower_evaluation, lower_pipeline, lower_step
from fourfold.program.program import Program
from fourfold.program.resolve import resolve_step
from fourfold.program.spec import StepSpec
from fourfold.program.text import digest, from_text, to_text
from fourfold.program.verify import Fault, verify
from fourfold.program.view import RankView, rank_view

__all__ = [
    "Collective",
    "Fault",
    "Instruction",
    "MemoryPeak",
    "Op",
    "Program",
    "RankView",
    "StepSpec",
    "digest",
    "from_text",
    "lower_evaluation",
    "lower_pipeline",
    "lower_step",
    "memory_curve",
    "memory_peak",
    "rank_view",
    "resolve_step",
    "sent_bytes",
    "to_text",
    "verify",
]
