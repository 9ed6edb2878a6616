"""The passes of a module of multi-token prediction, line by line after `multi_token.py`. No torch.

Symbols: t tokens whose hidden states the rank holds, h hidden, k the module's depth.
"""

from fourfold.config import ModelConfig
from fourfold.model.block_tape import block_backward, block_forward
from fourfold.model.head_tape import add_to_table, embed_tokens
from fourfold.model.shape import Shape
from fourfold.model.spec import Segment
from fourfold.model.tape import Tape, WeightProduct, norm_backward, norm_forward, rebuild_normed
from fourfold.model.work import Product


def module_forward(segment: Segment, model: ModelConfig, shape: Shape, keep: bool, graph: bool = True) -> Tape:
    """Live at the end: the saved tensors (none without a graph) and `output` [(k + 1) t, h]."""
    tape = Tape()
    part, h, e = shape.hidden_tokens, model.hidden_size, shape.element_bytes
    embed_tokens(tape, model, shape, "embedded")
    tape.alloc(both=2 * part * h * e)
    for name in ("embedding", "hidden"):
        norm_forward(tape, shape, part, h, name)
        tape.free(f"normed_{name}")
    tape.alloc(combined=part * h * e)
    tape.matmul(part, h, 2 * h)
    if not keep:
        tape.free("both")
    if not graph:
        tape.drop("embedded", "both", "scale_embedding", "scale_hidden")
    block_forward(segment, model, shape, keep, graph, tape)
    if not graph:
        tape.drop("combined")
    tape.alloc(appended=(segment.depth + 1) * part * h * e)
    tape.touch(tape.live["appended"], 2, 2)
    tape.free("output")
    tape.rename("appended", "output")
    return tape


def module_backward(
    segment: Segment, model: ModelConfig, shape: Shape, saved: dict[str, int], keep: bool, apart: bool = False
) -> Tape:
    """Live at the end: `grad` [k t, h], and with `apart` the operands of weight gradients."""
    part, h, e = shape.hidden_tokens, model.hidden_size, shape.element_bytes
    tape = block_backward(segment, model, shape, saved, keep, apart)
    tape.free("combined")
    tape.rename("grad", "grad_combined")
    if not keep:
        tape.alloc(both=2 * part * h * e)
        for name in ("embedding", "hidden"):
            rebuild_normed(tape, shape, part, h, name)
            tape.free(f"normed_{name}")
    kernel = Product(h, 2 * h, part, accumulates=True)
    tape.weight_product(WeightProduct(("grad_combined", "both"), kernel, shape.product_temporary(h, 2 * h)))
    tape.release("both")
    tape.matmul(part, 2 * h, h)
    tape.alloc(grad_embedded=part * h * e)
    norm_backward(tape, shape, part, h)
    tape.free("embedded", "scale_embedding")
    add_to_table(tape, model, shape)
    tape.free("grad_embedded")
    tape.alloc(grad_last=part * h * e)
    norm_backward(tape, shape, part, h)
    tape.free("scale_hidden")
    tape.alloc(grad=segment.depth * part * h * e)
    tape.touch(tape.live["grad"], 2, 2)
    tape.free("grad_last")
    tape.release("grad_combined")
    return tape
