"""The passes of a feed-forward without a gate, line by line after `plain_feed_forward.py`. No torch.

Symbols: T tokens, t those whose hidden states the rank holds, h hidden, f this rank's part of ffn.
"""

from fourfold.config import ModelConfig
from fourfold.model.norm_tape import norm_forward, norm_product_backward
from fourfold.model.shape import Shape
from fourfold.model.tape import Tape


def plain_forward(tape: Tape, model: ModelConfig, shape: Shape, keep: bool, graph: bool) -> None:
    """From `middle` [t, h] to `output` [t, h] and, with a graph, what is saved."""
    tokens, h, f, e = shape.tokens, model.hidden_size, model.ffn_size // shape.tp, shape.element_bytes
    norm_forward(tape, model, shape, "2")
    tape.gather_tokens(shape, h, "gathered_2")
    tape.alloc(up=tokens * f * e)
    tape.matmul(tokens, f, h)
    tape.drop("gathered_2")
    if not keep:
        tape.free("normed_2")
    tape.alloc(product=tokens * f * e)
    tape.touch(tokens * f * e, 2, 2)
    tape.alloc(partial_2=tokens * h * e)
    tape.matmul(tokens, h, f)
    tape.start_sum(shape, "partial_2", "output")
    tape.finish_sum("partial_2")
    tape.touch(shape.hidden_tokens * h * e, 3, 2)
    if not keep:
        tape.free("product")
    if not graph:
        tape.free("scale_2", "up", "middle")


def plain_backward(tape: Tape, model: ModelConfig, shape: Shape, keep: bool) -> None:
    """From the output's gradient to `grad_middle` [t, h]; what was saved is freed."""
    tokens, h, f, e = shape.tokens, model.hidden_size, model.ffn_size // shape.tp, shape.element_bytes
    tape.gather_tokens(shape, h, "upstream", later=True)
    if not keep:
        tape.alloc(product=tokens * f * e)
        tape.touch(tokens * f * e, 2, 2)
    tape.join("upstream")
    tape.product(shape, h, f, "upstream", "product")
    tape.release("product")
    tape.alloc(grad_product=tokens * f * e)
    tape.matmul(tokens, f, h)
    tape.release("upstream")
    tape.touch(tokens * f * e, 3, 3)
    tape.free("grad_product")
    norm_product_backward(tape, model, shape, "2", (f, "up"), "grad_middle", keep)
    tape.free("middle", "scale_2")
