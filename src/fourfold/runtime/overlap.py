"""Passes over routed blocks in parts: what each part computes, and the all-to-alls that start between them."""

from fourfold.model.block import block_backward_parts, block_forward_parts
from fourfold.model.environment import Saved
from fourfold.model.experts.parts import PassInParts
from fourfold.program import Instruction, Op
from fourfold.program.buffers import dhidden, hidden, saved
from fourfold.program.instruction import Opcode
from fourfold.program.overlap.rows import OverlapOp, combined, dispatched
from fourfold.runtime.collectives import Handle
from fourfold.runtime.compute import microbatch_of
from fourfold.runtime.step_state import Handler, Handlers, StepState


class PartRunner:
    """Runs parts of passes on one rank. A `PassInParts` wanders through the buffers that programs name."""

    def __init__(self, state: StepState) -> None:
        self._compute, self._live, self._stages, self._state = state.compute, state.live, state.view.stages, state

    def forward(self, step: Instruction) -> None:
        """The first part of a forward; the last keeps the activations."""
        segment, m = self._stages.segments[step.segment or ""], microbatch_of(step)
        arrays = Saved(self._compute.rebuilt(segment), keeps=self._stages.policies[segment.name] != "full")
        given = self._compute.forward_arguments(segment, m, arrays)
        run = PassInParts(self._compute.environment, lambda env: block_forward_parts(segment, env, *given), arrays)
        run.advance()
        self._live[dispatched(segment.name, m)] = run

    def experts_forward(self, step: Instruction) -> None:
        """The second part of a forward: what the experts make of the rows that came."""
        name, m = step.segment or "", microbatch_of(step)
        self._next_part(dispatched(name, m), combined(name, m))

    def finish_forward(self, step: Instruction) -> None:
        """The last part of a forward, with the rows that came back."""
        name, m = step.segment or "", microbatch_of(step)
        run: PassInParts = self._live[combined(name, m)]
        self._live[hidden(self._stages.following[name], m)] = run.advance()
        if saved(name, m) in step.writes:
            self._live[saved(name, m)] = run.saved

    def backward(self, step: Instruction) -> None:
        """The first part of a backward, which adds to no gradient."""
        segment, m = self._stages.segments[step.segment or ""], microbatch_of(step)
        given = self._compute.backward_arguments(segment, m)
        run = PassInParts(self._compute.environment, lambda env: block_backward_parts(segment, env, *given))
        run.advance()
        self._live[dispatched(segment.name, m, gradient=True)] = run

    def experts_backward(self, step: Instruction) -> None:
        """The second part of a backward."""
        self._compute.allocate_gradients(step)
        name, m = step.segment or "", microbatch_of(step)
        self._next_part(dispatched(name, m, gradient=True), combined(name, m, gradient=True))

    def finish_backward(self, step: Instruction) -> None:
        """The last part of a backward."""
        self._compute.allocate_gradients(step)
        name, m = step.segment or "", microbatch_of(step)
        run: PassInParts = self._live[combined(name, m, gradient=True)]
        self._live[dhidden(name, m)] = run.advance()
        self._compute.settle(self._stages.segments[name].units)

    def start_all_to_all(self, step: Instruction) -> None:
        """Starts the all-to-all that the pass has come to."""
        self._state.start(step, Handle(iter([self._live[step.reads[0]].start()])))

    def _next_part(self, before: str, after: str) -> None:
        run: PassInParts = self._live[before]
        run.advance()
        self._live[after] = run


def handlers(state: StepState, core: Handlers) -> Handlers:
    """Parts and all-to-alls; FORWARD and BACKWARD where they are the first part of a pass."""
    run = PartRunner(state)

    def first_part(op: Op, of_parts: Handler) -> Handler:
        in_one_piece = core[op]

        def handle(step: Instruction) -> None:
            in_parts = step.writes and step.writes[0].partition("/")[0] in ("dispatched", "ddispatched")
            (of_parts if in_parts else in_one_piece)(step)

        return handle

    parts: dict[Opcode, Handler] = {
        OverlapOp.EXPERTS_FORWARD: run.experts_forward,
        OverlapOp.FINISH_FORWARD: run.finish_forward,
        OverlapOp.EXPERTS_BACKWARD: run.experts_backward,
        OverlapOp.FINISH_BACKWARD: run.finish_backward,
    }
    return {
        **parts,
        **dict.fromkeys((op for op in OverlapOp if op.is_all_to_all), run.start_all_to_all),
        Op.FORWARD: first_part(Op.FORWARD, run.forward),
        Op.BACKWARD: first_part(Op.BACKWARD, run.backward),
    }
