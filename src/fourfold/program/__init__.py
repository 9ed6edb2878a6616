"""The program of a rank's step: instructions, schedules, lowering passes, verifier, text form."""

from fourfold.program.instruction import Collective, Instruction, Op, Program, sent_bytes
from fourfold.program.liveness import MemoryPeak, memory_curve, memory_peak
from fourfold.program.lower import Lowering, lower_evaluation, lower_pipeline, lower_step
from fourfold.program.text import digest, from_text, to_text
from fourfold.program.verify import Fault, verify

__all__ = [
    "Collective",
    "Fault",
    "Instruction",
    "Lowering",
    "MemoryPeak",
    "Op",
    "Program",
    "digest",
    "from_text",
    "lower_evaluation",
    "lower_pipeline",
    "lower_step",
    "memory_curve",
    "memory_peak",
    "sent_bytes",
    "to_text",
    "verify",
]
