"""The passes of a feed-forward without a gate, line by line after `plain_feed_forward.py`. No torch.

Symbols: T tokens, t those whose hidden states the rank holds, h hidden, f this rank's part of ffn.
"""

from fourfold.config import ModelConfig
from fourfold.model.norm_tape import norm_again, norm_backward, norm_forward
from fourfold.model.shape import Shape
from fourfold.model.tape import Tape


def plain_forward(tape: Tape, model: ModelConfig, shape: Shape, keep: bool, graph: bool) -> None:
    """From `middle` [t, h] to `output` [t, h] and, with a graph, what is saved."""
    tokens, h, f, e = shape.tokens, model.hidden_size, model.ffn_size // shape.tp, shape.element_bytes
    norm_forward(tape, model, shape, "2")
    tape.gather_tokens(shape, h, "gathered_2")
    tape.alloc(up=tokens * f * e)
    tape.drop("gathered_2")
    if not keep:
        tape.free("normed_2")
    tape.alloc(product=tokens * f * e)
    tape.alloc(partial_2=tokens * h * e)
    tape.start_sum(shape, "partial_2", "output")
    tape.finish_sum("partial_2")
    tape.flops += 4 * tokens * h * f
    if not keep:
        tape.free("product")
    if not graph:
        tape.free("scale_2", "up", "middle")


def plain_backward(tape: Tape, model: ModelConfig, shape: Shape, keep: bool) -> None:
    """From the output's gradient to `grad_middle` [t, h]; what was saved is freed."""
    tokens, h, f, e = shape.tokens, model.hidden_size, model.ffn_size // shape.tp, shape.element_bytes
    tape.gather_tokens(shape, h, "upstream")
    if not keep:
        tape.alloc(product=tokens * f * e)
    tape.product(shape, h, f, "upstream", "product")
    tape.release("product")
    tape.alloc(grad_product=tokens * f * e)
    tape.release("upstream")
    tape.free("grad_product")
    if not keep:
        norm_again(tape, model, shape, "2")
    tape.column_input(shape, h, "2")
    tape.alloc(grad_whole_2=tokens * h * e)
    tape.flops += 4 * tokens * h * f
    tape.start_sum(shape, "grad_whole_2", "grad_middle")
    tape.product(shape, f, h, "normed_2", "up", gathered=True)
    tape.release("normed_2", "up", "gathered_2")
    tape.finish_sum("grad_whole_2")
    norm_backward(tape, model, shape)
    tape.free("middle", "scale_2")
