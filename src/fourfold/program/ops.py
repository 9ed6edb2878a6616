"""The core's operations: what every step is made of, whatever capabilities it has."""

from enum import unique

from fourfold.program.opcode import GROUP, SHARDS, SMALL_SUMS, Opcode, OpInfo


@unique
class Op(Opcode):
    """Operations that no capability owns."""

    # fmt: off
    LOAD = OpInfo("L", "load a microbatch", "fetches a microbatch", names="microbatch", writes=("batch",), fills=True,
        evaluates=True)
    COUNT = OpInfo("N", "count valid target tokens",
        "starts to sum the valid target tokens over all data ranks: the [loss's one divisor](decisions/one_loss_rule.md)",
        evaluates=True, starts="collective", stream=GROUP, time=SMALL_SUMS)
    FORWARD = OpInfo("F", "forward",
        "runs a segment and keeps the activations that its backward needs; in parts, up to the dispatch", names="segment",
        reads=("batch", "hidden", "params", "rope", "router"), writes=("hidden", "saved"), evaluates=True,
        computes="forward", phase="forward", colour="F")
    RECOMPUTE = OpInfo("K", "recompute the forward",
        "runs a segment's forward again to rebuild what the backward needs ([activation "
        "recomputation](glossary.md#activation-recomputation))", names="segment",
        reads=("batch", "hidden", "params", "rope", "router"), writes=("saved",), fills=True, computes="recomputation",
        phase="recomputation", time="recomputation", colour="K")
    BACKWARD = OpInfo("B", "backward",
        "computes the gradients of the input and of the weights; the head's also does its forward, chunk by chunk; in "
        "parts, up to the dispatch", names="segment", reads=("batch", "dhidden", "hidden", "params", "router", "saved"),
        writes=("dhidden", "grad", "router"), computes="backward", phase="backward", colour="B")
    BACKWARD_INPUT = OpInfo("I", "input gradient",
        "computes the gradient of the input alone ([split backward](glossary.md#split-backward))", names="segment",
        reads=("batch", "dhidden", "hidden", "params", "router", "saved"), writes=("deferred", "dhidden", "grad", "router"),
        computes="backward", rest="W", phase="backward, inputs", colour="I")
    BACKWARD_WEIGHT = OpInfo("W", "weight gradient", "computes the gradient of the weights alone", names="segment",
        reads=("deferred",), writes=("grad",), computes="backward", phase="backward, weights", colour="W")
    REPLAY = OpInfo("J", "compute once more and compare",
        "runs forward and backward of a segment once more, and compares the bits with those of the first time", names="segment",
        reads=("batch", "dhidden", "grad", "hidden", "params", "rope", "router"), writes=("grad",), computes="replay")
    SEND_ACTIVATION = OpInfo("S>", "send activations", "starts to send hidden states for the segment to the rank that has it",
        names="transfer", reads=("hidden",), evaluates=True, starts="send", stream=GROUP, carries="activations")
    SEND_GRADIENT = OpInfo("S<", "send their gradient", "starts to send their gradient back", names="transfer",
        reads=("dhidden",), starts="send", stream=GROUP, carries="gradients")
    RECV_ACTIVATION = OpInfo("R>", "receive activations", "starts to receive hidden states for the segment", names="transfer",
        writes=("hidden",), fills=True, evaluates=True, starts="receive", stream=GROUP, carries="activations")
    RECV_GRADIENT = OpInfo("R<", "receive their gradient", "starts to receive their gradient", names="transfer",
        writes=("dhidden",), fills=True, starts="receive", stream=GROUP, carries="gradients")
    GATHER = OpInfo("G", "all-gather parameters (ZeRO-3)", "starts the all-gather of a unit's parameters (ZeRO-3)", names="unit",
        reads=("shard",), writes=("params",), fills=True, evaluates=True, starts="collective", stream=GROUP)
    FREE = OpInfo("X", "free gathered parameters", "frees the gathered parameters", names="unit", frees=("params",),
        evaluates=True)
    REDUCE = OpInfo("R", "reduce gradients", "starts to sum a unit's gradients over the data-parallel ranks",
        names="unit of a microbatch", reads=("grad",), writes=("grad", "grad_shard", "reduce"), starts="collective",
        stream=SHARDS)
    REDUCE_TIED = OpInfo("T", "reduce tied gradients", "starts to sum the gradients of a tensor that two stages share",
        names="unit", reads=("grad", "grad_shard"), writes=("grad", "grad_shard"), starts="collective", stream=GROUP)
    SUM_LOSS = OpInfo("Y", "sum the loss", "starts to sum the loss over all ranks that have a part of it, for the record",
        evaluates=True, starts="collective", stream=GROUP, time=SMALL_SUMS)
    BALANCE = OpInfo("E", "balance experts",
        "sums the experts' loads over all ranks that route tokens; the step moves the balancing biases by them",
        reads=("router",), writes=("router",), time=SMALL_SUMS)
    CHECKSUM = OpInfo("H", "compare checksums", "compares checksums of the values that several ranks hold alike",
        reads=("master", "optimizer", "params", "shard"), time=SMALL_SUMS)
    CLIP_NORM = OpInfo("C", "gradient norm", "computes the global gradient norm, and whether every gradient is finite",
        reads=("grad", "grad_shard"), phase="gradient norm", time=SMALL_SUMS)
    UPDATE = OpInfo("U", "optimizer update", "runs the optimizer on this rank's shard", names="unit",
        reads=("grad", "grad_shard", "master", "optimizer", "params", "shard"),
        writes=("master", "optimizer", "params", "shard"), phase="optimizer", time="optimizer", colour="U")
    PARAMETER_ALL_GATHER = OpInfo("P", "all-gather updated parameters",
        "starts the all-gather of parameters after the update (ZeRO-1 and 2)", names="unit", reads=("params",),
        writes=("params",), starts="collective", stream=GROUP, time="compute/communication contention")
    WAIT = OpInfo("wait", "join what was started",
        "joins what an earlier instruction started, named by that one's short form; frees what it has left",
        names="instruction", evaluates=True)
    # fmt: on


OTHER_END: dict[Opcode, Opcode] = {
    op: end
    for op in Op
    for end in Op
    if op.is_transfer and end.is_transfer and op is not end and op.info.carries == end.info.carries
}
"""The operation at the other end of a transfer."""
