"""The one list of capabilities' handlers: what runs the instructions that `program/capabilities.py` adds to programs."""

from collections.abc import Callable

from fourfold.program.instruction import Opcode
from fourfold.runtime import compression, muon, overlap, sampling
from fourfold.runtime.offload import copies
from fourfold.runtime.step_state import Handler, Handlers, StepState

HANDLERS: tuple[Callable[[StepState, Handlers], Handlers], ...] = (
    overlap.handlers,
    muon.handlers,
    copies.handlers,
    compression.handlers,
    sampling.handlers,
)
"""Each gives the handlers of its operations on one rank, and others for the core's where these do more; `core`: those so far."""


def all_handlers(state: StepState, core: Handlers) -> dict[Opcode, Handler]:
    """The handlers of all operations."""
    found = dict(core)
    for handlers in HANDLERS:
        found = {**found, **handlers(state, found)}
    return found
