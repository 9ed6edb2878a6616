"""Rows of the operations and buffers of passes in parts, with the names and bytes of the buffers."""

from enum import unique

from fourfold.model.spec import Segment
from fourfold.program.buffers import BufferInfo
from fourfold.program.opcode import GROUP, Opcode, OpInfo
from fourfold.program.view import RankView


@unique
class OverlapOp(Opcode):
    """Parts of a routed block's passes, and the all-to-alls between them."""

    # fmt: off
    DISPATCH_TOKENS = OpInfo("D>", "send tokens to their experts",
        "starts the all-to-all of tokens to the ranks of their experts ([below](#dispatch-and-combine))", names="segment",
        reads=("dispatched",), writes=("dispatched",), starts="all-to-all", stream=GROUP, carries="tokens", part_of="F", place=0)
    DISPATCH_GRADIENT = OpInfo("D<", "send gradients to the experts",
        "starts the all-to-all of the outputs' gradients to the ranks of the experts", names="segment", reads=("ddispatched",),
        writes=("ddispatched",), starts="all-to-all", stream=GROUP, carries="gradients of outputs", part_of="B", place=0)
    EXPERTS_FORWARD = OpInfo("E>", "experts forward", "runs the experts on the rows that came, and the shared experts",
        names="segment", reads=("dispatched", "params"), writes=("combined",), computes="forward", part_of="F", place=1,
        phase="forward", colour="F")
    EXPERTS_BACKWARD = OpInfo("E<", "experts backward", "runs the experts backward on the rows that came, and the shared experts",
        names="segment", reads=("ddispatched", "dhidden", "params", "router"), writes=("dcombined", "grad", "router"),
        computes="backward", part_of="B", place=1, rest="Z<", phase="backward", colour="B")
    COMBINE_TOKENS = OpInfo("C>", "send outputs back", "starts the all-to-all of the experts' outputs back", names="segment",
        reads=("combined",), writes=("combined",), starts="all-to-all", stream=GROUP, carries="outputs", part_of="F", place=1)
    COMBINE_GRADIENT = OpInfo("C<", "send gradients back", "starts the all-to-all of the tokens' gradients back", names="segment",
        reads=("dcombined",), writes=("dcombined",), starts="all-to-all", stream=GROUP, carries="gradients of tokens",
        part_of="B", place=1)
    FINISH_FORWARD = OpInfo("Z>", "rest of the forward", "adds up what came back; what the backward needs is complete",
        names="segment", reads=("combined", "hidden"), writes=("hidden", "saved"), computes="forward", part_of="F", place=2,
        phase="forward", colour="F")
    FINISH_BACKWARD = OpInfo("Z<", "rest of the backward",
        "adds up what came back; computes the gradients of router and attention", names="segment",
        reads=("batch", "dcombined", "dhidden", "hidden", "params", "router"), writes=("dhidden", "grad", "router"),
        computes="backward", part_of="B", place=2, phase="backward", colour="B")


BUFFERS = (
    BufferInfo("dispatched", "/S/m", "a forward in parts, with rows for the experts", "activations"),
    BufferInfo("combined", "/S/m", "a forward in parts, with the experts' outputs", "activations"),
    BufferInfo("ddispatched", "/S/m", "a backward in parts, with rows for the experts", "activations"),
    BufferInfo("dcombined", "/S/m", "a backward in parts, with the experts' gradients", "activations"),
)
# fmt: on
FORWARD_BUFFERS, BACKWARD_BUFFERS = ("dispatched", "combined"), ("ddispatched", "dcombined")
"""Kinds by which of a pass's two all-to-alls has them."""


def dispatched(segment: str, microbatch: int, gradient: bool = False) -> str:
    return f"{'d' if gradient else ''}dispatched/{segment}/m{microbatch}"


def combined(segment: str, microbatch: int, gradient: bool = False) -> str:
    return f"{'d' if gradient else ''}combined/{segment}/m{microbatch}"


def held_bytes(view: RankView, kind: str, segment: Segment) -> int | None:
    """Bytes of a pass in parts that waits for its rows; None of another buffer."""
    for backward, kinds in enumerate((FORWARD_BUFFERS, BACKWARD_BUFFERS)):
        if kind in kinds:
            return view.parts(segment)[backward].held_bytes[kinds.index(kind)]
    return None
